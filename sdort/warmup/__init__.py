"""``sdort warm``: compile and tune ahead of time."""
