"""``sdort inspect``: what is inside a model, or what differs between two."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from sdort.providers import PROVIDER_NAMES

if TYPE_CHECKING:
    from sdort.inspection.description import Change, Component
    from sdort.tables import Table

# Kinds of sdort.inspection.description.Change that are numbers; a missing one is 0.
_COUNTED = ("count", "bytes", "version", "operator")

_EPILOG = """\b
Examples:
  sdort inspect model              every component of a pipeline
  sdort inspect model/unet/model.onnx --provider rocm
  sdort inspect --diff model fast  what optimizing changed
  sdort inspect fast --provider rocm --placement
"""


@click.command(epilog=_EPILOG)
@click.argument("paths", metavar="PATH [OTHER]", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--diff", "diff", is_flag=True, help="Compare two models or pipelines: --diff A B.")
@click.option(
    "--provider",
    "providers",
    multiple=True,
    type=click.Choice(PROVIDER_NAMES),
    help="Show what this execution provider has no kernel for (repeatable); all of them unless given.",
)
@click.option(
    "--placement",
    is_flag=True,
    help="Open each component on the given --provider, and show where ONNX Runtime puts its nodes.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(paths: tuple[Path, ...], diff: bool, providers: tuple[str, ...], placement: bool, as_json: bool) -> None:
    """Show the operators, inputs, outputs and weights of a model.

    PATH is an .onnx file or a folder: a pipeline's components, and models that are none. Operators that only ONNX
    Runtime or sdort has, the fused ones, are marked with *. Weights are not read.
    """
    if len(paths) != 1 + diff:
        raise click.UsageError("--diff compares two paths" if diff else "give one path, or two with --diff")
    if placement and (diff or len(providers) != 1):
        raise click.UsageError("--placement wants one --provider, and no --diff")
    if placement:
        _place(paths[0], providers[0], as_json)
    elif diff:
        _compare(paths[0], paths[1], as_json)
    else:
        _inspect(paths[0], providers, as_json)


def _inspect(path: Path, providers: tuple[str, ...], as_json: bool) -> None:
    from sdort.console import emit_json, show
    from sdort.inspection.command import inspect

    inspection = inspect(path, providers=providers or PROVIDER_NAMES)
    if as_json:
        emit_json(inspection)
        return
    for table in _tables(inspection.components):
        show(table)


def _compare(before: Path, after: Path, as_json: bool) -> None:
    from sdort.console import emit_json, show
    from sdort.inspection.command import compare

    diff = compare(before, after)
    if as_json:
        emit_json(diff)
        return
    tables = _change_tables(diff.components)
    for table in tables:
        show(table)
    if not tables:
        show("No differences.")


def _place(path: Path, provider: str, as_json: bool) -> None:
    from sdort.cli.options import show_placement
    from sdort.console import emit_json
    from sdort.inspection.command import placement

    placements = placement(path, provider)
    if as_json:
        emit_json(placements)
    else:
        show_placement(placements.placement, placements.remarks)


def _tables(components: list[Component]) -> list[Table]:
    return [
        _summary_table(components),
        _values_table(components),
        _operators_table(components),
        _providers_table(components),
    ]


def _summary_table(components: list[Component]) -> Table:
    from sdort.tables import Table, count_text, share_text, size_text

    table = Table(
        "Components",
        ("component", ">nodes", ">parameters", ">weights", "dtypes", "opsets", ">IR", "producer"),
        details=("opsets", "IR", "producer"),
    )
    for c in components:
        total = sum(c.weight_bytes.values()) or 1
        dtypes = ", ".join(f"{dtype} {share_text(size / total)}" for dtype, size in c.weight_bytes.items())
        dtypes += f", computed in {c.computed_in}" if c.computed_in else ""
        opsets = ", ".join(f"{domain} {version}" for domain, version in c.opsets.items())
        row = (c.component, f"{c.nodes:,}", count_text(c.parameters), size_text(sum(c.weight_bytes.values())))
        table.add_row(*row, dtypes, opsets, str(c.ir_version or ""), c.producer)
    return table


def _values_table(components: list[Component]) -> Table:
    from sdort.tables import Table

    table = Table("Inputs and outputs", ("component", "", "name", "dtype and shape"))
    for c in components:
        for direction, values in (("in", c.inputs), ("out", c.outputs)):
            for value in values:
                table.add_row(c.component, direction, value.name, str(value))
    return table


def _operators_table(components: list[Component]) -> Table:
    from sdort.inspection.description import is_fused
    from sdort.tables import Table

    table = Table(
        "Operators (* fused, of domain com.microsoft)", ("operator", *(f">{c.component}" for c in components))
    )
    totals: dict[str, int] = {}
    for c in components:
        for name, count in c.operators.items():
            totals[name] = totals.get(name, 0) + count
    for name in sorted(totals, key=lambda name: (not is_fused(name), -totals[name], name)):
        counts = [c.operators.get(name) for c in components]
        cells = ["" if count is None else f"{count:,}" for count in counts]
        # Without the domain, a pipeline's table fits 80 columns.
        label = f"* {name.removeprefix('com.microsoft.')}" if is_fused(name) else f"  {name}"
        table.add_row(label, *cells, style="bold" if is_fused(name) else "")
    return table


def _providers_table(components: list[Component]) -> Table:
    from sdort.tables import Table

    table = Table("To rewrite for each provider", ("provider", "component", "operator", ">nodes", "why"))
    for provider in components[0].providers if components else ():
        for c in components:
            rewrites = c.providers[provider]
            for rewrite in rewrites:
                table.add_row(provider, c.component, rewrite.operator, f"{rewrite.nodes:,}", rewrite.reason)
            if not rewrites:
                table.add_row(provider, c.component, "none", "", "it has a kernel for every node")
    return table


def _change_tables(changes: dict[str, list[Change]]) -> list[Table]:
    from sdort.tables import Table, size_text

    counts = Table("Counts", ("component", "", "name", ">before", ">after", ">change"))
    values = Table("Inputs, outputs, components", ("component", "", "name", "before", "after"))
    for component, differences in changes.items():
        for change in differences:
            if change.kind in _COUNTED:
                before, after = change.before or 0, change.after or 0
                text = size_text if change.kind == "bytes" else "{:,}".format
                cells = (text(before), text(after), ("-" if after < before else "+") + text(abs(after - before)))
                counts.add_row(component, change.kind, change.name, *cells)
            else:
                values.add_row(component, change.kind, change.name, change.before or "-", change.after or "-")
    return [table for table in (counts, values) if table.row_count]
