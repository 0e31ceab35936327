"""One component against its references, output by output."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import numpy as np

from sdort.errors import SdortError
from sdort.verification.checks import Precision
from sdort.verification.limits import Tolerance
from sdort.verification.recorded_inputs import Inputs
from sdort.verification.runners import RunConfiguration, run_candidate, run_original, run_torch
from sdort.workload.judgement import Errors, judge_outputs, limit_share

ONNX, TORCH = "ONNX", "torch"


@dataclass(frozen=True)
class Comparison:
    """One output of a component on one set of inputs against one reference; errors are None where nothing could be
    measured."""

    __json__: ClassVar = (
        "component", "precision", "inputs", "sample", "timestep", "against", "output", "passed", "problem", "largest",
        "mean", "cosine", "largest_share", "mean_share", "limit", "limit_share",
    )  # fmt: skip

    component: str
    """The component."""
    precision: str
    """The precision whose limits hold."""
    inputs: str
    """``random`` or ``recorded`` inputs."""
    sample: str
    """The inputs' number or origin."""
    against: str
    """The reference: ``ONNX`` or ``torch``."""
    output: str
    """The output that was compared."""
    limit: Tolerance = field(metadata={"json": "allowed"})
    """The limits, under the names of the errors that they hold for."""
    errors: Errors | None = None
    """None if the outputs cannot be compared at all; ``problem`` says why."""
    problem: str | None = None
    """The reason why it fails; None if it passes."""
    feeds: Inputs | None = field(default=None, repr=False, compare=False)

    @property
    def passed(self) -> bool:
        """Whether every error is within its limit."""
        return self.problem is None

    @property
    def timestep(self) -> float | None:
        """Timestep of the denoising run that the inputs are from; None for other inputs."""
        return None if self.feeds is None else self.feeds.timestep

    @property
    def largest(self) -> float | None:
        """Largest absolute error."""
        return None if self.errors is None else self.errors.largest

    @property
    def mean(self) -> float | None:
        """Mean absolute error."""
        return None if self.errors is None else self.errors.mean

    @property
    def cosine(self) -> float | None:
        """Cosine similarity of the two."""
        return None if self.errors is None else self.errors.cosine

    @property
    def largest_share(self) -> float | None:
        """Largest error over the standard deviation of the reference's output."""
        return None if self.errors is None else self.errors.largest_share

    @property
    def mean_share(self) -> float | None:
        """Mean error over the same."""
        return None if self.errors is None else self.errors.mean_share

    @property
    def limit_share(self) -> float | None:
        """The error that uses most of its limit, as a multiple of that limit."""
        return None if self.errors is None else self.share

    @property
    def share(self) -> float:
        """Error as a multiple of the limit."""
        return np.inf if self.errors is None else limit_share(self.errors, self.limit)


def compare_component(
    component: str,
    candidate: Path,
    references: Mapping[str, Path],
    configuration: RunConfiguration,
    inputs: Sequence[Inputs],
    precision: Precision,
) -> tuple[list[Comparison], list[str]]:
    """Run a component and its references on the same inputs, one after the other: one model is in memory at a time.

    Args:
        references: ``ONNX`` -> the original's model, ``torch`` -> the checkpoint's folder.

    Returns:
        The comparisons, and why a reference gave none.

    Raises:
        SdortError: the candidate does not load or run.
    """
    feeds = [case.feeds for case in inputs]
    actual = run_candidate(candidate, component, configuration, feeds)
    results: list[Comparison] = []
    missing = []
    for against, path in references.items():
        try:
            expected_outputs = (run_original if against == ONNX else run_torch)(path, component, feeds)
        except SdortError as error:
            missing.append(f"{component} with {against}: {error.message}")
            continue
        for case, outputs, expected in zip(inputs, actual, expected_outputs, strict=True):
            limit = precision.tolerance(component, case.timestep)
            results += [
                Comparison(component, precision.dtype, case.kind, case.label, against, name, limit, *judged, case)
                for name, judged in judge_outputs(outputs, expected, limit).items()
                if judged.errors or judged.problem
            ]
    return results, missing
