"""Runs with ``--offload``: a denoiser in pieces whose weights take turns draws what the whole one draws."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.pipelines import export_family, trace_folder
from support.tiny_pipeline import Tiny

import sdort
from sdort.errors import ParityError, UsageError
from sdort.generation.low_memory import refuse_offload
from sdort.providers.cuda import PROVIDER as CUDA
from sdort.providers.migraphx import PROVIDER as MIGRAPHX
from sdort.providers.runtime_options import RuntimeOptions
from sdort.runtime import placed_weights
from sdort.runtime import session as session_module
from sdort.runtime.piecewise_ort import PiecewiseOrt
from sdort.runtime.step.pieces import plan_pieces
from sdort.runtime.streamed_weights import StreamedWeights

Array = np.ndarray[Any, Any]

DRAWN: dict[str, Any] = {"steps": 3, "seed": 5, "height": 64, "width": 96}
PROMPT = "a red cat"


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """The weights of small models are placed too."""
    monkeypatch.setattr(placed_weights, "LEAST", 1 << 8)


@pytest.fixture(scope="module")
def folders(tiny: Tiny, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> dict[str, Path]:
    """A UNet, a transformer, and the same with linear layers in 4 bits, all as sdort optimizes them."""
    folder = tmp_path_factory.mktemp("offloaded")
    flux = export_family("flux-schnell", folder, trace_folder(request.config))
    sdort.optimize(tiny.onnx, folder / "unet", provider="cpu")
    sdort.optimize(flux.out, folder / "transformer", provider="cpu")
    sdort.optimize(flux.out, folder / "int4", provider="cpu", weights="int4", group=16)
    return {name: folder / name for name in ("unet", "transformer", "int4")}


@pytest.fixture(scope="module")
def expected(folders: dict[str, Path]) -> dict[str, Array]:
    """What each draws with all weights in memory."""
    found = {}
    for name, folder in folders.items():
        with sdort.load(folder, provider="cpu", check=False) as pipeline:
            found[name] = pipeline.generate(PROMPT, **DRAWN).images[0].pixels
    return found


def opened(monkeypatch: pytest.MonkeyPatch, share: float, count: int) -> list[PiecewiseOrt]:
    """The sessions of steps that are opened from now on, in so many pieces that take turns.

    Args:
        share: of the weights that there is room for.
    """
    found: list[PiecewiseOrt] = []

    def planned(graph: Any, sizes: Any, *_: Any) -> Any:
        return plan_pieces(graph, sizes, int(share * sum(sizes.values())), counts=[count])

    begin = PiecewiseOrt.__init__

    def made(self: PiecewiseOrt, *given: Any) -> None:
        begin(self, *given)
        found.append(self)

    monkeypatch.setattr(session_module, "plan_pieces", planned)
    monkeypatch.setattr(PiecewiseOrt, "__init__", made)
    return found


@pytest.mark.parametrize(
    ("kind", "share", "count"),
    [
        *[(kind, 0, count) for kind in ("unet", "transformer", "int4") for count in (2, 3)],
        ("unet", 0.97, 4),
        ("transformer", 0.97, 4),
    ],
)
def test_a_denoiser_in_pieces_draws_the_same(
    kind: str,
    share: float,
    count: int,
    folders: dict[str, Path],
    expected: dict[str, Array],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    orts = opened(monkeypatch, share, count)
    with sdort.load(folders[kind], provider="cpu", check=False, offload=True) as pipeline:
        found = pipeline.generate(PROMPT, **DRAWN)
    np.testing.assert_array_equal(found.images[0].pixels, expected[kind])
    step = orts[-1]
    assert len(step.streamed.sizes) == count
    assert (len(step.sessions) > count) is (share > 0)
    assert found.offloaded == step.offloaded
    assert step.offloaded.pieces == count
    assert 0 < step.offloaded.streamed <= sum(step.streamed.sizes)
    assert step.streamed.block.nbytes == 2 * max(step.streamed.sizes)
    assert found.memory == "low"


@pytest.mark.parametrize("kind", ["unet", "transformer", "int4"])
def test_without_copies_something_else_is_drawn(
    kind: str, folders: dict[str, Path], expected: dict[str, Array], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened(monkeypatch, 0, 3)
    monkeypatch.setattr(StreamedWeights, "begin", lambda *_: None)
    monkeypatch.setattr(StreamedWeights, "end", lambda *_: None)
    with sdort.load(folders[kind], provider="cpu", check=False, offload=True) as pipeline:
        try:
            found = pipeline.generate(PROMPT, **DRAWN).images[0].pixels
        except ParityError:  # numbers of other weights may be anything
            return
    assert not np.array_equal(found, expected[kind])


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"memory": "normal"}, "--memory normal loads all models together"),
        ({"graph": True}, "--graph records a step that is one graph"),
        ({"adapters": True}, "weights that adapters change stay"),
        ({"devices": "0,1"}, "--devices has each of several GPUs hold the denoiser"),
        ({"deep_cut": 1}, "--deep-cache runs a part"),
        ({"patch_cut": 2}, "--patches has each"),
    ],
)
def test_what_needs_all_weights_at_once_is_refused(options: dict[str, Any], reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        RuntimeOptions(provider="cpu", offload=True, **options)


def test_a_provider_whose_sessions_hold_weights_is_refused() -> None:
    refuse_offload(CUDA, RuntimeOptions(offload=True))
    refuse_offload(MIGRAPHX, RuntimeOptions())
    with pytest.raises(UsageError, match="--offload is not for migraphx, whose sessions hold all weights"):
        refuse_offload(MIGRAPHX, RuntimeOptions(offload=True))
