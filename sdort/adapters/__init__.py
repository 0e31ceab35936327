"""Adapters: files that change the weights of a pipeline (LoRA and its kin) or add words to its prompts."""
