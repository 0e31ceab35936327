"""Options: what one is, the types and ranges of their values."""
