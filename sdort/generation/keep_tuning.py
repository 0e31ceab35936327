"""Tuning results kept for the shapes that generating images fed to each component."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sdort.generation.request import Request
from sdort.generation.stages import Stage
from sdort.model.component_names import CONTROLNET
from sdort.runtime.tuning_results import keep_case, keep_shapes
from sdort.workload.cases import generation_cases

if TYPE_CHECKING:
    from sdort.generation.pipeline import TextToImage


def keep_generated(pipeline: TextToImage, requests: Sequence[Request], stages: Sequence[Stage]) -> None:
    """Keep what was tuned while images were generated; a cache that cannot be written costs a warning.

    Args:
        stages: of the requests.
    """
    request = requests[0]
    images = sum(request.num_images for request in requests)
    copies = len(request.guidance())
    controls = pipeline.controls.sessions if request.control else ()
    for session in (*pipeline.sessions.values(), *controls):
        component = session.component
        if component not in ("unet", CONTROLNET):  # the decoder's depend on the memory that was free
            for shapes in sorted(session.ran_on):
                keep_shapes(session, dict(shapes))
            continue
        for stage in stages:
            for case in generation_cases(
                component, session.inputs, images, stage.size, copies=copies, at_once=request.images_at_once
            ):
                keep_case(session, case, pipeline.folder.vae_factor)
