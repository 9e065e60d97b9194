"""Scripts full of files, on ranks that come late at random places: they do what one process does."""
