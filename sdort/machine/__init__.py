"""The computer: its files and tools, GPUs, shared libraries, and the installed distribution of ONNX Runtime."""
