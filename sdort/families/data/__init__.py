"""The families, one file each: every module here has a ``FAMILY``."""
