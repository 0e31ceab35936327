"""Families of pipelines, one file each: data, which all other folders read."""
