"""Optimized components as torch modules, with the signatures and configs of diffusers and transformers.

::

    from sdort.integrations.torch import load_unet

    pipeline.register_modules(unet=load_unet("fast", provider="cuda"))

Where torch and the execution provider compute on the same GPU, tensors are read and written where they are, on torch's
current stream; elsewhere ONNX Runtime copies each once. :class:`TensorSession` is the core, for programs with
signatures of their own. :func:`replace` leaves a model torch's, with sdort's kernels in it.

A name is imported when it is first asked for: :class:`TensorSession` needs torch alone, the modules need diffusers or
transformers, whose import takes seconds.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from sdort.machine.optional_packages import COMPARING, need_packages

if TYPE_CHECKING:
    from sdort.integrations.torch.control_module import GraphControlNet, load_controlnet
    from sdort.integrations.torch.opened_component import open_components
    from sdort.integrations.torch.tensor_session import TensorSession
    from sdort.integrations.torch.text_module import GraphTextEncoder, load_text_encoder
    from sdort.integrations.torch.transformer_module import GraphTransformer, load_transformer
    from sdort.integrations.torch.unet_module import GraphUNet, load_unet
    from sdort.integrations.torch.vae_module import GraphAutoencoderKL, GraphAutoencoderTiny, load_vae
    from sdort.integrations.torch_operators import Replacement, replace

__all__ = [
    "GraphAutoencoderKL",
    "GraphAutoencoderTiny",
    "GraphControlNet",
    "GraphTextEncoder",
    "GraphTransformer",
    "GraphUNet",
    "Replacement",
    "TensorSession",
    "load_controlnet",
    "load_text_encoder",
    "load_transformer",
    "load_unet",
    "load_vae",
    "open_components",
    "replace",
]

_MODULES = {
    "control_module": ("GraphControlNet", "load_controlnet"),
    "opened_component": ("open_components",),
    "tensor_session": ("TensorSession",),
    "text_module": ("GraphTextEncoder", "load_text_encoder"),
    "transformer_module": ("GraphTransformer", "load_transformer"),
    "unet_module": ("GraphUNet", "load_unet"),
    "vae_module": ("GraphAutoencoderKL", "GraphAutoencoderTiny", "load_vae"),
    ".torch_operators": ("Replacement", "replace"),
}
"""Module -> the public names that it defines."""

_HOME = {name: f".{module}" for module, names in _MODULES.items() for name in names}


need_packages("torch", what=__name__)


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    need_packages(*(("torch",) if name == "TensorSession" else COMPARING), what=f"{__name__}.{name}")
    value = globals()[name] = getattr(importlib.import_module(_HOME[name], __name__), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
