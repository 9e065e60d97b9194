"""The processes of a comparison: a fork server that starts them, and that ends and removes all that came of them."""
