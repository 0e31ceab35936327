"""A pipeline on disk: its components, configs, manifest and family."""
