"""Between ONNX files and models: parsing, checks of untrusted files, external data, saving."""
