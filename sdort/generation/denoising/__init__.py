"""Denoising: the loops, and what steers a running denoiser."""
