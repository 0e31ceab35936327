"""The prompts that are generated where a person names none: what the model can draw."""

from __future__ import annotations

from pathlib import Path

from sdort.checkpoints.configs import read_manifest
from sdort.demo import DEMO_NAMES

PROMPTS = ("a photo of an astronaut riding a horse on mars", "a small red circle left of a blue square on white")
"""A photograph's texture, and edges and flat areas, where errors show."""

DEMO_PROMPTS = ("a small red circle left of a blue square on white", "a large yellow star on a navy background")
"""Coloured shapes, which are all that the demo model knows."""


def short_prompt(path: Path) -> str:
    """A prompt for a command that people copy."""
    return "a red star on navy" if _is_demo(path) else PROMPTS[0]


def default_prompts(path: Path) -> tuple[str, ...]:
    """Two prompts for the pipeline in ``path``: the demo's, if its manifest says that it was made from the demo."""
    return DEMO_PROMPTS if _is_demo(path) else PROMPTS


def _is_demo(path: Path) -> bool:
    return path.is_dir() and read_manifest(path).get("source") in DEMO_NAMES
