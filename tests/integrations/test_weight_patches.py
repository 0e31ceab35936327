"""ComfyUI's LoRA patches as products of two matrices, against ComfyUI's formula for them in float64."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from sdort.integrations.comfyui.weight_patches import PatchDifference


def lora(
    shape: tuple[int, ...], rank: int, alpha: float | None, mid: Any = None, dora: Any = None, reshape: Any = None
) -> Any:
    """ComfyUI's ``LoRAAdapter``: up, down, alpha, Tucker's core, DoRA's magnitudes, another shape."""
    up = torch.randn(shape[0], rank, *[1] * (len(shape) - 2)).half()
    return SimpleNamespace(name="lora", weights=(up, torch.randn(rank, *shape[1:]).half(), alpha, mid, dora, reshape))


def patch(adapter: Any, strength: float = 1.0, model: float = 1.0, offset: Any = None, function: Any = None) -> Any:
    return (strength, adapter, model, offset, function)


@pytest.mark.parametrize("shape", [(6, 8), (4, 3, 3, 3), (5, 7, 1, 1)])
@pytest.mark.parametrize("alphas", [(None,), (2.0,), (1.0, None, 8.0)])
def test_plain_loras_are_two_matrices(shape: tuple[int, ...], alphas: tuple[float | None, ...]) -> None:
    torch.manual_seed(0)
    patches = [patch(lora(shape, 2 + n, alpha), 0.8 - n) for n, alpha in enumerate(alphas)]
    expected = np.zeros((shape[0], int(np.prod(shape[1:]))))
    for strength, adapter, *_ in patches:
        up, down, alpha = adapter.weights[:3]
        scale = strength * (1 if alpha is None else alpha / down.shape[0])
        expected += scale * (up.double().flatten(1) @ down.double().flatten(1)).numpy()
    found = PatchDifference(shape, patches, "key").factors()
    assert found
    left, right = found
    assert left.dtype == right.dtype == np.float32
    np.testing.assert_allclose(left.astype(np.float64) @ right, expected, atol=1e-5)


OTHERS: dict[str, Callable[[], Any]] = {
    "core": lambda: patch(lora((4, 3, 3, 3), 2, None, mid=torch.ones(2, 2, 3, 3))),
    "magnitudes": lambda: patch(lora((4, 3, 3, 3), 2, None, dora=torch.ones(4))),
    "another shape": lambda: patch(lora((4, 3, 3, 3), 2, None, reshape=[8, 3, 3, 3])),
    "of another shape": lambda: patch(lora((4, 4, 3, 3), 2, None)),
    "a scaled model": lambda: patch(lora((4, 3, 3, 3), 2, None), model=0.5),
    "a part": lambda: patch(lora((4, 3, 3, 3), 2, None), offset=(0, 0, 2)),
    "a function": lambda: patch(lora((4, 3, 3, 3), 2, None), function=torch.abs),
    "another kind": lambda: patch(SimpleNamespace(name="loha", weights=())),
    "a difference": lambda: patch(("diff", (torch.ones(4, 3, 3, 3),))),
    "older lists": lambda: patch([torch.ones(4, 3, 3, 3)]),
}


@pytest.mark.parametrize("kind", OTHERS)
def test_other_patches_are_computed_as_a_whole(kind: str) -> None:
    """By ComfyUI, also where a plain LoRA is beside them."""
    patches = [patch(lora((4, 3, 3, 3), 2, None)), OTHERS[kind]()]
    assert PatchDifference((4, 3, 3, 3), patches, "key").factors() is None
