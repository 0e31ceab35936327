"""``sdort optimize``: a model is fused, lowered and converted for a provider."""
