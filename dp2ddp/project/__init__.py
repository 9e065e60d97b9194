"""Files: what lies in a project, what imports what, which are started; reading and writing them, each whole."""
