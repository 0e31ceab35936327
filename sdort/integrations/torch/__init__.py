"""Optimized components as torch modules, with the signatures and configs of diffusers and transformers.

::

    from sdort.integrations.torch import load_unet

    pipeline.register_modules(unet=load_unet("fast", provider="cuda"))

Where torch and the execution provider compute on the same GPU, tensors are read and written where they are, on torch's
current stream; elsewhere ONNX Runtime copies each once. :class:`TensorSession` is the core, for programs with
signatures of their own. :func:`replace` leaves a model torch's, with sdort's kernels in it.
"""

from __future__ import annotations

from sdort.integrations.torch.control_module import GraphControlNet, load_controlnet
from sdort.integrations.torch.opened_component import open_components
from sdort.integrations.torch.tensor_session import TensorSession
from sdort.integrations.torch.text_module import GraphTextEncoder, load_text_encoder
from sdort.integrations.torch.unet_module import GraphUNet, load_unet
from sdort.integrations.torch.vae_module import GraphAutoencoderKL, GraphAutoencoderTiny, load_vae
from sdort.integrations.torch_operators import Replacement, replace

__all__ = [
    "GraphAutoencoderKL",
    "GraphAutoencoderTiny",
    "GraphControlNet",
    "GraphTextEncoder",
    "GraphUNet",
    "Replacement",
    "TensorSession",
    "load_controlnet",
    "load_text_encoder",
    "load_unet",
    "load_vae",
    "open_components",
    "replace",
]
