"""The stages of a request, by hand: which part of a schedule, how many calls, and how prompts count them."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image

from sdort.errors import UsageError
from sdort.families.data.sd1 import FAMILY as SD1
from sdort.families.data.sdxl import FAMILY as SDXL
from sdort.families.data.sdxl_refiner import FAMILY as REFINER
from sdort.generation.pictures.input_image import InputImage
from sdort.generation.prompts.prompt_schedule import Clock
from sdort.generation.requests import refiner, stages
from sdort.generation.requests.refiner import handover, open_refiner, remark_on_base
from sdort.generation.requests.request import Request
from sdort.generation.requests.schedule_cache import ScheduleCounts
from sdort.generation.requests.stages import Stage, plan_stages, total_calls, total_steps
from sdort.generation.schedules.schedule_part import Begin, Part, PartSteps

PHOTO = InputImage("photo.png", Image.new("L", (80, 48), 255))
SIZE = (48, 80)


@pytest.fixture(autouse=True)
def schedules(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Schedules of two calls a step but for the last one, of a model of 1,000 timesteps."""
    state = SimpleNamespace(order=2, refined=[])

    def times(steps: int) -> list[int]:
        return [1000 - 1000 * (call // state.order) // steps - 1 for call in range(calls(steps))]

    def calls(steps: int) -> int:
        return steps * state.order - (state.order > 1)  # type: ignore[no-any-return]

    def cached_counts(folder: Any, request: Request, steps: int) -> ScheduleCounts:
        return ScheduleCounts(calls(steps), state.order)

    def sampler_of(folder: Any, request: Request, steps: int, size: tuple[int, int]) -> Any:
        assert size == SIZE
        return SimpleNamespace(timesteps=times(steps), trained=1000, order=state.order)

    def open_it(path: Path, base: Any) -> str:
        state.refined.append(path)
        return "refiner"

    monkeypatch.setattr(stages, "cached_counts", cached_counts)
    monkeypatch.setattr(stages, "sampler_of", sampler_of)
    monkeypatch.setattr(stages, "open_refiner", open_it)
    monkeypatch.setattr(stages, "check_task", lambda *_: None)
    monkeypatch.setattr(stages, "image_size", lambda folder, request, larger=None: larger or SIZE)
    return state


FOLDER: Any = SimpleNamespace(sample_channels=4, latent_channels=4, vae_factor=8, side_step=8, scheduler={})
INPAINTING: Any = SimpleNamespace(sample_channels=9, latent_channels=4, vae_factor=8, scheduler={})


def test_from_text_it_is_one_stage_of_all_calls(schedules: Any) -> None:
    assert plan_stages(FOLDER, Request("a", steps=10)) == [Stage(SIZE, 10, 10, 19, Clock(20), Part())]
    schedules.order = 1
    assert plan_stages(FOLDER, Request("a", steps=10)) == [Stage(SIZE, 10, 10, 10, Clock(10), Part())]


@pytest.mark.parametrize(
    ("options", "begin", "masked"),
    [
        ({}, Begin.IMAGE, False),
        ({"mask": PHOTO, "strength": 0.5}, Begin.IMAGE, True),
        ({"mask": PHOTO}, Begin.NOISE, True),
        ({"strength": 1.0}, Begin.IMAGE, False),
    ],
)
def test_from_an_image_the_first_steps_are_left_out(options: dict[str, Any], begin: Begin, masked: bool) -> None:
    request = Request("a", steps=10, init_image=PHOTO, **options)
    steps = int(10 * request.image_strength)
    part = Part((10 - steps) * 2, begin=begin, masked=masked)
    wanted = Stage(SIZE, 10, steps, 19 - (10 - steps) * 2, Clock(20), part)
    assert plan_stages(FOLDER, request) == [wanted]
    [inpainting] = plan_stages(INPAINTING, request)
    assert (inpainting.part.masked, inpainting.part.begin) == (False, begin)


@pytest.mark.parametrize(("strength", "steps"), [(0.1, 1), (0.29, 2), (0.3, 3), (0.99, 9), (1.0, 10)])
def test_of_the_steps_times_the_strength_the_whole_part_is_taken(strength: float, steps: int) -> None:
    [stage] = plan_stages(FOLDER, Request("a", steps=10, init_image=PHOTO, strength=strength))
    assert (stage.steps, stage.part.first) == (steps, (10 - steps) * 2)


@pytest.mark.parametrize(("strength", "steps"), [(0.05, 1), (0.29, 3), (0.3, 3), (0.99, 10), (1.0, 10)])
def test_flow_matching_leaves_out_whole_steps(strength: float, steps: int) -> None:
    """As diffusers' pipelines of Stable Diffusion 3, Flux and Z-Image."""
    folder = SimpleNamespace(**{**vars(FOLDER), "scheduler": {"_class_name": "FlowMatchEulerDiscreteScheduler"}})
    [stage] = plan_stages(folder, Request("a", steps=10, init_image=PHOTO, strength=strength))  # type: ignore[arg-type]
    assert (stage.steps, stage.part.first) == (steps, (10 - steps) * 2)


def test_a_strength_of_no_step_is_refused_with_the_least() -> None:
    with pytest.raises(UsageError, match=r"--strength 0\.09 of 10 steps leaves none to take") as refused:
        plan_stages(FOLDER, Request("a", steps=10, init_image=PHOTO, strength=0.09))
    least = float(re.findall(r"Take --strength (\S+) or more, or more steps", str(refused.value.hint))[0])
    assert plan_stages(FOLDER, Request("a", steps=10, init_image=PHOTO, strength=least))[0].steps == 1
    assert least < 0.12
    with pytest.raises(UsageError, match=r"--hires-strength 0\.1 of 4 steps leaves none to take"):
        plan_stages(FOLDER, Request("a", steps=20, hires=2.0, hires_steps=4, hires_strength=0.1))


def test_a_second_pass_has_its_own_steps_and_counts_prompts_on() -> None:
    first, second = plan_stages(FOLDER, Request("a", steps=10, hires=1.5, hires_steps=20, hires_strength=0.5))
    assert first == Stage(SIZE, 10, 10, 19, Clock(20), Part())
    part = Part(20, begin=Begin.IMAGE)
    assert second == Stage((72, 120), 20, 10, 19, Clock(19, earlier=20), part)
    _, usual = plan_stages(FOLDER, Request("a", steps=10, hires=1.5))
    assert (usual.schedule, usual.steps, usual.part.first) == (10, 7, 6)
    assert (total_steps([first, second]), total_calls([first, second])) == (20, 38)
    _, odd = plan_stages(FOLDER, Request("a", steps=10, hires=1.3))
    assert odd.size == (64, 104)  # 62.4 and 104, of 8 pixels a latent


def test_a_refiner_takes_the_last_steps(schedules: Any) -> None:
    base, last = plan_stages(FOLDER, Request("a", steps=10, refiner=Path("r"), refiner_start=0.7))
    assert base == Stage(SIZE, 10, 7, 14, Clock(20), Part(last=14))
    part = Part(14, begin=Begin.LATENTS)
    assert last == Stage(SIZE, 10, 3, 5, Clock(20, begun=14), part, refines=True)
    assert schedules.refined == [Path("r")]
    schedules.order = 1
    base, last = plan_stages(FOLDER, Request("a", steps=10, refiner=Path("r"), init_image=PHOTO, strength=0.5))
    assert base == Stage(SIZE, 10, 3, 3, Clock(10), Part(5, 8, Begin.IMAGE))
    assert last == Stage(SIZE, 10, 2, 2, Clock(10, begun=3), Part(8, begin=Begin.LATENTS), refines=True)


@pytest.mark.parametrize(
    ("start", "strength", "who"),
    [(0.0, 1.0, "the base"), (1.0, 1.0, "the refiner"), (0.5, 0.5, "the base"), (0.3, 0.5, "the base")],
)
def test_each_of_two_models_takes_a_step(start: float, strength: float, who: str) -> None:
    request = Request("a", steps=10, refiner=Path("r"), refiner_start=start, init_image=PHOTO, strength=strength)
    with pytest.raises(UsageError, match=f"--refiner-start {start:g} leaves {who} none of {10 * strength:g} steps"):
        plan_stages(FOLDER, request)


@pytest.mark.parametrize(("start", "order", "first"), [(1.0, 2, 9), (0.9, 2, 8), (1.0, 1, 9), (0.31, 2, 2)])
def test_all_of_a_schedule_may_be_the_bases(start: float, order: int, first: int) -> None:
    """Heun's last step is one call: it is no half of a step that the refiner would have to take."""
    times = [900, 700, 700, 500, 500, 300, 300, 150, 50]
    sampler: Any = SimpleNamespace(trained=1000, timesteps=times, order=order)
    assert handover(sampler, start) == first


def test_a_refiner_with_no_share_is_refused_whatever_the_scheduler() -> None:
    request = Request("a", steps=10, refiner=Path("r"), refiner_start=1.0)
    with pytest.raises(UsageError, match="--refiner-start 1 leaves the refiner none of 10 steps"):
        plan_stages(FOLDER, request)


# Parts of a schedule


class Noting:
    """A sampler that notes what it is asked."""

    def __init__(self) -> None:
        self.timesteps = np.array([90.0, 60.0, 30.0, 10.0])
        self.begun: list[int] = []

    def begin_at(self, call: int) -> None:
        self.begun.append(call)

    def __getattr__(self, name: str) -> Any:
        return lambda *given: (name, *given)


@pytest.mark.parametrize(
    ("part", "begun", "times"),
    [
        (Part(), [0], [90, 60, 30, 10]),
        (Part(1, 3), [1], [60, 30]),
        (Part(1, begin=Begin.IMAGE), [1], [60, 30, 10]),
        (Part(2, begin=Begin.LATENTS), [2], [30, 10]),
        (Part(0, 2, masked=True), [0], [90, 60]),
    ],
)
def test_a_part_begins_where_it_is_told(part: Part, begun: list[int], times: list[int]) -> None:
    sampler: Any = Noting()
    made: Any = PartSteps(sampler, part)
    assert (sampler.begun, made.timesteps.tolist()) == (begun, times)
    assert made.sample(1, "x") == ("sample", part.first + 1, "x")
    assert made.step(1, "out", "x", "draw") == ("step", part.first + 1, "out", "x", "draw")
    begins = {
        Begin.NOISE: ("begin", "noise"),
        Begin.LATENTS: "image",
        Begin.IMAGE: ("noised", part.first, "image", "noise"),
    }
    assert made.begin("noise", "image") == begins[part.begin]
    assert made.outside(0, "noise", "image") == ("noised", part.first + 1, "image", "noise")
    assert made.outside(len(times) - 1, "noise", "image") == "image"


@pytest.mark.parametrize(
    ("part", "takes"),
    [(Part(), False), (Part(3, 4), False), (Part(masked=True), True), (Part(begin=Begin.IMAGE), True),
     (Part(begin=Begin.LATENTS), True)],
)  # fmt: skip
def test_which_parts_take_an_image(part: Part, takes: bool) -> None:
    assert part.takes_image is takes


# Refiners


def pipe(family: Any = SDXL, channels: int = 4, factor: int = 8, prediction: str | None = None, **vae: Any) -> Any:
    return SimpleNamespace(
        family=family, latent_channels=channels, vae_factor=factor, vae={"scaling_factor": 0.13, **vae},
        path=Path(f"pipe-{prediction}"), scheduler={} if prediction is None else {"prediction_type": prediction},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("base", "other", "words"),
    [
        (pipe(), pipe(), None),
        (pipe(), pipe(REFINER), None),
        (pipe(SD1), pipe(SD1), None),
        (pipe(prediction="epsilon"), pipe(), None),
        (pipe(REFINER), pipe(REFINER), "is SDXL's refiner itself"),
        (pipe(SD1), pipe(REFINER), "their latents differ"),
        (pipe(), pipe(SD1), "is of Stable Diffusion 1.x and 2.x, and pipe-None of SDXL"),
        (pipe(channels=16), pipe(), "has another number of latent channels than pipe-None: 4 and 16"),
        (pipe(), pipe(factor=4), "has another size of a latent in pixels than pipe-None: 4 and 8"),
        (pipe(), pipe(scaling_factor=1.0), "has another scaling factor than pipe-None: 1.0 and 0.13"),
        (pipe(latents_mean=[1]), pipe(), r"has another mean of latents than pipe-None: None and \[1\]"),
        (pipe(), pipe(latents_std=[2]), r"has another deviation of latents than pipe-None: \[2\] and None"),
        (pipe(prediction="v_prediction"), pipe(), "another prediction type than pipe-v_.*: epsilon and v_prediction"),
    ],
)
def test_what_has_to_be_the_same_in_both(
    base: Any, other: Any, words: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refiner, "open_folder", lambda path: other)
    if words is None:
        assert open_refiner(Path("r"), base) is other
        return
    with pytest.raises(UsageError, match=words):
        open_refiner(Path("r"), base)


@pytest.mark.parametrize("adapters", [False, True])
@pytest.mark.parametrize("controls", [False, True])
def test_what_acts_on_the_base_alone_is_told(
    adapters: bool, controls: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    remark_on_base(Path("x/base"), adapters=adapters, controls=controls)
    told = " ".join(capsys.readouterr().err.split())
    assert ("adapters change base alone" in told) is adapters
    assert ("steer base alone" in told) is controls
