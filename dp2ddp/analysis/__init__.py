"""What a script means: the roles that names play, its loops, losses and metrics. Source in, facts out."""
