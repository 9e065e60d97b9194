"""What a program says: names, classes, wraps, loaders, and what can't be converted. A parsed program in, facts out."""
