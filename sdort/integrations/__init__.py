"""sdort inside of other programs."""
