"""Random training programs, run on ranks and as `nn.DataParallel` would, and compared. `__main__` is the command."""
