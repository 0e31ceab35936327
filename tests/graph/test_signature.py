"""What a model declares, and the sizes that configurations tell."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sdort.families.denoiser_arguments import timestep_shape
from sdort.families.vae_levels import decoder_widths, vae_factor
from sdort.graph.element_operators import BROADCAST, UNARY, UNARY_MICROSOFT, is_unary
from sdort.graph.signature import TensorSpec, static_size


@pytest.mark.parametrize(
    ("axis", "size"), [(0, None), (1, 4), (2, 96), (3, None), (4, None), (5, 0), (6, None), (60, None)]
)
def test_sizes_that_are_fixed(axis: int, size: int | None) -> None:
    assert static_size(("B", 4, 96, None, "W", 0), axis) == size


@pytest.mark.parametrize(
    ("timestep", "sample", "shape"),
    [
        ((), ("B",), ()),
        ((1,), ("B",), (1,)),
        ((3,), ("B",), (3,)),
        (("B",), ("B",), (6,)),
        (("steps",), ("B",), (1,)),
        ((None,), ("B",), (1,)),
        ((None,), (None,), (1,)),
        (("B",), (2,), (1,)),
    ],
)
def test_a_timestep_is_one_or_one_for_each_sample(timestep: Any, sample: Any, shape: tuple[int, ...]) -> None:
    specs = (("timestep", timestep), ("sample", (*sample, 4, 8, 9)))
    inputs = {name: TensorSpec(name, np.dtype(np.float32), dims) for name, dims in specs}
    assert timestep_shape(inputs, 6) == shape


@pytest.mark.parametrize(
    ("config", "widths", "factor"),
    [
        ({}, [128, 256, 512, 512], 8),
        ({"block_out_channels": (32, 64)}, [32, 64], 2),
        ({"block_out_channels": [8, 8, 8, 8, 8]}, [8] * 5, 16),
        ({"block_out_channels": [64]}, [64], 1),
        ({"decoder_block_out_channels": [64, 64, 64, 32]}, [64, 64, 64, 32], 8),
        ({"block_out_channels": None, "decoder_block_out_channels": [64, 32, 16]}, [64, 32, 16], 4),
        ({"block_out_channels": [], "decoder_block_out_channels": []}, [128, 256, 512, 512], 8),
        ({"block_out_channels": [32, 64], "decoder_block_out_channels": [64, 32, 16]}, [32, 64], 2),
        ({"encoder_block_out_channels": [64, 32, 16]}, [128, 256, 512, 512], 8),
    ],
)
def test_levels_of_an_autoencoder(config: dict[str, Any], widths: list[int], factor: int) -> None:
    assert (decoder_widths(config), vae_factor(config)) == (widths, factor)
    found = decoder_widths(config)
    found.append(1)
    assert decoder_widths(config) == widths


def test_element_operators_by_domain_and_inputs() -> None:
    for op in UNARY:
        assert [is_unary(op, domain, 1) for domain in ("", "elsewhere")] == [True, False]
        assert is_unary(op, "", 3)
    for op in UNARY_MICROSOFT:
        assert [is_unary(op, "com.microsoft", inputs) for inputs in (1, 2)] == [True, False]
    assert is_unary("Gelu", "", 1)
    assert not is_unary("FastGelu", "", 1)
    assert not is_unary("Sigmoid", "com.microsoft", 1)
    assert not BROADCAST & UNARY
    assert not any(is_unary(op, "", 1) for op in (*BROADCAST, "Softmax", "Concat", "Dropout", "CumSum"))
