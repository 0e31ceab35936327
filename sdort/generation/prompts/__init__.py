"""Prompts: their language, their tokens, and what a denoiser is conditioned by."""
