"""A plug-in with one of each kind."""
