"""Pictures: those that a caller gives and those that come of latents, as pixels."""
