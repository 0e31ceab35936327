"""Does the pipeline draw what its prompts ask for: the demo's judge on the demo's held-out prompts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module

from sdort.runtime.pipeline import TextToImage
from sdort.runtime.request import Request


@dataclass(frozen=True)
class Semantic:
    """Right pictures out of those judged, by kind, and whether they are as many as the demo model has to reach."""

    counts: dict[str, tuple[int, int]]
    wanted: str
    passed: bool


def semantic_requests() -> list[Request]:
    """One image for each held-out prompt, drawn as the demo model is scored."""
    prompts, scoring = import_module("sdort.demo.prompts"), import_module("sdort.demo.score")
    return [
        Request(prompt, steps=scoring.STEPS, guidance_scale=scoring.GUIDANCE, seed=seed)
        for seed, prompt in enumerate(prompts.held_out())
    ]


def judge_pipeline(drawer: TextToImage, on_step: Callable[[float], None]) -> Semantic:
    """Draw and judge.

    Raises:
        SdortError: a drawing failed.
    """
    scoring = import_module("sdort.demo.score")
    requests = semantic_requests()
    found = scoring.score((each.prompt, image.pixels) for each in requests for image in drawer.generate(each, on_step))
    wanted = f"{scoring.SINGLE_BAR:.0%} of single shapes, {scoring.PAIR_BAR:.0%} of pairs"
    return Semantic(dict(vars(found)), wanted, found.passed)
