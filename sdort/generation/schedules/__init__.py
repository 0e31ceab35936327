"""Schedules: noise of seeds, timesteps, and samplers as numbers."""
