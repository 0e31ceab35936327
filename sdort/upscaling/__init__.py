"""Upscalers: networks that make an image larger, from their files to ONNX and to pictures."""
