"""``sdort tuning``: what was tuned, kept, carried and cleaned."""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sdort.cli.options import custom_ops_option

if TYPE_CHECKING:
    from rich.table import Table

    from sdort.tuning.bundle import Bundle
    from sdort.tuning.maintenance import Finding


class Duration(click.ParamType[float]):
    """``90s``, ``30m``, ``12h`` or ``30d``, in seconds."""

    name = "TIME"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float):
            return value
        found = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", str(value))
        if not found:
            self.fail(f"{value!r} is not a time like 90s, 30m, 12h or 30d", param, ctx)
        return float(found[1]) * {"s": 1, "m": 60, "h": 3600, "d": 86400}[found[2]]


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
    """List, check, export and import what tuning found.

    sdort warm, and sdort run and bench with --tuning, keep what they find in bundles: one for each model, shapes,
    options, GPU and software. Later runs use the bundles that match in everything.
    """


@command.command("list")
@custom_ops_option
@_json
def list_(custom_ops: str, as_json: bool) -> None:
    """Show what is kept and whether runs on this machine use it."""
    from sdort.console import emit_json, say, show
    from sdort.tuning.maintenance import look
    from sdort.tuning.store import Store

    store = Store()
    found = look(store, custom_ops=custom_ops)
    if as_json:
        emit_json({"folder": store.folder, "bundles": [_plain(each) for each in found]})
        return
    if found:
        show(_table(found))
    total = sum(each.bundle.bytes for each in found if each.bundle)
    say(f"{_bundles(found)} in {store.folder}, {total / 2**20:.1f} MiB")


@command.command("export")
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--bundle", "names", multiple=True, metavar="NAME", show_default="all", help="Only this (repeatable).")
@click.option("--overwrite", is_flag=True, help="Replace FILE if it exists.")
@_json
def export(file: Path, names: tuple[str, ...], overwrite: bool, as_json: bool) -> None:
    """Write bundles to FILE, a tar archive, to be imported on a machine of the same kind."""
    from sdort.console import emit_json, say
    from sdort.tuning.archive import export_bundles
    from sdort.tuning.store import Store

    bundles = export_bundles(Store(), names, file, overwrite=overwrite)
    if as_json:
        emit_json({"file": file, "bytes": file.stat().st_size, "bundles": [bundle.name for bundle in bundles]})
        return
    say(f"wrote {file}: {_bundles(bundles)}, {file.stat().st_size / 2**20:.1f} MiB")


@command.command("import")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--any-machine", is_flag=True, help="Store bundles of other machines too; no run here uses those.")
@click.option("--device-id", type=click.IntRange(0), default=0, help="Which GPU they have to fit.")
@custom_ops_option
@_json
def import_(file: Path, any_machine: bool, device_id: int, custom_ops: str, as_json: bool) -> None:
    """Check FILE and keep its bundles, all of them or none.

    A bundle holds compiled kernels, which run on your GPU and in your processes: import what you trust.
    """
    from sdort.console import emit_json, say, warn
    from sdort.tuning.archive import import_bundles
    from sdort.tuning.store import Store

    done = import_bundles(Store(), file, any_machine=any_machine, device_id=device_id, custom_ops=custom_ops)
    if done.elsewhere:
        warn(f"{len(done.elsewhere)} of them are for other machines; no run here uses those")
    if as_json:
        emit_json({"bundles": [bundle.name for bundle in done.bundles], "elsewhere": done.elsewhere})
        return
    say(f"imported {_bundles(done.bundles)} from {file}")


@command.command()
@click.argument("names", nargs=-1, metavar="[NAME]...")
@_json
def verify(names: tuple[str, ...], as_json: bool) -> None:
    """Compare every file of the bundles with its hash; exit code 3 if one is damaged."""
    from sdort.console import emit_json, say
    from sdort.tuning.bundle import BundleError
    from sdort.tuning.maintenance import BROKEN, look
    from sdort.tuning.store import Store

    found = look(Store(), names, thorough=True)
    broken = [each for each in found if each.state == BROKEN]
    if broken:
        raise BundleError(
            "; ".join(each.why for each in broken), hint="They are never used. sdort tuning prune removes them."
        )
    if as_json:
        emit_json([_plain(each) for each in found])
        return
    say(f"{_bundles(found)}, all whole")


@command.command()
@click.option("--older-than", type=Duration(), help="Also remove bundles made longer ago: 30d, 12h.")
@click.option("--foreign", is_flag=True, help="Also remove bundles of other GPUs.")
@click.option("--dry-run", is_flag=True, help="Only show what would go.")
@custom_ops_option
@_json
def prune(older_than: float | None, foreign: bool, dry_run: bool, custom_ops: str, as_json: bool) -> None:
    """Remove bundles that are damaged, or were made with other versions than are installed."""
    from sdort.console import emit_json, say, show
    from sdort.tuning.maintenance import prune as run_prune
    from sdort.tuning.store import Store

    gone = run_prune(Store(), older_than=older_than, foreign=foreign, dry_run=dry_run, custom_ops=custom_ops)
    if as_json:
        emit_json({"removed": not dry_run, "bundles": [_plain(each) for each in gone]})
        return
    if gone:
        show(_table(gone))
    say(f"{'would remove' if dry_run else 'removed'} {_bundles(gone)}")


def _plain(finding: Finding) -> dict[str, Any]:
    from sdort.tuning.store import age

    found: dict[str, Any] = {"name": finding.name, "state": finding.state, "why": finding.why}
    bundle = finding.bundle
    if bundle:
        found |= {
            "key": bundle.key.to_json(),
            "bytes": bundle.bytes,
            "files": len(bundle.files),
            "made": bundle.made,
            "age_s": round(age(bundle)),
            "first_run_s": bundle.first_run_s,
        }
    return found


def _bundles(found: Collection[object]) -> str:
    return "1 bundle" if len(found) == 1 else f"{len(found)} bundles"


def _table(found: list[Finding]) -> Table:
    from rich.table import Table

    table = Table("bundle", "shapes", "made for", "size", "age", "here")
    for each in found:
        cells = _cells(each.bundle) if each.bundle else ("", "", "", "")
        table.add_row(each.name, *cells, f"{each.state}: {each.why}" if each.why else each.state)
    return table


def _cells(bundle: Bundle) -> tuple[str, str, str, str]:
    from sdort.tuning.store import age

    key = bundle.key
    shapes = ", ".join(f"{name} {'x'.join(map(str, dims)) or 'scalar'}" for name, dims in key.shapes)
    place = ", ".join(part for part in (key.architecture, key.toolkit, key.onnxruntime) if part)
    return shapes, place, f"{bundle.bytes / 2**20:.1f} MiB", age_text(age(bundle))


def age_text(seconds: float) -> str:
    """A time in the largest unit that gives at least 1: ``3 d``."""
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"
