"""The semantic score of a candidate, with the original's originals it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from sdort.console import progress
from sdort.errors import SdortError
from sdort.generation.pictures.images import Generated
from sdort.generation.requests.request import Request
from sdort.pipelines.folder import PipelineFolder
from sdort.verification.command_line import VerifyOptions
from sdort.verification.outcome import Verification
from sdort.verification.runners import RunConfiguration, open_text_to_image
from sdort.verification.semantic import score_images, semantic_requests, wrong_requests
from sdort.verification.torch_images import generate_in_torch

Original = tuple[PipelineFolder, RunConfiguration] | Path
"""An ONNX pipeline and where it runs, or a diffusers checkpoint."""


def score_candidate(
    folder: PipelineFolder,
    configuration: RunConfiguration,
    original: Original | None,
    options: VerifyOptions,
    result: Verification,
) -> None:
    """Fill ``result.semantic``.

    The original generates what the candidate got wrong, which tells whose fault that is, or every prompt if that is
    asked for: that takes as long again.
    """
    requests = semantic_requests(options.semantic_prompts)
    try:
        images = _generate(folder, configuration, requests, "generating for the score")
    except SdortError as error:
        result.missing.append(f"semantic score: {error.message}")
        return
    again = requests if options.semantic_original else wrong_requests(requests, images)
    originals: dict[str, Generated] = {}
    try:
        originals = _generate_original(original, again) if original and again else {}
    except SdortError as error:
        notes = result.missing if options.semantic_original else result.notes
        notes.append(f"semantic score of the original: {error.message}")
    result.semantic = score_images(requests, images, originals)


def _generate(
    folder: PipelineFolder, configuration: RunConfiguration, requests: Sequence[Request], words: str
) -> list[Generated]:
    pipeline = open_text_to_image(folder, configuration)
    with progress(words, total=sum(request.steps for request in requests)) as advance:
        return [image for request in requests for image in pipeline.generate(request, advance)]


def _generate_original(original: Original, requests: Sequence[Request]) -> dict[str, Generated]:
    if isinstance(original, Path):
        with progress("generating for the score with torch"):
            return {prompt: image for (prompt, _), image in generate_in_torch(original, requests).items()}
    images = _generate(*original, requests, "generating for the score with the original")
    return {request.prompt: image for request, image in zip(requests, images, strict=True)}
