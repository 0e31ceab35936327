"""All that a verification is asked for, and the command line that asks for it."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from sdort.engines.default_prompts import PROMPTS
from sdort.options.declared_options import command_words, ranges_of
from sdort.options.number_ranges import check_fields, parse_size
from sdort.providers import CPU
from sdort.providers.runtime_options import RuntimeOptions
from sdort.verification.recorded_inputs import RANDOM, RECORDED
from sdort.verification.verify_options import ComparisonOptions, SemanticOptions


@dataclass(frozen=True)
class VerifyOptions(SemanticOptions, ComparisonOptions):
    """Options of a verification. ``None`` and empty leave the choice to the manifest and the model.

    Raises:
        UsageError: a number is out of its range, or the size is none.
    """

    runtime: RuntimeOptions = field(default_factory=lambda: RuntimeOptions(CPU.name))
    texts: Sequence[str] = PROMPTS
    """The prompts themselves."""

    def __post_init__(self) -> None:
        check_fields(self, *ranges_of(VerifyOptions).values())
        _ = self.sides

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of inputs of components."""
        return (RANDOM, RECORDED) if self.inputs == "all" else (self.inputs,)

    @property
    def draws(self) -> bool:
        """Whether images of the pipeline are compared."""
        return not self.components if self.images is None else self.images

    @property
    def sides(self) -> tuple[int, int] | None:
        """Height and width of the images in pixels; None for the model's own."""
        return None if self.size is None else parse_size(self.size)

    def command_line(self, candidate: Path) -> str:
        """The ``sdort verify`` command with these options, to be copied; prompts of a program have no file to name."""
        named = self if isinstance(self.prompts, str | Path) else replace(self, prompts=None)
        if named.draws == (not named.components):
            named = replace(named, images=None)
        words = ["sdort", "verify", candidate, *command_words(named, ComparisonOptions), *command_words(self.runtime)]
        return shlex.join(map(str, [*words, *command_words(named, SemanticOptions)]))
