"""The stages of a generation: passes of the UNet at one size over one part of a schedule."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from sdort.errors import UsageError
from sdort.generation.pictures.image_sizes import scaled_size
from sdort.generation.prompts.prompt_schedule import Clock
from sdort.generation.requests.control_plan import ControlModel
from sdort.generation.requests.refiner import handover, open_refiner
from sdort.generation.requests.request import Request, check_task, image_size, sampler_of
from sdort.generation.requests.schedule_cache import cached_counts
from sdort.generation.schedules.schedule_part import WHOLE, Begin, Part
from sdort.options.number_ranges import flag_of
from sdort.pipelines.folder import PipelineFolder
from sdort.samplers.scheduler_names import is_flow


@dataclass(frozen=True)
class Stage:
    """A pass over a part of a schedule."""

    size: tuple[int, int]
    """Height and width in pixels."""
    schedule: int
    """Steps of the whole schedule."""
    steps: int
    """Steps that are taken."""
    calls: int
    """Calls of the UNet for a batch: with some schedulers two a step."""
    clock: Clock
    """How prompts that change on the way count its calls."""
    part: Part = WHOLE
    """The part of the schedule, in calls of the UNet."""
    refines: bool = False
    """Whether the refiner takes it."""
    controls: tuple[ControlModel, ...] = ()
    """The models that steer it, where they are planned."""


def plan_stages(folder: PipelineFolder, request: Request) -> list[Stage]:
    """The stages of a request, which are one but for a larger second pass.

    Raises:
        UsageError: the size, the number of steps or a strength is one that the pipeline cannot do.
        BadModelError: a file of the pipeline is broken, or its UNet is for another task.
    """
    size = image_size(folder, request)
    check_task(folder, request)
    if request.init_image is None:
        first = _stage(folder, request, size, request.steps)
    else:
        blends = request.mask is not None and folder.sample_channels == folder.latent_channels
        begin = Begin.NOISE if request.mask and request.image_strength == 1.0 else Begin.IMAGE
        first = _stage(folder, request, size, request.steps, ("strength", request.image_strength), begin, blends)
    if request.refiner:
        return _refined(folder, request, first)
    if request.hires is None:
        return [first]
    larger = scaled_size(size, request.hires, folder.side_step)
    image_size(folder, request, larger)
    strength = ("hires_strength", request.second_strength)
    second = _stage(folder, request, larger, request.hires_steps or request.steps, strength, Begin.IMAGE)
    # As A1111, whose second pass takes all of its steps.
    return [first, replace(second, clock=Clock(second.calls, earlier=first.clock.steps))]


def _refined(folder: PipelineFolder, request: Request, whole: Stage) -> list[Stage]:
    """A stage divided between the pipeline and its refiner.

    Raises:
        UsageError: one of them gets no step.
    """
    image_size(open_refiner(Path(request.refiner or ""), folder), request)
    sampler = sampler_of(folder, request, whole.schedule, whole.size)
    share = request.base_share
    first, last = whole.part.first, len(sampler.timesteps)
    middle = handover(sampler, share)
    if not first < middle < last:
        who = "the refiner" if middle >= last else "the base"
        raise UsageError(
            f"--refiner-start {share:g} leaves {who} none of {whole.steps} steps",
            hint="Take more --steps, or another --refiner-start; 0.8 is usual.",
        )
    steps = -(-(last - middle) // sampler.order)
    base = replace(whole, steps=whole.steps - steps, calls=middle - first, part=replace(whole.part, last=middle))
    part = Part(middle, begin=Begin.LATENTS)
    clock = replace(whole.clock, begun=base.calls)
    return [base, Stage(whole.size, whole.schedule, steps, last - middle, clock, part, refines=True)]


def total_steps(stages: Sequence[Stage]) -> int:
    """The steps that all stages take."""
    return sum(stage.steps for stage in stages)


def total_calls(stages: Sequence[Stage]) -> int:
    """The calls of the UNet that a batch takes in all stages."""
    return sum(stage.calls for stage in stages)


def _stage(
    folder: PipelineFolder,
    request: Request,
    size: tuple[int, int],
    schedule: int,
    strength: tuple[str, float] | None = None,
    begin: Begin = Begin.NOISE,
    masked: bool = False,
) -> Stage:
    """A stage that leaves out the steps before ``strength``, which comes with its option's name.

    As in diffusers' ``get_timesteps``: of the steps times the strength the whole part, which pipelines of flow matching
    round up.
    """
    counts = cached_counts(folder, request, schedule)
    clock = Clock(schedule * counts.order)
    if strength is None:
        return Stage(size, schedule, schedule, counts.calls, clock)
    name, share = strength
    taken = min(schedule * share, schedule)
    steps = schedule - int(schedule - taken) if is_flow(folder.scheduler) else int(taken)
    if steps < 1:
        option = flag_of(name)
        raise UsageError(
            f"{option} {share:g} of {schedule} steps leaves none to take: the image would stay as it is",
            hint=f"Take {option} {min(1.05 / schedule, 1.0):.2g} or more, or more steps.",
        )
    first = (schedule - steps) * counts.order
    part = Part(first, begin=begin, masked=masked)
    return Stage(size, schedule, steps, counts.calls - first, clock, part)
