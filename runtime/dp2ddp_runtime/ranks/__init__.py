"""What ranks tell each other, and what is the same on all of them."""
