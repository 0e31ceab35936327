"""Requirements of an operator's tensors, in words: before anything runs, and while torch.compile traces."""

from __future__ import annotations

import math

from torch import Tensor

from sdort.errors import UsageError


def _fail(message: str, hint: str | None = None) -> None:
    raise UsageError(message, hint=hint)


def _shape(x: Tensor) -> str:
    return f"({', '.join(map(str, x.shape))})"


def _floating(x: Tensor, dimensions: int, name: str = "x") -> None:
    if x.dim() < dimensions:
        _fail(f"{name} must have {dimensions} dimensions or more, it has the shape {_shape(x)}")
    if not x.dtype.is_floating_point:
        _fail(f"{name} must be of a floating type, it is {x.dtype}", "Convert it: x.to(torch.float16)")


def _beside(x: Tensor, other: Tensor | None, name: str, of: str = "x") -> None:
    if other is not None and other.device != x.device:
        _fail(f"{name} is on {other.device}, {of} on {x.device}", f"Move it: {name}.to({of}.device)")


def _alike(x: Tensor, other: Tensor, name: str) -> None:
    """The device, the type and the shape of ``x``."""
    _beside(x, other, name)
    if other.shape != x.shape:
        _fail(f"{name} must have the shape of x, {_shape(x)}, it has {_shape(other)}")
    if other.dtype != x.dtype:
        _fail(f"{name} must have the type of x, {x.dtype}, it is {other.dtype}")


def _vector(x: Tensor, values: Tensor | None, name: str, length: int) -> None:
    _beside(x, values, name)
    if values is not None and (values.dim() != 1 or values.shape[0] != length):
        _fail(f"{name} must have the shape ({length}), it has {_shape(values)}")


def bias_add(x: Tensor, bias: Tensor, skip: Tensor) -> None:
    """x, skip (..., C); bias (C)."""
    _floating(x, 1)
    _vector(x, bias, "bias", x.shape[-1])
    _alike(x, skip, "skip")


def bias_split_gelu(x: Tensor, bias: Tensor) -> None:
    """x (..., 2 H); bias (2 H)."""
    _floating(x, 1)
    if x.shape[-1] % 2:
        _fail(f"x must have an even number of columns, it has the shape {_shape(x)}")
    _vector(x, bias, "bias", x.shape[-1])


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> None:
    """x (..., C); weight, bias (C)."""
    _floating(x, 1)
    _vector(x, weight, "weight", x.shape[-1])
    _vector(x, bias, "bias", x.shape[-1])
    _epsilon(eps)


def skip_layer_norm(
    x: Tensor, skip: Tensor, weight: Tensor, bias: Tensor | None, eps: float, shift: Tensor | None
) -> None:
    """x, skip (..., C); weight, bias, shift (C)."""
    layer_norm(x, weight, bias, eps)
    _alike(x, skip, "skip")
    _vector(x, shift, "shift", x.shape[-1])


def _epsilon(eps: float) -> None:
    if not eps >= 0:
        _fail(f"eps must not be negative, it is {eps}")


def group_norm(
    x: Tensor, groups: int, weight: Tensor, bias: Tensor, eps: float, silu: bool, shift: Tensor | None
) -> None:
    """x (N, C, ...); weight, bias (C); shift (C) or (N, C)."""
    _floating(x, 3)
    channels = x.shape[1]
    if groups < 1 or channels % groups:
        _fail(f"groups must divide the {channels} channels of x, it is {groups}")
    _vector(x, weight, "weight", channels)
    _vector(x, bias, "bias", channels)
    _epsilon(eps)
    if shift is not None and shift.dim() == 2:
        _beside(x, shift, "shift")
        if shift.shape != x.shape[:2]:
            _fail(f"shift must have the shape ({channels}) or ({x.shape[0]}, {channels}), it has {_shape(shift)}")
    else:
        _vector(x, shift, "shift", channels)


def skip_group_norm(
    x: Tensor, skip: Tensor, groups: int, weight: Tensor, bias: Tensor, eps: float, silu: bool, shift: Tensor | None
) -> None:
    """As :func:`group_norm`; skip as x."""
    group_norm(x, groups, weight, bias, eps, silu, shift)
    _alike(x, skip, "skip")


def attention(query: Tensor, key: Tensor, value: Tensor, scale: float | None, causal: bool) -> None:
    """query (N, h, S, d); key (N, h, L, d); value (N, h, L, e)."""
    tensors = ("query", query), ("key", key), ("value", value)
    _floating(query, 4, "query")
    for name, x in tensors:
        _beside(query, x, name, "query")
        if x.dim() != 4:
            _fail(f"{name} must have four dimensions, it has the shape {_shape(x)}")
        if x.dtype != query.dtype:
            _fail(f"{name} must have the type of query, {query.dtype}, it is {x.dtype}")
    batches, heads, _, size = query.shape
    keys = key.shape[2]
    if key.shape != (batches, heads, keys, size) or value.shape[:3] != (batches, heads, keys):
        shapes = ", ".join(f"{name} {_shape(x)}" for name, x in tensors)
        _fail(f"the shapes must be (N, h, S, d), (N, h, L, d) and (N, h, L, e), they are {shapes}")
    if scale is not None and not math.isfinite(scale):
        _fail(f"scale must be a finite number, it is {scale}", "Leave it out for 1 / sqrt(d).")
    if keys == 0 or size == 0:
        _fail(f"there must be a key, and heads of a size, key has the shape {_shape(key)}")
