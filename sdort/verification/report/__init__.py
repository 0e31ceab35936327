"""The reports of ``sdort verify``."""
