"""The operators in torch's own: what they compute where no kernel does, and their derivatives.

Every function takes the arguments of its operator's schema (:mod:`~sdort.integrations.torch_operators.definitions`) in
their order. Sums are of float32, or of float64 for float64 tensors, and are rounded once, as the kernels'.
"""

from __future__ import annotations

import math
from contextlib import nullcontext

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn.attention import SDPBackend, sdpa_kernel


def in_forward_mode() -> bool:
    """Whether torch carries derivatives along: ``torch.func.jvp``, ``torch.autograd.forward_ad``."""
    return bool(forward_ad._current_level >= 0)


def _widened(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()


def _per_channel(x: Tensor, values: Tensor) -> Tensor:
    """``values`` of (C) or (N, C) so that they add to ``x`` of (N, C, ...)."""
    return values.reshape(*values.shape, *(1,) * (x.dim() - 2))


def _summed(x: Tensor, *others: Tensor | None) -> Tensor:
    """The sum, rounded once to the type of ``x``."""
    given = [other for other in others if other is not None]
    if not given:
        return x
    total = _widened(x)
    for other in given:
        total = total + _widened(other)
    return total.to(x.dtype)


def _sum_to(gradient: Tensor, shape: torch.Size, dims: list[int], dtype: torch.dtype) -> Tensor:
    """The gradient of what was broadcast over ``dims``."""
    return _widened(gradient).sum(dims).reshape(shape).to(dtype)


def bias_add(x: Tensor, bias: Tensor, skip: Tensor) -> Tensor:
    """x + bias + skip."""
    return _summed(x, bias, skip)


def bias_add_backward(gradient: Tensor, bias: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Of x, bias and skip."""
    return gradient, _sum_to(gradient, bias.shape, list(range(gradient.dim() - 1)), bias.dtype), gradient


def bias_split_gelu(x: Tensor, bias: Tensor) -> Tensor:
    """left * gelu(right), the halves of x + bias."""
    left, right = (_widened(x) + _widened(bias)).chunk(2, -1)
    return (left * F.gelu(right)).to(x.dtype)


def bias_split_gelu_backward(gradient: Tensor, x: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """Of x and bias. gelu'(r) = Phi(r) + r phi(r)."""
    left, right = (_widened(x) + _widened(bias)).chunk(2, -1)
    distribution = 0.5 * torch.erfc(-right / math.sqrt(2))
    density = torch.exp(-0.5 * right * right) / math.sqrt(2 * math.pi)
    wide = _widened(gradient)
    both = torch.cat((wide * right * distribution, wide * left * (distribution + right * density)), -1)
    return both.to(x.dtype), _sum_to(both, bias.shape, list(range(x.dim() - 1)), bias.dtype)


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
    """Normalized over the last dimension."""
    return F.layer_norm(x, weight.shape, weight.to(x.dtype), None if bias is None else bias.to(x.dtype), eps)


def skip_layer_norm(
    x: Tensor, skip: Tensor, weight: Tensor, bias: Tensor | None, eps: float, shift: Tensor | None
) -> tuple[Tensor, Tensor]:
    """:func:`layer_norm` of x + skip + shift, and that sum."""
    total = _summed(x, skip, shift)
    return layer_norm(total, weight, bias, eps), total


def layer_norm_backward(
    gradient: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Of x, weight and bias, by torch's own kernel; the statistics are computed again."""
    scale, shift = weight.to(x.dtype), None if bias is None else bias.to(x.dtype)
    _, mean, deviation = torch.ops.aten.native_layer_norm(x, weight.shape, scale, shift, eps)
    wanted = [True, True, bias is not None]
    dx, dweight, dbias = torch.ops.aten.native_layer_norm_backward(
        gradient.contiguous(), x, weight.shape, mean, deviation, scale, shift, wanted
    )
    return dx, dweight.to(weight.dtype), None if bias is None else dbias.to(bias.dtype)


def shifted(x: Tensor, shift: Tensor | None, *others: Tensor) -> Tensor:
    """x + others + shift, which is of (C) or (N, C), rounded once."""
    return _summed(x, *others, None if shift is None else _per_channel(x, shift))


def group_norm(
    x: Tensor, groups: int, weight: Tensor, bias: Tensor, eps: float, silu: bool, shift: Tensor | None
) -> Tensor:
    """Normalized over the groups of channels (dimension 1) of x + shift, then SiLU."""
    total = shifted(x, shift)
    if in_forward_mode():  # whose derivative, torch's own, views it as rows
        total = total.contiguous()
    y: Tensor = torch.group_norm(total, groups, weight.to(x.dtype), bias.to(x.dtype), eps)  # of one element too
    return F.silu(y) if silu else y


def skip_group_norm(
    x: Tensor, skip: Tensor, groups: int, weight: Tensor, bias: Tensor, eps: float, silu: bool, shift: Tensor | None
) -> tuple[Tensor, Tensor]:
    """:func:`group_norm` of x + skip + shift, and that sum."""
    total = shifted(x, shift, skip)
    return group_norm(total, groups, weight, bias, eps, silu, None), total


def group_norm_backward(
    gradient: Tensor, x: Tensor, groups: int, weight: Tensor, bias: Tensor, eps: float, silu: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Of x, weight and bias, by torch's own kernels; what was normalized is computed again."""
    images, channels, scale = x.shape[0], x.shape[1], weight.to(x.dtype)
    sizes = images, channels, math.prod(x.shape[2:]), groups
    x, gradient = x.contiguous(), gradient.contiguous()
    normalized, mean, deviation = torch.ops.aten.native_group_norm(x, scale, bias.to(x.dtype), *sizes, eps)
    if silu:
        gradient = torch.ops.aten.silu_backward(gradient, normalized)
    dx, dweight, dbias = torch.ops.aten.native_group_norm_backward(
        gradient, x, mean, deviation, scale, *sizes, [True] * 3
    )
    return dx, dweight.to(weight.dtype), dbias.to(bias.dtype)


def shift_gradient(gradient: Tensor, shift: Tensor) -> Tensor:
    """Of a shift of (C) or (N, C), from that of the sum of (N, C, ...)."""
    dims = [*([0] if shift.dim() == 1 else []), *range(2, gradient.dim())]
    return _sum_to(gradient, shift.shape, dims, shift.dtype) if dims else gradient.to(shift.dtype)


def row_shift_gradient(gradient: Tensor, shift: Tensor) -> Tensor:
    """Of a shift of (C), from that of the sum of (..., C)."""
    return _sum_to(gradient, shift.shape, list(range(gradient.dim() - 1)), shift.dtype)


def attention(query: Tensor, key: Tensor, value: Tensor, scale: float | None, causal: bool) -> Tensor:
    """softmax(scale * query key^T) value."""
    if scale is not None and scale <= 0:  # with which torch makes weights of what is masked
        query, scale = query * scale, 1.0
    with sdpa_kernel(SDPBackend.MATH) if in_forward_mode() else nullcontext():  # no other has its derivative
        return F.scaled_dot_product_attention(query, key, value, is_causal=causal, scale=scale)


def attention_backward(
    gradient: Tensor, query: Tensor, key: Tensor, value: Tensor, scale: float | None, causal: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Of query, key and value. All weights of all heads are in memory at once."""
    factor = scale if scale is not None else 1 / math.sqrt(query.shape[-1])
    q, k, v, wide = (_widened(tensor) for tensor in (query, key, value, gradient))
    scores = factor * (q @ k.transpose(-1, -2))
    if causal:
        seen = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
        scores = scores.masked_fill(~seen, -math.inf)
    weights = scores.softmax(-1)
    dweights = wide @ v.transpose(-1, -2)
    dscores = factor * weights * (dweights - (dweights * weights).sum(-1, keepdim=True))
    dquery, dkey, dvalue = dscores @ k, dscores.transpose(-1, -2) @ q, weights.transpose(-1, -2) @ wide
    return dquery.to(query.dtype), dkey.to(key.dtype), dvalue.to(value.dtype)
