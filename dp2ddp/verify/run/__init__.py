"""Both sides of a comparison: each run in a scratch folder, and recorded."""
