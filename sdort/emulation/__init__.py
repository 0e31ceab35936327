"""GPU operators and fp16 or bf16 rounding on a CPU."""
