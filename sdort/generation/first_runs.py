"""First runs of a pipeline's small models, which happen while its denoiser is still being loaded.

On a GPU of NVIDIA the first run of a model takes a second or so, in which libraries load their kernels and plan. Only
what has a memory pool runs ahead. On a processor such runs would take the time of what is loaded; MIOpen measures its
kernels in the first run, and would measure what is loaded meanwhile too.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from sdort.families.component_names import DECODER
from sdort.generation.latents.decode import SHARE, planner_of
from sdort.generation.low_memory import whole_bytes
from sdort.generation.memory_need import opening_bytes, weight_bytes
from sdort.generation.request_plan import RequestPlan
from sdort.graph.signature import Array, static_size
from sdort.machine.gpus import free_memory
from sdort.pipelines.folder import PipelineFolder
from sdort.providers import LOW
from sdort.providers.provider import Provider
from sdort.providers.runtime_options import RuntimeOptions
from sdort.runtime.side_by_side import Feeds
from sdort.workload.cases import Case


def first_runs(
    folder: PipelineFolder, plan: RequestPlan, images: int, provider: Provider, options: RuntimeOptions
) -> Mapping[str, Feeds]:
    """Component -> inputs of the sizes that a request's first run of it has; none where nothing is to run ahead.

    Where memory is scarce there are none: that of the decoder is free while models are loaded, but it might keep one of
    them from being opened if the estimate is too low.

    Args:
        images: all images of the run.
    """
    free = free_memory(provider.vendor, options.device_id) if provider.pools and options.memory != LOW else None
    if free is None or whole_bytes(folder, plan, images, provider, free) > SHARE * free:
        return {}
    found: dict[str, Feeds] = {}
    for encoder in folder.family.encoders:
        rows = static_size(folder.file(encoder.component).signature.inputs["input_ids"].shape, 0) or 1
        tokens = folder.tokens(encoder.component)
        found[encoder.component] = {"input_ids": np.zeros((rows, tokens), np.int64)}
    if options.other_devices:
        return found  # which decode too
    left = free - weight_bytes(folder, folder.needed) - opening_bytes(provider, len(folder.needed))
    latents = _decoded_at_once(folder, plan, images, provider, left)
    return found if latents is None else found | {DECODER: {planner_of(folder, provider).latents.name: latents}}


def _decoded_at_once(
    folder: PipelineFolder, plan: RequestPlan, images: int, provider: Provider, free: int
) -> Array | None:
    """Latents of the size that the decoder takes first; None where it may be another one."""
    request, sizes = plan.request, {stage.size for stage in plan.stages}
    if len(sizes) > 1:
        return None
    planner = planner_of(folder, provider)
    size = planner.size(Case(DECODER, min(images, request.images_at_once), *sizes.pop()))
    count, height, width = planner.part(size, planner.plan(size, request.vae_tiling, request.vae_slicing, free))
    return np.zeros((count, folder.latent_channels, height, width), np.float32)
