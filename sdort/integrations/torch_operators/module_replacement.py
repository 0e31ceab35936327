"""Modules of a diffusers UNet or VAE swapped for ones of ``torch.ops.sdort``, in place."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from diffusers.models.activations import GEGLU
from diffusers.models.attention import BasicTransformerBlock
from diffusers.models.attention_processor import Attention, AttnProcessor2_0
from diffusers.models.autoencoders.vae import Decoder, Encoder
from diffusers.models.resnet import ResnetBlock2D
from diffusers.models.transformers.transformer_2d import Transformer2DModel
from diffusers.models.unets.unet_2d_condition import UNet2DConditionModel
from torch import nn

from sdort.console import say
from sdort.errors import UsageError
from sdort.integrations.torch.graph_module import GraphModule
from sdort.integrations.torch_operators import fused_modules as fused


@dataclass(frozen=True)
class Replacement:
    """The result of :func:`replace`."""

    replaced: Mapping[str, int]
    """Class -> how many modules were swapped, with the normalizations and activations that became part of them."""
    kept: Mapping[str, int]
    """Class and why it stays -> how many stay."""

    def __str__(self) -> str:
        done = _counted(self.replaced) or "nothing"
        return f"replaced {done}" + (f"; left as they are: {_counted(self.kept)}" if self.kept else "")


def _counted(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))


def replace(module: nn.Module, *, attention: bool | None = None) -> Replacement:
    """Have the modules of a diffusers UNet or VAE compute by ``torch.ops.sdort``, in place.

    Parameters and their names stay: state dicts, adapters and training go on as before. Group normalizations want the
    model in channels-last, ``module.to(memory_format=torch.channels_last)``; else torch's own run, which is told.

    Args:
        module: the model, or any module that has such ones inside.
        attention: whether attention too; by default where the module is on no NVIDIA GPU.

    Returns:
        How many modules of each class were swapped, and which stay for what reason. It is said, too.

    Raises:
        UsageError: ``module`` is none.

    Example:
        >>> pipe.unet.to(memory_format=torch.channels_last)
        >>> replace(pipe.unet)
    """
    if not isinstance(module, nn.Module):
        raise UsageError(f"replace() takes a torch.nn.Module, not a {type(module).__name__}", hint="Give it pipe.unet.")
    replaced: Counter[str] = Counter()
    kept: Counter[str] = Counter()
    rules = _rules(_wants_attention(module) if attention is None else attention)
    for part in list(module.modules()):
        name, reason = type(part).__name__, None
        if isinstance(part, GraphModule):
            reason = "it runs as an ONNX graph"
        elif rule := rules.get(type(part)):
            reason = "its forward was replaced" if _is_wrapped(part) else rule(part)
            replaced["GroupNorm" if rule is _last_normalization else name] += reason is None
        elif _RELATED.search(name) and type(part).__module__ != fused.__name__:
            reason = "there is no operator for it"
        if reason:
            kept[f"{name} ({reason})"] += 1
    report = Replacement(dict(+replaced), dict(kept))
    say(str(report))
    return report


_RELATED = re.compile("Norm|Attention|GLU|GELU|Resnet|TransformerBlock")
"""Names of the kinds of modules that are swapped."""


def _wants_attention(module: nn.Module) -> bool:
    """Not on NVIDIA GPUs: cuDNN's was measured to be faster where there are many keys (custom_ops/MEASURED.md)."""
    first = next(module.parameters(), None)
    return first is None or first.device.type != "cuda" or torch.version.hip is not None


Rule = Callable[[Any], str | None]
"""Swaps a module, or says why not: with an empty text where it was swapped before."""


def _rules(attention: bool) -> dict[type[nn.Module], Rule]:
    return {
        ResnetBlock2D: _resnet_block,
        BasicTransformerBlock: _transformer_block,
        Transformer2DModel: lambda part: _become(part, fused.ChannelsLastTransformer2DModel),
        Attention: _attention if attention else lambda _: "torch's is faster on NVIDIA GPUs, attention=True swaps it",
        GEGLU: lambda part: _become(part, fused.FusedGEGLU),
        nn.GroupNorm: lambda part: _unserved(part) or _become(part, fused.FusedGroupNorm),
        nn.LayerNorm: lambda part: _unserved(part) or _become(part, fused.FusedLayerNorm),
        **dict.fromkeys((UNet2DConditionModel, Encoder, Decoder), _last_normalization),
    }


def _become(part: nn.Module, kind: type[nn.Module]) -> str | None:
    for name in ("forward", "_old_forward"):  # accelerate keeps the class's on an instance with hooks, and after them
        if getattr(vars(part).get(name), "__func__", None) is type(part).forward:
            setattr(part, name, kind.forward.__get__(part))
    part.__class__ = kind
    return None


def _is_wrapped(part: nn.Module) -> bool:
    """Whether an instance has a ``forward`` that :func:`_become` does not change, as it does accelerate's."""
    return fused.is_wrapped(part, "_old_forward" if "_old_forward" in vars(part) else "forward")


def _unserved(norm: nn.GroupNorm | nn.LayerNorm) -> str | None:
    if norm.weight is None or (isinstance(norm, nn.GroupNorm) and norm.bias is None):
        return "it has no weights"
    return "it is over several dimensions" if isinstance(norm, nn.LayerNorm) and norm.weight.dim() > 1 else None


def _are_plain(kind: type[nn.Module], *norms: Any) -> bool:
    """Whether normalizations may compute what is beside them too: hooks, and whoever wraps them, would see that."""
    return all(
        type(norm) is kind
        and not (_unserved(norm) or _is_wrapped(norm) or norm._forward_hooks or norm._forward_pre_hooks)
        for norm in norms
    )


def _resnet_block(block: ResnetBlock2D) -> str | None:
    if block.upsample is not None or block.downsample is not None:
        return "it resamples"
    if block.time_embedding_norm != "default" and block.time_emb_proj is not None:
        return f"its time embedding is a {block.time_embedding_norm}"
    if not isinstance(block.nonlinearity, nn.SiLU):
        return f"its activation is {type(block.nonlinearity).__name__}"
    if not _are_plain(nn.GroupNorm, block.norm1, block.norm2):
        return "its normalizations are others, or hooked"
    for norm in (block.norm1, block.norm2):
        _become(norm, fused.FusedGroupNormSilu)
    return _become(block, fused.FusedResnetBlock2D)


def _transformer_block(block: BasicTransformerBlock) -> str | None:
    norms = block.norm1, block.norm2, block.norm3
    if block.norm_type != "layer_norm" or block.pos_embed is not None or block.attn2 is None:
        return "it has another form"
    if not _are_plain(nn.LayerNorm, *norms):
        return "its normalizations are others, or hooked"
    for norm in norms:
        _become(norm, fused.FusedSkipLayerNorm)
    return _become(block, fused.FusedTransformerBlock)


def _attention(attention: Attention) -> str | None:
    if isinstance(attention.processor, fused.OperatorAttnProcessor):
        return ""
    if type(attention.processor) is not AttnProcessor2_0:
        return f"its processor is {type(attention.processor).__name__}"
    attention.set_processor(fused.OperatorAttnProcessor())
    return None


def _last_normalization(model: Any) -> str | None:
    """Join ``conv_norm_out`` with the SiLU behind it."""
    if isinstance(model.conv_norm_out, fused.FusedGroupNormSilu):
        return ""
    if not _are_plain(nn.GroupNorm, model.conv_norm_out) or type(model.conv_act) is not nn.SiLU:
        return "its last normalization or activation is another, or hooked"
    _become(model.conv_norm_out, fused.FusedGroupNormSilu)
    model.conv_act = nn.Identity()
    return None
