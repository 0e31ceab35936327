"""Ablation of the fusions: fp32 without fusions, fp16 without, then one group of fusions after the other.

The variants are made from the original on the fly. What is not fused yet stays in standard operators that the provider
has, so every variant is legal; ONNX Runtime's own optimizations at loading are on, as in every run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from sdort.benchmark.bench_options import BenchOptions
from sdort.benchmark.measure import Measurement, measure_engines, prepare_benchmark
from sdort.benchmark.published import PUBLISHED, PublishedRows
from sdort.benchmark.rows import Row, failures, listed
from sdort.benchmark.setup import choose_components, find_reference, plan_cases
from sdort.console import document, say
from sdort.engines.onnx import OnnxEngine
from sdort.engines.original import holds_onnx, original_of
from sdort.errors import ParityError, SdortError, UsageError
from sdort.files.staging import temporary_folder
from sdort.pipelines.folder import open_folder
from sdort.providers.provider import Provider
from sdort.verification.references import Reference
from sdort.workload.cases import WHOLE_PIPELINE, Case


@dataclass(frozen=True)
class AblationStep:
    """One row of the ablation: what is added to the row before it."""

    name: str
    adds: tuple[str, ...] = ()
    """Names that ``sdort optimize --disable`` knows."""
    fp16: bool = True


STEPS: tuple[AblationStep, ...] = (
    AblationStep("raw fp32", fp16=False),
    AblationStep("fp16"),
    AblationStep("+ FMHA", ("multi_head_attention", "packed_attention")),
    AblationStep("+ NhwcConv", ("nhwc",)),
    AblationStep("+ GroupNorm", ("group_norm", "group_norm_silu", "skip_group_norm")),
    AblationStep("+ BiasSplitGelu", ("bias_split_gelu",)),
    AblationStep("+ packed QKV", ("packed_qkv", "packed_kv")),
    AblationStep("+ separate QKV", ("separate_qkv",)),
    AblationStep("+ BiasAdd", ("bias_add",)),
    AblationStep("+ biases moved", ("conv_bias",)),
)
"""In the order of the published table (:mod:`sdort.benchmark.published`), but for what is done otherwise since; the
rest comes last, as one step."""

REST = "+ the rest"


def ablation_steps() -> list[AblationStep]:
    """:data:`STEPS`, then every other fusion: the last one is what ``sdort optimize --fp16`` makes."""
    named = {name for step in STEPS for name in step.adds}
    return [*STEPS, AblationStep(REST, tuple(name for name in optional_fusions() if name not in named))]


def optional_fusions() -> list[str]:
    """Names of everything that may be left out: the fusions proper, and passes that can be disabled.

    Raising stays, since the fusions are written for what it makes, and so does lowering, without which a variant would
    not be legal. sdort's own operators are not part of the ablation.
    """
    from sdort.optimizer.fusion_list import DISABLED_STEPS
    from sdort.rewrite.fusion import load_fusions

    return [
        *DISABLED_STEPS,
        *(fusion.name for fusion in load_fusions().values() if fusion.stage in ("fuse", "fuse_nhwc")),
    ]


@dataclass
class MeasuredStep:
    """A step that was made and measured.

    Attributes:
        changes: operators -> how many more there are than in the step before, over all components.
        same_as: the step that gave the same graphs, whose rows these are; empty if it was measured itself.
        problem: why the variant could not be made, None if it was.
    """

    name: str = field(metadata={"json": "step"})
    """The step's name."""
    rows: list[Row] = field(default_factory=list)
    """The step's rows; those of ``same_as`` where that is not empty."""
    changes: dict[str, int] = field(default_factory=dict)
    same_as: str = ""
    problem: str | None = None


@document("ablation", 1)
@dataclass
class Ablation:
    """Every measured step; ``original`` is the name of the folder that the variants were made from."""

    original: str
    """Name of the folder that the variants were made from."""
    provider: str
    """The execution provider that ran."""
    stages: list[MeasuredStep] = field(default_factory=list)
    """The steps, in order."""
    measured: Measurement = field(default_factory=Measurement, metadata={"json": None})
    """The rows that were measured, each once, and their images."""
    published: Mapping[str, PublishedRows] = field(default_factory=lambda: PUBLISHED)
    """Device -> what was published of the same steps, for orientation."""

    @property
    def rows(self) -> list[Row]:
        """The rows that were measured, each once."""
        return self.measured.rows

    def raise_if_failed(self) -> None:
        """Raise if a step could not be made, a row failed its check, or a comparison with saved ones says so.

        Raises:
            ParityError: the steps and rows that failed, and why.
            RegressionError: the rows that are slower.
            UsageError: no row could be compared, and why.
        """
        unmade = [
            f"the step {stage.name!r} could not be made: {stage.problem}" for stage in self.stages if stage.problem
        ]
        if unmade:
            problems = listed([*unmade, *failures(self.rows)])
            raise ParityError(f"{len(unmade)} of {len(self.stages)} steps could not be made:{problems}")
        self.measured.raise_if_failed()


@dataclass(frozen=True)
class _Plan:
    """Settings of all steps."""

    original: Path
    provider: Provider
    components: Sequence[str]
    todo: Sequence[Case]
    reference: Reference | None
    options: BenchOptions


def ablate(path: Path, options: BenchOptions) -> Ablation:
    """Measure every step, each variant alone, so that its memory is its own.

    Args:
        path: an optimized pipeline, whose manifest names its original, or the original itself.
        options: ``engine``, ``baseline`` and ``checkpoint`` are not looked at.

    Raises:
        UsageError: the original is not known or is not on this machine.
        SdortError: nothing can be measured.
    """
    provider = prepare_benchmark(options)
    with _original(path) as original:
        engine = OnnxEngine(original, provider, options.runtime)
        components = choose_components([engine], options.components)
        todo = plan_cases(original, components, [engine], options)
        compared = replace(options, baseline=None, reference=options.reference or original)
        reference = find_reference(original, compared, todo, provider)
        plan = _Plan(original, provider, components, todo, reference, options)
        ablation = Ablation(original.resolve().name, provider.name)
        before: OperatorCounts = {}
        all_steps = ablation_steps()
        for index, step in enumerate(all_steps):
            say(f"{step.name} ({index + 1} of {len(all_steps)})")
            before = _add_stage(ablation, plan, all_steps[: index + 1], before)
    return ablation


@contextmanager
def _original(path: Path) -> Iterator[Path]:
    """The exported pipeline that ``path`` was optimized from, or ``path`` itself."""
    if path.is_dir() and "optimized" not in open_folder(path, ()).manifest:
        yield path
        return
    hint = "Give that pipeline itself: sdort bench EXPORTED --ablation."
    with original_of(path, hint) as original:
        if original is None or not holds_onnx(original):
            raise UsageError(
                f"the exported pipeline that {path} was optimized from is not known or not here",
                hint=hint,
            )
        yield original


OperatorCounts = dict[str, dict[str, int]]
"""Component -> operator -> count; empty where there is no variant."""


def _add_stage(
    ablation: Ablation, plan: _Plan, so_far: Sequence[AblationStep], before: OperatorCounts
) -> OperatorCounts:
    """Make and measure the last of ``so_far``.

    Returns:
        The operators of its graphs; empty if it could not be made.
    """
    step, stage = so_far[-1], MeasuredStep(so_far[-1].name)
    ablation.stages.append(stage)
    with temporary_folder("ablation") as folder:
        variant = Path(folder) / f"{ablation.original} {step.name}"
        try:
            graphs = make_variant(plan.original, variant, plan.provider.name, so_far, plan.components)
        except SdortError as error:
            stage.problem = error.message
            return {}
        stage.changes = _changes(before, graphs)
        # The precision changes once, at the second step, where there is always something to measure.
        if before == graphs and len(so_far) > 2:
            last = ablation.stages[-2]
            stage.rows, stage.same_as, stage.problem = last.rows, last.same_as or last.name, last.problem
            return graphs
        engine = OnnxEngine(variant, plan.provider, plan.options.runtime)
        measured = measure_engines([engine], plan.components, plan.todo, plan.reference, plan.options)
    for row in measured.rows:
        row.step = step.name
    stage.rows = measured.rows
    ablation.measured.rows += measured.rows
    ablation.measured.images += measured.images
    return graphs


def make_variant(
    original: Path, out: Path, provider: str, so_far: Sequence[AblationStep], components: Sequence[str] = ()
) -> OperatorCounts:
    """Optimize with the fusions of these steps alone.

    Returns:
        The operators of each component.

    Raises:
        SdortError: the variant cannot be made.
    """
    from sdort.optimizer.command import optimize

    added = {name for step in so_far for name in step.adds}
    report = optimize(
        original,
        out,
        provider=provider,
        fp16=so_far[-1].fp16,
        components=() if WHOLE_PIPELINE in components else components,
        disable=[name for name in optional_fusions() if name not in added],
        allow_misses=True,
    )
    return {name: done.operators for name, done in report.components.items()}


def _changes(before: OperatorCounts, after: OperatorCounts) -> dict[str, int]:
    if not before:
        return {}
    difference: Counter[str] = Counter()
    for sign, graphs in ((1, after), (-1, before)):
        for operators in graphs.values():
            for name, count in operators.items():
                difference[name] += sign * count
    return {name: count for name, count in sorted(difference.items()) if count}
