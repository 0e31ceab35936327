"""One component against its references, output by output."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from sdort.errors import SdortError
from sdort.model.error_measure import Errors
from sdort.verification.checks import Precision, pair_outputs
from sdort.verification.judgement import judge_output
from sdort.verification.limits import Tolerance
from sdort.verification.recorded_inputs import Inputs
from sdort.verification.runners import RunConfiguration, run_candidate, run_original, run_torch

ONNX, TORCH = "ONNX", "torch"


@dataclass(frozen=True)
class Comparison:
    """One output of a component on one set of inputs against one reference."""

    component: str
    precision: str
    inputs: str
    """``random`` or ``recorded``."""
    sample: str
    """Which of them, in words."""
    against: str
    """``ONNX`` or ``torch``."""
    output: str
    limit: Tolerance
    errors: Errors | None = None
    """None if the outputs cannot be compared at all; ``problem`` says why."""
    problem: str | None = None
    feeds: Inputs | None = field(default=None, repr=False, compare=False)

    @property
    def passed(self) -> bool:
        return self.problem is None

    @property
    def timestep(self) -> float | None:
        """Timestep of the denoising run that the inputs are from; None for other inputs."""
        return None if self.feeds is None else self.feeds.timestep

    @property
    def share(self) -> float:
        """Error as a multiple of the limit."""
        return np.inf if self.errors is None else _share(self.errors, self.limit)


def _share(errors: Errors, limit: Tolerance) -> float:
    turned = (1 - errors.cosine) / (1 - limit.cosine)
    return max(errors.largest_share / limit.largest, errors.mean_share / limit.mean, turned)


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
            for name, value, reference in pair_outputs(outputs, expected):
                limit = precision.tolerance(component, case.timestep)
                measured, problem = judge_output(value, reference, limit)
                results.append(
                    Comparison(
                        component, precision.dtype, case.kind, case.label, against, name, limit, measured, problem, case
                    )
                )
    return results, missing
