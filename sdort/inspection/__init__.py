"""Inspection of models: their content, and the placement of their nodes."""
