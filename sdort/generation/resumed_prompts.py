"""The images that a run of a file of prompts has left: the same command again goes on where an earlier run stopped.

An image is done where its file says in its record that it is of this line: the same prompt, seed and settings, the same
model and files. A file that says anything else is not touched, and ends the run before anything is loaded.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, cast

from sdort.console import say, to_json
from sdort.errors import OutputError, SdortError
from sdort.errors.plain_text import cut, one_line
from sdort.files.json_text import parse_json
from sdort.generation.denoising.adapted_weights import record_adapter
from sdort.generation.denoising.ip_adapter_tokens import record_ip_adapter_image
from sdort.generation.denoising.running_controls import record_control
from sdort.generation.files.image_files import output_paths
from sdort.generation.files.image_texts import read_texts
from sdort.generation.files.output_names import is_template
from sdort.generation.job import Job, named_paths, plan_jobs
from sdort.generation.requests.record import AdapterRecord, GenerationRecord, StageSeconds
from sdort.generation.requests.refiner import open_refiner
from sdort.generation.requests.request import Request, image_size
from sdort.generation.requests.typed_options import GenerationOptions
from sdort.generation.schedules.image_noise import ImageSeed
from sdort.pipelines.folder import PipelineFolder
from sdort.samplers.scheduler_names import find_scheduler
from sdort.tables import counted

_OF_THE_RUN = ("num_images", "images_at_once", "vae_slicing")
"""Fields of a record that say how an image was drawn beside others, and nothing of the image."""


@dataclass(frozen=True)
class Unfinished:
    """The rest of a run."""

    jobs: list[Job]
    """Those that are left, with the requests that are left."""
    paths: list[Path]
    """The files of the images that are left."""
    done: list[Path]
    """Files that an earlier run has written."""
    record: GenerationRecord | None = None
    """The record of the last of these."""


def plan_unfinished(prompt: str | Sequence[str], options: GenerationOptions) -> list[Job]:
    """The jobs of a caller's options; where no seed is given, with that of an earlier run of the same file of prompts.

    Raises:
        SdortError, TypeError: as :func:`sdort.generation.job.plan_jobs`.
    """
    if options.get("prompts") is None or options.get("seed") is not None:
        return plan_jobs(prompt, options)
    seed, output = secrets.randbelow(1 << 32), str(options.get("output") or "{seed}")
    jobs = plan_jobs(prompt, {**options, "seed": seed})
    if is_template(output) and "{seed" in output:  # whose names are not known without the seed
        return [replace(job, goes_on_with=f" --seed {seed}") for job in jobs]
    earlier = None if jobs[0].overwrite else _earlier_seed(jobs, seed)
    return jobs if earlier is None else plan_jobs(prompt, cast("GenerationOptions", {**options, **earlier}))


def _earlier_seed(jobs: Sequence[Job], drawn: int) -> dict[str, int] | None:
    """The seeds of the run that wrote the first of the files that is there; None where there is none of these lines.

    Args:
        drawn: the seed of all lines that have none of their own.
    """
    for (_, _, request, index), path in zip(_images(jobs), named_paths(jobs), strict=True):
        if request.seed == drawn and os.path.lexists(path):
            record = record_in(path)
            if record is None or record.get("prompt") != request.prompt or not isinstance(record.get("seed"), int):
                return None
            if request.variation_strength is None:
                return {"seed": record["seed"] - index}
            variation = record.get("variation_seed")
            return {"seed": record["seed"], "variation_seed": (variation or 0) - index}
    return None


def find_unfinished(jobs: Sequence[Job], paths: Sequence[Path], folder: PipelineFolder) -> Unfinished:
    """The rest of jobs that have their steps and guidance (:meth:`Job.for_pipeline`); it is told what is done.

    Raises:
        OutputError: a file is there that is not of its line.
    """
    if jobs[0].file is None or jobs[0].overwrite:
        return Unfinished(list(jobs), list(paths), [])
    done: set[int] = set()
    last: Mapping[str, Any] = {}
    of: Request | None = None
    expected: Mapping[str, Any] = {}
    for number, ((job, at, request, index), path) in enumerate(zip(_images(jobs), paths, strict=True)):
        if not os.path.lexists(path):
            continue
        record = record_in(path)
        if record is not None and request is not of:
            of, expected = request, _expected(folder, request)
        if why := _difference(record, expected, request.seed_of(index)):
            if job.output is None:  # the name is no one's choice
                return Unfinished(list(jobs), output_paths(None, jobs[0].requests[0].seed, len(paths), False), [])
            raise OutputError(
                f"{path} exists and is not of {job.place_of(at)}: {why}",
                hint="Choose other files with -o, or draw all lines again with --overwrite.",
            )
        done.add(number)
        last = record or last
    if not done:
        return Unfinished(list(jobs), list(paths), [])
    _tell_done(jobs, done)
    left = [path for number, path in enumerate(paths) if number not in done]
    return Unfinished(_without(jobs, done), left, [paths[number] for number in sorted(done)], _as_record(last))


def recorded_settings(
    folder: PipelineFolder,
    request: Request,
    *,
    lora: Sequence[AdapterRecord] | None = None,
    refiner: PipelineFolder | None = None,
    size: tuple[int, int] | None = None,
) -> dict[str, Any]:
    """Everything of a request and its pipeline that decides an image, for its record, but for what it runs on.

    Args:
        lora: the adapters that the sessions have; None for what their files are now.
        refiner: the refiner that is open; None for the one in its folder now.
        size: height and width of its first stage, where it is planned.
    """
    if request.refiner and refiner is None:
        refiner = open_refiner(request.refiner, folder)
    height, width = size or image_size(folder, request)
    scheduler = find_scheduler(request.scheduler)[0] if request.scheduler else folder.scheduler_class
    return {
        **request.recorded(),
        "height": height,
        "width": width,
        "scheduler": scheduler,
        "scheduler_name": request.scheduler,
        "lora": [record_adapter(choice) for choice in request.lora] if lora is None else list(lora),
        "control": [record_control(control) for control in request.control],
        "ip_adapter_image": [record_ip_adapter_image(image) for image in request.ip_adapter_image],
        "model_hash": folder.model_hash,
        "refiner_hash": refiner.model_hash if request.refiner and refiner else None,
    }


def _images(jobs: Sequence[Job]) -> Iterator[tuple[Job, int, Request, int]]:
    """Every image in its order: its job, the number of its request there, the request, and its number in that."""
    for job in jobs:
        for number, request in enumerate(job.requests):
            for index in range(request.num_images):
                yield job, number, request, index


def record_in(path: Path) -> Mapping[str, Any] | None:
    """The record in an image's file; None where there is none."""
    try:
        record = parse_json(read_texts(path)["sdort"].encode())
    except (SdortError, ValueError, KeyError):
        return None
    return record if isinstance(record, dict) else None


def _expected(folder: PipelineFolder, request: Request) -> Mapping[str, Any]:
    """The part that the records of a request's images share, as JSON; their seeds differ."""
    expected = recorded_settings(folder, request)
    if request.upscale_by is None:  # which its upscaler says
        del expected["upscale_by"]
    compared: Mapping[str, Any] = json.loads(
        json.dumps(to_json({name: value for name, value in expected.items() if name not in _OF_THE_RUN}))
    )
    return compared


def _difference(record: Mapping[str, Any] | None, expected: Mapping[str, Any], own: ImageSeed) -> str | None:
    """Why a record is not that of an image; None where it is.

    Args:
        expected: of the image's request.
        own: the image's seed.
    """
    if record is None:
        return "it does not say how it was drawn"
    for name, value in {**expected, "seed": own.number, "variation_seed": own.variation}.items():
        if record.get(name) != value:
            had, wants = (cut(one_line(json.dumps(each, ensure_ascii=False)), 80) for each in (record.get(name), value))
            return f"its {name} is {had}, not {wants}"
    return None


def _tell_done(jobs: Sequence[Job], done: set[int]) -> None:
    images = list(_images(jobs))
    lines: dict[int, list[bool]] = {}
    for number, (job, at, _, _) in enumerate(images):
        lines.setdefault(job.lines[at], []).append(number in done)
    whole = [line for line, images_done in lines.items() if all(images_done)]
    part = [line for line, images_done in lines.items() if any(images_done) and not all(images_done)]
    words = [*([f"{_lines(whole)} done"] if whole else []), *([f"{_lines(part)} in part"] if part else [])]
    left = len(images) - len(done)
    rest = f"{left} of {counted(len(images), 'image')} left" if left else "nothing left"
    say(f"{jobs[0].file}: {' and '.join(words)} by an earlier run, {rest} (--overwrite draws all again)")


def _lines(numbers: Sequence[int]) -> str:
    """``line 1 is``, ``lines 1-3, 7 are``: lines with nothing but comments between them are neighbours no more."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    text = ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
    return f"line {text} is" if len(numbers) == 1 else f"lines {cut(text, 120)} are"


def _without(jobs: Sequence[Job], done: set[int]) -> list[Job]:
    """The jobs without images that are done; a request of which some are is one for each that is left."""
    left: list[Job] = []
    first = 0
    for job in jobs:
        kept: list[tuple[int, Request]] = []
        for number, request in enumerate(job.requests):
            missing = [index for index in range(request.num_images) if first + index not in done]
            whole = len(missing) == request.num_images
            kept += [(number, request)] if whole else [(number, alone(request, index)) for index in missing]
            first += request.num_images
        if kept:
            part = job.part([number for number, _ in kept])
            left.append(replace(part, requests=[request for _, request in kept]))
    return left


def alone(request: Request, index: int) -> Request:
    """The request for one of a request's images."""
    own = request.seed_of(index)
    return replace(request, num_images=1, seed=own.number, variation_seed=own.variation)


def _as_record(record: Mapping[str, Any]) -> GenerationRecord:
    """The record of a finished image, which took no time in this run."""
    values: dict[str, Any] = {attribute.name: record.get(attribute.name) for attribute in fields(GenerationRecord)}
    return GenerationRecord(**{**values, "seconds": StageSeconds(0.0, 0.0, 0.0, 0.0, 0.0, 0.0)})
