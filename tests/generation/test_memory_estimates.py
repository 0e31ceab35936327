"""Estimates of a UNet's memory: each factor of the formula, by sizes counted by hand.

The graph is a UNet in small: a convolution of eight channels, a softmax or none, and what texts and timesteps decide.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import numpy_helper, parser

from sdort.errors import MemoryShortageError
from sdort.generation import memory_need
from sdort.generation.memory_need import MARGIN, prepared_bytes, refuse_shortage, unet_bytes
from sdort.onnx_io.component_file import ComponentFile, read_component
from sdort.providers import CPU
from sdort.providers.cuda import PROVIDER as CUDA
from sdort.providers.provider import Provider
from sdort.runtime.step.preparation import ROWS
from sdort.workload.steering_inputs import residual_shapes

CHANNELS, PER_LATENT = 8, 34
"""Channels of the first convolution, and elements that are held for each of them (docs/measurements.md)."""

UNET = """<ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]>
unet ({io}[{n}, 4, H, W] sample, {io}[{clock}] timestep, {io}[{n}, T, 3] encoder_hidden_states,
      {io}[{n}, 4, H, W] mid_block_additional_residual) => ({io}[{n}, 8, H, W] out)
  <int64[2] column = {{-1, 1}}, int64[2] two_three = {{2, 3}}>
{{
  rows = Reshape (timestep, column)
  embedded = MatMul (rows, time)
  shift = Unsqueeze (embedded, two_three)
  keys = MatMul (encoder_hidden_states, key)
  pooled = ReduceMean <axes = [1], keepdims = 0> (keys)
  weights = {softmax} (pooled)
  spread = Unsqueeze (weights, two_three)
  steered = Add (sample, mid_block_additional_residual)
  first = Conv <pads = [1, 1, 1, 1]> (steered, filters)
  moved = Add (first, shift)
  out = Mul (moved, spread)
}}"""


def unet(folder: Path, *, n: str = "N", clock: str = "N", half: bool = False, scores: bool = True) -> ComponentFile:
    softmax = "Softmax <axis = -1>" if scores else "Sigmoid"
    text = UNET.format(io="float16" if half else "float", n=n, clock=clock, softmax=softmax)
    model = parser.parse_model(text)
    dtype = np.float16 if half else np.float32
    for name, shape in {"time": (1, 8), "key": (3, 8), "filters": (CHANNELS, 4, 3, 3)}.items():
        model.graph.initializer.append(numpy_helper.from_array(np.ones(shape, dtype), name))
    path = folder / "model.onnx"
    path.write_bytes(model.SerializeToString())
    return read_component(path, "unet")


SDXL = {
    "down_block_types": ["DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"],
    "attention_head_dim": [5, 10, 20],
}
SD1 = {"down_block_types": ["CrossAttnDownBlock2D", "DownBlock2D"], "attention_head_dim": 8}
CONFIGS: list[tuple[dict[str, Any], int, int]] = [
    (SDXL, 1, 10),
    (SD1, 0, 8),
    ({**SD1, "num_attention_heads": 3}, 0, 3),
    ({**SDXL, "attention_head_dim": [5, 10]}, 1, 10),
    ({**SDXL, "attention_head_dim": [5]}, 1, 5),
    ({**SDXL, "down_block_types": ["DownBlock2D", "DownBlock2D", "CrossAttnDownBlock2D"]}, 2, 20),
    ({}, 0, 1),
    ({"down_block_types": "?", "attention_head_dim": "?"}, 0, 1),
    ({"attention_head_dim": []}, 0, 1),
]


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("provider", [CPU, CUDA], ids=["cpu", "cuda"])
@pytest.mark.parametrize("scores", [True, False])
@pytest.mark.parametrize(("config", "level", "heads"), CONFIGS)
def test_rows_and_scores_are_estimated_where_nothing_is_counted(
    config: dict[str, Any],
    level: int,
    heads: int,
    scores: bool,
    provider: Provider,
    half: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(memory_need, "activation_bytes", lambda *_: None)
    file = unet(tmp_path, half=half, scores=scores)
    samples, height, width = 3, 16, 32
    element = 2 if half and provider is CUDA else 4  # the CPU computes in fp32
    tokens = (height >> level) * (width >> level)
    held = 2 * heads * samples * tokens**2 if scores else 0
    activations = element * (PER_LATENT * CHANNELS * samples * height * width + held)
    latents = (samples, height, width)
    assert unet_bytes(file, config, latents, provider, 5) == activations + prepared_bytes(file, latents, 5)


@pytest.mark.parametrize(("provider", "graphs", "times"), [(CPU, 1, 1), (CPU, 2, 2), (CUDA, 1, 1), (CUDA, 2, 1)])
def test_activations_are_counted_by_what_runs_and_graphs_in_a_pool_share_them(
    provider: Provider, graphs: int, times: int, tmp_path: Path
) -> None:
    file, latents = unet(tmp_path), (3, 16, 32)
    sample = 3 * 16 * 32 * 4
    # The latents that are given; the convolution's output, the same moved, and then the product with it.
    counted = (4 * sample + 2 * CHANNELS * sample) + provider.workspace_bytes
    assert unet_bytes(file, {}, latents, provider, 5, graphs) == times * counted + prepared_bytes(file, latents, 5)


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("n", ["N", "1", "2", "6"])
@pytest.mark.parametrize("steps", [1, 7])
def test_what_is_prepared_counts_for_all_samples_of_a_fixed_batch_too(
    n: str, steps: int, half: bool, tmp_path: Path
) -> None:
    file = unet(tmp_path, n=n, clock=n, half=half)
    samples, element = 6, 2 if half else 4
    prompt = samples * 8 * element  # the softmax of pooled keys, of each sample
    row = samples * 8 * element  # the shift, of each sample: one timestep each
    kept = ROWS * 8 * element  # of one sample, for the next rows
    assert prepared_bytes(file, (samples, 16, 32), steps) == prompt + (steps + 1) * row + kept


@pytest.mark.parametrize("n", ["N", "1", "2"])
def test_inputs_for_controls_have_all_samples(n: str, tmp_path: Path) -> None:
    inputs = unet(tmp_path, n=n, clock=n).signature.inputs
    assert residual_shapes(inputs, (6, 4, 16, 32)) == {"mid_block_additional_residual": (6, 4, 16, 32)}


def test_a_run_is_refused_where_the_estimate_is_beyond_its_error() -> None:
    assert MARGIN == 1.15
    refuse_shortage(1150, 1000, "a run")
    with pytest.raises(MemoryShortageError, match=r"a run needs about .* and .* are free"):
        refuse_shortage(1151, 1000, "a run")


def test_a_file_without_filters_has_the_least_that_is_published() -> None:
    model = parser.parse_model('<ir_version: 8, opset_import: ["": 17]> g (float[N] x) => (float[N] y) { y = Neg (x) }')
    assert memory_need._first_channels(_Graph(model)) == 64  # type: ignore[arg-type]


class _Graph:
    def __init__(self, graph: Any) -> None:
        self.graph = graph
