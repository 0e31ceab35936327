"""The demo model in SD 1.x's widths (scripts/demo_as_sd1.py) computes what the demo computes."""

from __future__ import annotations

import pytest
import torch
from demo_as_sd1 import attention, fitted, headed, padded, queries, repeated

Weights = dict[str, torch.Tensor]


def attend(x: torch.Tensor, weights: Weights, heads: int) -> torch.Tensor:
    """Multi-head attention of rows [tokens, channels], by its definition."""
    query, key, value = (
        (x @ weights[f"a.to_{name}.weight"].T).unflatten(1, (heads, -1)).transpose(0, 1) for name in "qkv"
    )
    scores = query @ key.transpose(1, 2) / query.shape[-1] ** 0.5
    rows = (scores.softmax(-1) @ value).transpose(0, 1).flatten(1)
    return rows @ weights["a.to_out.0.weight"].T + weights["a.to_out.0.bias"]


@pytest.mark.parametrize(("heads", "channels", "inner"), [((2, 8), (6, 30), (8, 40)), ((4, 12), (8, 24), (8, 60))])
def test_a_wide_attention_gives_each_channel_as_often_as_it_has_copies(
    heads: tuple[int, int], channels: tuple[int, int], inner: tuple[int, int]
) -> None:
    generator = torch.Generator().manual_seed(3)

    def drawn(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    shapes = {f"a.to_{name}.weight": (0, 1) for name in "qkv"} | {"a.to_out.0.weight": (1, 0), "a.to_out.0.bias": (1,)}
    sizes = list(zip(inner, channels, strict=True))
    narrow = {name: drawn(*(sizes[0][axis] for axis in axes)) for name, axes in shapes.items()}
    wide: Weights = {}
    for name, axes in shapes.items():
        made = attention(name, narrow[name], torch.Size(sizes[1][axis] for axis in axes), heads)
        assert made is not None
        assert made.shape == tuple(sizes[1][axis] for axis in axes)
        wide[name] = made
    x = drawn(5, channels[0])
    expected = repeated(attend(x, narrow, heads[0]), 1, channels[1])
    assert torch.allclose(attend(repeated(x, 1, channels[1]), wide, heads[1]), expected, atol=1e-12)


def test_a_wide_layer_gives_each_channel_as_often_as_it_has_copies() -> None:
    generator = torch.Generator().manual_seed(4)
    weight, x = (torch.randn(shape, generator=generator, dtype=torch.float64) for shape in ((3, 2), (5, 2)))
    wide = fitted(weight, torch.Size((6, 8)))
    assert torch.allclose(repeated(x, 1, 8) @ wide.T, repeated(x @ weight.T, 1, 6))
    assert attention("ff.net.0.weight", weight, torch.Size((6, 8)), (1, 1)) is None
    assert padded(weight, 1, 4)[:, 2:].abs().sum() == 0
    assert headed(x.T, 0, 8, (1, 2)).shape == (8, 5)
    assert torch.equal(queries(x.T, 8, (1, 1)), headed(x.T, 0, 8, (1, 1)) * 2)
