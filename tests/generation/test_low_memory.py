"""Runs with ``--memory low``: the images of a run that has all models open, with those of one group open at a time."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from PIL import Image
from support.alive_sessions import in_turn, watching, watching_parts
from support.tiny_pipeline import Tiny, with_encoder

import sdort
from sdort import console
from sdort.cli import cli
from sdort.errors import BadModelError, MemoryShortageError, ProviderError, UsageError
from sdort.generation import low_memory, memory_need
from sdort.generation.denoising import step_progress
from sdort.generation.denoising.session_groups import Opened, joined_openings
from sdort.generation.request_plan import plan_request
from sdort.generation.requests.request import Request
from sdort.pipelines.folder import open_folder
from sdort.providers import CPU
from sdort.providers.provider import Provider
from sdort.providers.runtime_options import RuntimeOptions
from sdort.runtime import memory, opener
from sdort.runtime import session as session_module
from sdort.runtime.session import open_session
from sdort.runtime.step import bound_unet
from sdort.runtime.step.bound_unet import Batch, BoundBuffers
from sdort.runtime.step.preparation import ROWS
from sdort.runtime.step.prepared_tensors import split_file
from sdort.runtime.step.step_conditions import StepConditions
from sdort.workload.cases import Case

DRAWN: dict[str, Any] = {"steps": 2, "seed": 5, "height": 64, "width": 96}
PROMPT = "a star AND a moon"
ONCE = {"text_encoder": 1, "unet": 1, "vae_decoder": 1}
ENCODED = {"text_encoder": 1, "vae_encoder": 1, "unet": 1, "vae_decoder": 1}


@pytest.fixture(scope="module")
def folder(tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pipeline with an encoder."""
    return with_encoder(tiny, tmp_path_factory.mktemp("low") / "model")


@pytest.fixture(scope="module")
def pipelines(folder: Path) -> Iterator[tuple[sdort.Pipeline, sdort.Pipeline]]:
    """One with all models in memory, and one with low memory."""
    with (
        sdort.load(folder, provider="cpu", check=False) as normal,
        sdort.load(folder, provider="cpu", check=False, memory="low") as low,
    ):
        yield normal, low


def photo() -> Image.Image:
    return Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 96, 3), np.uint8))


def mask() -> Image.Image:
    return Image.fromarray(np.repeat(np.array([[0, 255]], np.uint8), 48, 1).repeat(64, 0))


@pytest.mark.parametrize(
    ("options", "loaded"),
    [
        ({}, ONCE),
        ({"num_images": 3, "images_at_once": 1}, ONCE),
        ({"init_image": photo(), "num_images": 2, "images_at_once": 1}, ENCODED),
        ({"init_image": photo(), "mask": mask(), "strength": 1.0}, ENCODED),
        ({"hires": 1.5, "num_images": 3, "images_at_once": 2}, ONCE),
        # A second pass of the UNet needs what the decoder makes of the first one.
        ({"hires": 1.5, "hires_upscale": "image", "num_images": 3, "images_at_once": 2},
         {"text_encoder": 1, "unet": 2, "vae_decoder": 2, "vae_encoder": 1}),
        ({"scheduler": "dpm2-a", "num_images": 2, "images_at_once": 1}, ONCE),
        ({"deep_cache": 2, "deep_cache_depth": 1}, ONCE),
    ],
    ids=["one", "batches", "image", "mask", "larger latents", "larger images", "own noise", "deep cache"],
)  # fmt: skip
def test_images_are_the_same_and_each_model_is_loaded_as_often_as_it_must(
    options: dict[str, Any], loaded: dict[str, int], pipelines: Any
) -> None:
    assert in_turn(pipelines[0], pipelines[1], PROMPT, **{**DRAWN, **options}) == loaded


def test_every_call_loads_anew_and_several_prompts_load_once(pipelines: Any) -> None:
    for prompts in (["a star", "two moons", "a sea"], ["a star"]):
        assert in_turn(pipelines[0], pipelines[1], prompts, **{**DRAWN, "steps": 1}, images_at_once=2) == ONCE


def test_a_call_that_ends_early_keeps_nothing_open(pipelines: Any) -> None:
    def stop(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with watching() as alive, pytest.raises(KeyboardInterrupt):
        pipelines[1].generate(PROMPT, **DRAWN, on_progress=stop)
    assert alive.together[-1] == {"unet"}
    assert alive.now == set()
    assert in_turn(pipelines[0], pipelines[1], PROMPT, **DRAWN) == ONCE


def test_loading_opens_nothing(folder: Path) -> None:
    with watching() as alive, sdort.load(folder, provider="cpu", check=False, memory="low"):
        assert alive.together == []
    with watching() as alive, sdort.load(folder, provider="cpu", check=False):
        assert alive.now == {"text_encoder", "unet", "vae_decoder"}


def test_the_memory_of_the_device_is_read_before_models_are_closed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if each open model had a power of ten of bytes."""
    sizes = {"text_encoder": 1, "unet": 100, "vae_decoder": 10}
    with watching() as alive:
        monkeypatch.setattr(memory, "device_reader", lambda *_: lambda: 5000 + sum(sizes[name] for name in alive.now))
        peaks = {}
        for kind in ("low", "normal"):
            with sdort.load(folder, provider="cpu", check=False, memory=kind) as pipeline:
                peaks[kind] = pipeline.generate(PROMPT, **DRAWN).peak_memory.device
    assert peaks == {"low": 100, "normal": 111}


def test_the_command_tells_what_was_loaded(folder: Path, tmp_path: Path) -> None:
    options = ["--steps", "2", "--seed", "5", "--size", "96x64", "--hires", "1.5", "--hires-upscale", "image"]
    command = ["run", str(folder), "--provider", "cpu", "--prompt", "a", "-o", str(tmp_path / "a.png"), *options]

    def said(*more: str) -> str:
        done = CliRunner().invoke(cli, [*command, "--overwrite", "--no-check", *more], catch_exceptions=False)
        console.set_verbosity(console.SILENT)
        assert done.exit_code == 0, done.output
        return done.stdout

    low = said("--memory", "low", "-v")
    rows = {cells[0]: cells[1] for line in low.splitlines() if len(cells := re.split("  +", line)) == 3}
    assert {"opening of text_encoder", "opening of unet, 2 times", "opening of vae_decoder, 2 times"} <= rows.keys()
    assert "load in turn" in low.splitlines()[-1]
    drawn = (tmp_path / "a.png").read_bytes()
    assert "load in turn" not in said("--memory", "normal", "-q")
    assert (tmp_path / "a.png").read_bytes() == drawn


def test_openings_of_several_calls_add_up() -> None:
    first, second = [Opened("unet", 1, 2.0), Opened("vae_decoder", 1, 0.5)], [Opened("unet", 2, 3.0)]
    assert joined_openings([first, second]) == [Opened("unet", 3, 5.0), Opened("vae_decoder", 1, 0.5)]
    assert joined_openings([]) == []


def test_another_word_is_refused(folder: Path) -> None:
    with pytest.raises(UsageError, match="--memory 'lowest' is not one of normal, low"):
        sdort.load(folder, provider="cpu", memory="lowest")


def test_the_bar_goes_from_batch_to_batch_where_all_are_denoised_first(monkeypatch: pytest.MonkeyPatch) -> None:
    bar = step_progress.StepProgress(5, 2, 3, 3)
    seen = []
    for _ in range(3):
        for _ in range(3):
            bar.step(2)
            seen.append((bar.description(), bar.numbers()[0]))
    steps = ["step 1 of 3", "step 2 of 3", "step 3 of 3"]
    names = ["images 1 to 2 of 5", "images 3 to 4 of 5", "image 5 of 5"]
    assert seen == [(name, step) for name in names for step in steps]
    for _ in range(5):
        bar.image_done()
    assert bar.description() == "image 5 of 5"


# The estimate


@pytest.fixture
def sums(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Weights and activations of each component, a power of ten each; the decoder's are by what is free."""
    weights = {"text_encoder": 1, "unet": 20, "vae_decoder": 300, "vae_encoder": 4000, "image_encoder": 50_000}
    found = SimpleNamespace(weights=weights, free=10**9, left=[], closed=0, parts=0, between=0, spared=0)

    def case_bytes(folder: Any, case: Case, provider: Any, plan: Any = None, **_: Any) -> int:
        activations = {"text_encoder": 2, "unet": 7, "vae_decoder": 600, "vae_encoder": 8000, "image_encoder": 90}
        return activations[case.component] * case.batch

    def plan(size: Any, tiling: Any, slicing: Any, free: int) -> str:
        found.left.append(free)
        return "plan"

    monkeypatch.setattr(low_memory, "case_bytes", case_bytes)
    monkeypatch.setattr(low_memory, "weight_bytes", lambda folder, names: sum(weights[name] for name in names))
    monkeypatch.setattr(low_memory, "planner_of", lambda *_: SimpleNamespace(size=lambda case: case, plan=plan))
    monkeypatch.setattr(low_memory, "free_memory", lambda vendor, device: found.free)
    monkeypatch.setattr(low_memory, "closed_bytes", lambda *_: found.closed)
    monkeypatch.setattr(low_memory, "parts_bytes", lambda folder: found.parts)
    monkeypatch.setattr(low_memory, "control_bytes", lambda *_: 0)
    monkeypatch.setattr(low_memory, "control_weights", lambda request: 9 if request.control else 0)
    monkeypatch.setattr(low_memory, "generation_bytes", lambda *_: 10_000)
    monkeypatch.setattr(low_memory, "_between", lambda *_: found.between)
    monkeypatch.setattr(
        low_memory, "spared_bytes", lambda folder, provider, lacking: min(max(lacking, 0), found.spared)
    )
    return found


def planned(**options: Any) -> Any:
    stages = [SimpleNamespace(size=(64, 96), calls=2, refines=False)]
    return SimpleNamespace(request=Request("a", **options), stages=stages)


BASE: Any = SimpleNamespace(denoiser="unet", needed=("text_encoder", "unet", "vae_decoder"))


def test_the_largest_group_counts_and_not_the_sum(sums: Any) -> None:
    def low(images: int = 1, **options: Any) -> int:
        return low_memory.low_bytes(BASE, planned(**options), images, CPU, 100_000)

    assert low() == 300 + 600
    assert sums.left[-1] == 100_000 - 300
    assert low(2) == 300 + 2 * 600
    sums.weights["unet"] = 20_000
    assert low(2) == 20_000 + 4 * 7  # with guidance each image is two samples
    assert low(2, guidance_scale=1.0, control=("net",)) == 20_000 + 2 * 7 + 9
    assert low(ip_adapter_image=("photo",)) == 50_000 + 90
    sums.closed = 5_000
    assert low(2) == 15_000 + 4 * 7
    sums.parts = 16_000  # before the steps there may be more than in them
    assert low(2) == 16_000
    sums.parts = 0
    stage = SimpleNamespace(size=(64, 96), calls=2, refines=False)
    passes: Any = SimpleNamespace(request=Request("a"), stages=[stage, stage])
    assert low_memory.low_bytes(BASE, passes, 2, CPU, 100_000) == 20_000 + 4 * 7  # the second one's rows are made then
    sums.closed = 0
    sums.weights |= {"unet": 1, "text_encoder": 70_000}
    assert low() == 70_000 + 2


@pytest.mark.parametrize(
    ("free", "chosen"), [(10_321, "normal"), (10_320, "low"), (783, "low"), (782, "normal"), (None, "normal")]
)
def test_low_memory_is_taken_where_only_that_fits(
    free: int | None, chosen: str, sums: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """Beyond 1.15 times what is free, both are refused."""
    sums.free = free
    assert low_memory.choose_memory(BASE, [(planned(), 1)], CPU, 0) == chosen
    assert ("--memory low: all models together need" in capsys.readouterr().err) is (chosen == "low")


def test_weights_that_take_turns_count_as_far_as_they_are_in_memory(sums: Any) -> None:
    sums.weights["unet"], sums.parts = 20_000, 30_000

    def low(free: int, **options: Any) -> int:
        return low_memory.low_bytes(BASE, planned(**options), 1, CPU, free, offload=True)

    sums.between, sums.spared = 500, 15_000
    assert low(25_000) == 20_000 + 2 * 7 + 500
    assert low(20_000) == 20_000
    assert low(20_000, control=("net",), guidance_scale=1.0) == 20_000
    assert low(2_000) == 20_000 + 2 * 7 + 500 - 15_000
    assert low_memory.low_bytes(BASE, planned(), 1, CPU, 20_000) == 30_000


@pytest.mark.parametrize("options", [{}, {"deep_cache": 2}, {"lora": ("a",)}])
def test_offload_is_named_where_a_run_fits_only_with_it(options: dict[str, Any], sums: Any) -> None:
    sums.weights["unet"], sums.spared, sums.free = 20_000, 19_000, 2_000
    plan = planned(**options)
    with pytest.raises(MemoryShortageError) as low:
        low_memory.refuse_low(BASE, plan, 1, CPU, 0)
    assert ("With --offload it fits" in str(low.value.hint)) is (not options)
    if options:
        assert low_memory.choose_memory(BASE, [(plan, 1)], CPU, 0) == "normal"
        return
    with pytest.raises(MemoryShortageError, match="the largest part of the run, loaded alone, needs about 20"):
        low_memory.choose_memory(BASE, [(plan, 1)], CPU, 0)
    low_memory.refuse_low(BASE, plan, 1, CPU, 0, offload=True)
    sums.free = 800
    with pytest.raises(MemoryShortageError, match="with --offload needs") as none:
        low_memory.refuse_low(BASE, plan, 1, CPU, 0, offload=True)
    assert "--offload" not in str(none.value.hint)


def test_what_no_group_fits_into_is_refused(sums: Any) -> None:
    sums.free = 783  # of 900
    low_memory.refuse_low(BASE, planned(), 1, CPU, 0)
    sums.free = 782
    with pytest.raises(MemoryShortageError, match="generating 96x64 pixels, 1 at once, with --memory low needs"):
        low_memory.refuse_low(BASE, planned(), 1, CPU, 0)


def test_a_run_takes_low_memory_by_itself_and_says_so(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    opened = open_folder(folder)
    whole = low_memory.whole_bytes(opened, plan_request(opened, Request("a", steps=1)), 1, CPU, 10**9)
    for module in (low_memory, memory_need):
        # Too little by less than the estimate may be wrong: who asks for all at once gets that.
        monkeypatch.setattr(module, "free_memory", lambda *_: int(whole / 1.1))
    options: dict[str, Any] = {"provider": "cpu", "steps": 1, "seed": 1, "check": False}
    result = sdort.run(folder, "a", output=tmp_path / "a.png", **options)
    assert result.memory == "low"
    assert "Loaded in turn they need about" in " ".join(capsys.readouterr().err.split())
    asked = sdort.run(folder, "a", output=tmp_path / "b.png", memory="normal", **options)
    assert asked.memory == "normal"
    np.testing.assert_array_equal(asked.images[0].pixels, result.images[0].pixels)


def test_what_is_held_weighs_less(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The files of the models that are open at once, at their most."""
    most: dict[str, int] = {}
    opened = open_folder(folder)
    for kind in ("normal", "low"):
        with watching() as alive, sdort.load(folder, provider="cpu", check=False, memory=kind) as pipeline:
            pipeline.generate(PROMPT, **DRAWN, init_image=photo())
        most[kind] = max(memory_need.weight_bytes(opened, each) for each in alive.together)
    each = {name: memory_need.weight_bytes(opened, [name]) for name in opened.models}
    assert most["normal"] == sum(each.values())
    assert most["low"] == max(each["unet"], each["text_encoder"], each["vae_decoder"] + each["vae_encoder"])


# The parts of the UNet


PARTS = [["prompt"], ["prompt", "time"], ["step"]]
"""Those that are open at each opening of one: what runs before the steps is closed when the step opens."""


@pytest.mark.parametrize(
    ("options", "opened"),
    [
        ({}, PARTS),
        ({"num_images": 3, "images_at_once": 2}, PARTS),
        ({"init_image": photo()}, PARTS),
        ({"scheduler": "dpm2-a"}, PARTS),
        # The parts of a prompt that changes are open while it does.
        ({"prompt": "a [star:moon:0.5]", "steps": 4}, [["prompt"], ["prompt", "time"], ["prompt", "step"]]),
        # The second pass has another schedule; memory has room for it beside the step.
        ({"hires": 1.5}, [*PARTS, ["step", "prompt"], ["step", "prompt", "time"]]),
        ({"deep_cache": 2, "deep_cache_depth": 1}, [*PARTS[:2], ["whole"], ["whole", "shallow"]]),
    ],
    ids=["one", "batches", "image", "own noise", "changing prompt", "two passes", "deep cache"],
)  # fmt: skip
def test_what_runs_before_the_steps_is_closed_when_the_step_opens(
    options: dict[str, Any], opened: list[list[str]], pipelines: Any
) -> None:
    given = {"prompt": PROMPT, **DRAWN, **options}
    with watching_parts() as parts:
        found = pipelines[1].generate(**given)
    assert parts.together == opened
    assert parts.now == []
    expected = pipelines[0].generate(**given)
    for first, second in zip(expected.images, found.images, strict=True):
        np.testing.assert_array_equal(first.pixels, second.pixels)


def test_the_rows_of_all_prompts_are_made_before_the_step_opens(pipelines: Any) -> None:
    prompts = ["a star", "two moons", "a star"]
    with watching_parts() as parts:
        found = pipelines[1].generate(prompts, **DRAWN, images_at_once=1)
    assert parts.together[:3] == PARTS
    assert all("time" not in each for each in parts.together[3:])
    expected = pipelines[0].generate(prompts, **DRAWN, images_at_once=1)
    for first, second in zip(expected.images, found.images, strict=True):
        np.testing.assert_array_equal(first.pixels, second.pixels)


def test_the_step_closes_where_another_schedule_has_no_room_beside_it(
    pipelines: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = pipelines[0].generate(PROMPT, **DRAWN, hires=1.5)
    monkeypatch.setattr(bound_unet, "free_memory", lambda *_: 0)
    with watching_parts() as parts:
        found = pipelines[1].generate(PROMPT, **DRAWN, hires=1.5)
    assert parts.together == [*PARTS, ["step", "prompt"], ["prompt", "time"], ["prompt", "step"]]
    np.testing.assert_array_equal(expected.images[0].pixels, found.images[0].pixels)
    assert {each.component: each.times for each in found.opened} == ONCE


def test_a_schedule_that_was_there_opens_nothing_again(folder: Path) -> None:
    """In one pass of the UNet: what is open is closed when the call ends."""
    opened = open_folder(folder)
    session = open_session(opened.models["unet"], "unet", CPU, RuntimeOptions("cpu", memory="low"))
    context = session.inputs["encoder_hidden_states"]
    shape = (1, 77, int(context.shape[2] or 0))

    def rows(timesteps: list[float], prompt: int) -> Any:
        states = np.random.default_rng(prompt).standard_normal(shape).astype(context.dtype)
        conditions = StepConditions.fixed([{context.name: states}], len(timesteps))
        made = buffers.step_rows(np.asarray(timesteps), conditions)
        buffers.begin(conditions)
        return made

    with watching_parts() as parts:
        buffers = BoundBuffers(session, Batch(1, 1, (4, 8, 12)), {context.name: shape[1:]}, 1)
        first = rows([9.0, 5.0], 0)
        assert parts.together == PARTS
        assert rows([9.0, 5.0], 0) is first
        assert len(parts.together) == 3
        other = rows([9.0, 7.0], 0)
        assert parts.together[3:] == [["step", "time"]]
        assert parts.now == ["step"]
        assert not np.array_equal(other, first)
        assert rows([9.0, 5.0], 0) is first
        assert len(parts.together) == 4
        rows([9.0, 5.0], 1)
        rows([9.0, 5.0], 2)
        assert parts.together[4:] == [["step", "prompt"]]  # prompts that change once do so again


class Other(Provider):
    """A provider that is not ONNX Runtime's own one for the CPU."""

    name = "other"
    is_fallback = False


def test_a_step_that_the_provider_refuses_runs_on_the_cpu(
    folder: Path, monkeypatch: pytest.MonkeyPatch, pipelines: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """The parts before it may open where the step does not."""
    create, refusals = opener.create_session, list[str]()

    def refuse(model: Any, provider: Any, *given: Any, **named: Any) -> Any:
        name = onnx.load_from_string(model).graph.name if isinstance(model, bytes) else ""
        if provider is other and name.endswith(".step"):
            refusals.append(provider.name)
            raise ProviderError("no kernel")
        return create(model, CPU, *given, **named)

    other = Other(**{each.name: getattr(CPU, each.name) for each in fields(CPU)})
    monkeypatch.setattr(session_module, "create_session", refuse)
    with sdort.load(folder, provider="cpu", check=False, memory="low") as low:
        low._models.provider = other
        low._models.options = replace(low._models.options, fallback=True)
        found = low.generate(PROMPT, **DRAWN)
        assert refusals == ["other"]
        assert low.fallback == "unet runs on cpu: no kernel"
        low._models.options = replace(low._models.options, provider="cpu", fallback=None)
        with pytest.raises(ProviderError, match="no kernel"):
            low.generate(PROMPT, **DRAWN)
    np.testing.assert_array_equal(found.images[0].pixels, pipelines[0].generate(PROMPT, **DRAWN).images[0].pixels)
    assert "unet runs on cpu: no kernel" in capsys.readouterr().err


def test_weights_that_are_closed_before_the_steps_are_those_of_timesteps_and_of_one_prompt(folder: Path) -> None:
    opened = open_folder(folder)
    split = split_file(opened.file("unet"))
    assert split is not None
    assert split.time is not None
    with watching_parts() as parts, sdort.load(folder, provider="cpu", check=False) as pipeline:
        preparation = pipeline._models.sessions["unet"].preparation
    assert parts.together[-1] == ["prompt", "time", "step"]
    assert preparation is not None
    assert preparation.time is not None
    assert preparation.prompt is not None
    both = preparation.time.nbytes + preparation.prompt.nbytes
    assert memory_need.closed_bytes(opened, Request("a", num_images=3), 3) == both
    assert min(preparation.time.nbytes, preparation.prompt.nbytes) > 0
    for request, images in ((Request("a"), 2), (Request("a [b:c:0.5]"), 1), (Request("a", "[b|c]"), 1)):
        assert memory_need.closed_bytes(opened, request, images) == preparation.time.nbytes
    assert memory_need.closed_bytes(opened, replace(Request("a"), lora=("a",)), 1) == 0  # type: ignore[arg-type]
    rows = sum(ROWS * 4 * math.prod(int(size or 0) for size in spec.shape[1:]) for spec in preparation.time.outputs)
    assert memory_need.parts_bytes(opened) == both + 2 * rows


def test_with_all_models_open_the_parts_close_where_an_image_has_too_little_memory(
    folder: Path, monkeypatch: pytest.MonkeyPatch, pipelines: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """What was decided of a size holds for it; another size is decided anew."""
    free = 10**9
    monkeypatch.setattr(memory_need, "free_memory", lambda *_: free)
    other = {**DRAWN, "width": 64}
    narrow = Request(PROMPT, width=64, height=64, steps=2)
    needed = memory_need.generation_bytes(open_folder(folder), narrow, 1, CPU, free)
    console.set_verbosity(console.VERBOSE)
    try:
        with watching_parts() as parts, sdort.load(folder, provider="cpu", check=False) as pipeline:
            pipeline.generate(PROMPT, **DRAWN)
            assert sorted(parts.now) == ["prompt", "step", "time"]
            assert "stays open: an image needs about" in " ".join(capsys.readouterr().err.split())
            closable = pipeline._models.closable_bytes
            assert closable > 0
            pipeline._held, free = 0, needed - 1
            small = pipeline.generate(PROMPT, **other).images[0].pixels
            assert "is closed once it has run: an image needs about" in " ".join(capsys.readouterr().err.split())
            assert parts.now == ["step"]
            pipeline._held, free = 0, needed
            np.testing.assert_array_equal(pipeline.generate(PROMPT, **other).images[0].pixels, small)
            assert len(parts.together) == 3  # the same schedule and the same prompt
            pipeline.generate(PROMPT, **{**other, "steps": 3})
            assert parts.together[3:] == [["step", "time"]]
            assert parts.now == ["step"]
            # A size of which the other thing was decided, and again this one.
            pipeline.generate(PROMPT, **{**DRAWN, "steps": 4})
            assert parts.now == ["step", "time"]
            pipeline.generate(PROMPT, **{**other, "steps": 4})
            assert parts.now == ["step"]
    finally:
        console.set_verbosity(console.SILENT)
    np.testing.assert_array_equal(small, pipelines[0].generate(PROMPT, **other).images[0].pixels)


def test_what_can_be_closed_counts_as_free(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    request = Request(PROMPT, **{name: DRAWN[name] for name in ("steps", "height", "width")})
    needed = memory_need.generation_bytes(open_folder(folder), request, 1, CPU, 10**9)
    with sdort.load(folder, provider="cpu", check=False) as pipeline:
        closable = pipeline._models.closable_bytes
        monkeypatch.setattr(memory_need, "free_memory", lambda *_: int(needed / memory_need.MARGIN) - closable + 99)
        pipeline.generate(PROMPT, **DRAWN)
        assert pipeline._models.closable_bytes == 0
        pipeline._held = 0
        with pytest.raises(MemoryShortageError):
            pipeline.generate(PROMPT, **DRAWN)


def test_files_that_changed_are_not_opened_again(tiny: Tiny, tmp_path: Path) -> None:
    """The graph in memory would read another model's weights. What stays as it was opens, linked elsewhere or not."""
    sdort.optimize(tiny.onnx, tmp_path / "model", provider="cpu")
    weights, away = tmp_path / "model" / "unet" / "model.onnx.data", tmp_path / "away"
    with sdort.load(tmp_path / "model", provider="cpu", check=False) as pipeline:
        preparation = pipeline._models.sessions["unet"].preparation
        assert preparation is not None
        assert preparation.time is not None
        expected = pipeline.generate(PROMPT, **DRAWN).images[0].pixels
        preparation.forget()
        pipeline._models.loop._bound.clear()
        preparation.time.close()
        weights.rename(away)
        with pytest.raises(BadModelError, match=r"model\.onnx\.data is gone since the model was loaded"):
            pipeline.generate(PROMPT, **DRAWN)
        weights.write_bytes(bytes(away.stat().st_size))
        with pytest.raises(BadModelError, match=r"model\.onnx\.data has changed since"):
            pipeline.generate(PROMPT, **DRAWN)
        away.replace(weights)
        os.link(weights, away)
        np.testing.assert_array_equal(pipeline.generate(PROMPT, **DRAWN).images[0].pixels, expected)
