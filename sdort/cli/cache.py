"""``sdort cache``: what is kept between runs."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

import click

from sdort.cli.number_types import ByteSize, Duration
from sdort.cli.tuning import age_text
from sdort.options.number_ranges import CACHE_LIMIT, OLDER_THAN

if TYPE_CHECKING:
    from sdort.doctor.cache_entries import CacheEntry
    from sdort.tables import Table

_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
_kinds = click.argument("kinds", metavar="[traces|schedules|checked|models|tuning|ops|trials|temporary]...", nargs=-1)


@click.group(
    invoke_without_command=True,
    epilog="""\b
Examples:
  sdort cache                              what is kept where, and how much
  sdort cache list traces
  sdort cache clean --older-than 30d --dry-run
  sdort cache clean ops temporary
  sdort cache limit 20GB                   the room for models
""",
)
@_json
@click.pass_context
def command(context: click.Context, as_json: bool) -> None:
    """Show and remove what sdort keeps between runs.

    \b
    traces     graphs of architectures, by sdort export
    schedules  schedulers as numbers, by sdort run
    checked    which files were compared with their sdort.json
    models     checkpoints that were made ready on first use
    tuning     bundles of sdort warm and --tuning, and the table of sdort ops tune
    ops        libraries of sdort ops build
    trials     which kernels of a provider were found to be right
    temporary  files that killed commands left
    """
    if context.invoked_subcommand is None:
        context.invoke(size, as_json=as_json)
    elif as_json:
        raise click.UsageError(f"--json goes behind the command: sdort cache {context.invoked_subcommand} --json")


@command.command()
@_json
def size(as_json: bool) -> None:
    """Show each cache's folder and size."""
    from sdort.console import conclude, emit_json, show
    from sdort.doctor.cache_entries import KINDS
    from sdort.doctor.caches import list_cache
    from sdort.tables import Table, size_text

    cache = list_cache()
    if as_json:
        emit_json(cache)
        return
    table = Table("", ("cache", ">entries", ">size", ">oldest", "folder"))
    for kind in KINDS:
        entries = [entry for entry in cache.entries if entry.kind == kind]
        if entries:
            oldest = age_text(max(entry.age_s for entry in entries))
            size = size_text(sum(entry.bytes for entry in entries))
            table.add_row(kind, str(len(entries)), size, oldest, str(entries[0].path.parent))
    if table.row_count:
        show(table)
    conclude(_amount(cache.entries), "sdort cache clean --dry-run" if cache.entries else None)


@command.command("list")
@_kinds
@_json
def list_(kinds: tuple[str, ...], as_json: bool) -> None:
    """Show every entry, of all caches or of those named."""
    from sdort.console import conclude, emit_json, show
    from sdort.doctor.caches import list_cache

    cache = list_cache(kinds)
    if as_json:
        emit_json(cache)
        return
    models = [entry for entry in cache.entries if entry.checkpoint]
    others = [entry for entry in cache.entries if not entry.checkpoint]
    if models:
        show(_models_table(models))
    if others:
        show(_table(others))
    conclude(_amount(cache.entries))


@command.command()
@click.argument("limit", metavar="[SIZE]", required=False, type=ByteSize(CACHE_LIMIT))
@_json
def limit(limit: int | None, as_json: bool) -> None:
    """Show or set the room that models may take.

    SIZE is a number of bytes, or one with kB, MB, GB or TB: 20GB. Models are checkpoints that were made ready on first
    use. If a new one needs more room, sdort removes those that were not used for the longest time, and says which.
    """
    from sdort.console import conclude, emit_json
    from sdort.first_use.cache_limit import cache_limit
    from sdort.tables import size_text

    room = cache_limit(limit=limit)
    if as_json:
        emit_json(room)
        return
    conclude(f"Models in the cache may take {size_text(room.limit)}; they take {size_text(room.used)}.")


@command.command()
@_kinds
@click.option("--older-than", type=Duration(OLDER_THAN), help="Remove only entries that are older than this: 30d, 12h.")
@click.option("--dry-run", is_flag=True, help="Show only what would be removed.")
@_json
def clean(kinds: tuple[str, ...], older_than: float | None, dry_run: bool, as_json: bool) -> None:
    """Remove entries, of all caches or of those named.

    Entries that a running command uses stay, and so do files that are not sdort's. sdort export makes its traces again
    when it needs them. For tuning, run sdort warm again; for the library, sdort ops build.
    """
    from sdort.console import conclude, emit_json, is_quiet, say, show
    from sdort.doctor.caches import clean_cache

    done = clean_cache(kinds, older_than=older_than, dry_run=dry_run)
    if as_json:
        emit_json(done)
    if as_json or (done.removed and is_quiet()):
        return
    if done.entries:
        show(_table(done.entries))
    for entry in done.kept:
        say(f"kept, as a running command uses it: {entry.path}")
    conclude(f"{'Removed' if done.removed else 'Would remove'} {_amount(done.entries)}")


def _amount(entries: Collection[CacheEntry]) -> str:
    from sdort.tables import size_text

    number = "1 entry" if len(entries) == 1 else f"{len(entries)} entries"
    return f"{number}, {size_text(sum(entry.bytes for entry in entries))}"


def _models_table(entries: Collection[CacheEntry]) -> Table:
    from sdort.tables import Table, size_text

    table = Table("", ("model", "for", "precision", ">size", "made on", ">last used", ""))
    for entry in entries:
        cells = (entry.checkpoint or "", entry.provider or "", entry.precision or "", size_text(entry.bytes))
        table.add_row(*cells, entry.made or "", age_text(entry.used_s or 0), _state(entry))
    return table


def _state(entry: CacheEntry) -> str:
    if entry.in_use:
        return "in use"
    # What a command works at is hidden until it is complete.
    left = entry.name.startswith(".") or entry.kind == "temporary"
    return "left by a killed command" if left else "of an earlier sdort" if entry.outdated else ""


def _table(entries: Collection[CacheEntry]) -> Table:
    from sdort.tables import Table, size_text

    table = Table("", ("cache", "entry", ">size", ">age", ""))
    for entry in entries:
        name = f"{entry.checkpoint} ({entry.provider}, {entry.precision})" if entry.checkpoint else entry.name
        table.add_row(entry.kind, name, size_text(entry.bytes), age_text(entry.age_s), _state(entry))
    return table
