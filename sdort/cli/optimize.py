"""``sdort optimize``: fuse, lower and convert for an execution provider."""

from __future__ import annotations

import shlex
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sdort.cli.dry_run import DRY_RUN_HELP, show_plan
from sdort.cli.from_options import given, needs, options_of, sections
from sdort.cli.number_types import shortened
from sdort.cli.optimize_report import ALL, explained, show_report
from sdort.cli.sections import SectionedCommand
from sdort.optimizer.optimize_options import MEASURED, PLAIN, OptimizationOptions, PlannedOptions
from sdort.options.declared_options import declared
from sdort.options.number_ranges import EXPECT

if TYPE_CHECKING:
    from sdort.optimizer.report import OptimizeReport

_EPILOG = """\b
Examples:
  sdort optimize model fast --fp16                    for this machine
  sdort optimize model fast --fp16 --provider migraphx
  sdort optimize model fast --expect unet:MultiHeadAttention=32
  sdort optimize model fast --fp16 auto               fp32 where it must
  sdort optimize model fast --explain --allow-misses  why it did not fuse
  sdort optimize model fast --explain attention       every place of one
  sdort optimize cut.onnx out --any-graph --explain   no diffusion component
"""


def _expectations(ctx: click.Context, option: click.Parameter, values: tuple[str, ...]) -> dict[str, int]:
    expected = {}
    for value in values:
        name, _, count = value.partition("=")
        if not name or EXPECT.problem(EXPECT.parse(count)):
            raise click.BadParameter(f"{shortened(value)} is not NAME=COUNT, such as unet:MultiHeadAttention=32")
        expected[name] = EXPECT.check(EXPECT.parse(count))
    return expected


MISSES = "misses"
"""The value of ``--explain`` where no fusion is named."""

_SECTIONS = sections(OptimizationOptions, headings=("Target", "Selection", "Expected result", "Results"))


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
        if arg == "--fp16" and follows not in (PLAIN, MEASURED):
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


@click.command(
    cls=_Command,
    sections={**_SECTIONS, "Results": (*_SECTIONS["Results"], "as_json")},
    common=("provider", "fp16", "bf16", "components", "explain", "allow_misses", "any_graph", "dry_run", "overwrite"),
    epilog=_EPILOG,
)
@click.argument("source", metavar="IN", type=click.Path(path_type=Path))
@click.argument("out", metavar="OUT", type=click.Path(path_type=Path))
@options_of(
    OptimizationOptions,
    forms={
        "expectations": lambda: {"multiple": True, "callback": _expectations},
        "explained": lambda: {"multiple": True, "callback": _explained_names},
    },
)
@click.option("--dry-run", is_flag=True, help=DRY_RUN_HELP)
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
@needs(OptimizationOptions)
def command(source: Path, out: Path, explain: frozenset[str], dry_run: bool, as_json: bool, **options: Any) -> None:
    """Fuse the operators of a model for an execution provider.

    IN is a folder from sdort export, optimum or diffusers' converter, or one .onnx file. OUT is a folder; it appears
    complete or not at all. A missed fusion is an error: an operator that should have been fused and was not. A model in
    IN that is not a known component is an error too, unless you give --component or --any-graph.
    """
    from sdort.console import emit_json, is_quiet
    from sdort.optimizer.command import optimize, plan_optimize

    options = given(options)
    if dry_run:
        planned = {name: value for name, value in options.items() if name in declared(PlannedOptions)}
        show_plan(plan_optimize(source, out, **planned), as_json=as_json)
        return
    quiet = as_json or is_quiet()
    with explained(explain, quiet):
        result = optimize(source, out, explain=bool(explain), **options)
    if as_json:
        emit_json(result)
    elif not quiet:
        show_report(result, explain, _next(result))


def _next(report: OptimizeReport) -> str:
    """The command that comes next here: generate with a pipeline, look at anything else.

    A pipeline for another machine is compared with its original, which works on any.
    """
    from sdort.checkpoints.configs import INDEX
    from sdort.engines.default_prompts import short_prompt
    from sdort.families.known_families import family_of
    from sdort.optimizer.provider_choice import runs_here

    out = Path(report.out)
    family = family_of(report.components)
    if not (out / INDEX).is_file() or family.refines or not set(family.needed) <= set(report.components):
        return shlex.join(["sdort", "inspect", "--diff", report.source, report.out])
    if not runs_here(report.provider):
        return shlex.join(["sdort", "verify", report.out])
    return shlex.join(["sdort", "run", report.out, "--provider", report.provider, "--prompt", short_prompt(out)])
