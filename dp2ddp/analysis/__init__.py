"""What a program says: names, classes, wraps, loaders, what can't be converted. A parsed program in, facts out."""
