"""A job: what a caller of :meth:`Pipeline.generate` asks for, checked before anything is loaded."""

from __future__ import annotations

import itertools
import os
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Event
from typing import Any, cast

from sdort.adapters.adapter_choice import AdapterChoice, parse_adapter_choice
from sdort.console import say
from sdort.demo import demo_adapter
from sdort.errors import SdortError, UsageError
from sdort.generation.denoising.adapted_weights import record_adapter
from sdort.generation.denoising.ip_adapter_tokens import record_ip_adapter_image
from sdort.generation.denoising.running_controls import record_control
from sdort.generation.files.from_image import DrawnWith, read_image_options
from sdort.generation.files.image_files import check_quality, check_texts, free_for_output, numbered, output_paths
from sdort.generation.files.output_names import fill_template, is_template
from sdort.generation.files.prompts_file import Lines, read_lines
from sdort.generation.grid import grid_path
from sdort.generation.pictures.input_image import read_image, read_mask
from sdort.generation.pictures.safety import choose_safety
from sdort.generation.prompts.wildcards import Wildcards
from sdort.generation.requests.control_choice import ControlChoice, parse_control_choice
from sdort.generation.requests.default_sampling import default_sampling
from sdort.generation.requests.dynamic_prompts import draw_prompts
from sdort.generation.requests.ip_adapter_choice import IpAdapterChoice, parse_ip_adapter_choice
from sdort.generation.requests.lora_tags import LoraFolder, with_adapters
from sdort.generation.requests.refiner import open_refiner
from sdort.generation.requests.request import OF_SCHEDULE, PROMPTS, Request, each_prompt, for_family
from sdort.generation.requests.seeds import read_seeds
from sdort.generation.requests.typed_options import (
    GENERATION,
    GenerationOptions,
    OnProgress,
    PreviewOptions,
    annotations_of,
)
from sdort.options.declared_options import declared, ranges_of
from sdort.options.number_ranges import NUM_IMAGES, flag_of, parse_size, shown
from sdort.options.option_types import check_types
from sdort.pipelines.folder import PipelineFolder
from sdort.samplers.scheduler_names import find_scheduler

_CONFIGURED = {"lora_folder": "SDORT_LORA_FOLDER", "wildcards": "SDORT_WILDCARDS"}
"""Option -> the variable of the environment that says it where nobody else does."""
_PROMPT, _TYPES = {"prompt": str | Sequence[str]}, annotations_of(GenerationOptions)
_OPTIONS = {name: _TYPES[name] for name in declared(*GENERATION) if name in _TYPES}
"""The types of options, in the order in which messages name them."""


@dataclass(frozen=True)
class Job:
    """Requests that differ in their prompts and seeds alone, and what becomes of their images."""

    requests: list[Request]
    output: Path | None
    overwrite: bool
    on_progress: OnProgress | None
    cancel: Event | None
    previews: PreviewOptions
    unsaid: frozenset[str] = frozenset()
    """Fields of the requests that the caller left to the pipeline."""
    drawn: DrawnWith | None = None
    """The settings of an image that is to be drawn again."""
    grid: bool = False
    """Whether one picture of all images is written too."""
    quality: int | None = None
    """Of JPEG and WebP, from 1 to 100; None for the format's."""
    place: str = ""
    """Where in a file of prompts it begins, for messages."""
    file: Path | None = None
    """The file of prompts."""
    lines: tuple[int, ...] = ()
    """The line of each request in ``file``, from 1."""
    goes_on_with: str = ""
    """Options that the command needs besides to go on where it stopped."""

    def named(self, number: int | None = None) -> AbstractContextManager[None]:
        """A block whose errors begin with :attr:`place`, or with that of a request."""
        return _named(self.place if number is None else self.place_of(number))

    def place_of(self, number: int) -> str:
        """Where a request stands in a file of prompts; empty where there is none."""
        return _line_of(self.lines[number], self.file) if self.file else self.place

    def sized(self, planned: Request) -> Job:
        """The job at the size of its planned first request."""
        height, width = planned.height, planned.width
        if all((request.height, request.width) == (height, width) for request in self.requests):
            return self
        return replace(self, requests=[replace(request, height=height, width=width) for request in self.requests])

    def for_pipeline(self, folder: PipelineFolder) -> Job:
        """The job with the sampler, steps, guidance and safety checker of a pipeline, where the caller did not say.

        Raises:
            BadModelError: the folder has no usable scheduler config, or no safety checker that the caller asks.
        """
        safety = choose_safety(folder, self.requests[0].safety)
        if safety != self.requests[0].safety:
            return replace(self, requests=[replace(each, safety=safety) for each in self.requests]).for_pipeline(folder)
        requests = [for_family(folder.family, each) for each in self.requests]
        if requests != self.requests:
            return replace(self, requests=requests).for_pipeline(folder)
        if self.drawn:
            self.drawn.remark_on_model(folder.model_hash)
            refiner = self.requests[0].refiner
            if refiner:  # without it the image's own is missing, and refused before
                self.drawn.remark_on_refiner(open_refiner(refiner, folder).model_hash)
        if not self.unsaid:
            return self
        own = None if "scheduler" in self.unsaid else str(folder.scheduler.get("_class_name"))
        usual = default_sampling(folder, self.requests[0].scheduler or own)
        settings = {name: getattr(usual, name) for name in sorted(self.unsaid)}
        if usual.reason:
            numbers = {name: value for name, value in settings.items() if name != "scheduler"}
            words = ", ".join(f"{flag_of(name)} {value:g}" for name, value in numbers.items())
            say(f"a few-step model ({usual.reason}): {words}, unless you say otherwise")
        requests = [replace(request, **settings) for request in self.requests]
        return replace(self, requests=requests, unsaid=frozenset())

    def part(self, numbers: Sequence[int]) -> Job:
        """The job with some of its requests."""
        requests = [self.requests[index] for index in numbers]
        lines = [self.lines[index] for index in numbers if self.file]
        place = _line_of(lines[0], self.file) if lines else self.place
        return replace(self, requests=requests, lines=tuple(lines), place=place)

    @property
    def images(self) -> int:
        """The number of all images."""
        return sum(request.num_images for request in self.requests)


def plan_paths(jobs: Sequence[Job]) -> list[Path]:
    """The files of all images of jobs that have one ``output``.

    Raises:
        UsageError: ``output`` is no PNG, JPEG or WebP, a template that gives two images one name, or its format has no
            room for what the images are drawn with, or no ``quality``.
        OutputError: one exists, and ``overwrite`` is off.
    """
    paths = named_paths(jobs)
    check_quality(paths, jobs[0].quality)
    if jobs[0].grid and len(paths) > 1:
        free_for_output([grid_of(jobs[0], paths)], jobs[0].overwrite or jobs[0].file is not None)
    for job in jobs:
        for number, request in enumerate(job.requests):
            with job.named(number):
                check_texts(paths[0], request.texts)
    return paths


def grid_of(first: Job, paths: Sequence[Path]) -> Path:
    """The file of the grid of several images."""
    return grid_path(paths[0], template=first.output is not None and is_template(str(first.output)))


def named_paths(jobs: Sequence[Job]) -> list[Path]:
    """The names of the files of all images of jobs, as ``output`` says; as :func:`plan_paths`."""
    first, requests = jobs[0], [request for job in jobs for request in job.requests]
    count = sum(request.num_images for request in requests)
    # Files of an earlier run of the same lines may be there: see sdort.generation.resumed_prompts.
    may_exist = first.overwrite or first.file is not None
    if first.output and is_template(str(first.output)):
        images = [(each.seed + index, each.prompt) for each in requests for index in range(each.num_images)]
        return free_for_output(fill_template(str(first.output), images), may_exist)
    if first.output is None and first.file:
        return free_for_output(numbered(Path(f"sdort-{requests[0].seed}.png"), count), may_exist)
    return output_paths(first.output, requests[0].seed, count, may_exist)


def choose_adapter(choice: str | AdapterChoice) -> AdapterChoice:
    """An adapter as a caller names it.

    Raises:
        UsageError: it is neither a choice nor ``FILE`` or ``FILE:SCALE``.
    """
    return demo_adapter(choice if isinstance(choice, AdapterChoice) else parse_adapter_choice(str(choice)))


def plan_jobs(prompt: str | Sequence[str], options: GenerationOptions) -> list[Job]:
    """The jobs of a caller's options: one, or one for each group of lines of a file of prompts that have one setting.

    Raises:
        UsageError, BadModelError, TypeError: as :func:`plan_job` and :func:`read_lines`.
    """
    settings = sized(options)
    file = settings.pop("prompts", None)
    if file is None:
        return list(_within_limit([plan_job(prompt, cast("GenerationOptions", settings))]))
    if prompt or settings.get("from_image"):
        raise UsageError("--prompts gives the prompts: leave out --prompt and --from-image")
    if settings.get("seed") is None:
        settings["seed"] = secrets.randbelow(1 << 32)
    if settings.get("variation_strength") is not None and settings.get("variation_seed") is None:
        settings["variation_seed"] = secrets.randbelow(1 << 32)
    return list(_within_limit(plan_lines(file, lines, settings) for lines in read_lines(Path(file))))


def sized(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options with ``height`` and ``width`` in the place of ``size``.

    Raises:
        UsageError: it is no size, or they say another.
    """
    settings = dict(options)
    size = settings.pop("size", None)
    for name, side in zip(("height", "width"), parse_size(size) if size is not None else (), strict=False):
        if settings.get(name) not in (None, side):
            raise UsageError(
                f"--size {size} and --{name} {shown(settings[name])} say different sizes", hint="Give one of them."
            )
        settings[name] = side
    return settings


def plan_lines(file: Path, lines: Lines, settings: Mapping[str, Any]) -> Job:
    """The job of lines; an error names the first line that has it."""
    try:
        return _plan_together(file, lines, settings)
    except SdortError:
        for line in lines.each():
            with _named(_line_of(line.numbers[0], file)):
                _plan_together(file, line, settings)
        raise


def _plan_together(file: Path, lines: Lines, settings: Mapping[str, Any]) -> Job:
    options = sized(lines.options)
    seeds = options.pop("seed", None)
    for name in PROMPTS:
        if name in options:  # what a line does not say is what is said for all
            options[name] = [_said_for_all(name, settings) if own is None else own for own in options[name]]
    job = plan_job(lines.prompts, cast("GenerationOptions", {**settings, **options}), seeds or (), lines.numbers)
    return replace(job, place=_line_of(lines.numbers[0], file), file=Path(file))


def _said_for_all(name: str, settings: Mapping[str, Any]) -> str:
    """A text that is given for all lines."""
    given = settings.get(name) or ""
    texts = [given] if isinstance(given, str) else list(given)
    if len(texts) != 1:
        option = flag_of(name)
        raise UsageError(f"{option} is given {len(texts)} times, and lines have their own", hint=f"Give {option} once.")
    return str(texts[0])


def _line_of(number: int, file: Path | None) -> str:
    return f"line {number} of {file}"


def _within_limit(jobs: Iterable[Job]) -> Iterator[Job]:
    """The jobs of a run in their parts, as long as all images together are no more than a run has."""
    left = NUM_IMAGES.high
    for job in jobs:
        left -= job.images
        if left < 0:
            raise UsageError(
                f"the run has more than {NUM_IMAGES.high:,} images: {NUM_IMAGES.reason}",
                hint="Take fewer prompts, seeds or images of each in one run.",
            )
        yield from alike(job)


@contextmanager
def _named(place: str) -> Iterator[None]:
    try:
        yield
    except SdortError as error:
        error.message = f"{place}: {error.message}" if place else error.message
        raise


def alike(job: Job) -> list[Job]:
    """A job in parts whose prompts have the same adapters, and the same weights between ``AND``: these share calls of
    the UNet."""
    numbers = [index for index, _ in enumerate(job.requests)]
    groups = itertools.groupby(numbers, lambda index: shared_by(job.requests[index]))
    return [job.part(list(group)) for _, group in groups]


def shared_by(request: Request) -> tuple[Any, ...]:
    """All that a request says in its prompts and that requests in one call of the UNet have in common."""
    return tuple(request.guidance()), request.lora


def choose_control(choice: str | ControlChoice) -> ControlChoice:
    """A control as a caller names it.

    Raises:
        UsageError: it is neither a choice nor of the form ``DIR:IMAGE[:SCALE[:START:END]]``.
    """
    return choice if isinstance(choice, ControlChoice) else parse_control_choice(str(choice))


def choose_ip_adapter_image(choice: str | IpAdapterChoice) -> IpAdapterChoice:
    """An image for an IP-Adapter as a caller names it.

    Raises:
        UsageError: it is neither a choice nor ``IMAGE`` or ``IMAGE:SCALE``.
    """
    return choice if isinstance(choice, IpAdapterChoice) else parse_ip_adapter_choice(str(choice))


def plan_job(
    prompt: str | Sequence[str],
    options: GenerationOptions,
    own_seeds: Sequence[Any] = (),
    lines: Sequence[int] = (),
) -> Job:
    """The job of a caller's options.

    Args:
        own_seeds: for each prompt, None where it takes those of ``options``; none for all of them.
        lines: of each prompt in a file.

    Raises:
        UsageError: a value of another type than its option's, or that no pipeline can do.
        BadModelError: an image that is to be drawn again is damaged.
        TypeError: there is no option of that name.
    """
    settings = sized(options)
    check_types(settings, _OPTIONS, ranges_of(*GENERATION))
    check_types({"prompt": prompt}, _PROMPT)
    for name, variable in _CONFIGURED.items():
        if settings.get(name) is None and os.environ.get(variable):
            settings[name] = os.environ[variable]
    drawn = _drawn(prompt, settings)
    if drawn:
        settings = settings | drawn.options
        prompt = settings.pop("prompt", prompt)
    output, quality, grid = settings.pop("output", None), settings.pop("quality", None), settings.pop("grid", False)
    overwrite, on_progress = settings.pop("overwrite", False), settings.pop("on_progress", None)
    cancel = settings.pop("cancel", None)
    wanted = {name: settings.pop(name, None) for name in declared(PreviewOptions)}
    previews = PreviewOptions(**{name: value for name, value in wanted.items() if value is not None})
    texts = {name: settings.pop(name) or "" for name in PROMPTS if name in settings}
    unsaid = _unsaid(settings)
    for name in unsaid:
        settings.pop(name, None)
    seeds = read_seeds(secrets.randbelow(1 << 32) if settings.get("seed") is None else settings["seed"])
    settings["seed"] = seeds[0]
    if settings.get("variation_strength") is not None and settings.get("variation_seed") is None:
        settings["variation_seed"] = secrets.randbelow(1 << 32)
    folder, wildcards = settings.pop("lora_folder", None), settings.pop("wildcards", None)
    _read_files(settings)
    request = Request(prompt="", **settings)
    if request.scheduler:
        find_scheduler(request.scheduler)
    prompts = each_prompt(prompt, request, texts)
    seeds_of = [_seeds(own, seeds) for own in own_seeds or [None] * len(prompts)]
    requests = [replace(one, seed=seed) for one, own in zip(prompts, seeds_of, strict=True) for seed in own]
    numbers = [line for line, own in zip(lines, seeds_of, strict=True) for _ in own] if lines else []
    images = (
        [number for number, one in zip(numbers, requests, strict=True) for _ in range(one.num_images)] if lines else []
    )
    # What an image says was drawn already.
    given = {"prompt", *PROMPTS} - (drawn.options.keys() if drawn else set())
    requests = draw_prompts(requests, given, Wildcards(Path(wildcards) if wildcards else None))
    adapters = LoraFolder(Path(folder)) if folder else None
    requests = [with_adapters(each, adapters) for each in requests]
    if drawn:
        _remark_on_files(drawn, {**settings, "lora": requests[0].lora})
    path = None if output is None else Path(output)
    of_lines = _of_requests(requests, images) if lines else ()
    return Job(
        requests,
        path,
        overwrite,
        on_progress,
        cancel,
        previews,
        unsaid,
        drawn,
        grid=grid,
        quality=quality,
        lines=of_lines,
    )


def _seeds(own: Any, seeds: Sequence[int]) -> Sequence[int]:
    """A prompt's own seeds, or those of all."""
    if own is None:
        return seeds
    check_types({"seed": own}, _OPTIONS, ranges_of(*GENERATION))
    return read_seeds(own)


def _of_requests(requests: Sequence[Request], images: Sequence[int]) -> tuple[int, ...]:
    """The line of each request; of prompts that are drawn there is one for each image.

    Args:
        images: the line of each image, in the order of the requests.
    """
    ends = itertools.accumulate(request.num_images for request in requests)
    return tuple(images[end - 1] for end in ends)


def _unsaid(settings: Mapping[str, Any]) -> frozenset[str]:
    """The options of sampling that a pipeline says: its sampler is exchanged where nothing is said of the sampling."""
    unsaid = {name for name in ("steps", "guidance_scale") if settings.get(name) is None}
    free = all(settings.get(name) is None for name in OF_SCHEDULE)
    return frozenset(unsaid | ({"scheduler"} if free else set()))


def _read_files(settings: dict[str, Any]) -> None:
    """Put what a request has in place of the files that ``settings`` name.

    Raises:
        UsageError: one cannot be read, or is named in another form than its option has.
    """
    settings["lora"] = tuple(choose_adapter(choice) for choice in settings.get("lora") or ())
    for name, read in (("init_image", read_image), ("mask", read_mask)):
        if settings.get(name) is not None:
            settings[name] = read(settings[name], flag_of(name))
    for name in ("refiner", "upscale", "hires_upscaler"):
        if settings.get(name) is not None:
            settings[name] = Path(settings[name])
    settings["control"] = tuple(choose_control(choice).read() for choice in settings.get("control") or ())
    images = settings.get("ip_adapter_image") or ()
    settings["ip_adapter_image"] = tuple(choose_ip_adapter_image(choice).read() for choice in images)


def _remark_on_files(drawn: DrawnWith, settings: Mapping[str, Any]) -> None:
    """Say which files are not those that the image was drawn with."""
    for name in ("init_image", "mask"):
        if settings.get(name) is not None:
            drawn.remark_on_image(name, settings[name])
    drawn.remark_on_files("lora", [record_adapter(choice) for choice in settings["lora"]])
    drawn.remark_on_files("control", [record_control(control) for control in settings["control"]])
    images = [record_ip_adapter_image(image) for image in settings["ip_adapter_image"]]
    drawn.remark_on_files("ip_adapter_image", images)


def _drawn(prompt: str | Sequence[str], settings: dict[str, Any]) -> DrawnWith | None:
    """Settings of the image that ``settings`` name, which lose its name; None where there is no image."""
    image = settings.pop("from_image", None)
    given = {name: value for name, value in settings.items() if value is not None}
    return read_image_options(Path(image), given | ({"prompt": prompt} if prompt else {})) if image else None
