"""The conditioning of a pipeline by requests, as its first call of the UNet gets it."""

from __future__ import annotations

from collections.abc import Sequence

from sdort.generation.pipeline import TextToImage
from sdort.generation.requests.request import Request
from sdort.generation.requests.stages import plan_stages
from sdort.runtime.step.step_conditions import Copies


def first_conditions(pipeline: TextToImage, requests: Sequence[Request]) -> list[Copies]:
    """For each request the conditioning of its copies: of the negative prompt, if there is guidance, and the prompt."""
    [stage] = pipeline._conditions(requests, plan_stages(pipeline.folder, requests[0])[:1])
    return [calls[0] for calls in stage]
