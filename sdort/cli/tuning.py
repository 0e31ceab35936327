"""``sdort tuning``: the tuning cache."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sdort.cli.from_options import options_of
from sdort.cli.number_types import Duration, Whole
from sdort.options.number_ranges import DEVICE_ID, OLDER_THAN
from sdort.providers.runtime_options import ExecutionOptions

if TYPE_CHECKING:
    from sdort.tables import Table
    from sdort.tuning.command import BundleReport, ReadableBundleReport


_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@click.group(
    epilog="""\b
Examples:
  sdort tuning list
  sdort tuning export tuned.tar
  sdort tuning import tuned.tar
  sdort tuning import tuned.tar --custom-ops ./libsdort_ops.so
  sdort tuning verify
  sdort tuning prune --older-than 90d
"""
)
def command() -> None:
    """List, check, export and import the results of tuning.

    sdort warm keeps its results in bundles; so do sdort run and bench with --tuning. A bundle belongs to one model,
    with its shapes, options, GPU and software. Later runs use a bundle if everything matches.
    """


@command.command("list")
@options_of(ExecutionOptions, only=["custom_ops"])
@_json
def list_(custom_ops: str, as_json: bool) -> None:
    """Show the bundles, and whether runs on this machine use them."""
    from sdort.console import conclude, emit_json, show
    from sdort.tuning.command import list_tuning

    cache = list_tuning(custom_ops=custom_ops)
    if as_json:
        emit_json(cache)
        return
    if cache.bundles:
        show(_table("Tuning bundles", cache.bundles))
    conclude(f"{_summary(cache.bundles)} {cache.folder}", _next_step(cache.bundles))


@command.command("export")
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option(
    "--bundle",
    "names",
    multiple=True,
    metavar="NAME",
    show_default="all",
    help="Export only this bundle (repeatable). Its first letters suffice.",
)
@click.option("--overwrite", is_flag=True, help="Replace FILE if it exists.")
@_json
def export(file: Path, names: tuple[str, ...], overwrite: bool, as_json: bool) -> None:
    """Write bundles to a file, for other machines.

    FILE is a tar archive. It can be imported on a machine of the same kind.
    """
    from sdort.console import conclude, emit_json, is_quiet, say
    from sdort.tables import size_text
    from sdort.tuning.command import export_tuning

    done = export_tuning(file, names=names, overwrite=overwrite)
    if as_json:
        emit_json(done)
    if as_json or is_quiet():
        return
    conclude(f"Exported to {file}: {_count(done.bundles)}, {size_text(done.bytes)}")
    say(f"Next, on another machine of this kind:\n    sdort tuning import {file}")


@command.command("import")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--any-machine", is_flag=True, help="Store bundles of other machines too. No run on this machine uses them."
)
@click.option("--device-id", type=Whole(DEVICE_ID), default=0, help="Number of the GPU that the bundles must fit.")
@options_of(ExecutionOptions, only=["custom_ops"])
@_json
def import_(file: Path, any_machine: bool, device_id: int, custom_ops: str, as_json: bool) -> None:
    """Check a file of bundles, and keep all of them or none.

    A bundle holds compiled kernels. They run on your GPU and in your processes: import only files that you trust.
    """
    from sdort.console import conclude, emit_json, is_quiet, warn
    from sdort.tuning.command import import_tuning

    done = import_tuning(file, any_machine=any_machine, device_id=device_id, custom_ops=custom_ops)
    if done.elsewhere:
        warn(f"{len(done.elsewhere)} of them are for other machines; no run here uses those")
    if as_json:
        emit_json(done)
    elif not is_quiet():
        conclude(f"Imported {_count(done.bundles)} from {file}", "sdort tuning list")


@command.command()
@click.argument("names", nargs=-1, metavar="[NAME]...")
@_json
def verify(names: tuple[str, ...], as_json: bool) -> None:
    """Compare every file of the bundles with its hash.

    The exit code is 3 if a bundle is damaged. NAME is the name of a bundle or its first letters. The default is all
    bundles.
    """
    from sdort.console import conclude, emit_json
    from sdort.tuning.command import verify_tuning

    checked = verify_tuning(names)
    if as_json:
        emit_json(checked)
        return
    conclude(f"{_count(checked.bundles)} checked, none is damaged" if checked.bundles else "No tuning bundles to check")


@command.command()
@click.option("--older-than", type=Duration(OLDER_THAN), help="Remove bundles that are older than this too: 30d, 12h.")
@click.option("--foreign", is_flag=True, help="Remove bundles of other GPUs too.")
@click.option("--dry-run", is_flag=True, help="Show only what would be removed.")
@options_of(ExecutionOptions, only=["custom_ops"])
@_json
def prune(older_than: float | None, foreign: bool, dry_run: bool, custom_ops: str, as_json: bool) -> None:
    """Remove bundles that no run here can use.

    Such a bundle is damaged, or was made with other versions than those that are installed.
    """
    from sdort.console import conclude, emit_json, is_quiet, show
    from sdort.tuning.command import prune_tuning

    done = prune_tuning(older_than=older_than, foreign=foreign, dry_run=dry_run, custom_ops=custom_ops)
    if as_json:
        emit_json(done)
    if as_json or (done.removed and is_quiet()):
        return
    if done.bundles:
        show(_table("Removed" if done.removed else "To be removed", done.bundles))
    conclude(f"{'Removed' if done.removed else 'Would remove'} {_count(done.bundles)}")


def _count(bundles: Collection[object]) -> str:
    from sdort.tables import counted

    return counted(len(bundles), "bundle")


def _summary(bundles: Collection[BundleReport]) -> str:
    from sdort.tables import size_text
    from sdort.tuning.command import ReadableBundleReport

    used = sum(bundle.state == "used" for bundle in bundles)
    if not bundles:
        return "No tuning bundles in"
    size = size_text(sum(bundle.bytes for bundle in bundles if isinstance(bundle, ReadableBundleReport)))
    return f"Runs here use {used if used < len(bundles) else 'all'} of {_count(bundles)}, {size} in"


def _next_step(bundles: Collection[BundleReport]) -> str | None:
    """The command that makes bundles where there are none, or removes those that no run will use again."""
    if not bundles:
        return "sdort warm PIPELINE"
    return "sdort tuning prune" if any(bundle.state in ("stale", "broken") for bundle in bundles) else None


def _table(title: str, bundles: Collection[BundleReport]) -> Table:
    from sdort.tables import Table
    from sdort.tuning.command import ReadableBundleReport

    headers = ("bundle", "shapes", ">age", "here", "why", "inputs", "made for", ">size")
    table = Table(title, headers, details=("inputs", "made for", "size"))
    for bundle in bundles:
        shapes, age, *details = _cells(bundle) if isinstance(bundle, ReadableBundleReport) else [""] * 5
        table.add_row(bundle.name, shapes, age, bundle.state, bundle.why, *details)
    return table


def _cells(bundle: ReadableBundleReport) -> tuple[str, ...]:
    """Shapes and age; then, for -v, the inputs' names with their shapes, the machine and the size."""
    from sdort.tables import size_text

    key = bundle.key
    shapes = {name: "x".join(map(str, dims)) for name, dims in key["shapes"].items()}
    inputs = ", ".join(f"{name} {dims or 'scalar'}" for name, dims in shapes.items())
    place = ", ".join(part for part in (key["architecture"], key["toolkit"], key["onnxruntime"]) if part)
    return (
        " ".join(dims for dims in shapes.values() if dims),
        age_text(bundle.age_s),
        inputs,
        place,
        size_text(bundle.bytes),
    )


def age_text(seconds: float) -> str:
    """A time in the largest unit that gives at least 1: ``3 d``."""
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"
