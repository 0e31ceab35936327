"""Who sees which preview, and what is left behind: watchers, files, options of the decoder."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import termios
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from sdort.families.component_names import DECODER
from sdort.families.family import Latents
from sdort.generation import preview_display
from sdort.generation.latents import preview as preview_module
from sdort.generation.latents.preview import BatchPreviews, Preview, Previewer, make_decode
from sdort.generation.pictures.terminal_picture import draw
from sdort.generation.preview_display import previewing, side_by_side
from sdort.generation.requests.typed_options import PreviewOptions
from sdort.graph.signature import TensorSpec
from sdort.machine.terminal import Graphics
from sdort.providers import CPU
from sdort.providers.runtime_options import RuntimeOptions
from sdort.samplers.noise_level import Level

OPTIONS = RuntimeOptions("cpu", graph=True)


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Where previews go: to a display, or to nobody where ``looks`` is off; and what their decoder is made of."""
    state = SimpleNamespace(looks=True, outputs=[], previews=[], made=[])

    class Display:
        def __init__(self, output: Path) -> None:
            state.outputs.append(output)

        def __enter__(self) -> Any:
            return state.previews.append if state.looks else None

        def __exit__(self, *_: Any) -> None:
            state.outputs.append("closed")

    monkeypatch.setattr(preview_display, "preview_display", Display)
    monkeypatch.setattr(preview_display, "make_decode", lambda *of: state.made.append(of) or "decode")
    folder = SimpleNamespace(latent_channels=4)
    state.models = SimpleNamespace(folder=folder, provider=CPU, previewer="before", preview_decoders={}, one_group=None)
    return state


@pytest.mark.parametrize("preview", [False, True])
@pytest.mark.parametrize("callback", [False, True])
@pytest.mark.parametrize("looks", [False, True])
def test_previews_go_to_all_who_look(preview: bool, callback: bool, looks: bool, shown: Any) -> None:
    shown.looks = looks
    called: list[Any] = []
    wanted = PreviewOptions(preview, called.append if callback else None, 7, "vae" if preview or callback else None)
    seen = callback or (preview and looks)
    with previewing(shown.models, wanted, Path("out.png"), OPTIONS):
        if seen:
            made = shown.models.previewer
            assert (made.every, made.decode) == (7, "decode")
            made.show("a preview")
        else:
            assert shown.models.previewer == "before"
    assert shown.outputs == ([Path("out.png"), "closed"] if preview else [])
    assert called == (["a preview"] if callback else [])
    assert shown.previews == (["a preview"] if preview and looks else [])
    plain = replace(OPTIONS, graph=False)
    assert shown.made == ([(shown.models.folder, 4, Path("vae"), CPU, plain)] if seen else [])
    assert shown.models.previewer == (None if seen else "before")


def test_nothing_is_shown_after_a_failure(shown: Any) -> None:
    def fail() -> None:
        assert shown.models.previewer is not None
        raise RuntimeError("gone")

    with pytest.raises(RuntimeError, match="gone"), previewing(shown.models, PreviewOptions(True), None, OPTIONS):
        fail()
    assert shown.models.previewer is None
    assert shown.outputs == [Path("sdort.png"), "closed"]
    assert shown.made[0][2] is None


def test_images_stand_beside_each_other() -> None:
    first, second = np.zeros((2, 3, 3)), np.ones((2, 3, 3))
    found = side_by_side([first, second])
    assert (found.shape, found[0, :, 0].tolist()) == ((2, 6, 3), [0, 0, 0, 1, 1, 1])


@pytest.mark.parametrize(("terminal", "room"), [((80, 50), (79, 16)), ((80, 14), (79, 10)), ((20, 3), (19, 1))])
def test_a_preview_leaves_room_in_the_terminal(
    terminal: tuple[int, int], room: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[Any] = []
    monkeypatch.setattr("shutil.get_terminal_size", lambda: terminal)
    monkeypatch.setattr(preview_display, "_cell", lambda: (9, 18))

    def drawing(*of: Any) -> Any:
        drawn.append(of[1:])
        return SimpleNamespace(sequence="s", rows=5)

    monkeypatch.setattr(preview_display, "draw", drawing)
    pictures: list[Any] = []
    monkeypatch.setattr(preview_display, "draw_picture", lambda *of: pictures.append(of))
    preview_display._show(Preview(1, 2, [3], [np.zeros((2, 3, 3), np.uint8)]), Graphics.KITTY)
    assert drawn == [(Graphics.KITTY, *room, (9, 18))]
    assert pictures == [("s", 5)]


@pytest.mark.parametrize(
    ("size", "room", "cell", "wanted"),
    [
        ((40, 80), (8, 16), (10, 20), (8, 2)),  # 80 pixels across: 80 x 40
        ((80, 40), (80, 4), (10, 20), (4, 4)),  # 80 down: 40 x 80
        ((40, 80), (8, 16), (8, 8), (8, 4)),
        ((64, 64), (3, 1), (10, 20), (2, 1)),
    ],
)
def test_a_picture_keeps_its_proportions(
    size: tuple[int, int], room: tuple[int, int], cell: tuple[int, int], wanted: tuple[int, int]
) -> None:
    picture = draw(np.zeros((*size, 3), np.uint8), Graphics.KITTY, *room, cell)
    assert f"c={wanted[0]},r={wanted[1]}," in picture.sequence
    assert picture.rows == wanted[1]


@pytest.mark.parametrize(
    ("window", "wanted"),
    [
        ((24, 80, 800, 480), (10, 20)),
        ((50, 100, 900, 900), (9, 18)),
        ((24, 80, 0, 0), (10, 20)),  # a terminal that does not tell
        ((0, 0, 0, 0), (10, 20)),
        ((24, 80, 40, 12), (1, 1)),
    ],
)
def test_a_cell_is_as_the_terminal_says(
    window: tuple[int, int, int, int], wanted: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lines, columns, and the width and height of all in pixels."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", *window))
    with os.fdopen(ours), os.fdopen(theirs, "w") as terminal:
        monkeypatch.setattr("sys.stderr", terminal)
        assert preview_display._cell() == wanted


def test_a_cell_of_no_terminal_has_the_usual_size(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with open(tmp_path / "file", "w") as file:
        monkeypatch.setattr("sys.stderr", file)
        assert preview_display._cell() == (10, 20)


def sampler(prediction: str = "epsilon") -> Any:
    def level_at(time: float) -> Level:
        if prediction == "flow_prediction":
            return Level.of_flow(0.3)
        return Level.of_share(float(np.interp(time, range(4), [0.81, 0.64, 0.36, 0.0])))

    return SimpleNamespace(level_at=level_at, prediction=prediction)


@pytest.mark.parametrize(
    ("every", "calls", "due"), [(1, 3, [0, 1]), (2, 5, [1, 3]), (3, 6, [2]), (5, 5, []), (9, 5, [])]
)
def test_previews_are_due_every_few_calls_but_the_last(every: int, calls: int, due: list[int]) -> None:
    made = BatchPreviews(Previewer(every, lambda _: np.zeros(0), print), sampler(), np.zeros(calls), [1.0], [1])
    assert [call for call in range(calls) if made.is_due(call)] == due


@pytest.mark.parametrize("prediction", ["epsilon", "v_prediction", "sample", "flow_prediction"])
def test_a_preview_is_of_the_guided_prediction_of_the_first_copy(prediction: str) -> None:
    got: list[Preview] = []
    decoded: list[Any] = []
    rng = np.random.default_rng(0)

    def decode(latents: Any) -> Any:
        decoded.append(latents)
        return rng.uniform(-1, 1, (2, 3, 4, 6)).astype(np.float32)

    times = np.array([3.0, 1.5, 0.0])
    made = BatchPreviews(Previewer(1, decode, got.append), sampler(prediction), times, [-1.0, 2.0], [5, 6])
    sample = rng.normal(size=(4, 9, 2, 3)).astype(np.float16)  # an inpainting UNet's, of two copies of two images
    output = rng.normal(size=(4, 4, 2, 3)).astype(np.float16)
    made.show(1, sample, output)
    alpha = 0.5  # between 0.64 and 0.36
    guided = -1.0 * output[:2].astype(np.float64) + 2.0 * output[2:]
    own = sample[:2, :4].astype(np.float64)
    wanted = {
        "sample": guided,
        "v_prediction": np.sqrt(alpha) * own - np.sqrt(1 - alpha) * guided,
        "flow_prediction": own - 0.3 * guided,
    }.get(prediction or "", (own - np.sqrt(1 - alpha) * guided) / np.sqrt(alpha))
    np.testing.assert_allclose(decoded[0], wanted, rtol=1e-3, atol=1e-3)
    [seen] = got
    assert (seen.step, seen.steps, seen.seeds) == (2, 3, [5, 6])
    assert [image.shape for image in seen.images] == [(4, 6, 3)] * 2
    made.show(0, sample, output)
    assert np.isfinite(decoded[1]).all()  # no signal is left at the first timestep


def test_sums_of_channels_are_the_familys_and_a_vae_has_its_own_scale(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    factors: Any = np.arange(12.0).reshape(4, 3)
    family = SimpleNamespace(latents=Latents(1.0, preview_factors=factors, preview_bias=(10.0, 20.0, 30.0)))
    folder: Any = SimpleNamespace(path=tmp_path, family=family)
    latents = np.random.default_rng(0).normal(size=(2, 4, 2, 3)).astype(np.float32)
    found = make_decode(folder, 4, None, CPU, OPTIONS)(latents)
    wanted = np.moveaxis(np.moveaxis(latents, 1, 3) @ factors + np.array([10.0, 20.0, 30.0]), 3, 1)
    np.testing.assert_allclose(found, wanted, rtol=1e-5)

    def session(*of: Any) -> Any:
        assert of == (tmp_path / "vae" / "m.onnx", DECODER, CPU, OPTIONS)
        spec = TensorSpec("x", np.dtype(np.float32), ("N", 4, "H", "W"))
        return SimpleNamespace(
            inputs={"x": spec}, outputs=[SimpleNamespace(name="y")], run=lambda feeds: {"y": feeds["x"] + 1}
        )

    monkeypatch.setattr(preview_module, "open_session", session)
    monkeypatch.setattr(preview_module, "find_components", lambda place: {DECODER: tmp_path / "vae" / "m.onnx"})
    for config, scale in (({"scaling_factor": 0.5}, 0.5), ({}, 1.0)):
        monkeypatch.setattr(preview_module, "read_component_config", lambda path, component, config=config: config)
        np.testing.assert_allclose(make_decode(folder, 4, tmp_path, CPU, OPTIONS)(latents), latents / scale + 1)


@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize("asked", [True, False])
def test_the_vae_that_is_asked_for_stands_before_the_pipelines_own(
    own: bool, asked: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[Path] = []
    sums = Latents(1.0, preview_factors=((0.0, 0.0, 0.0),) * 4)
    monkeypatch.setattr(preview_module, "_vae_decode", lambda place, *_: taken.append(place))
    if own:
        (tmp_path / "preview_vae").mkdir()
    folder: Any = SimpleNamespace(path=tmp_path, family=SimpleNamespace(latents=sums))
    make_decode(folder, 4, tmp_path / "asked" if asked else None, CPU, OPTIONS)
    assert taken == ([tmp_path / "asked"] if asked else [tmp_path / "preview_vae"] if own else [])
