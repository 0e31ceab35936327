"""Upscalers' graphs, from files of every layout to the provider's operators, against float64 formulas."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from support import stored, upscalers
from support.small_graphs import run
from support.upscalers import State

from sdort.errors import BadModelError
from sdort.graph.model import Model
from sdort.graph.signature import Array
from sdort.lowering.steps import OptimizeOptions, optimize_model
from sdort.providers import PROVIDER_NAMES, load_target
from sdort.upscaling.byte_images import use_bytes
from sdort.upscaling.upscaler_file import peak_bytes_per_pixel, read_upscaler

Formula = Callable[[Array, State], Array]
PICTURE = np.random.default_rng(1).random((3, 6, 8))


def given(name: str) -> tuple[State, Formula, int]:
    """Weights of a network, what it computes, and its scale."""
    rng = np.random.default_rng(0)
    kind, _, rest = name.partition(" ")
    if kind == "compact":
        scale = int(rest or 2)
        return upscalers.compact_state(rng, scale=scale), lambda x, s: upscalers.compact(x, s, scale), scale
    if kind == "span":
        return upscalers.span_state(rng, norm=rest != "no norm"), lambda x, s: upscalers.span(x, s, 2), 2
    options: dict[str, dict[str, int]] = {
        "1x": {"steps": 0}, "2x": {"steps": 1}, "4x": {}, "8x": {"steps": 3, "blocks": 1},
        "unshuffled 2x": {"unshuffle": 2}, "unshuffled 1x": {"steps": 1, "unshuffle": 2}, "plus": {"plus": True},
    }  # fmt: skip
    chosen = options[rest]
    factor = chosen.get("unshuffle", 1)
    state = upscalers.rrdb_state(rng, **chosen)  # type: ignore[arg-type]
    return state, lambda x, s: upscalers.rrdb(x, s, factor), 2 ** chosen.get("steps", 2) // factor


def computed(model: Model, picture: Array = PICTURE) -> Array:
    return np.asarray(run(model, {model.graph.inputs[0].name: picture[None].astype(np.float32)})[0][0])


def error(found: Array, expected: Array) -> float:
    """The largest difference, of the standard deviation."""
    assert found.shape == expected.shape
    return float(np.abs(found - expected).max() / expected.std())


NAMES = ["rrdb 1x", "rrdb 2x", "rrdb 4x", "rrdb 8x", "rrdb unshuffled 2x", "rrdb unshuffled 1x", "rrdb plus",
         "compact 1", "compact 2", "compact 4", "span", "span no norm"]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_a_network_computes_its_formula(name: str, tmp_path: Path) -> None:
    state, formula, scale = given(name)
    layouts = [state]
    if name.startswith("rrdb"):
        layouts += [upscalers.second_names(state), upscalers.first_names(state)]
    for layout in layouts:
        model, facts = read_upscaler(upscalers.write_state(tmp_path / "model.safetensors", layout))
        assert facts.scale == scale
        assert error(computed(model), formula(PICTURE, state)) < 2e-5


@pytest.mark.parametrize("provider", PROVIDER_NAMES)
@pytest.mark.parametrize("name", ["rrdb 2x", "rrdb unshuffled 1x", "compact 2", "span"])
def test_a_provider_gets_operators_that_compute_it_in_fp16(name: str, provider: str, tmp_path: Path) -> None:
    """With every tensor stored in fp16. Whatever is lowered, the convolutions stay: none is added or lost, but for
    those of an enlarged image, which become one of each phase."""
    state, formula, _ = given(name)
    model, _ = read_upscaler(upscalers.write_state(tmp_path / "model.safetensors", state))
    convolutions = sum(node.op == "Conv" for node in model.graph.nodes)
    report = optimize_model(model, OptimizeOptions(load_target(provider), fp16=True))
    left = sum(count for op, count in report.operators.items() if "Conv" in op)
    phases = 3 if name.startswith("rrdb") and provider == "cpu" else 0
    assert left == convolutions + phases
    assert not report.misses
    found = stored.run(model, {"image": PICTURE[None].astype(np.float32)})[0][0]
    assert error(np.asarray(found), formula(PICTURE, state)) < 0.02


def test_the_residual_factors_are_in_the_filters(tmp_path: Path) -> None:
    """Of the 0.2 of each dense block nothing is left to compute; that of a block of three is behind a sum."""
    state, _, _ = given("rrdb 4x")
    model, _ = read_upscaler(upscalers.write_state(tmp_path / "model.safetensors", state))
    report = optimize_model(model, OptimizeOptions(load_target("cpu")))
    assert report.operators["Mul"] == 2


def test_memory_is_told_from_the_graph(tmp_path: Path) -> None:
    """A convolution of the large image reads one and writes one, of 8 channels in fp32 at 16 pixels for one."""
    state, _, _ = given("rrdb 4x")
    model, facts = read_upscaler(upscalers.write_state(tmp_path / "model.safetensors", state))
    use_bytes(model)
    assert 2 * 8 * 4 * 16 <= peak_bytes_per_pixel(model, facts) <= 3 * 8 * 4 * 16


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: s.pop("body.1.rdb2.conv3.weight"), "has no tensor 'body.1.rdb2.conv3.weight'"),
        (lambda s: s.update({"extra.weight": np.zeros(3, np.float32)}), "does not know: extra.weight"),
        (lambda s: s.update({"conv_hr.weight": np.zeros((8, 9, 3, 3), np.float32)}), r"shape \[8, 9, 3, 3\]"),
        (lambda s: s.update({"conv_hr.bias": np.zeros(5, np.float32)}), r"shape \[5\], not \[8\]"),
        (lambda s: [s.pop(name) for name in list(s) if name.startswith("body.0.")], "no upscaler that sdort knows"),
    ],
)
def test_what_does_not_fit_its_architecture_is_refused(
    change: Callable[[State], object], message: str, tmp_path: Path
) -> None:
    state, _, _ = given("rrdb 4x")
    change(state)
    with pytest.raises(BadModelError, match=message):
        read_upscaler(upscalers.write_state(tmp_path / "model.safetensors", state))


def test_other_architectures_are_named(tmp_path: Path) -> None:
    state = {"layers.0.residual_group.blocks.0.attn.qkv.weight": np.zeros((3, 3), np.float32)}
    with pytest.raises(BadModelError, match="architecture SwinIR") as refusal:
        read_upscaler(upscalers.write_state(tmp_path / "model.safetensors", state))
    assert ".onnx" in str(refusal.value.hint)
