"""The steps that one model goes through: raised, fused, lowered, converted."""
