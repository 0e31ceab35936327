"""Samplers of diffusion models as formulas in float64, for which neither torch nor diffusers is needed."""
