"""``sdort optimize``: fused, lowered and converted for a provider."""
