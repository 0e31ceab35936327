"""Export of a diffusers checkpoint to ONNX: traced once per architecture, weights bound by name.

``command.export`` is the entry point. A diffusers directory is read (``source``, ``signatures``), each component's
graph comes from the trace cache or from torch (``cache``, ``trace``), the checkpoint's tensors are bound to the
graph's parameters by name (``checkpoint``, ``bind``), and everything is streamed to the output directory.
torch, diffusers and transformers are imported only when a graph has to be traced.
"""
