"""Verification: components and images against the original, and the search for the first wrong node."""
