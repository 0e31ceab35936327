"""``sdort inspect``: what is inside a model, or what differs between two."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sdort.cli.from_options import options_of
from sdort.providers import PROVIDER_NAMES
from sdort.providers.runtime_options import ExecutionOptions

if TYPE_CHECKING:
    from sdort.inspection.command import ModelDiff

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
    help="Show operators that this execution provider has no kernel for (repeatable). The default is all providers.",
)
@click.option(
    "--placement",
    is_flag=True,
    help="Open each component on the given --provider, and show where ONNX Runtime places its nodes.",
)
@options_of(ExecutionOptions, only=["device_id", "device_kind", "ep_libraries"])
@click.option("--exit-code", is_flag=True, help="With --diff: exit with 1 if anything differs.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(
    paths: tuple[Path, ...],
    diff: bool,
    providers: tuple[str, ...],
    placement: bool,
    device_id: int,
    device_kind: str | None,
    ep_libraries: dict[str, str],
    exit_code: bool,
    as_json: bool,
) -> None:
    """Show the operators, inputs, outputs and weights of a model.

    PATH is an .onnx file, or a folder: the components of a pipeline, or other models. A name of sdort add and a
    checkpoint that sdort run made ready mean what was made of it. A * marks the operators that only ONNX Runtime or
    sdort has: the fused ones. Only --diff reads weights. It compares the structure of the graphs, not the names of
    nodes, and shows first what computes something else.
    """
    if len(paths) != 1 + diff:
        raise click.UsageError("--diff compares two paths" if diff else "give one path, or two with --diff")
    if exit_code and not diff:
        raise click.UsageError("--exit-code is for --diff")
    if placement and (diff or len(providers) != 1):
        raise click.UsageError("--placement wants one --provider, and no --diff")
    if not placement and (device_id or device_kind or ep_libraries):
        raise click.UsageError("--device-id, --device-kind and --ep-library are for --placement")
    paths = tuple(map(_folder, paths))
    if placement:
        device: dict[str, Any] = {
            "device_id": device_id, "device_kind": device_kind, "ep_libraries": ep_libraries,
        }  # fmt: skip
        _place(paths[0], providers[0], device, as_json)
    elif diff:
        _compare(paths[0], paths[1], exit_code, as_json)
    else:
        _inspect(paths[0], providers, as_json)


def _folder(path: Path) -> Path:
    from sdort.first_use.find_pipeline import made_folder

    return made_folder(path)


def _inspect(path: Path, providers: tuple[str, ...], as_json: bool) -> None:
    from sdort.console import VERBOSE, conclude, emit_json, say, show, verbosity
    from sdort.inspection.command import inspect
    from sdort.inspection.component_tables import component_tables, rewriting_verdict

    inspection = inspect(path, providers=providers or PROVIDER_NAMES)
    if as_json:
        emit_json(inspection)
        return
    for table in component_tables(inspection.components):
        show(table)
    if verbosity() < VERBOSE:
        say("\nWith -v: inputs and outputs, every operator, opsets and producers.")
    conclude(rewriting_verdict(inspection.components))


def _compare(before: Path, after: Path, exit_code: bool, as_json: bool) -> None:
    from sdort.console import emit_json
    from sdort.inspection.command import compare

    diff = compare(before, after)
    if as_json:
        emit_json(diff)
    else:
        _show_differences(diff)
    if exit_code and diff.differ:
        click.get_current_context().exit(1)


def _show_differences(diff: ModelDiff) -> None:
    from sdort.console import conclude, show
    from sdort.inspection.component_tables import change_tables, change_verdict

    for table in change_tables(diff.components, diff.places):
        show(table)
    conclude(change_verdict(diff.components, diff.places))


def _place(path: Path, provider: str, device: dict[str, Any], as_json: bool) -> None:
    from sdort.cli.placement import show_placement
    from sdort.console import emit_json
    from sdort.inspection.command import placement

    placements = placement(path, provider, **device)
    if as_json:
        emit_json(placements)
    else:
        show_placement(placements.placement, placements.remarks)
