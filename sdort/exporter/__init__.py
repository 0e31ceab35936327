"""From a diffusers checkpoint to ONNX: traced once per architecture, weights bound by name.

``pipeline.export`` is the way in. A diffusers directory is read (``source``, ``components``), each component's
graph comes from the trace cache or from torch (``cache``, ``trace``), the checkpoint's tensors are bound to the
graph's parameters by name (``checkpoint``, ``bind``), and everything is streamed to the output directory.
torch, diffusers and transformers are imported only when a graph has to be traced.
"""
