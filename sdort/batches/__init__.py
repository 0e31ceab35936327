"""Batches: many prompts from a file, each image recorded in a journal; a batch that was ended goes on where it was."""
