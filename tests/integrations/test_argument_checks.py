"""What the operators' tensors must be like: each tensor's device, type and shape alone, by the checks themselves."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from sdort.errors import UsageError
from sdort.integrations.torch_operators import argument_checks as checks

X, IMAGE, HEADS = (2, 3, 8), (2, 8, 3, 5), (2, 3, 4, 6)


def good(name: str) -> dict[str, Any]:
    """Arguments that are right."""
    vectors = {each: torch.zeros(8) for each in ("weight", "bias")}
    norm = {**vectors, "eps": 1e-5}
    of_image = {"groups": 2, **norm, "silu": False, "shift": torch.zeros(2, 8)}
    return {
        "bias_add": {"x": torch.zeros(X), "bias": torch.zeros(8), "skip": torch.zeros(X)},
        "bias_split_gelu": {"x": torch.zeros(X), "bias": torch.zeros(8)},
        "layer_norm": {"x": torch.zeros(X), **norm},
        "skip_layer_norm": {"x": torch.zeros(X), "skip": torch.zeros(X), **norm, "shift": torch.zeros(8)},
        "group_norm": {"x": torch.zeros(IMAGE), **of_image},
        "skip_group_norm": {"x": torch.zeros(IMAGE), "skip": torch.zeros(IMAGE), **of_image},
        "attention": {
            "query": torch.zeros(HEADS), "key": torch.zeros(2, 3, 5, 6), "value": torch.zeros(2, 3, 5, 7),
            "scale": None, "causal": False,
        },
    }[name]  # fmt: skip


NAMES = ("bias_add", "bias_split_gelu", "layer_norm", "skip_layer_norm", "group_norm", "skip_group_norm", "attention")
TENSORS = [(name, tensor) for name in NAMES for tensor, value in good(name).items() if isinstance(value, Tensor)]
ALIKE = ("skip", "key", "value")
"""Tensors that have the type of the first one."""


def check(name: str, **changes: Any) -> None:
    getattr(checks, name)(**good(name) | changes)


@pytest.mark.parametrize("name", NAMES)
def test_what_is_right_is_taken(name: str) -> None:
    check(name)
    if "shift" in good(name):
        check(name, shift=None)
        check(name, shift=torch.zeros(8))
    if name.endswith("layer_norm"):
        check(name, bias=None)
        check(name, eps=0.0)


@pytest.mark.parametrize(("name", "tensor"), TENSORS, ids=lambda text: text)
def test_each_tensor_is_on_the_first_ones_device(name: str, tensor: str) -> None:
    first = next(iter(good(name)))
    if tensor == first:
        return
    with pytest.raises(UsageError, match=f"{tensor} is on meta, {first} on cpu") as caught:
        check(name, **{tensor: good(name)[tensor].to("meta")})
    assert caught.value.hint == f"Move it: {tensor}.to({first}.device)"


@pytest.mark.parametrize(("name", "tensor"), TENSORS, ids=lambda text: text)
def test_each_tensor_has_its_shape(name: str, tensor: str) -> None:
    value = good(name)[tensor]
    for dimension in range(value.dim()):
        if tensor == "value" and dimension == 3:  # of a size of its own
            continue
        shape = list(value.shape)
        shape[dimension] += 1
        if tensor in ("x", "query") and dimension != (1 if "group" in name else value.dim() - 1):
            continue  # the others tell
        with pytest.raises(UsageError, match=r"must|divide"):
            check(name, **{tensor: torch.zeros(shape)})
    if tensor not in ("x", "query"):
        with pytest.raises(UsageError, match=r"must have"):
            check(name, **{tensor: value[None]})


@pytest.mark.parametrize(("name", "tensor"), TENSORS, ids=lambda text: text)
def test_types_of_those_that_are_alike_are_the_same(name: str, tensor: str) -> None:
    other = good(name)[tensor].half()
    if tensor in ALIKE:
        with pytest.raises(UsageError, match=f"{tensor} must have the type of (x|query), torch.float32"):
            check(name, **{tensor: other})
    elif tensor not in ("x", "query"):
        check(name, **{tensor: other})


@pytest.mark.parametrize("name", NAMES)
def test_the_first_tensor_is_of_a_floating_type(name: str) -> None:
    first = next(iter(good(name)))
    integers = {tensor: value.int() for tensor, value in good(name).items() if tensor in (first, *ALIKE)}
    with pytest.raises(UsageError, match=rf"{first} must be of a floating type, it is torch\.int32"):
        check(name, **integers)


@pytest.mark.parametrize("name", ["layer_norm", "skip_layer_norm", "group_norm", "skip_group_norm"])
@pytest.mark.parametrize("eps", [-1e-9, math.nan, -math.inf])
def test_an_epsilon_is_not_negative(name: str, eps: float) -> None:
    with pytest.raises(UsageError, match=f"eps must not be negative, it is {eps}"):
        check(name, eps=eps)


@pytest.mark.parametrize("name", ["group_norm", "skip_group_norm"])
def test_groups_divide_the_channels(name: str) -> None:
    for groups in (1, 2, 4, 8):
        check(name, groups=groups)
    for groups in (0, -1, -2, 3, 16):
        with pytest.raises(UsageError, match=f"groups must divide the 8 channels of x, it is {groups}"):
            check(name, groups=groups)


@pytest.mark.parametrize(
    ("name", "dimensions", "least"),
    [("bias_add", 0, 1), ("bias_split_gelu", 0, 1), ("layer_norm", 0, 1), ("group_norm", 2, 3), ("attention", 3, 4)],
)
def test_tensors_have_so_many_dimensions(name: str, dimensions: int, least: int) -> None:
    first = next(iter(good(name)))
    with pytest.raises(UsageError, match=f"{first} must have {least} dimensions or more"):
        check(name, **{first: torch.zeros((2, 8, 2)[:dimensions])})


CASES: list[tuple[Callable[[], None], str]] = [
    (lambda: check("bias_split_gelu", x=torch.zeros(2, 7), bias=torch.zeros(7)), "an even number of columns"),
    (lambda: check("attention", scale=math.inf), "scale must be a finite number, it is inf"),
    (lambda: check("attention", scale=-math.inf), "scale must be a finite number, it is -inf"),
    (lambda: check("attention", key=torch.zeros(2, 3, 0, 6), value=torch.zeros(2, 3, 0, 7)), "there must be a key"),
    (
        lambda: check("attention", query=torch.zeros(2, 3, 4, 0), key=torch.zeros(2, 3, 5, 0)),
        r"heads of a size, key has the shape \(2, 3, 5, 0\)",
    ),
    (lambda: check("group_norm", shift=torch.zeros(1, 8)), r"shift must have the shape \(8\) or \(2, 8\)"),
    (lambda: check("group_norm", shift=torch.zeros(2, 7)), r"shift must have the shape \(8\) or \(2, 8\)"),
    (lambda: check("group_norm", shift=torch.zeros(())), r"shift must have the shape \(8\)"),
]


@pytest.mark.parametrize(("call", "message"), CASES)
def test_what_is_wrong_beside_the_shapes(call: Callable[[], None], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        call()
    check("attention", scale=-2.0)
    check("attention", scale=0.0)
