"""A server of images over HTTP: one process, one GPU; requests of the same settings are drawn together."""
