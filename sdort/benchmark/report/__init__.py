"""The plots and pages of ``sdort bench``."""
