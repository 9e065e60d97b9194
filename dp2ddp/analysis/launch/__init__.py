"""Where the processes may start."""
