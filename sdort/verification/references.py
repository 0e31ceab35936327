"""Reference results per case, and verdicts against them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from sdort.console import warn
from sdort.engines.engine import Engine
from sdort.engines.original import holds_onnx, open_reference
from sdort.errors import SdortError, UsageError
from sdort.generation.pictures.images import Generated
from sdort.graph.signature import Array
from sdort.providers import CPU
from sdort.providers.provider import Provider
from sdort.providers.runtime_options import RuntimeOptions
from sdort.verification.checks import Precision, Verdict, check_images, check_outputs
from sdort.workload.cases import WHOLE_PIPELINE, Case

CaseResult = dict[str, Array] | list[Generated]


@dataclass
class Reference:
    """Outputs to compare with, per case; ``label`` says in words where they come from.

    ``more`` generates the images of further cases: it opens the reference again, which is closed while others are
    measured.
    """

    label: str
    results: dict[Case, CaseResult]
    more: Callable[[Sequence[Case]], list[Generated]] | None = None

    def check(self, case: Case, result: CaseResult, precision: Precision) -> Verdict:
        """Compare the result of a case."""
        return check_result(case, result, self.results.get(case), self.label, precision)


def check_result(
    case: Case, result: CaseResult, expected: CaseResult | None, label: str, precision: Precision
) -> Verdict:
    """Check a result, against another of the same case when there is one."""
    if isinstance(result, dict):
        return check_outputs(result, expected if isinstance(expected, dict) else None, label, case.component, precision)
    return check_images(result, expected if isinstance(expected, list) else None, label, precision)


def compute_reference(
    path: Path, cases: Sequence[Case], provider: Provider, options: RuntimeOptions, steps: int, scheduler: str | None
) -> Reference:
    """Run the reference on every case.

    Components run in fp32 on the CPU, whose kernels share nothing with the provider's; images are generated on the
    provider, where a whole pipeline takes seconds and not hours.
    """
    results: dict[Case, CaseResult] = {}
    for where in dict.fromkeys((CPU, provider)):
        mine = [case for case in cases if (provider if case.component == WHOLE_PIPELINE else CPU) is where]
        if not mine:
            continue
        engine = open_reference(path, where, options)
        for case in mine:
            try:
                results[case] = _run(engine, case, steps, scheduler)
            except SdortError as error:
                warn(f"{path} gives no reference for {case}: {error.message}")
        engine.close()
    return Reference(f"{path.resolve().name} ({'ONNX' if holds_onnx(path) else 'torch'})", results)


def generate_images(engine: Engine, cases: Sequence[Case], steps: int, scheduler: str | None) -> list[Generated]:
    """The images of pipeline cases, in their order."""
    results = [_run(engine, case, steps, scheduler) for case in cases]
    return [image for result in results if isinstance(result, list) for image in result]


def _run(engine: Engine, case: Case, steps: int, scheduler: str | None) -> CaseResult:
    if case.component not in engine.components():
        raise UsageError("it does not have that component")
    runner = engine.prepare(case, steps, scheduler)
    runner()
    return runner.result()
