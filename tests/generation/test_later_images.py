"""What a later image of an open pipeline costs beside its stages: what is read, started and planned again."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from support.tiny_pipeline import Tiny

import sdort
from sdort.checkpoints import configs
from sdort.files import input_file
from sdort.generation import keep_tuning, memory_need, request_plan
from sdort.generation.requests import stages
from sdort.generation.schedules import recurrence, schedulers
from sdort.onnx_io import component_file, wire
from sdort.pipelines import folder
from sdort.rewrite.inference import facts_at_sizes
from sdort.runtime import activations, provider_message
from sdort.runtime.step import prepared_tensors, step_split
from sdort.samplers.sampler import FormulaSampler
from sdort.workload import cases

ONCE = (request_plan.plan_request, stages.plan_stages)
"""What a request decides, found once for all that take part."""
NEVER = (
    # of the files
    input_file.read_input, wire.read_graph, component_file.read_component, component_file.declared_inputs,
    component_file._weight_bytes, configs.read_config, folder.open_folder, step_split.split_step,
    prepared_tensors.prepared_tensors, activations._counted, facts_at_sizes.facts_at,
    memory_need._first_channels, provider_message.custom_ops_hash,
    # of the schedule
    schedulers.load_sampler, FormulaSampler.__init__, recurrence.find_recurrence,
    # of the tuning that nobody asked for
    cases.make_feeds,
)  # fmt: skip
"""What the pipeline's files, the machine and the options of loading decide: it was found for the first image."""
PROCESSES = ("subprocess.Popen", "os.fork", "os.posix_spawn", "os.exec")
KERNEL = ("/proc/", "/sys/")
"""Where the kernel tells how much memory is free: no files of a disk."""


class Seen:
    """Calls of Python functions, and the interpreter's events of opened files and started processes, of a block."""

    def __init__(self) -> None:
        self.calls: Counter[Any] = Counter()
        self.events: list[str] = []
        self.on = False
        sys.addaudithook(self._event)  # for good: there is no other end of a hook

    def __enter__(self) -> Seen:
        self.calls.clear()
        self.events.clear()
        self.on = True
        sys.setprofile(self._call)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)
        self.on = False

    def _call(self, frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            self.calls[frame.f_code] += 1

    def _event(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.on and event in PROCESSES:
            self.events.append(f"{event} {arguments[0]}")
        if self.on and event == "open" and isinstance(arguments[0], (str, bytes, Path)):
            self.events += [name for name in [str(arguments[0])] if not name.startswith(KERNEL)]

    def counts(self, functions: tuple[Callable[..., Any], ...]) -> dict[str, int]:
        return {each.__qualname__: self.calls[each.__code__] for each in functions}


@pytest.fixture(scope="module")
def seen() -> Seen:
    return Seen()


@pytest.fixture(scope="module")
def pipeline(tiny: Tiny) -> sdort.Pipeline:
    return sdort.load(tiny.onnx, provider="cpu")


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"num_images": 3, "images_at_once": 2},
        {"scheduler": "euler-a", "timestep_spacing": "trailing"},
        {"scheduler": "ddim", "eta": 0.5},
        {"hires": 1.5, "hires_strength": 0.6, "steps": 5},
        {"negative_prompt": "a blue moon", "prompt_weighting": "comfyui"},
        {"guidance_scale": 1.0, "vae_tiling": True},
        {"variation_strength": 0.3, "variation_seed": 3},
    ],
    ids=lambda options: ", ".join(options) or "plain",
)
def test_a_later_image_reads_starts_and_plans_nothing_again(
    options: dict[str, Any], pipeline: sdort.Pipeline, seen: Seen
) -> None:
    """Planned 6 times for each image, with 7 samplers, 24 readings of the inputs and a config: once."""
    asked: dict[str, Any] = {"steps": 3, "size": "32x48", "seed": 1, **options}
    for prompt in ("a red star", "a (green:1.2) moon"):
        first = pipeline.generate(prompt, **asked)
        with seen:
            later = pipeline.generate(prompt, **asked)
        assert seen.events == []
        assert seen.counts(ONCE) == {each.__qualname__: 1 for each in ONCE}
        assert seen.counts(NEVER) == {each.__qualname__: 0 for each in NEVER}
        assert all((a.pixels == b.pixels).all() for a, b in zip(first.images, later.images, strict=True))


def test_each_group_of_prompts_is_planned_once(pipeline: sdort.Pipeline, seen: Seen, tmp_path: Path) -> None:
    """Two jobs: the parts of a prompt have weights. Their files are written, and nothing else is opened."""
    prompts = ["a red star", "a moon AND a star :0.5"]
    asked: Any = {"steps": 2, "seed": 1, "output": tmp_path / "{index}.png", "overwrite": True}
    pipeline.generate(prompts, **asked)
    with seen:
        found = pipeline.generate(prompts, **asked)
    assert {Path(event).parent for event in seen.events} == {tmp_path}
    assert len(found.images) == 2
    assert seen.counts(ONCE) == {each.__qualname__: 2 for each in ONCE}
    assert seen.counts(NEVER) == {each.__qualname__: 0 for each in NEVER}


def test_another_schedule_is_made_once(pipeline: sdort.Pipeline, seen: Seen) -> None:
    """Once to count its calls and once to walk through it, each with a trial; then it is known."""
    made = []
    for steps in (7, 8, 7, 8):
        with seen:
            pipeline.generate("a red star", steps=steps, seed=1, size="32x48")
        made.append((seen.counts((schedulers.load_sampler,)), seen.counts((recurrence.find_recurrence,))))
    once = {"load_sampler": 2}, {"find_recurrence": 1}
    none = {"load_sampler": 0}, {"find_recurrence": 0}
    assert made == [once, once, none, none]


def test_nothing_is_fed_to_learn_shapes_that_are_not_kept(pipeline: sdort.Pipeline, seen: Seen) -> None:
    with seen:
        pipeline.generate("a red star", steps=2, seed=1)
    assert seen.counts((keep_tuning.keep_generated, cases.make_feeds)) == {"keep_generated": 1, "make_feeds": 0}


def test_nothing_of_an_earlier_image_is_in_a_later_one(tiny: Tiny) -> None:
    """Rows and bindings of a run are kept for the next one of its kind: with other noise, prompts, weights of guidance
    and schedules between, each image is that of a pipeline which draws it first."""
    kinds: list[dict[str, Any]] = [
        {"seed": 1}, {"seed": 2}, {"seed": 2, "guidance_scale": 3.0}, {"seed": 2, "guidance_scale": 1.0},
        {"seed": 1, "scheduler": "euler-a"}, {"seed": 3, "scheduler": "euler-a"}, {"seed": 1},
    ]  # fmt: skip
    pipeline = sdort.load(tiny.onnx, provider="cpu")
    for number, options in enumerate(kinds):
        asked: dict[str, Any] = {"steps": 3, "size": "32x48", **options}
        found = pipeline.generate(f"a star {number}", **asked).images[0]
        alone = sdort.load(tiny.onnx, provider="cpu").generate(f"a star {number}", **asked).images[0]
        assert (found.pixels == alone.pixels).all(), options
