"""Families of pipelines: data, which all other folders read."""
