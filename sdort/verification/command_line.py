"""Options of ``sdort verify``, and the command line that asks for them."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sdort.engines.default_prompts import PROMPTS
from sdort.errors.declared_options import command_words
from sdort.errors.number_ranges import SEEDS, SEMANTIC_PROMPTS, STEPS, check_fields, size_words
from sdort.providers import CPU
from sdort.providers.runtime_options import RuntimeOptions
from sdort.verification.recorded_inputs import RANDOM, RECORDED


@dataclass(frozen=True)
class VerifyOptions:
    """Options of a verification. ``None`` and empty leave the choice to the manifest and the model.

    Raises:
        UsageError: a number is out of its range.
    """

    runtime: RuntimeOptions = field(default_factory=lambda: RuntimeOptions(CPU.name))
    against: Path | None = None
    checkpoint: Path | None = None
    torch: bool = True
    """Also compare with torch where the checkpoint is known; with ``checkpoint`` it must be."""
    components: Sequence[str] = ()
    inputs: Sequence[str] = (RANDOM, RECORDED)
    images: bool = True
    prompts: Sequence[str] = PROMPTS
    prompts_file: Path | None = None
    """The file that the prompts are from."""
    seeds: int = 2
    steps: int = 8
    size: tuple[int, int] | None = None
    """Height and width of the images in pixels; None for the model's own."""
    bisect: bool = False
    semantic: bool = False
    """Also score the images of the demo's held-out prompts."""
    semantic_prompts: int | None = None
    """Number of them; None for all."""
    semantic_original: bool = False
    """Also score the original on all of them, not only on those that the candidate got wrong."""

    def __post_init__(self) -> None:
        check_fields(self, SEEDS, STEPS, SEMANTIC_PROMPTS)

    def command_line(self, candidate: Path) -> str:
        """The ``sdort verify`` command with these options, to be copied; prompts of a program have no file to name."""
        plain = VerifyOptions()
        words: list[object] = ["sdort", "verify", candidate]
        for name, value in (("--against", self.against), ("--checkpoint", self.checkpoint)):
            words += [name, value] if value else []
        words += [] if self.torch else ["--no-torch"]
        for component in self.components:
            words += ["--component", component]
        words += ["--bisect"] if self.bisect else []
        words += ["--inputs", *self.inputs] if len(self.inputs) == 1 else []
        words += [] if self.images == (not self.components) else ["--images" if self.images else "--no-images"]
        words += ["--prompts", self.prompts_file] if self.prompts_file else []
        words += ["--seeds", self.seeds] if self.seeds != plain.seeds else []
        words += ["--steps", self.steps] if self.steps != plain.steps else []
        words += ["--size", size_words(self.size)] if self.size else []
        words += command_words(self.runtime)
        words += ["--semantic"] if self.semantic else []
        words += ["--semantic-prompts", self.semantic_prompts] if self.semantic_prompts else []
        words += ["--semantic-original"] if self.semantic_original else []
        return shlex.join(map(str, words))
