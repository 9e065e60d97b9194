"""What the commands share: options, settings from `pyproject.toml`, the terminal, and how a command ends."""
