"""What runs a component or a pipeline: ONNX Runtime or torch."""
