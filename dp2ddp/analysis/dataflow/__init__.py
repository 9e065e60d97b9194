"""Where values come from, and where they go."""
