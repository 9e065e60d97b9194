"""Starting ranks, watching them, and ending them together."""
