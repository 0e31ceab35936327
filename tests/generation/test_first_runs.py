"""Small models run once while the denoiser is loaded, at the sizes that they run at later; images stay as they are."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import native
from support.tiny_pipeline import Tiny

import sdort
from sdort.errors import ProviderError
from sdort.families.component_names import DECODER
from sdort.generation import command, first_runs
from sdort.generation.low_memory import whole_bytes
from sdort.generation.memory_need import generation_bytes
from sdort.generation.request_plan import plan_request
from sdort.generation.requests.request import Request
from sdort.pipelines.folder import open_folder
from sdort.providers import CPU, PROVIDERS
from sdort.providers.provider import Provider
from sdort.providers.runtime_options import RuntimeOptions
from sdort.runtime import activations, memory_pool, probe
from sdort.runtime.session import Session, open_session

POOLED = replace(CPU, pools=True)
"""The CPU as a provider with pools, of the host's memory."""
PLENTY = 1 << 40

Shapes = list[tuple[str, dict[str, tuple[int, ...]]]]
"""Components in the order of their runs, each with the dimensions of its inputs."""


def ahead(folder: Path, request: Request, images: int = 1, provider: Provider = POOLED, **options: Any) -> Any:
    opened = open_folder(folder)
    runtime = RuntimeOptions("cpu", **options)
    return first_runs.first_runs(opened, plan_request(opened, request), images, provider, runtime)


@pytest.fixture
def plenty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first_runs, "free_memory", lambda *_: PLENTY)


@pytest.fixture
def pooled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs have pools of the host's memory."""
    monkeypatch.setattr(memory_pool, "is_reachable", lambda vendor: True)
    monkeypatch.setattr(command, "choose_provider", lambda options: (POOLED, None))


def shapes_of(feeds: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    return {name: np.shape(value) for name, value in feeds.items()}


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> tuple[Shapes, Shapes]:
    """What runs ahead, and what runs later, of components whose inputs come from the host's memory."""
    early, late = Shapes(), Shapes()
    run_ahead, run = Session.run_ahead, Session.run

    def noted_ahead(self: Session, feeds: Mapping[str, Any]) -> None:
        early.append((self.component, shapes_of(feeds)))
        run_ahead(self, feeds)

    def noted(self: Session, feeds: Mapping[str, Any]) -> Any:
        late.append((self.component, shapes_of(feeds)))
        return run(self, feeds)

    monkeypatch.setattr(Session, "run_ahead", noted_ahead)
    monkeypatch.setattr(Session, "run", noted)
    return early, late


def drawn(folder: Path, output: Path, **options: Any) -> list[Any]:
    result = sdort.run(
        folder, "a red star", provider="cpu", custom_ops=str(native.library()), steps=2, seed=3, output=output,
        overwrite=True, **options,
    )  # fmt: skip
    return [image.pixels for image in result.images]


@pytest.mark.usefixtures("pooled")
@pytest.mark.parametrize(
    "options",
    [{}, {"size": "32x48"}, {"num_images": 3, "images_at_once": 2}, {"size": "64x96", "vae_tiling": True},
     {"num_images": 2, "vae_slicing": True}, {"negative_prompt": "blue", "guidance_scale": 1.0}],
    ids=lambda options: ", ".join(options) or "plain",
)  # fmt: skip
def test_what_runs_ahead_has_the_sizes_of_the_first_run_that_counts(
    options: dict[str, Any], tiny: Tiny, tmp_path: Path, runs: tuple[Shapes, Shapes], monkeypatch: pytest.MonkeyPatch
) -> None:
    early, late = runs
    images = drawn(tiny.onnx, tmp_path / "a.png", **options)
    assert sorted(name for name, _ in early) == ["text_encoder", DECODER]
    for component, shapes in early:
        assert next(found for name, found in late if name == component) == shapes
    monkeypatch.setattr(command, "first_runs", lambda *_: {})
    without = drawn(tiny.onnx, tmp_path / "b.png", **options)
    assert len(early) == 2, "nothing ran ahead the second time"
    assert all((one == other).all() for one, other in zip(images, without, strict=True))


@pytest.mark.usefixtures("pooled")
def test_a_run_ahead_has_memory_of_its_own_that_goes_back(tiny: Tiny) -> None:
    options = RuntimeOptions("cpu", custom_ops=str(native.library()), pool=memory_pool.new_pool_number())
    session = open_session(open_folder(tiny.onnx).models[DECODER], DECODER, POOLED, options)
    shared = session.pool
    assert shared is not None
    feeds = {next(iter(session.inputs)): np.ones((1, 4, 16, 16), np.float32)}
    before = shared.sizes()
    number = shared._library.sdort_pool_open(0, 0)  # the next one's is one higher
    session.run_ahead(feeds)
    assert session.pool is shared
    assert shared.sizes() == before
    sizes = (ctypes.c_uint64 * 4)()
    assert shared._library.sdort_pool_sizes(ctypes.c_int64(number + 1), sizes) == -1, "it is not closed"
    session.run(feeds)
    assert shared.sizes().most > before.most, "what counts computes in the shared pool"
    assert session.ran_on == {((next(iter(session.inputs)), (1, 4, 16, 16)),)}


@pytest.mark.usefixtures("pooled")
def test_a_shape_that_ran_ahead_is_not_the_one_that_a_session_is_for(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What runs later at another one needs no session of its own."""
    options = RuntimeOptions("cpu", custom_ops=str(native.library()), pool=memory_pool.new_pool_number())
    provider = replace(POOLED, plans_shapes=True)
    session = open_session(open_folder(tiny.onnx).models[DECODER], DECODER, provider, options)
    monkeypatch.setattr(session, "_opened_again", lambda: pytest.fail("another session"))
    name = next(iter(session.inputs))
    session.run_ahead({name: np.ones((1, 4, 8, 8), np.float32)})
    session.run({name: np.ones((1, 4, 16, 16), np.float32)})
    assert session.ran_on == {((name, (1, 4, 16, 16)),)}


@pytest.mark.usefixtures("pooled")
def test_a_first_run_that_fails_is_told_where_it_counts(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runs: tuple[Shapes, Shapes]
) -> None:
    def fail(self: Session, feeds: Any) -> None:
        raise ProviderError("the device is gone", component=self.component)

    expected = drawn(tiny.onnx, tmp_path / "a.png")
    monkeypatch.setattr(Session, "run_ahead", fail)
    [image], [wanted] = drawn(tiny.onnx, tmp_path / "a.png"), expected
    assert (image == wanted).all()
    monkeypatch.setattr(Session, "run", fail)
    with pytest.raises(ProviderError, match="the device is gone") as raised:
        drawn(tiny.onnx, tmp_path / "b.png")
    assert raised.value.component == "text_encoder"
    assert not (tmp_path / "b.png").exists()


@pytest.mark.usefixtures("pooled")
def test_a_later_image_runs_nothing_ahead_and_starts_no_thread(
    tiny: Tiny, runs: tuple[Shapes, Shapes], monkeypatch: pytest.MonkeyPatch
) -> None:
    early, _ = runs
    pipeline = sdort.load(tiny.onnx, provider="cpu", custom_ops=str(native.library()))
    pipeline.generate("a", steps=1)
    started: list[threading.Thread] = []
    monkeypatch.setattr(threading.Thread, "start", started.append)
    monkeypatch.setattr("sdort.generation.command.ImageWriter.take", lambda self, index, image, write: None)
    pipeline.generate("a", steps=1)
    assert (early, started) == ([], [])


@pytest.mark.usefixtures("plenty")
def test_only_what_has_a_pool_runs_ahead(tiny: Tiny) -> None:
    """On a processor it would take the time of what is loaded, and MIOpen would measure kernels beside other work."""
    request = Request("a", steps=2)
    assert {*ahead(tiny.onnx, request)} == {"text_encoder", DECODER}
    early = {name for name, each in PROVIDERS.items() if ahead(tiny.onnx, request, provider=each)}
    assert early == {"cuda"}
    assert ahead(tiny.onnx, request, memory="low") == {}


@pytest.mark.usefixtures("plenty")
def test_where_the_decoder_may_run_at_another_size_it_does_not_run_ahead(tiny: Tiny) -> None:
    assert {*ahead(tiny.onnx, Request("a", steps=3, hires=1.5))} == {"text_encoder"}
    assert {*ahead(tiny.onnx, Request("a", steps=3), devices="0,1")} == {"text_encoder"}


def test_nothing_runs_ahead_where_memory_is_scarce(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    request, opened = Request("a", steps=2), open_folder(tiny.onnx)
    whole = whole_bytes(opened, plan_request(opened, request), 1, POOLED, PLENTY)
    for free, names in ((int(whole / 0.79), {"text_encoder", DECODER}), (int(whole / 0.81), set())):
        monkeypatch.setattr(first_runs, "free_memory", lambda *_, free=free: free)
        assert {*ahead(tiny.onnx, request)} == names
    monkeypatch.setattr(first_runs, "free_memory", lambda *_: None)
    assert ahead(tiny.onnx, request) == {}


def test_memory_is_counted_while_the_provider_is_loaded(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once for both: what decides with the provider that was found counts nothing again."""
    counted = threading.Event()
    counts: list[str] = []
    count = activations._counted

    def noted(*arguments: Any) -> int:
        found = generation_bytes(*arguments)
        counted.set()
        return found

    def noted_count(file: Any, *arguments: Any) -> int:
        counts.append(f"{file.component} {'later' if counted.is_set() else 'ahead'}")
        return count(file, *arguments)

    def choose(options: RuntimeOptions) -> tuple[Provider, None]:
        assert counted.wait(30), "it is counted when the provider is loaded"
        return CPU, None

    monkeypatch.setattr(command, "generation_bytes", noted)
    monkeypatch.setattr(command, "choose_provider", choose)
    monkeypatch.setattr(activations, "_counted", noted_count)
    request: dict[str, Any] = {"steps": 1, "size": "40x56", "output": tmp_path / "a.png"}
    assert sdort.plan_run(tiny.onnx, "a", provider="cpu", **request).provider == "cpu"
    assert sorted(counts) == ["unet ahead", "vae_decoder ahead"]


@pytest.mark.parametrize(
    ("asked", "built", "expected"),
    [("rocm", ["CPUExecutionProvider"], "rocm"), ("auto", ["CPUExecutionProvider"], "cpu"),
     ("auto", ["CUDAExecutionProvider", "CPUExecutionProvider"], "cuda")],
)  # fmt: skip
def test_the_provider_that_is_expected(
    asked: str, built: list[str], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = type("Module", (), {"get_available_providers": staticmethod(lambda: built)})
    monkeypatch.setattr(probe, "import_onnxruntime", lambda: module)
    assert probe.expected_provider(RuntimeOptions(asked)).name == expected
