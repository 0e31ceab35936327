"""Engines: ONNX Runtime and torch behind one interface, each running a component or a whole pipeline."""
