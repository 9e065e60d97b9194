"""Where a process stands, and what everything else is told in."""
