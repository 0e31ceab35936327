"""Tuning results kept for the shapes that generating images fed to each component."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from sdort.families.component_names import CONTROLNET
from sdort.families.known_families import DENOISERS
from sdort.generation.denoising.running_controls import RunningControls
from sdort.generation.requests.request import Request
from sdort.generation.requests.stages import Stage
from sdort.pipelines.folder import PipelineFolder
from sdort.runtime.session import Session
from sdort.runtime.tuning_results import keep_case, keep_shapes
from sdort.workload.cases import generation_cases


class HasSessions(Protocol):
    """A pipeline that generates images, as far as it is looked at."""

    @property
    def sessions(self) -> Mapping[str, Session]:
        """Those that are open, by component."""

    @property
    def controls(self) -> RunningControls:
        """The controls that steer the UNet."""

    @property
    def folder(self) -> PipelineFolder:
        """Where it is."""


def keep_generated(pipeline: HasSessions, requests: Sequence[Request], stages: Sequence[Stage]) -> None:
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
        if component not in (*DENOISERS, CONTROLNET):  # the decoder's depend on the memory that was free
            for shapes in sorted(session.ran_on):
                keep_shapes(session, dict(shapes))
            continue
        for stage in stages:
            for case in generation_cases(
                component, session.inputs, images, stage.size, copies=copies, at_once=request.images_at_once
            ):
                keep_case(session, case, pipeline.folder.vae_factor, pipeline.folder.tokens(component))
