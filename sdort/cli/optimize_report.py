"""Output of ``sdort optimize``."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from sdort.lowering.component_report import Fp32Report
    from sdort.optimizer.report import OptimizeReport
    from sdort.passes.quantize_weights import QuantizedWeights
    from sdort.tables import Table

ALL = "all"
"""The word of --explain for every fusion."""

MOST_KINDS = 4
"""Kinds of fp32 nodes that are named without --explain."""


@contextmanager
def explained(names: Collection[str], quiet: bool) -> Iterator[None]:
    """Show what an error leaves of --explain: what was left until then."""
    from sdort.console import show
    from sdort.errors import SdortError
    from sdort.optimizer.summary import explanation

    try:
        yield
    except SdortError as error:
        report = cast("OptimizeReport | None", error.record.get("report"))
        if report is not None and report.components and not quiet:
            for part in _explanations(report, names):
                show(part)
            if not report.misses:
                show(f"Until the error: {explanation(report)}")
        raise


def show_report(report: OptimizeReport, explain: Collection[str], next_command: str) -> None:
    """Print what was made of each component, what was left, and the verdict."""
    from sdort.console import conclude, show
    from sdort.operator_library.library import VENDORS
    from sdort.optimizer.summary import left_places

    show(_summary(report))
    if any(c.precision for c in report.components.values()):
        show("")
    for name, c in report.components.items():
        for line in _precision(c.precision, bool(explain)):
            show(f"{name}: {line}")
    for name, c in report.components.items():
        for line in _integers(c.weights):
            show(f"{name}: {line}")
    if report.sdort_ops or report.provider in VENDORS:
        show(f"sdort's own operators: {'used' if report.sdort_ops else 'not used'}, {report.sdort_ops_reason}")
    if places := left_places(report):
        show(_left(places))
    for part in _explanations(report, explain):
        show(part)
    conclude(_verdict(report, bool(explain)), next_command)


def _precision(report: Fp32Report | None, explain: bool) -> Iterator[str]:
    """The nodes that stay in fp32 and why; without ``explain`` the first few of many."""
    if report is None:
        return
    from sdort.tables import size_text

    if not report.rules:
        yield "nothing that fp16 could not hold" + (f" (inputs {report.measured})" if report.measured else "")
        return
    time = report.share_of_time
    taken = "" if time is None else f"{time:.1%} of the time of a run in fp32 on this CPU, "
    yield f"in fp32: {report.nodes} nodes ({report.share_of_nodes:.1%}), {taken}{size_text(report.bytes)} more"
    if report.without:
        yield f"  in fp16 alone {report.without}; like this {report.within}"
    shown = report.rules if explain else report.rules[:MOST_KINDS]
    for rule in shown:
        yield f"  {rule.where}: {rule.why}"
    if len(shown) < len(report.rules):
        yield f"  and {len(report.rules) - len(shown)} more kinds of nodes: --explain"


def _integers(weights: QuantizedWeights | None) -> Iterator[str]:
    """The layers that have integers, and why others keep their weights."""
    from sdort.tables import counted, size_text

    if weights is None:
        return
    kept = ", ".join(f"{number} ({reason})" for reason, number in weights.kept.items())
    if not weights.layers:
        yield f"weights as they are: {kept or 'no linear layer'}"
        return
    sizes = f"{size_text(weights.bytes_before)} -> {size_text(weights.bytes_after)}"
    yield f"{counted(weights.layers, 'linear layer')} in {weights.form}: {sizes}{kept and f'; as they are: {kept}'}"


def _summary(report: OptimizeReport) -> Table:
    from sdort.optimizer.summary import fused_operators
    from sdort.tables import NO_BREAK, Table, size_text

    table = Table("", ("component", ">nodes", ">seconds", ">size", "fused operators"), details=("seconds",))
    for name, c in report.components.items():
        fused = [f"{n}{NO_BREAK}{operator}" for operator, n in fused_operators([c]).most_common()]
        nodes, seconds = f"{c.nodes_before:,} -> {c.nodes_after:,}", f"{sum(c.seconds.values()):.1f}"
        table.add_row(name, nodes, seconds, size_text(c.bytes), ", ".join(fused) or "none")
    return table


def _left(places: list[tuple[int, str, str]]) -> Table:
    from sdort.tables import Table

    table = Table("Left in standard operators, which is no error", (">places", "component", "why"))
    for number, components, reason in places:
        table.add_row(str(number), components, reason)
    return table


def _verdict(report: OptimizeReport, explain: bool) -> str:
    """``4 components optimized for rocm in fp16: 26.1 MB -> 12.0 MB in fast. Everything that should fuse did``."""
    from sdort.optimizer.summary import conclusion, explanation, miss_number
    from sdort.tables import size_text

    parts = report.components.values()
    before, after = sum(part.bytes_before for part in parts), sum(part.bytes for part in parts)
    what = f"{len(parts)} components" if len(parts) > 1 else next(iter(report.components))
    missed = miss_number(report)
    weights = f" with weights in {report.weights}" if report.weights else ""
    ends = explanation(report) if explain else conclusion(report)
    return (
        f"{what} optimized for {report.provider} in {report.precision}{weights}: {size_text(before)} -> "
        f"{size_text(after)} in {report.out}, {report.seconds:.1f} s, peak memory {report.peak_rss_mb} MB. "
        + (f"But {missed}." if missed else ends)
    )


def _explanations(report: OptimizeReport, names: Collection[str]) -> Iterator[Table | str]:
    """The misses, then every place of the fusions that are named."""
    from sdort.console import VERBOSE, verbosity
    from sdort.optimizer.summary import miss_groups
    from sdort.tables import Table

    table = Table("Not fused", ("component", ">left", "nearest fusion", "node", "why"))
    for group in miss_groups(report):
        shown = group.places if verbosity() >= VERBOSE else group.places[:1]
        nodes = [place.node for place in shown]
        table.add_row(group.component, group.count, group.fusion, nodes, group.places[0].why)
    if table.row_count:
        yield table
    if report.wrong_counts:
        yield "\n".join(("", *report.wrong_counts))
    outcomes = [outcome for component in report.components.values() for outcome in component.fusions.values()]
    for name in dict.fromkeys(outcome.name for outcome in outcomes):
        if name in names or (ALL in names and any(o.candidates for o in outcomes if o.name == name)):
            yield (
                _places(report, name)
                if any(o.candidates for o in outcomes if o.name == name)
                else (f"{name} found nothing to do.")
            )


def _places(report: OptimizeReport, fusion: str) -> Table:
    """Every place that one fusion left."""
    from sdort.tables import Table

    table = Table(f"Places of {fusion}", ("component", ">fused", "node", ">furthest", "why"))
    for name, component in report.components.items():
        outcome = component.fusions.get(fusion)
        if outcome is None:
            continue
        fused = f"{outcome.matched}/{outcome.candidates}"
        if not outcome.left and outcome.candidates:
            table.add_row(name, fused, "", "", "nothing left")
        for place in outcome.left:
            table.add_row(name, fused, place.node, f"{place.matched}/{place.of}" if place.of else "", place.reason)
    return table
