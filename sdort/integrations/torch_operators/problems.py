"""Kernels' problems made of tensors, or the sentence that says why the kernels take these tensors not.

A pointer is all that a kernel gets. :mod:`~sdort.integrations.torch_operators.argument_checks` saw to shapes; here are
types, strides and addresses. The functions take the outputs, a list that keeps alive what only the launch needs, and
the arguments of the operator's schema.
"""

from __future__ import annotations

import math
from typing import TypeAlias

import torch
from torch import Tensor

from sdort.ops.pointer_kernels import (
    Attention,
    AttentionTensor,
    BiasAdd,
    BiasSplitGelu,
    GroupNorm,
    LayerNorm,
    SkipLayerNorm,
)

KERNEL_DTYPES = (torch.float32, torch.float16)
_ALIGNMENT = 16
"""Bytes that a kernel reads at once."""
_MOST_ELEMENTS = 2**31

Kept: TypeAlias = list[Tensor]


class UnservedError(Exception):
    """The kernels have no form for these tensors; its text says why and what would help."""


def _pointer(x: Tensor) -> int:
    address: int = x.data_ptr()
    if address % _ALIGNMENT:
        raise UnservedError(f"a tensor does not lie at a multiple of {_ALIGNMENT} bytes (clone() moves it)")
    return address


def _of_rows(x: Tensor, name: str) -> int:
    if not x.is_contiguous():
        raise UnservedError(f"{name} is not contiguous (contiguous() makes it so)")
    return _pointer(x)


def _checked(x: Tensor) -> Tensor:
    if x.dtype not in KERNEL_DTYPES:
        raise UnservedError(f"there are kernels for float32 and float16, not for {str(x.dtype).partition('.')[2]}")
    if x.numel() >= _MOST_ELEMENTS:
        raise UnservedError("a tensor has 2^31 elements or more")
    return x


def _vector(values: Tensor | None, dtype: torch.dtype, kept: Kept) -> int | None:
    """A small tensor as the kernels want it: contiguous, in their type."""
    if values is None:
        return None
    if values.dtype != dtype or not values.is_contiguous() or values.data_ptr() % _ALIGNMENT:
        values = values.to(dtype, copy=True, memory_format=torch.contiguous_format)
        kept.append(values)
    address: int = values.data_ptr()
    return address


def _rows(x: Tensor, width: int) -> int:
    return x.numel() // width if width else 0


def bias_add(out: Tensor, kept: Kept, x: Tensor, bias: Tensor, skip: Tensor) -> BiasAdd:
    """Of :func:`formulas.bias_add`."""
    pointers = _of_rows(_checked(x), "x"), _vector(bias, x.dtype, kept), _of_rows(skip, "skip"), _pointer(out)
    return BiasAdd(*pointers, _rows(x, x.shape[-1]), x.shape[-1])


def bias_split_gelu(out: Tensor, kept: Kept, x: Tensor, bias: Tensor) -> BiasSplitGelu:
    """Of :func:`formulas.bias_split_gelu`."""
    pointers = _of_rows(_checked(x), "x"), _vector(bias, x.dtype, kept), _pointer(out)
    return BiasSplitGelu(*pointers, _rows(x, x.shape[-1]), out.shape[-1])


def layer_norm(out: Tensor, kept: Kept, x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> LayerNorm:
    """Of :func:`formulas.layer_norm`."""
    vectors = _vector(weight, x.dtype, kept), _vector(bias, x.dtype, kept)
    return LayerNorm(_of_rows(_checked(x), "x"), *vectors, _pointer(out), _rows(x, x.shape[-1]), x.shape[-1], eps)


def skip_layer_norm(
    out: tuple[Tensor, Tensor],
    kept: Kept,
    x: Tensor,
    skip: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    eps: float,
    shift: Tensor | None,
) -> SkipLayerNorm:
    """Of :func:`formulas.skip_layer_norm`."""
    tensors = _of_rows(_checked(x), "x"), _of_rows(skip, "skip")
    vectors = (_vector(values, x.dtype, kept) for values in (weight, bias, shift))
    rows = _rows(x, x.shape[-1])
    return SkipLayerNorm(*tensors, *vectors, *map(_pointer, out), rows, rows, x.shape[-1], eps)


def _channels_last(x: Tensor, name: str) -> int:
    """Of (N, C, ...) whose channels are next to each other in memory."""
    if not (x.is_contiguous(memory_format=torch.channels_last) if x.dim() == 4 else x.movedim(1, -1).is_contiguous()):
        raise UnservedError(f"{name} is not channels-last (model.to(memory_format=torch.channels_last) makes it so)")
    return _pointer(x)


def group_norm(
    out: Tensor,
    kept: Kept,
    x: Tensor,
    groups: int,
    weight: Tensor,
    bias: Tensor,
    eps: float,
    silu: bool,
    shift: Tensor | None,
) -> GroupNorm:
    """Of :func:`formulas.group_norm`."""
    return _group_norm((out, None), kept, x, None, groups, weight, bias, eps, silu, shift)


def skip_group_norm(
    out: tuple[Tensor, Tensor],
    kept: Kept,
    x: Tensor,
    skip: Tensor,
    groups: int,
    weight: Tensor,
    bias: Tensor,
    eps: float,
    silu: bool,
    shift: Tensor | None,
) -> GroupNorm:
    """Of :func:`formulas.skip_group_norm`."""
    return _group_norm(out, kept, x, skip, groups, weight, bias, eps, silu, shift)


def _group_norm(
    out: tuple[Tensor, Tensor | None],
    kept: Kept,
    x: Tensor,
    skip: Tensor | None,
    groups: int,
    weight: Tensor,
    bias: Tensor,
    eps: float,
    silu: bool,
    shift: Tensor | None,
) -> GroupNorm:
    y, total = out
    images, channels, *sides = x.shape
    shifts = _vector(shift, x.dtype, kept), None  # of (C), of (N, C)
    pointers = (
        _channels_last(_checked(x), "x"),
        None,  # no second half of x
        None if skip is None else _channels_last(skip, "skip"),
        *(shifts if shift is None or shift.dim() == 1 else shifts[::-1]),
        _vector(weight, torch.float32, kept),
        _vector(bias, torch.float32, kept),
        _pointer(y),
        None if total is None else _pointer(total),
        None,  # no workspace yet
    )
    return GroupNorm(*pointers, eps, silu, images, math.prod(sides), channels, channels, groups)


def _heads(x: Tensor, name: str) -> AttentionTensor:
    batch, head, row, element = x.stride()
    if element != 1 and x.shape[3] > 1:
        raise UnservedError(f"{name}'s last dimension is not contiguous (contiguous() makes it so)")
    return AttentionTensor(_pointer(x), batch, row, head)


def attention(
    out: Tensor, kept: Kept, query: Tensor, key: Tensor, value: Tensor, scale: float | None, causal: bool
) -> Attention:
    """Of :func:`formulas.attention`."""
    batches, heads, queries, size = _checked(query).shape
    tensors = _heads(query, "query"), _heads(_checked(key), "key"), _heads(_checked(value), "value")
    pointers = None, _pointer(out), None  # no bias, and no workspace yet
    sizes = batches, heads, queries, key.shape[2], size, value.shape[3]
    return Attention(*tensors, *pointers, *sizes, 1 / math.sqrt(size) if scale is None else scale, causal)
