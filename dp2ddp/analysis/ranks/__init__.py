"""Which lines all ranks run, equally often, and which a rank may run alone."""
