"""Mistakes planted into right conversions, and what `dp2ddp verify` says of them. `__main__` is the command."""
