"""Graphs of upscalers from bytes to bytes: what they compute around the network, and how they say that it failed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from support import stored, upscalers
from support.small_graphs import load, parse

from sdort.errors import ParityError
from sdort.graph.model import Model
from sdort.graph.signature import Array
from sdort.lowering.component_report import ComponentReport
from sdort.lowering.steps import OptimizeOptions, optimize_model
from sdort.providers import PROVIDER_NAMES, load_target
from sdort.providers.runtime_options import RuntimeOptions
from sdort.rewrite.editor import Editor
from sdort.upscaling import upscaler_cache as keeping
from sdort.upscaling.byte_images import byte_ends, use_bytes
from sdort.upscaling.upscaler import Upscaler, open_upscaler
from sdort.upscaling.upscaler_file import read_upscaler

CPU = RuntimeOptions("cpu")
PIXELS = np.random.default_rng(4).integers(1, 256, (1, 6, 8, 3), np.uint8)


def made_ready(model: Model, provider: str, half: bool = False) -> ComponentReport:
    """Bring a network of floats into the form that is kept of it."""
    use_bytes(model)
    return optimize_model(model, OptimizeOptions(load_target(provider), fp16=half, fp32_nodes=byte_ends))


def computed(model: Model, pixels: Array) -> tuple[Array, Array]:
    """The larger bytes and the sum, with every tensor stored in its type."""
    larger, total = stored.run(model, {model.graph.inputs[0].name: pixels})
    assert larger.dtype == np.uint8
    return np.asarray(larger), np.asarray(total)


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


def opened(folder: Path, text: str) -> Upscaler:
    """Somebody's ``.onnx`` file, open."""
    onnx.save(parse(text, opset=17), folder / "theirs.onnx")
    return open_upscaler(folder / "theirs.onnx", CPU)


# --- values ---


@pytest.mark.parametrize("provider", PROVIDER_NAMES)
@pytest.mark.parametrize("name", ["rrdb", "compact"])
def test_bytes_become_what_the_formula_makes_of_them(name: str, provider: str, tmp_path: Path) -> None:
    """In fp16: to nearest, as far as the network's precision lets be told. Nothing but bytes is turned around."""
    rng = np.random.default_rng(0)
    state = upscalers.rrdb_state(rng, blocks=1, steps=1) if name == "rrdb" else upscalers.compact_state(rng)
    image = PIXELS[0].transpose(2, 0, 1) / 255
    exact = upscalers.rrdb(image, state) if name == "rrdb" else upscalers.compact(image, state, 2)
    model, _ = read_upscaler(upscalers.write_state(tmp_path / "model.safetensors", state))
    report = made_ready(model, provider, half=True)
    larger, total = computed(model, PIXELS)
    levels = 255 * np.clip(exact, 0, 1).transpose(1, 2, 0)
    assert larger.shape == (1, 12, 16, 3)
    assert ((levels > 0) & (levels < 255)).any()
    assert np.abs(larger[0] - levels).max() <= 0.5 + 255 * 0.02 * exact.std()
    assert np.isfinite(total).all()
    assert not report.misses
    editor = Editor(model)
    layouts = [0, 2, 3, 1], [0, 3, 1, 2]
    turned = [editor.dtype(node.inputs[0]) for node in model.graph.nodes if node.attrs.get("perm") in layouts]
    assert turned == ([] if load_target(provider).channels_last else [np.dtype(np.uint8)] * 2)


def test_the_runtimes_optimizations_keep_it(own_cache: Path) -> None:
    """A Clip behind a convolution, which ONNX Runtime would take into it, if nothing else read its input."""
    state = upscalers.rrdb_state(np.random.default_rng(0), blocks=1, steps=1)
    exact = upscalers.rrdb(PIXELS[0].transpose(2, 0, 1) / 255, state)
    found = open_upscaler(upscalers.write_state(own_cache / "model.safetensors", state), CPU).enlarge(PIXELS[0])
    assert np.abs(found - 255 * np.clip(exact, 0, 1).transpose(1, 2, 0)).max() <= 0.5 + 255 * 2e-5 * exact.std()


@pytest.mark.parametrize("provider", PROVIDER_NAMES)
@pytest.mark.parametrize("kind", ["float", "float16"])
@pytest.mark.parametrize("last", ["z = Conv (x, f)", "y = Conv (x, f)  z = Clip (y, zero, one)"])
def test_only_the_network_rounds_to_fp16(last: str, kind: str, provider: str) -> None:
    """Not 255 times its result, nor 1/255: between 128 and 255 fp16 has 8 values a level, and a pixel of 30 would
    change. The network, in fp32 or stored in fp16, may clamp its result itself."""
    factors = np.random.default_rng(0).uniform(0.5, 1.2, 3).astype(np.float16)
    dtype = np.dtype(np.float16 if kind == "float16" else np.float32)
    weights = {"f": np.diag(factors).reshape(3, 3, 1, 1), "zero": np.array(0), "one": np.array(1)}
    model = load(
        f"g ({kind}[N, 3, H, W] x) => ({kind}[N, 3, H, W] z) {{ {last} }}",
        {name: values.astype(dtype) for name, values in weights.items()},
    )
    made_ready(model, provider, half=True)
    editor = Editor(model)
    dtypes = {(node.op, str(editor.dtype(node.outputs[0]))) for node in model.graph.nodes}
    assert {dtype for op, dtype in dtypes if op == "Div"} == {"float32"}
    assert {dtype for op, dtype in dtypes if "Conv" in op} == {"float16"}
    every_level = np.arange(256, dtype=np.uint8).reshape(1, 16, 16, 1).repeat(3, 3)
    network = (every_level / np.float32(255)).astype(np.float16) * factors
    expected = np.rint(np.minimum(network.astype(np.float32), 1) * np.float32(255))
    np.testing.assert_array_equal(computed(model, every_level)[0], expected)


def test_half_a_level_goes_to_the_even_one() -> None:
    halves = np.array([0.5, 1.5, 2.5, 3.5, 126.5, 127.5, 253.5, 254.5, 255.5, -0.5])
    stored_halves = (halves / 255).astype(np.float32)
    exact = stored_halves * np.float32(255) == halves
    assert exact.sum() > 5
    model = load(
        "g (float[N, 3, H, W] x) => (float[N, 3, H, W] z) { z = Add (x, f) }",
        {"f": stored_halves[exact].reshape(1, 1, 1, -1)},
    )
    made_ready(model, "cpu")
    larger, _ = computed(model, np.zeros((1, 2, exact.sum(), 3), np.uint8))
    np.testing.assert_array_equal(larger[0, 1, :, 2], np.clip(halves[exact].round(), 0, 255))


# --- what is not finite ---

SPOILS = {
    "not a number": "z = Div (x, x)",
    "infinite": "z = Reciprocal (x)",
    "minus infinite": "z = Log (x)",
    "both infinities": "up = Reciprocal (x)  down = Log (x)  z = Concat <axis = 3> (up, down)",
}
"""Networks that do so with a value of 0."""


@pytest.mark.parametrize("provider", PROVIDER_NAMES)
@pytest.mark.parametrize("kind", SPOILS)
def test_one_pixel_that_is_not_finite_is_told(kind: str, provider: str) -> None:
    """And which image it is of."""
    rng = np.random.default_rng(0)
    model = load(f"g (float[N, 3, H, W] x) => (float[N, 3, H, W] z) {{ {SPOILS[kind]} }}")
    made_ready(model, provider, half=True)
    pixels = rng.integers(1, 256, (5, 5, 7, 3), np.uint8)
    for image in (1, 3):
        pixels[image, rng.integers(5), rng.integers(7), rng.integers(3)] = 0
    assert np.isfinite(computed(model, pixels)[1]).tolist() == [True, False, True, False, True]


def test_the_largest_finite_values_are_white() -> None:
    model = load(
        "g (float[N, 3, H, W] x) => (float[N, 3, H, W] z) { z = Mul (x, f) }", {"f": np.array(3.4e38, np.float32)}
    )
    made_ready(model, "cpu")
    larger, total = computed(model, np.full((1, 64, 64, 3), 255, np.uint8))
    assert larger.min() == 255
    assert np.isfinite(total).all()


def test_a_bad_pixel_of_any_tile_is_refused(own_cache: Path) -> None:
    upscaler = opened(own_cache, "g (float[1, 3, H, W] x) => (float[1, 3, H, W] z) { z = Div (x, x) }")
    pixels = np.random.default_rng(0).integers(1, 256, (150, 150, 3), np.uint8)
    assert (upscaler.enlarge(pixels, tile=64) == 255).all()
    for place in ((0, 0), (149, 149), (0, 149), (75, 75)):
        spoilt = pixels.copy()
        spoilt[(*place, 1)] = 0
        with pytest.raises(ParityError, match="NaN or infinite"):
            upscaler.enlarge(spoilt, tile=64)


# --- files ---


@pytest.mark.parametrize(
    ("kind", "channels", "taken", "made"),
    [
        ("float", 3, "H, W", "[1, 3, P, Q]"),
        ("float", 1, "H, W", "[]"),
        ("float16", 1, "48, 40", "[1, 1, 96, 80]"),
        ("float16", 3, "H, W", "[N, C, P, Q]"),
        ("double", 1, "48, 40", "[1, 1, 96, 80]"),
        ("double", 3, "H, W", "[1, 3, P, Q]"),
    ],
)
def test_somebodys_graph_of_any_type_and_size(kind: str, channels: int, taken: str, made: str, own_cache: Path) -> None:
    """Grey networks on colours and the other way; of one size; of a result whose sizes nobody says."""
    upscaler = opened(
        own_cache,
        f"""g ({kind}[1, {channels}, {taken}] x) => ({kind}{made} z) {{
            deep = Concat <axis = 1> (x, x, x, x)
            z = DepthToSpace <blocksize = 2> (deep)
        }}""",
    )
    for given in (1, 3):
        pixels = np.random.default_rng(1).integers(0, 256, (50, 90, given), np.uint8)
        for tile in (None, 64):
            assert (upscaler.enlarge(pixels, tile) == pixels.repeat(2, 0).repeat(2, 1)).all()


def test_what_an_older_sdort_kept_is_not_taken_for_bytes(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph of floats lies in the cache: it stays, and another one is made beside it."""
    weights = upscalers.write_state(own_cache / "small.safetensors", upscalers.compact_state(np.random.default_rng(0)))
    with monkeypatch.context() as old:
        old.setattr(keeping, "FORM", 1)
        old.setattr(keeping, "use_bytes", lambda model: None)
        old.setattr(keeping, "peak_bytes_per_pixel", lambda model, facts: 100)
        before = keeping.kept_upscaler(weights, "cpu", "fp32")[0]
    content = before.read_bytes()
    assert open_upscaler(weights, CPU).enlarge(PIXELS[0]).shape == (12, 16, 3)
    assert keeping.kept_upscaler(weights, "cpu", "fp32")[0] != before
    assert before.read_bytes() == content
