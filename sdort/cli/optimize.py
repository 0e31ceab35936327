"""``sdort optimize``: fuse, lower and convert for an execution provider."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import click

from sdort.cli.dry_run import DRY_RUN_HELP, show_plan
from sdort.cli.options import complete_fusions, needs
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
  sdort optimize model fast --explain attention       every place of one
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
MISSES, ALL = "misses", "all"
"""Values of ``--explain`` that are no fusions: what it says without one, and every fusion."""


_SECTIONS = {
    "What it is made for": ("provider", "fp16", "fp16_plan", "bf16", "io_fp16", "sdort_ops"),
    "What is optimized": ("components", "any_graph", "disable"),
    "What is expected": ("expect", "allow_misses"),
    "Results": ("explain", "report", "overwrite", "as_json"),
}


class _Command(SectionedCommand):
    """``--fp16`` and ``--explain`` take a value that may be left out: what follows is one only if it can be."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        after = [following for word, following in pairwise(args) if word == "--explain"]
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as error:
            misspelt = "".join(map(_misspelt, after)) if "unexpected extra argument" in error.message else ""
            if not misspelt:
                raise
            raise click.UsageError(f"{error.message}{misspelt}", ctx) from error

    def make_parser(self, ctx: click.Context) -> Any:
        parser = super().make_parser(ctx)
        parse = parser.parse_args
        parser.parse_args = lambda args: parse(_with_explicit_values(args))  # type: ignore[method-assign]
        return parser


def _with_explicit_values(args: list[str]) -> list[str]:
    """The arguments with the values of ``--fp16`` and ``--explain`` always there."""
    end = args.index("--") if "--" in args else len(args)
    lone = {}
    for index, arg in enumerate(args[:end]):
        follows = args[index + 1] if index + 1 < end else ""
        if arg == "--fp16" and follows not in (PLAIN, AUTO):
            lone[index] = f"--fp16={PLAIN}"
        if arg == "--explain" and not _names_fusions(follows):
            lone[index] = f"--explain={MISSES}"
    return [lone.get(index, arg) for index, arg in enumerate(args)]


def _misspelt(name: str) -> str:
    """A sentence on what follows ``--explain``, if it is almost a fusion's name."""
    from sdort.errors import did_you_mean
    from sdort.rewrite.fusion_names import fusion_names

    close = "" if _names_fusions(name) else did_you_mean(name, fusion_names())
    return f". --explain {name!r} names no fusion. {close.strip()}" if close else ""


def _names_fusions(text: str) -> bool:
    from sdort.rewrite.fusion_names import fusion_names

    return bool(text) and {*text.split(",")} <= {ALL, *fusion_names()}


def _explained_names(ctx: click.Context, option: click.Parameter, values: tuple[str, ...]) -> frozenset[str]:
    """The names in ``--explain NAME,NAME``; empty without the option."""
    from sdort.errors import did_you_mean
    from sdort.rewrite.fusion_names import fusion_names

    names = frozenset(name for value in values for name in value.split(","))
    for name in sorted(names - {MISSES, ALL}):
        if name not in (known := fusion_names()):
            raise click.BadParameter(f"{name!r} is no fusion. {did_you_mean(name, known)}sdort fusions lists them.")
    return names


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
@click.option(
    "--disable",
    multiple=True,
    metavar="FUSION",
    shell_complete=complete_fusions,
    help="Leave a fusion out (repeatable); sdort fusions lists them.",
)
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
@click.option(
    "--explain",
    multiple=True,
    callback=_explained_names,
    metavar="[FUSION]",
    shell_complete=complete_fusions,
    help="Say what should have fused and did not, and why. With a fusion's name, or several with commas: every place "
    "that it left; all: those of every fusion.",
)
@click.option("--report", type=click.Path(path_type=Path, dir_okay=False), help="Write the full report (JSON) here.")
@click.option("--overwrite", is_flag=True, help="Replace OUT if it exists.")
@click.option("--dry-run", is_flag=True, help=DRY_RUN_HELP)
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
@needs("io_fp16", "fp16")
@needs("fp16_plan", "fp16")
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
    explain: frozenset[str],
    report: Path | None,
    overwrite: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Fuse the operators of a model for an execution provider.

    IN is a folder from sdort export, optimum or diffusers' converter, or one .onnx file. OUT is a folder; it appears
    complete or not at all. Something that should have fused and did not is an error, and so is a model in IN that is
    no component sdort knows, unless --component names it or --any-graph takes it.
    """
    from sdort.console import QUIET, emit_json, verbosity
    from sdort.optimizer.command import optimize, plan_optimize

    sized: dict[str, Any] = {
        "provider": provider,
        "fp16": fp16 or False,
        "fp16_plan": fp16_plan,
        "bf16": bf16,
        "io_fp16": io_fp16,
        "components": components,
        "any_graph": any_graph,
        "disable": disable,
        "overwrite": overwrite,
    }
    if dry_run:
        show_plan(plan_optimize(source, out, **sized), as_json=as_json)
        return
    quiet = as_json or verbosity() <= QUIET
    with _explained(explain, quiet):
        result = optimize(
            source,
            out,
            **sized,
            sdort_ops=sdort_ops,
            expect=expect,
            allow_misses=allow_misses,
            explain=bool(explain),
            report=report,
        )
    if as_json:
        emit_json(result)
    elif not quiet:
        _show(result, explain, _next(result))


@contextmanager
def _explained(names: Collection[str], quiet: bool) -> Iterator[None]:
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


def _show(report: OptimizeReport, explain: Collection[str], next_command: str) -> None:
    from sdort.console import conclude, show
    from sdort.optimizer.summary import left_places

    show(_summary(report))
    if any(c.precision for c in report.components.values()):
        show("")
    for name, c in report.components.items():
        for line in _precision(c.precision, bool(explain)):
            show(f"{name}: {line}")
    if places := left_places(report):
        show(_left(places))
    for part in _explanations(report, explain):
        show(part)
    show("")
    conclude(_verdict(report, bool(explain)), next_command)


def _next(report: OptimizeReport) -> str:
    """The command that comes next: generate with a pipeline, look at anything else."""
    from sdort.engines.default_prompts import default_prompts
    from sdort.model.component_names import DECODER
    from sdort.staging import INDEX

    out = Path(report.out)
    if not (out / INDEX).is_file() or not {"text_encoder", "unet", DECODER} <= set(report.components):
        return shlex.join(["sdort", "inspect", "--diff", report.source, report.out])
    return shlex.join(["sdort", "run", report.out, "--provider", report.provider, "--prompt", default_prompts(out)[0]])


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
    from sdort.optimizer.summary import explanation, miss_number
    from sdort.tables import size_text

    parts = report.components.values()
    before, after = sum(part.bytes_before for part in parts), sum(part.bytes for part in parts)
    what = f"{len(parts)} components" if len(parts) > 1 else next(iter(report.components))
    missed = miss_number(report)
    ends = explanation(report) if explain else "Everything that should fuse did."
    return (
        f"{what} optimized for {report.provider} in {report.precision}: {size_text(before)} -> {size_text(after)} in "
        f"{report.out}, {report.seconds:.1f} s, peak memory {report.peak_rss_mb} MB. "
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
        nodes = "\n".join(place.node for place in shown)
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
