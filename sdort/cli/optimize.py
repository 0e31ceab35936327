"""``sdort optimize``: fuse, lower and convert for an execution provider."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import click

from sdort.cli.sections import SectionedCommand
from sdort.providers import PROVIDER_NAMES

if TYPE_CHECKING:
    from sdort.optimizer.report import OptimizeReport
    from sdort.precision.fp32_selection import Fp32Report
    from sdort.tables import Table

_EPILOG = """\b
Examples:
  sdort optimize model fast --fp16                    for ROCm, the default
  sdort optimize model fast-cpu --provider cpu
  sdort optimize model fast --expect unet:MultiHeadAttention=32
  sdort optimize model fast --fp16 auto               fp32 where it must
  sdort optimize model fast --explain --allow-misses  why it did not fuse
  sdort optimize cut.onnx out --any-graph --explain   no diffusion component
"""
MOST_KINDS = 4
"""Kinds of fp32 nodes that are named without --explain."""


def _expectations(ctx: click.Context, option: click.Parameter, values: tuple[str, ...]) -> dict[str, int]:
    expected = {}
    for value in values:
        name, _, count = value.partition("=")
        if not name or not count.isdecimal():
            raise click.BadParameter(f"{value!r} is not NAME=COUNT, such as unet:MultiHeadAttention=32")
        expected[name] = int(count)
    return expected


PLAIN, AUTO = "plain", "auto"


_SECTIONS = {
    "What it is made for": ("provider", "fp16", "fp16_plan", "bf16", "io_fp16", "sdort_ops"),
    "What is optimized": ("components", "any_graph", "disable"),
    "What is expected": ("expect", "allow_misses"),
    "Results": ("explain", "report", "overwrite", "as_json"),
}


class _Command(SectionedCommand):
    """``--fp16`` takes a value that may be left out: what follows is one only if it is one of its values."""

    def make_parser(self, ctx: click.Context) -> Any:
        parser = super().make_parser(ctx)
        parse = parser.parse_args
        parser.parse_args = lambda args: parse(_with_explicit_fp16(args))  # type: ignore[method-assign]
        return parser


def _with_explicit_fp16(args: list[str]) -> list[str]:
    """The arguments with the value of ``--fp16`` always there."""
    end = args.index("--") if "--" in args else len(args)
    alone = [
        arg == "--fp16" and index < end and args[index + 1 : index + 2] not in ([PLAIN], [AUTO])
        for index, arg in enumerate(args)
    ]
    return [f"--fp16={PLAIN}" if lacks else arg for arg, lacks in zip(args, alone, strict=True)]


@click.command(cls=_Command, sections=_SECTIONS, epilog=_EPILOG)
@click.argument("source", metavar="IN", type=click.Path(path_type=Path))
@click.argument("out", metavar="OUT", type=click.Path(path_type=Path))
@click.option("--provider", type=click.Choice(PROVIDER_NAMES), default="rocm", help="Optimize for this one.")
@click.option(
    "--fp16",
    type=click.Choice([PLAIN, AUTO]),
    metavar="[auto]",
    help="Convert to 16-bit floats. With auto: run the model first, and leave in fp32 what fp16 cannot hold.",
)
@click.option(
    "--fp16-plan",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="With --fp16: leave in fp32 what this file says; --fp16 auto wrote it as OUT/fp16-plan.json.",
)
@click.option("--bf16", is_flag=True, help="For migraphx, which then computes in bf16. Others say why they cannot.")
@click.option("--io-fp16", is_flag=True, help="With --fp16: inputs and outputs too.")
@click.option(
    "--sdort-ops",
    is_flag=True,
    help="Also fuse into sdort's own operators; where sdort ops build made the library, its kernels run them.",
)
@click.option("--component", "components", multiple=True, metavar="C", help="Only this component (repeatable).")
@click.option(
    "--any-graph",
    is_flag=True,
    help="Take any model, diffusion component or not: every .onnx file of a folder, or the one given. Outside of the "
    "components' folders no config.json is held against it; what should have fused and did not is an error all the "
    "same, unless --allow-misses.",
)
@click.option("--disable", multiple=True, metavar="FUSION", help="Leave a fusion out (repeatable).")
@click.option(
    "--expect",
    multiple=True,
    metavar="NAME=N",
    callback=_expectations,
    help="Fail unless the result has N operators NAME, or COMPONENT:NAME (repeatable).",
)
@click.option(
    "--allow-misses", is_flag=True, help="Write the result though something did not fuse; a wrong --expect still fails."
)
@click.option("--explain", is_flag=True, help="Say for every fusion what it left, and why.")
@click.option("--report", type=click.Path(path_type=Path, dir_okay=False), help="Write the full report (JSON) here.")
@click.option("--overwrite", is_flag=True, help="Replace OUT if it exists.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
def command(
    source: Path,
    out: Path,
    provider: str,
    fp16: Literal["plain", "auto"] | None,
    fp16_plan: Path | None,
    bf16: bool,
    io_fp16: bool,
    sdort_ops: bool,
    components: tuple[str, ...],
    any_graph: bool,
    disable: tuple[str, ...],
    expect: dict[str, int],
    allow_misses: bool,
    explain: bool,
    report: Path | None,
    overwrite: bool,
    as_json: bool,
) -> None:
    """Fuse the operators of a model for an execution provider.

    IN is a folder from sdort export, optimum or diffusers' converter, or one .onnx file. OUT is a folder; it appears
    complete or not at all. Something that should have fused and did not is an error, and so is a model in IN that is
    no component sdort knows, unless --component names it or --any-graph takes it.
    """
    from sdort.console import QUIET, emit_json, verbosity
    from sdort.optimizer.command import optimize

    quiet = as_json or verbosity() <= QUIET
    with _explained(quiet):
        result = optimize(
            source,
            out,
            provider=provider,
            fp16=fp16 or False,
            fp16_plan=fp16_plan,
            bf16=bf16,
            io_fp16=io_fp16,
            sdort_ops=sdort_ops,
            components=components,
            any_graph=any_graph,
            disable=disable,
            expect=expect,
            allow_misses=allow_misses,
            explain=explain,
            report=report,
            overwrite=overwrite,
        )
    if as_json:
        emit_json(result)
    elif not quiet:
        _show(result, explain)


@contextmanager
def _explained(quiet: bool) -> Iterator[None]:
    """Show what an error leaves of --explain: every place that was left until then."""
    from sdort.console import show
    from sdort.errors import SdortError

    try:
        yield
    except SdortError as error:
        report = error.record.get("report")
        if report is not None and not quiet:
            show(_explanations(cast("OptimizeReport", report)))
        raise


def _show(report: OptimizeReport, explain: bool) -> None:
    from sdort.console import show

    show(_summary(report))
    if explain:
        show(_explanations(report))
    for name, c in report.components.items():
        for line in _precision(c.precision, bool(explain)):
            show(f"{name}: {line}")
        for reason, places in c.declined.items():
            show(f"{name}: {places} left in standard operators: {reason}")
    for miss in report.misses:
        show(f"missed: {miss}")


def _precision(report: Fp32Report | None, explain: bool) -> Iterator[str]:
    """The nodes that stay in fp32 and why; without ``explain`` the first few of many."""
    if report is None:
        return
    if not report.rules:
        yield "nothing that fp16 could not hold" + (f" (inputs {report.measured})" if report.measured else "")
        return
    time = report.share_of_time
    taken = "" if time is None else f"{time:.1%} of the time of a run in fp32 on this CPU, "
    yield f"in fp32: {report.nodes} nodes ({report.share_of_nodes:.1%}), {taken}{report.bytes / 1e6:.1f} MB more"
    if report.without:
        yield f"  in fp16 alone {report.without}; like this {report.within}"
    shown = report.rules if explain else report.rules[:MOST_KINDS]
    for rule in shown:
        yield f"  {rule.where}: {rule.why}"
    if len(shown) < len(report.rules):
        yield f"  and {len(report.rules) - len(shown)} more kinds of nodes: --explain"


def _summary(report: OptimizeReport) -> Table:
    from sdort.tables import Table, size_text

    title = f"{report.out}, for {report.provider}, {report.seconds:.1f} s, peak memory {report.peak_rss_mb} MB"
    table = Table(title, ("component", ">nodes", ">seconds", ">size", "fused operators"))
    for name, c in report.components.items():
        fused = [f"{n} {op.rpartition('.')[2]}" for op, n in c.operators.items() if "." in op]
        nodes = f"{c.nodes_before:,} -> {c.nodes_after:,}"
        table.add_row(name, nodes, f"{sum(c.seconds.values()):.1f}", size_text(c.bytes), ", ".join(fused))
    return table


def _explanations(report: OptimizeReport) -> Table:
    from sdort.tables import Table

    table = Table("What was left, and why", ("component", "fusion", ">fused", "node", "furthest", "why"))
    for name, c in report.components.items():
        for fusion, outcome in c.fusions.items():
            fused = f"{outcome.matched}/{outcome.candidates}"
            if not outcome.left:
                table.add_row(name, fusion, fused, "", "", "nothing left")
            for place in outcome.left:
                reached = f"{place.matched}/{place.of}" if place.of else ""
                table.add_row(name, fusion, fused, place.node, reached, place.reason)
    return table
