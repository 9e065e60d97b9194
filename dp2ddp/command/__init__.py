"""What the commands share: options, settings, the terminal, and how a command ends."""
