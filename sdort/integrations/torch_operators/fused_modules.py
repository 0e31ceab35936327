"""Modules of torch and diffusers that compute by ``torch.ops.sdort``: subclasses without state of their own.

An instance of the base class becomes one by its ``__class__``: parameters, buffers, hooks and names stay as they are,
so state dicts, adapters and ``isinstance`` know no difference. Where a gradient is wanted torch's own operators run:
their backward is kernels, not formulas, and a LoRA's training step was measured to be faster with them.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from diffusers.models.activations import GEGLU
from diffusers.models.attention import BasicTransformerBlock
from diffusers.models.attention_processor import Attention, AttnProcessor2_0
from diffusers.models.resnet import ResnetBlock2D
from diffusers.models.transformers.transformer_2d import Transformer2DModel
from torch import Tensor, nn
from torch.nn.modules.module import _has_any_global_hook

from sdort.integrations.torch.graph_module import StandIn
from sdort.integrations.torch_operators import definitions as _definitions  # noqa: F401  (registers torch.ops.sdort)

_ops = torch.ops.sdort


def _learns(*tensors: Tensor | None) -> bool:
    return torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in tensors)


class FusedGroupNorm(nn.GroupNorm):  # type: ignore[misc]
    """``torch.ops.sdort.group_norm``."""

    def forward(self, input: Tensor) -> Tensor:
        """(N, C, ...) to the same."""
        y: Tensor
        if _learns(input, self.weight, self.bias):
            y = super().forward(input)
        else:
            y = _ops.group_norm(input, self.num_groups, self.weight, self.bias, self.eps)
        return y


class FusedGroupNormSilu(nn.GroupNorm):  # type: ignore[misc]
    """With the SiLU behind it, which nobody else computes then, and what is added before."""

    def forward(self, input: Tensor, shift: Tensor | None = None) -> Tensor:
        """(N, C, ...) to the same; the shift is of (N, C)."""
        y: Tensor
        if _learns(input, self.weight, self.bias, shift):
            y = F.silu(super().forward(input if shift is None else input + shift[:, :, None, None]))
        else:
            y = _ops.group_norm(input, self.num_groups, self.weight, self.bias, self.eps, True, shift)
        return y


class FusedLayerNorm(nn.LayerNorm):  # type: ignore[misc]
    """``torch.ops.sdort.layer_norm``."""

    def forward(self, input: Tensor) -> Tensor:
        """(..., C) to the same."""
        y: Tensor
        if _learns(input, self.weight, self.bias):
            y = super().forward(input)
        else:
            y = _ops.layer_norm(input, self.weight, self.bias, self.eps)
        return y


class FusedSkipLayerNorm(FusedLayerNorm):
    """``torch.ops.sdort.skip_layer_norm`` where there is something to add before."""

    def forward(self, input: Tensor, skip: Tensor | None = None) -> Any:
        """(..., C) to the same: normalized; with a skip the sum's, and the sum."""
        if skip is None:
            return super().forward(input)
        if input.dtype != skip.dtype or _learns(input, skip, self.weight, self.bias):  # autocast mixes types
            total = input + skip
            return super().forward(total), total
        return _ops.skip_layer_norm(input, skip, self.weight, self.bias, self.eps)


class FusedResnetBlock2D(ResnetBlock2D):  # type: ignore[misc]
    """Its normalizations have the SiLU in them, the second one the addition of the time embedding."""

    def forward(self, input_tensor: Tensor, temb: Tensor | None, *args: Any, **kwargs: Any) -> Tensor:
        """(N, C, H, W) and (N, T) to (N, C', H, W)."""
        hidden = self.conv1(self.norm1(input_tensor))
        if self.time_emb_proj is not None:
            temb = self.time_emb_proj(temb if self.skip_time_act else self.nonlinearity(temb))
            temb = temb.expand(hidden.shape[0], -1)  # one is for all samples
        elif self.time_embedding_norm != "default":  # of a VAE
            temb = None
        hidden = self.conv2(self.dropout(self.norm2(hidden, temb)))
        if self.conv_shortcut is not None:
            input_tensor = self.conv_shortcut(input_tensor)
        output = input_tensor + hidden
        return output if self.output_scale_factor == 1 else output / self.output_scale_factor


class FusedGEGLU(GEGLU):  # type: ignore[misc]
    """The projection's bias, the gate and the product in one operator."""

    def forward(self, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """(..., C) to (..., H)."""
        proj = self.proj
        y: Tensor
        if _learns(hidden_states, *proj.parameters()):
            y = super().forward(hidden_states, *args, **kwargs)
        elif type(proj) is nn.Linear and proj.bias is not None and not is_changed(proj):
            y = _ops.bias_split_gelu(F.linear(hidden_states, proj.weight), proj.bias)
        else:  # with an adapter, moved by hooks, or of somebody's own
            hidden_states = proj(hidden_states)
            y = _ops.bias_split_gelu(hidden_states, hidden_states.new_zeros(hidden_states.shape[-1]))
        return y


def is_changed(module: nn.Module) -> bool:
    """Whether calling a module of torch's does more than its class says: by hooks, or a ``forward`` in its place.

    Offloading and tools for LoRA put one on the instance, web UIs on torch's class.
    """
    hooks = module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks
    of_class = type(module).forward.__module__ == type(module).__module__
    return any(hooks) or not of_class or is_wrapped(module) or bool(_has_any_global_hook())


def is_wrapped(module: nn.Module, name: str = "forward") -> bool:
    """Whether an instance has something else in the place of its class's ``forward``."""
    own = vars(module).get(name)
    return own is not None and getattr(own, "__func__", None) is not type(module).forward


class FusedTransformerBlock(BasicTransformerBlock):  # type: ignore[misc]
    """The residual additions with the layer normalizations behind them."""

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        encoder_hidden_states: Tensor | None = None,
        encoder_attention_mask: Tensor | None = None,
        timestep: Tensor | None = None,
        cross_attention_kwargs: dict[str, Any] | None = None,
        class_labels: Tensor | None = None,
        added_cond_kwargs: dict[str, Tensor] | None = None,
    ) -> Tensor:
        """(N, S, C) to the same; as diffusers has it in chunks, with GLIGEN or for four dimensions."""
        options = dict(cross_attention_kwargs or {})
        if self._chunk_size is not None or "gligen" in options or hidden_states.dim() != 3:
            given = attention_mask, encoder_hidden_states, encoder_attention_mask, timestep, cross_attention_kwargs
            y: Tensor = super().forward(hidden_states, *given, class_labels, added_cond_kwargs)
            return y
        attended = self.attn1(
            self.norm1(hidden_states),
            encoder_hidden_states=encoder_hidden_states if self.only_cross_attention else None,
            attention_mask=attention_mask,
            **options,
        )
        normalized, hidden_states = self.norm2(attended, hidden_states)
        attended = self.attn2(
            normalized,
            encoder_hidden_states=encoder_hidden_states,
            attention_mask=encoder_attention_mask,
            **options,
        )
        normalized, hidden_states = self.norm3(attended, hidden_states)
        output: Tensor = self.ff(normalized) + hidden_states
        return output


class ChannelsLastTransformer2DModel(Transformer2DModel):  # type: ignore[misc]
    """Without the copy to (N, C, H, W) behind its blocks: the tensor lies channels-last there already."""

    def _get_output_for_continuous_inputs(
        self, hidden_states: Tensor, residual: Tensor, batch_size: int, height: int, width: int, inner_dim: int
    ) -> Tensor:
        proj = self.proj_out
        if self.use_linear_projection:
            hidden_states = proj(hidden_states)
        elif type(proj) is nn.Conv2d and not is_changed(proj):  # of 1x1: what a convolution of such a view is, Inductor
            hidden_states = F.linear(hidden_states, proj.weight.flatten(1), proj.bias)  # fails at for sizes that change
        else:
            y: Tensor = super()._get_output_for_continuous_inputs(
                hidden_states, residual, batch_size, height, width, inner_dim
            )
            return y
        return hidden_states.reshape(batch_size, height, width, residual.shape[1]).permute(0, 3, 1, 2) + residual


class OperatorAttnProcessor(AttnProcessor2_0, metaclass=StandIn):  # type: ignore[misc]
    """``torch.ops.sdort.attention``.

    With a mask, or norms of heads or of another latent, diffusers' own.
    """

    stands_for = AttnProcessor2_0

    def __call__(
        self,
        attn: Attention,
        hidden_states: Tensor,
        encoder_hidden_states: Tensor | None = None,
        attention_mask: Tensor | None = None,
        temb: Tensor | None = None,
        *args: Any,
        **kwargs: Any,
    ) -> Tensor:
        """(N, S, C) or (N, C, H, W) to the same."""
        others = attention_mask, attn.spatial_norm, attn.norm_q, attn.norm_k
        y: Tensor
        if any(other is not None for other in others):
            given = hidden_states, encoder_hidden_states, attention_mask, temb
            y = super().__call__(attn, *given, *args, **kwargs)
            return y
        residual, shape = hidden_states, hidden_states.shape
        if hidden_states.dim() == 4:
            hidden_states = hidden_states.flatten(2).transpose(1, 2)
        if attn.group_norm is not None:
            hidden_states = attn.group_norm(hidden_states.transpose(1, 2)).transpose(1, 2)
        source = hidden_states if encoder_hidden_states is None else encoder_hidden_states
        if encoder_hidden_states is not None and attn.norm_cross:
            source = attn.norm_encoder_hidden_states(source)
        projected = attn.to_q(hidden_states), attn.to_k(source), attn.to_v(source)
        y = _attend(*(x.unflatten(-1, (attn.heads, -1)).transpose(1, 2) for x in projected))
        y = attn.to_out[1](attn.to_out[0](y.transpose(1, 2).flatten(2)))
        if residual.dim() == 4:
            y = y.transpose(1, 2).reshape(shape)
        if attn.residual_connection:
            y = y + residual
        return y if attn.rescale_output_factor == 1 else y / attn.rescale_output_factor


def _attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    y: Tensor = (F.scaled_dot_product_attention if _learns(query, key, value) else _ops.attention)(query, key, value)
    return y
