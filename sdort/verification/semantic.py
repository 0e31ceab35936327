"""Semantic score: the share of the demo's held-out prompts whose images show what is asked for, by the demo's judge."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar

from sdort.generation.pictures.images import Generated
from sdort.generation.requests.request import Request
from sdort.graph.signature import Array
from sdort.verification.image_comparison import no_image

if TYPE_CHECKING:  # distributions may leave the demo out
    from sdort.demo.judge import PromptVerdict

Counts = dict[str, tuple[int, int]]
"""By kind: right images, and judged images."""


@dataclass(frozen=True)
class Miss:
    """An image that does not show what its prompt asks for.

    Attributes:
        wrong: the wrong aspects: shapes, colours, relation.
        seen: description of the image.
        original: description of the original's image of the same noise; None where it was not generated.
        original_right: whether the original's image shows what the prompt asks for.
    """

    prompt: str
    """The prompt."""
    seed: int
    """The seed."""
    wrong: tuple[str, ...]
    seen: str
    original: str | None = None
    original_right: bool | None = None
    image: Array = field(default_factory=no_image, repr=False, compare=False, metadata={"json": None})
    reference: Array = field(default_factory=no_image, repr=False, compare=False, metadata={"json": None})


@dataclass(frozen=True)
class SemanticScore:
    """Right images out of those judged, by kind, and whether they are as many as the demo model has to reach."""

    __json__: ClassVar = ("counts", "wanted", "passed", "original", "misses")

    counts: Counts
    """By kind: how many images show what their prompts ask for, and of how many."""
    bars: dict[str, float]
    """By kind: the share that has to be right."""
    passed: bool
    """Whether the bars are reached."""
    misses: tuple[Miss, ...] = ()
    """The images that do not show what was asked for."""
    original: Counts | None = None
    """The same counts of the original's images; None where not all were generated."""

    @property
    def wanted(self) -> str:
        """The bars in words."""
        return f"{100 * self.bars['single']:.0f} % of single shapes, {100 * self.bars['pair']:.0f} % of pairs"


def semantic_requests(most: int | None = None) -> list[Request]:
    """Requests for one image of each held-out prompt, with the settings that the demo model is scored with.

    Args:
        most: upper bound of their number, evenly from the list; each keeps its noise.
    """
    from sdort.demo import prompt_language as prompts
    from sdort.demo import score as scoring

    every = [
        Request(prompt, steps=scoring.STEPS, guidance_scale=scoring.GUIDANCE, seed=seed)
        for seed, prompt in enumerate(prompts.held_out())
    ]
    count = len(every) if most is None else min(most, len(every))
    return [every[index * len(every) // count] for index in range(count)]


def wrong_requests(requests: Sequence[Request], images: Sequence[Generated]) -> list[Request]:
    """Requests whose images are wrong."""
    from sdort.demo import score as scoring

    pairs = zip(requests, images, strict=True)
    return [
        request for request, image in pairs if not scoring.judge_picture(request.prompt, image.pixels).verdict.right
    ]


def score_images(
    requests: Sequence[Request], images: Sequence[Generated], original: Mapping[str, Generated]
) -> SemanticScore:
    """Score images, and describe the wrong ones.

    Args:
        images: one for each request.
        original: by prompt, of the same noise; for any of the prompts. With all of them it gets a score too.
    """
    from sdort.demo import score as scoring

    judged = [
        scoring.judge_picture(request.prompt, image.pixels) for request, image in zip(requests, images, strict=True)
    ]
    score = scoring.count(judged)
    misses = [
        _miss(request, image, judgement.verdict, original.get(request.prompt))
        for request, image, judgement in zip(requests, images, judged, strict=True)
        if not judgement.verdict.right
    ]
    whole = all(request.prompt in original for request in requests)
    beside = scoring.score((request.prompt, original[request.prompt].pixels) for request in requests) if whole else None
    bars = {"single": scoring.SINGLE_BAR, "pair": scoring.PAIR_BAR}
    return SemanticScore(vars(score), bars, score.passed, tuple(misses), None if beside is None else vars(beside))


def _miss(request: Request, image: Generated, verdict: PromptVerdict, original: Generated | None) -> Miss:
    from sdort.demo import judge
    from sdort.demo import score as scoring

    wrong, seen = tuple(judge.wrong(verdict)), image.problem or judge.describe_image(image.pixels)
    miss = Miss(request.prompt, request.seed, wrong, seen, image=image.pixels)
    if original is None:
        return miss
    right = scoring.judge_picture(request.prompt, original.pixels).verdict.right
    return replace(
        miss, original=judge.describe_image(original.pixels), original_right=right, reference=original.pixels
    )
