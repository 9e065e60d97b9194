"""A project's files: what imports what, which are started; reading and writing them whole."""
