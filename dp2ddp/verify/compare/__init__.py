"""Two recordings held against each other: steps, batches, printed lines, files; and what differs, in words."""
