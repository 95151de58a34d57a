"""Module paths that users of other engines type."""
