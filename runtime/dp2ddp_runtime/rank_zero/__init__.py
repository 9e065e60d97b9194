"""What rank 0 does alone: files, prints, checkpoints."""
