"""What runs when: loops, and who calls what."""
