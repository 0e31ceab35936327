"""Options of a verification, each declared once; ``scripts/option_keywords.py`` writes the keyword arguments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from sdort.options.declared_options import option
from sdort.options.number_ranges import STEPS
from sdort.providers.runtime_options import ExecutionKeywords


@dataclass(frozen=True, kw_only=True)
class ComparisonOptions:
    """Options of what is compared, and with what."""

    against: Path | None = option(
        None,
        section="Comparison",
        form="existing",
        metavar="ORIGINAL",
        unset="from the manifest",
        help="The original to compare with: an ONNX pipeline or file before optimizing, a diffusers folder, or a "
        "single file.",
        doc="The un-optimized ONNX pipeline or file, or a checkpoint as ``checkpoint``; by default as the manifest "
        "says.",
    )
    checkpoint: Path | None = option(
        None,
        section="Comparison",
        form="existing",
        unset="from the manifest",
        help="Checkpoint that torch runs in fp32: a diffusers folder or a single file.",
        doc="Checkpoint that torch runs in fp32, a diffusers folder or a single file; by default as the manifest says.",
    )
    torch: bool = option(
        True,
        section="Comparison",
        negated=True,
        help="Compare with torch, if the checkpoint is known.",
        doc="Compare with torch, where the checkpoint is known; with ``checkpoint`` it must be.",
    )
    components: Sequence[str] = option(
        (),
        section="Comparison",
        flags=("--component",),
        metavar="NAME",
        help="Compare only this component (repeatable).",
        doc="Names of components; all of them if empty.",
    )
    bisect: bool = option(
        False,
        section="Results",
        help="Find the first wrong node of a component that failed, and the cause. The search goes inside fused "
        "operators too.",
        doc="Find the node from which a failed component is wrong, and what made it so.",
    )
    inputs: Literal["all", "random", "recorded"] = option(
        "all",
        section="Comparison",
        choices=("all", "random", "recorded"),
        help="Inputs of components: random numbers, or values that are recorded while the original generates an image.",
        doc="Random numbers, what flows between the components while the original generates (``recorded``), or both.",
    )
    images: bool | None = option(
        None,
        section="Images",
        negated=True,
        unset="unless --component",
        help="Compare images of the pipeline too.",
        doc="Also compare images of the pipeline; by default unless ``components`` are named.",
    )
    prompts: str | Path | Sequence[str] | None = option(
        None,
        section="Images",
        form="existing file",
        unset="two that the model can draw",
        help="File with one prompt a line, or .jsonl. Brackets are text, as in diffusers.",
        doc="Prompts, or the path of a file with one prompt a line; by default two that the model can draw.",
    )
    seeds: int = option(
        2,
        section="Images",
        within=(1, 10_000, "all images are kept for the comparison"),
        help="Number of images of each prompt. Their seeds are 0, 1, ...",
        doc="Images for each prompt: the seeds 0, 1, ...",
    )
    steps: int = option(8, section="Images", within=STEPS, help="Denoising steps.")
    size: str | None = option(
        None,
        form="size",
        metavar="WxH",
        unset="the model's own",
        help="Width and height of the images in pixels.",
        doc="Width and height of the images in pixels, as ``768x512``; by default the model's own.",
    )


@dataclass(frozen=True, kw_only=True)
class SemanticOptions:
    """Options of the judgement of the demo model's images, on held-out prompts."""

    semantic: bool = option(
        False,
        section="Images",
        help="Judge also whether images show what the prompts of the demo model ask for. Where an image is wrong, the "
        "original generates it too.",
        doc="Also judge whether images show what the demo model's prompts ask for.",
    )
    semantic_prompts: int | None = option(
        None,
        section="Images",
        within=(1, 120, "there are 120 of them"),
        metavar="N",
        unset="all 120",
        help="With --semantic: number of prompts.",
        doc="With ``semantic``: how many prompts; by default all.",
    )
    semantic_original: bool = option(
        False,
        section="Images",
        help="With --semantic: score the original on all prompts too. This takes as long again.",
        doc="With ``semantic``: judge the original on all of them too.",
    )


@dataclass(frozen=True, kw_only=True)
class PageOptions:
    """Options of the page that is written."""

    report: Path | None = option(
        None,
        section="Results",
        form="file",
        metavar="FILE.html",
        help="Write an HTML page with images and difference maps.",
        doc="An HTML page to write, with images and difference maps.",
    )
    overwrite: bool = option(
        False,
        section="Results",
        help="Replace the report if it exists.",
        doc="Replace ``report`` if it exists.",
    )


# Written by scripts/option_keywords.py from what is declared above.


class VerifyKeywords(ExecutionKeywords, total=False):
    """Options of :func:`sdort.verify`, all optional."""

    against: str | Path | None
    """The un-optimized ONNX pipeline or file, or a checkpoint as ``checkpoint``; by default as the manifest says."""
    checkpoint: str | Path | None
    """Checkpoint that torch runs in fp32, a diffusers folder or a single file; by default as the manifest says."""
    torch: bool
    """Compare with torch, where the checkpoint is known; with ``checkpoint`` it must be."""
    components: Sequence[str]
    """Names of components; all of them if empty."""
    bisect: bool
    """Find the node from which a failed component is wrong, and what made it so."""
    inputs: Literal["all", "random", "recorded"]
    """Random numbers, what flows between the components while the original generates (``recorded``), or both."""
    images: bool | None
    """Also compare images of the pipeline; by default unless ``components`` are named."""
    prompts: str | Path | Sequence[str] | None
    """Prompts, or the path of a file with one prompt a line; by default two that the model can draw."""
    seeds: int
    """Images for each prompt: the seeds 0, 1, ..."""
    steps: int
    """Denoising steps."""
    size: str | None
    """Width and height of the images in pixels, as ``768x512``; by default the model's own."""
    semantic: bool
    """Also judge whether images show what the demo model's prompts ask for."""
    semantic_prompts: int | None
    """With ``semantic``: how many prompts; by default all."""
    semantic_original: bool
    """With ``semantic``: judge the original on all of them too."""
    report: str | Path | None
    """An HTML page to write, with images and difference maps."""
    overwrite: bool
    """Replace ``report`` if it exists."""
