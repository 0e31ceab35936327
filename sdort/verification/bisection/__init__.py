"""The search for the first tensor that differs, and for what made it differ."""
