"""Sizes that a provider has compiled programs for: what a generation would compile is said before anything runs.

Planned are the shapes that most generations have. Whatever else runs is looked at when it does
(:mod:`sdort.runtime.compiled_programs`): longer prompts, control images, adapters.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from sdort.console import say
from sdort.errors import ProviderError
from sdort.families.component_names import DECODER, ENCODER
from sdort.families.known_families import DENOISERS, roles_of
from sdort.generation.latents.decode import planner_of
from sdort.generation.memory_need import used_components
from sdort.generation.requests.request import Request
from sdort.generation.requests.stages import Stage
from sdort.machine.gpus import free_memory
from sdort.options.number_ranges import size_words
from sdort.pipelines.folder import PipelineFolder, image_channels
from sdort.providers.provider import Provider
from sdort.providers.runtime_options import RuntimeOptions
from sdort.runtime.compiled_programs import not_compiled, say_missing
from sdort.tuning.key import Key, make_key
from sdort.tuning.store import Store
from sdort.workload.cases import Case, feed_shapes, generation_cases, make_feeds
from sdort.workload.steering_inputs import unsteered

Size = tuple[int, int]
"""Height and width in pixels."""


def fitting_size(
    folder: PipelineFolder,
    request: Request,
    stages: Sequence[Stage],
    images: int,
    provider: Provider,
    options: RuntimeOptions,
) -> Size | None:
    """The size to generate in place of the one that is asked for; None for that one.

    Args:
        images: all images of the job.

    Raises:
        NotCompiledError: nothing is compiled for it, and ``options`` ask neither to compile nor for the nearest size.
    """
    if not provider.programs:
        return None
    try:
        missing = list(_missing(folder, request, [stage.size for stage in stages], images, provider, options))
    except ProviderError:  # the driver does not tell which GPU there is: the sessions say what follows of it
        return None
    if not missing:
        return None
    nearest = _nearest(folder, request, stages[0].size, images, provider, options) if len(stages) == 1 else None
    if nearest and options.nearest_size:
        say(f"{size_words(stages[0].size)} is not compiled for {provider.name}; generating {size_words(nearest)}")
        return nearest
    if not (options.compile or options.tuning):
        raise not_compiled(provider, missing, size_words(nearest) if nearest else "")
    say_missing(provider, missing)
    return None


def _missing(
    folder: PipelineFolder,
    request: Request,
    sizes: Sequence[Size],
    images: int,
    provider: Provider,
    options: RuntimeOptions,
) -> Iterator[tuple[str, Key]]:
    """Cases that are not compiled: in words, with their keys."""
    kept, seen = set(Store().names()), set[str]()
    for component in used_components(folder, request):
        if component == ENCODER or (component in DENOISERS and (request.control or request.ip_adapter_image)):
            continue  # of the size of the image, or with further inputs
        for case in _cases(folder, component, request, sizes, images, provider, options):
            path, inputs = folder.models[component], unsteered(folder.file(component).signature.inputs)
            feeds = make_feeds(
                case, inputs, folder.vae_factor, image_channels(path, component), folder.tokens(component)
            )
            key = make_key(path, component, provider, options, feed_shapes(feeds))
            if key.name not in kept | seen:
                seen.add(key.name)
                yield str(case), key


def _cases(
    folder: PipelineFolder,
    component: str,
    request: Request,
    sizes: Sequence[Size],
    images: int,
    provider: Provider,
    options: RuntimeOptions,
) -> Iterator[Case]:
    inputs, copies = unsteered(folder.file(component).signature.inputs), len(request.guidance())
    for size in sizes[-1:] if component == DECODER else sizes:
        for case in generation_cases(component, inputs, images, size, copies=copies, at_once=request.images_at_once):
            if component != DECODER:
                yield case
                continue
            planner, free = planner_of(folder, provider), free_memory(provider.vendor, options.device_id)
            form = planner.plan(planner.size(case), request.vae_tiling, request.vae_slicing, free)
            yield planner.part_of(case, form)


def _nearest(
    folder: PipelineFolder, request: Request, size: Size, images: int, provider: Provider, options: RuntimeOptions
) -> Size | None:
    """The size most like ``size`` for which all is compiled."""
    if request.init_image is not None or request.control or request.ip_adapter_image:
        return None

    def distance(other: Size) -> float:
        return sum(abs(math.log(mine / its)) for mine, its in zip(size, other, strict=True))

    kept = _compiled_sizes(folder, provider, options)
    fitting = (
        other
        for other in sorted(kept, key=distance)
        if not list(_missing(folder, _sized(request, other), [other], images, provider, options))
    )
    return next(fitting, None)


def _sized(request: Request, size: Size) -> Request:
    return replace(request, height=size[0], width=size[1])


def _compiled_sizes(folder: PipelineFolder, provider: Provider, options: RuntimeOptions) -> set[Size]:
    """Sizes of images whose latents the denoiser has a program for, of any number of samples."""
    component = folder.denoiser
    sample = roles_of(folder.file(component).signature.inputs).sample
    found = Store().of_model(make_key(folder.models[component], component, provider, options, {}))
    dims = [dict(bundle.key.shapes).get(sample, ()) for bundle in found]
    return {(size[2] * folder.vae_factor, size[3] * folder.vae_factor) for size in dims if len(size) == 4}
