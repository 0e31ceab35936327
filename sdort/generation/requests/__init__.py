"""Requests: all that a caller asks for, read and checked before a model runs."""
