"""Whole batches of which each rank holds its rows, and the loaders that they come from."""
