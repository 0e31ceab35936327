"""ComfyUI's nodes: optimized models in the place of its own, behind the interfaces that its samplers call."""
