"""The plan of a request: all that it and a pipeline's folder decide, found once, before anything runs.

Whoever checks, estimates or runs a request takes its plan. The pixels of an init image are no part of it: the plans of
all requests of a file are there at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from sdort.generation.denoising.adapted_weights import AdapterPlan, plan_adapters
from sdort.generation.denoising.ip_adapter_tokens import check_ip_adapter_images
from sdort.generation.requests.canvas import make_canvas
from sdort.generation.requests.control_plan import plan_controls
from sdort.generation.requests.deep_cache import check_deep_cache
from sdort.generation.requests.patches import check_patches
from sdort.generation.requests.request import Request, check_prompts
from sdort.generation.requests.stages import Stage, plan_stages
from sdort.pipelines.folder import PipelineFolder


@dataclass(frozen=True)
class RequestPlan:
    """The plan of a request that a pipeline can do."""

    request: Request
    stages: Sequence[Stage]
    """With the controls of each."""
    adapters: AdapterPlan


def plan_request(folder: PipelineFolder, request: Request) -> RequestPlan:
    """The plan of a request.

    Raises:
        UsageError: the size, the number of steps, a strength, the mask, a prompt or a depth is one that the pipeline
            cannot do.
        BadModelError: a file of the pipeline is broken, its UNet is for another task, a control or an adapter does not
            fit it, or it has no IP-Adapter for an image.
    """
    stages = plan_stages(folder, request)
    check_prompts(folder, request)
    check_ip_adapter_images(folder, request.ip_adapter_image)
    check_deep_cache(folder, request)
    check_patches(folder, request, stages)
    if request.mask:
        make_canvas(request, stages[0].size, folder.vae_factor)
    planned = [replace(stage, controls=plan_controls(folder, request.control, stage.size)) for stage in stages]
    return RequestPlan(request, planned, plan_adapters(folder, request.lora))
