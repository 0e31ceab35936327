"""The fusions: one file each, found by :func:`sdort.rewrite.fusion.load_fusions`; nothing registers anything."""
