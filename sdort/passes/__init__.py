"""Whole-graph passes: what a Before / After text cannot say. Each is ``run(editor) -> int``, the number of changes."""
