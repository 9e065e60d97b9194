"""What a script means: the roles that names play, its wraps, loops, files. A parsed program in, facts out."""
