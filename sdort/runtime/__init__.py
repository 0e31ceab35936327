"""ONNX Runtime: which distribution is installed, which provider really loads, sessions, and text to image."""
