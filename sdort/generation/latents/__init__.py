"""Latents: made of pixels, decoded to pixels, previewed."""
