"""Calls of ``torch.ops.sdort.*``, and the nodes of ONNX Runtime that compute the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from support.kernel_cases import Array, aligned, run
from torch import Tensor

Node = Callable[..., list[Array]]


@dataclass(frozen=True)
class Call:
    """An operator with its arguments; ``node`` computes the same from them, by the library through ONNX Runtime."""

    operator: str
    arguments: tuple[Any, ...]
    node: Node

    def __call__(self) -> tuple[Tensor, ...]:
        return results(getattr(torch.ops.sdort, self.operator)(*self.arguments))

    def in_float64(self) -> tuple[Any, ...]:
        """The arguments, to be differentiated."""
        return tuple(x.detach().double().requires_grad_() if isinstance(x, Tensor) else x for x in self.arguments)


def results(result: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return (result,) if isinstance(result, Tensor) else tuple(result)


def array(x: Tensor) -> Array:
    return aligned(x.detach().contiguous().numpy())


def nhwc(x: Tensor) -> Array:
    return array(x.movedim(1, -1))


def calls(dtype: torch.dtype, width: int = 40) -> dict[str, Call]:
    """One of each form; ``width`` elements are whole vectors of 16 bytes, or not."""
    make = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=make).to(dtype)

    def image() -> Tensor:
        return draw(2, width, 5, 7).to(memory_format=torch.channels_last)

    def heads(rows: int, size: int = width) -> Tensor:
        return draw(2, rows, 3, size).transpose(1, 2)

    weight, bias, rows = 1 + 0.1 * draw(width).float(), draw(width).float(), (2, 5, width)
    scale, shift = weight.to(dtype), bias.to(dtype)
    query, key, value = heads(6), heads(9), heads(9)
    return {
        "bias_add": Call("bias_add", (draw(*rows), shift, draw(*rows)), _bias_add),
        "bias_split_gelu": Call("bias_split_gelu", (draw(*rows), shift), _bias_split_gelu),
        "layer_norm": Call("layer_norm", (draw(*rows), scale, shift, 1e-3), _layer_norm),
        "layer_norm without bias": Call("layer_norm", (draw(*rows), scale, None, 1e-5), _layer_norm),
        "skip_layer_norm": Call(
            "skip_layer_norm", (draw(*rows), draw(*rows), scale, shift, 1e-5, draw(width)), _skip_layer_norm
        ),
        "group_norm": Call("group_norm", (image(), 4, weight, bias, 1e-3, False, None), _group_norm),
        "group_norm silu embedding": Call(
            "group_norm", (image(), 4, weight, bias, 1e-5, True, draw(2, width)), _group_norm
        ),
        "group_norm bias": Call("group_norm", (image(), 4, weight, bias, 1e-5, True, draw(width)), _group_norm),
        "skip_group_norm": Call(
            "skip_group_norm", (image(), image(), 4, weight, bias, 1e-5, True, draw(2, width)), _skip_group_norm
        ),
        "attention": Call("attention", (query, key, value, None, False), _attention),
        "attention causal": Call("attention", (query, key, value, 0.3, True), _attention),
    }


def _bias_add(x: Tensor, bias: Tensor, skip: Tensor) -> list[Array]:
    return run("BiasAdd", {"X": array(x), "bias": array(bias), "skip": array(skip)})


def _bias_split_gelu(x: Tensor, bias: Tensor) -> list[Array]:
    return run("BiasSplitGelu", {"X": array(x), "bias": array(bias)})


def _layer_norm(x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> list[Array]:
    inputs = {"X": array(x), "Scale": array(weight), "B": None if bias is None else array(bias)}
    return run("LayerNormalization", inputs, domain="", epsilon=eps)


def _skip_layer_norm(x: Tensor, skip: Tensor, weight: Tensor, bias: Tensor, eps: float, shift: Tensor) -> list[Array]:
    inputs = {"input": x, "skip": skip, "gamma": weight, "beta": bias, "bias": shift}
    arrays = {name: array(tensor) for name, tensor in inputs.items()}
    return run("SkipLayerNormalization", arrays, ("Y", "", "", "S"), epsilon=eps)


def _group_norm(
    x: Tensor, groups: int, weight: Tensor, bias: Tensor, eps: float, silu: bool, shift: Tensor | None
) -> list[Array]:
    return _any_group_norm(x, None, groups, weight, bias, eps, silu, shift)[:1]


def _skip_group_norm(x: Tensor, skip: Tensor, *rest: Any) -> list[Array]:
    return _any_group_norm(x, skip, *rest)


def _any_group_norm(
    x: Tensor,
    skip: Tensor | None,
    groups: int,
    weight: Tensor,
    bias: Tensor,
    eps: float,
    silu: bool,
    shift: Tensor | None,
) -> list[Array]:
    inputs = {
        "X": nhwc(x),
        "X2": None,
        "gamma": array(weight),
        "beta": array(bias),
        "skip": None if skip is None else nhwc(skip),
        "bias": array(shift) if shift is not None and shift.dim() == 1 else None,
        "embedding": array(shift) if shift is not None and shift.dim() == 2 else None,
    }
    found = run("GroupNorm", inputs, ("Y", "S"), domain="sdort", groups=groups, activation=int(silu), epsilon=eps)
    return [np.moveaxis(y, -1, 1) for y in found]


def _attention(query: Tensor, key: Tensor, value: Tensor, scale: float | None, causal: bool) -> list[Array]:
    names = ("query", "key", "value")
    inputs = {name: array(x.transpose(1, 2).flatten(2)) for name, x in zip(names, (query, key, value), strict=True)}
    given = 0.0 if scale is None else scale  # which is the operator's own default
    (y,) = run("MultiHeadAttention", inputs, num_heads=query.shape[1], unidirectional=int(causal), scale=given)
    return [y.reshape(y.shape[0], y.shape[1], query.shape[1], -1).swapaxes(1, 2)]
