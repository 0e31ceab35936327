"""Latency, memory and parity of pipelines and their components: no timing without a check of what was computed."""
