"""Single-file checkpoints: their layouts, the configs that follow from their tensors, and what they do not hold."""
