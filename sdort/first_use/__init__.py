"""Checkpoints that are made ready on first use, and names for them: :func:`sdort.run` and :func:`sdort.load`."""
