"""Upscalers that come as ``.onnx``, and those whose weights fp16 cannot hold."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnx
import pytest
from support import upscalers

from sdort.doctor.caches import clean_cache
from sdort.errors import BadModelError
from sdort.graph.model import Model
from sdort.onnx_io.save import save_model
from sdort.pipelines import model_cache
from sdort.providers.runtime_options import RuntimeOptions
from sdort.runtime import probe, session
from sdort.upscaling import upscaler as opening
from sdort.upscaling import upscaler_cache as keeping
from sdort.upscaling.upscaler import open_upscaler
from sdort.upscaling.upscaler_cache import HalfOverflowError, kept_upscaler
from sdort.upscaling.upscaler_file import UpscalerFacts, known_scale, read_upscaler

PIXELS = np.random.default_rng(2).integers(0, 256, (40, 50, 3), np.uint8)
CPU = RuntimeOptions("cpu")


@pytest.fixture
def weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    state = upscalers.compact_state(np.random.default_rng(0), filters=4, layers=0, scale=2)
    return upscalers.write_state(tmp_path / "small.safetensors", state)


def graph_of(weights: Path, sides: tuple[int, int] | None = None) -> Path:
    """The network as somebody's ``.onnx`` file, of any size or of one."""
    model, _ = read_upscaler(weights)
    path = weights.with_name("theirs.onnx")
    save_model(model, path)
    proto = onnx.load(path)
    if sides:
        proto.graph.input[0].CopyFrom(onnx.helper.make_tensor_value_info("image", 1, [1, 3, *sides]))
        proto.graph.output[0].CopyFrom(onnx.helper.make_tensor_value_info("result", 1, [1, 3, *(2 * s for s in sides)]))
    onnx.save(proto, path)
    return path


@pytest.mark.parametrize("sides", [None, (32, 48), (64, 64)])
def test_a_graph_makes_what_its_weights_make(sides: tuple[int, int] | None, weights: Path) -> None:
    """Of a fixed size in tiles of that size: the network sees two pixels, no more than their margins. Beyond the end of
    an image that is smaller there is its mirror image, where the network has zeros else."""
    graph = graph_of(weights, sides)
    assert (known_scale(weights), known_scale(graph)) == (2, None)
    expected = open_upscaler(weights, CPU).enlarge(PIXELS)
    theirs = open_upscaler(graph, CPU)
    assert (theirs.scale, theirs.architecture) == (2, "ONNX")
    inner = np.s_[:-4, :-4] if sides == (64, 64) else np.s_[:, :]
    assert np.abs(theirs.enlarge(PIXELS).astype(int) - expected)[inner].max() <= 1
    assert theirs.tiling is not None
    assert sides is None or (theirs.tiling.height, theirs.tiling.width) == sides


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("(float[1, 3, H, W] x, float[1] y) => (float[1, 3, H, W] z) { z = Add (x, y) }", "2 inputs and 1 outputs"),
        ("(float[N, 9] x) => (float[N, 9] z) { z = Relu (x) }", "1 inputs and 1 outputs"),
        ("(float[1, 4, H, W] x) => (float[1, 4, H, W] z) { z = Relu (x) }", "images of 4 channels"),
        (
            "(float[1, 3, H, W] x) => (float[1, 3, P, Q] z) <float[4] s = {1, 1, 1.5, 1.5}> { z = Resize (x, , s) }",
            "no whole number of times as large",
        ),
        ("(int64[1, 3, H, W] x) => (int64[1, 3, H, W] z) { z = Abs (x) }", "takes floats"),
    ],
)
def test_what_is_no_upscaler_is_refused(text: str, words: str, tmp_path: Path) -> None:
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 18]> g {text}')
    onnx.save(model, tmp_path / "x.onnx")
    with pytest.raises(BadModelError, match=words):
        read_upscaler(tmp_path / "x.onnx")


def test_windows_are_seen_in_the_sizes(tmp_path: Path) -> None:
    """A graph that views its image as windows of 8 pixels takes multiples of these alone."""
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["": 18]>
        g (float[1, 3, H, W] x) => (float[1, 3, H, W] z) {
            deep = SpaceToDepth <blocksize = 8> (x)
            z = DepthToSpace <blocksize = 8> (deep)
        }""")
    onnx.save(model, tmp_path / "x.onnx")
    assert read_upscaler(tmp_path / "x.onnx")[1].multiple == 8


def test_weights_beyond_fp16_run_in_fp32(
    weights: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    state = upscalers.compact_state(np.random.default_rng(0), filters=4, layers=1, scale=2)
    state["body.0.weight"][0, 0, 0, 0] = 70000
    upscalers.write_state(weights, state)
    with pytest.raises(HalfOverflowError, match="fp16 cannot hold values of 1"):
        open_upscaler(weights, CPU, "fp16")
    provider, _ = probe.choose_provider(CPU)
    on_gpu = type("Gpu", (), {"name": "cpu", "usual_precision": "fp16"})
    opened = session.open_or_fall_back
    monkeypatch.setattr(opening, "choose_provider", lambda options: (on_gpu, None))
    monkeypatch.setattr(
        opening, "open_or_fall_back", lambda file, name, _, options: opened(file, name, provider, options)
    )
    assert open_upscaler(weights, CPU).precision == "fp32"
    assert "so it runs in fp32" in capsys.readouterr().err


def test_an_upscaler_in_use_is_not_cleaned(weights: Path) -> None:
    file, facts = kept_upscaler(weights, "cpu", "fp32")
    clean_cache(["models"])
    assert file.is_file()
    assert kept_upscaler(weights, "cpu", "fp32") == (file, facts)
    model_cache._HELD.pop(file.parents[1]).close()  # as where the process has ended
    clean_cache(["models"])
    assert not file.exists()


def test_two_at_once_make_an_upscaler_once(weights: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = []

    def read(path: Path) -> tuple[Model, UpscalerFacts]:
        made.append(path)
        time.sleep(0.3)
        return read_upscaler(path)

    monkeypatch.setattr(keeping, "read_upscaler", read)
    with ThreadPoolExecutor(3) as pool:
        files = set(pool.map(lambda _: kept_upscaler(weights, "cpu", "fp32")[0], range(3)))
    assert len(files) == len(made) == 1
