"""``sdort run`` as a library call: load, draw, check, write, and a record of it all."""

from __future__ import annotations

import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from sdort.console import detail, progress, say, warn
from sdort.errors import ParityError
from sdort.generation.decode import Planner
from sdort.generation.guard import Guard
from sdort.generation.images import Generated, output_paths, save_png
from sdort.generation.keep_tuning import keep_drawn
from sdort.generation.pipeline import TextToImage, load_pipeline
from sdort.generation.request import Request, check_request
from sdort.generation.schedulers import find_scheduler
from sdort.inspection.profile import Placement, measure_cases, remarks
from sdort.ops.library import library_hash, resolve
from sdort.pipelines.folder import DECODER, open_folder
from sdort.providers.options import AUTO, RuntimeOptions, can_tune, find_provider, tuning_remark
from sdort.runtime.environment import device_name, versions
from sdort.runtime.probe import choose_provider
from sdort.workload.cases import drawing_cases


def run(
    pipeline: Path, request: Request, options: RuntimeOptions, output: Path | None = None, *, overwrite: bool = False
) -> dict[str, Any]:
    """Draw images and write them as PNG.

    Args:
        pipeline: a folder from ``sdort export``, ``sdort optimize``, optimum or diffusers' conversion script.
        output: see :func:`sdort.generation.images.output_paths`.

    Returns:
        A record of what was asked and made: images with their seeds and paths, provider, seconds, versions.

    Raises:
        SdortError: what went wrong; images that show nothing are not written (ParityError).
    """
    check_request(request)
    if request.scheduler:
        find_scheduler(request.scheduler)
    paths = output_paths(output, request.seed, request.num_images, overwrite)
    announce(options)
    started = time.perf_counter()
    drawer = load_pipeline(pipeline, options)
    loaded = time.perf_counter() - started
    drawer.guard = Guard(drawer.sessions)
    drawer.size(request)
    written, bad = [], []
    try:
        with progress("denoising", total=_steps(drawer, request)) as advance:
            # Each is written as soon as it is done: what ends the rest does not take it away.
            for image, path in zip(drawer.generate(request, advance), paths, strict=True):
                if image.problem is None:
                    save_png(path, image.pixels, _record(drawer, request, options, loaded), image.seed)
                    written.append({"path": str(path), "seed": image.seed})
                else:
                    bad.append(image)
    finally:
        for each in written:
            say(f"wrote {each['path']}")
    keep_drawn(drawer, request)
    _refuse_bad(bad)
    return {**_record(drawer, request, options, loaded), "images": written}


def placement_of(
    pipeline: Path, request: Request, options: RuntimeOptions, record: dict[str, Any]
) -> tuple[list[Placement], list[str]]:
    """Where the components ran for a request that is done, and remarks; each is opened anew and runs twice.

    Args:
        record: what :func:`run` returned.
    """
    folder, provider = open_folder(pipeline), find_provider(record["provider"])
    size = record["height"], record["width"]
    todo = []
    for component in folder.needed:
        inputs = folder.file(component).signature.inputs
        guided, at_once = request.guidance_scale > 1, request.images_at_once
        case = drawing_cases(component, inputs, request.num_images, size, guided=guided, at_once=at_once)[-1]
        if component == DECODER:
            # ``decoded`` tells of the last ones that were decoded together.
            case = replace(case, batch=(request.num_images - 1) % at_once + 1)
            planner = Planner(next(iter(inputs.values())), folder.vae, folder.vae_factor)
            case = planner.part_of(case, record["decoded"])
        todo.append(case)
    found = measure_cases(folder.models, todo, provider, options, folder.vae_factor)
    return found, remarks(found, provider)


def announce(options: RuntimeOptions) -> None:
    """Say which provider will run and why it is not another, and what ``--tuning`` does there.

    Raises:
        ProviderError: as :func:`sdort.runtime.probe.choose_provider`.
    """
    provider, fallback = choose_provider(options)
    if fallback:
        warn(fallback)
    if fallback or options.provider == AUTO:
        say(f"running on {provider.name}: {device_name(provider, options.device_id)}")
    library = resolve(options.custom_ops)
    if library:
        detail(f"custom operators: {library}")
    remark = tuning_remark(provider, options)
    if remark:
        (say if options.tuning else detail)(remark)


def custom_ops_hash(options: RuntimeOptions) -> str | None:
    """Which library of custom operators takes part: a short hash, None without one."""
    library = resolve(options.custom_ops)
    return library_hash(library) if library else None


def _steps(drawer: TextToImage, request: Request) -> int:
    """UNet steps times images; some schedulers take two UNet calls a step."""
    from sdort.generation.schedulers import load_scheduler, set_steps

    scheduler = load_scheduler(drawer.folder.path / "scheduler", request.scheduler)
    set_steps(scheduler, request.steps)
    return len(scheduler.timesteps) * request.num_images


def _record(drawer: TextToImage, request: Request, options: RuntimeOptions, loaded: float) -> dict[str, Any]:
    height, width = drawer.size(request)
    timings = drawer.timings
    scheduler = find_scheduler(request.scheduler)[0] if request.scheduler else drawer.folder.scheduler_class
    seconds = {
        "load": loaded,
        "encode": timings.encode,
        "denoise": sum(timings.steps),
        "first_step": timings.steps[0],
        "decode": timings.decode,
    }
    return {
        **asdict(request),
        "height": height,
        "width": width,
        "scheduler": scheduler,
        "model": drawer.folder.path.resolve().name,
        "model_hash": drawer.folder.model_hash,
        "provider": drawer.provider.name,
        "requested_provider": options.provider,
        "fallback": drawer.fallback,
        "tuning": options.tuning and can_tune(drawer.provider, options),
        "device": device_name(drawer.provider, options.device_id),
        "custom_ops": custom_ops_hash(options),
        "graph": options.graph,
        "decoded": drawer.decoded,
        "widened": drawer.guard.widened if drawer.guard else {},
        "seconds": {name: round(value, 4) for name, value in seconds.items()},
        "versions": versions(),
    }


def _refuse_bad(bad: list[Generated]) -> None:
    if not bad:
        return
    what = "; ".join(f"the image of seed {image.seed} is not written: {image.problem}" for image in bad)
    raise ParityError(
        what,
        component="vae_decoder",
        hint="An fp16 overflow does this: optimize with --fp16 auto, or without --fp16; compare with the fp32 "
        "pipeline (sdort bench OUT --reference IN --component vae_decoder).",
    )
