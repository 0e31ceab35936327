"""The verification of a pipeline: :func:`sdort.verify`, which ``sdort verify`` calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from sdort.console import say
from sdort.engines.default_prompts import default_prompts
from sdort.errors import UsageError
from sdort.errors.number_ranges import parse_size
from sdort.errors.option_types import typed
from sdort.first_use.find_pipeline import pipeline_folder
from sdort.providers import AUTO
from sdort.providers.runtime_options import RuntimeOptions
from sdort.staging import check_output_file, write_atomically
from sdort.verification.command_line import VerifyOptions
from sdort.verification.image_comparison import read_prompts
from sdort.verification.outcome import Verification
from sdort.verification.pipeline_comparison import verify_pipeline
from sdort.verification.report.verification_page import verification_page


@typed
def verify(
    candidate: str | Path,
    *,
    against: str | Path | None = None,
    checkpoint: str | Path | None = None,
    torch: bool = True,
    components: Sequence[str] = (),
    inputs: Literal["all", "random", "recorded"] = "all",
    images: bool | None = None,
    prompts: str | Path | Sequence[str] | None = None,
    seeds: int = 2,
    steps: int = 8,
    size: str | None = None,
    provider: str = AUTO,
    tuning: bool = False,
    graph: bool = False,
    fallback: bool | None = None,
    device_id: int = 0,
    provider_options: Mapping[str, str] | None = None,
    split: bool = True,
    custom_ops: str = "auto",
    check: bool = True,
    bisect: bool = False,
    semantic: bool = False,
    semantic_prompts: int | None = None,
    semantic_original: bool = False,
    report: str | Path | None = None,
    overwrite: bool = False,
) -> Verification:
    """Compare a pipeline, or one component, with what it was made from.

    Each component on random and on recorded inputs, against the un-optimized ONNX and against torch in fp32; then the
    images of the whole pipeline.

    Args:
        candidate: a folder of ONNX components, one ``.onnx`` file, or a checkpoint as for :func:`sdort.load`.
        against: the un-optimized ONNX pipeline or file, or a checkpoint as ``checkpoint``; by default as the manifest
            says.
        checkpoint: what torch runs in fp32, a diffusers folder or a single file; by default as the manifest says.
        torch: compare with torch, where the checkpoint is known.
        components: names of components; all of them if empty.
        inputs: random numbers, what flows between the components while the original generates (``recorded``), or
            both.
        images: also compare images of the pipeline; by default unless ``components`` are named.
        prompts: prompts, or the path of a file with one prompt a line; by default two that the model can draw.
        seeds: images for each prompt: the seeds 0, 1, ...
        steps: denoising steps.
        size: width and height of the images in pixels, as ``768x512``; by default the model's own.
        provider: as for :func:`sdort.load`, and so are ``tuning``, ``graph``, ``fallback``, ``device_id``,
            ``provider_options``, ``split``, ``custom_ops`` and ``check``.
        bisect: find the node from which a failed component is wrong, and what made it so.
        semantic: also judge whether images show what the demo model's prompts ask for.
        semantic_prompts: with ``semantic``: how many prompts; by default all.
        semantic_original: with ``semantic``: judge the original on all of them too.
        report: an HTML page to write, with images and difference maps.
        overwrite: replace ``report`` if it exists.

    Returns:
        What was measured. A difference is not raised: see :attr:`Verification.passed` and
        :meth:`Verification.raise_if_failed`.

    Raises:
        UsageError: it is not known what to compare with, or a component does not exist.
        BadModelError: there is no pipeline.
        ProviderError: the provider does not load and may not be replaced.
        OutputError: the report cannot be written or exists; raised before anything runs.

    Example:
        >>> result = sdort.verify("fast", provider="cpu", components=["unet"])
        >>> result.passed
        True
    """
    if (semantic_prompts or semantic_original) and not semantic:
        raise UsageError("--semantic-prompts and --semantic-original say how to judge: they want --semantic")
    page = Path(report) if report else None
    if page:
        named = (candidate, against, checkpoint, prompts if isinstance(prompts, str | Path) else None)
        check_output_file(page, overwrite, [Path(path) for path in named if path])
    runtime = RuntimeOptions(
        provider=provider,
        tuning=tuning,
        graph=graph,
        fallback=fallback,
        device_id=device_id,
        provider_options=provider_options or {},
        split=split,
        custom_ops=custom_ops,
        control_inputs=True,
        check=check,
    )
    candidate = pipeline_folder(candidate, runtime)
    options = VerifyOptions(
        runtime=runtime,
        against=Path(against) if against else None,
        checkpoint=Path(checkpoint) if checkpoint else None,
        torch=torch,
        components=components,
        inputs=("random", "recorded") if inputs == "all" else (inputs,),
        images=not components if images is None else images,
        prompts=read_prompts(Path(prompts))
        if isinstance(prompts, str | Path)
        else prompts or default_prompts(Path(candidate)),
        prompts_file=Path(prompts) if isinstance(prompts, str | Path) else None,
        seeds=seeds,
        steps=steps,
        size=None if size is None else parse_size(size),
        bisect=bisect,
        semantic=semantic,
        semantic_prompts=semantic_prompts,
        semantic_original=semantic_original,
    )
    result = verify_pipeline(Path(candidate), options)
    if page:
        write_atomically(page, verification_page(result))
        say(f"wrote {page}")
    return result
