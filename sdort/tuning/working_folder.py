"""The working folder of this process: what the libraries tune is read from there and written there.

MIOpen reads its variables once per process, and any session may make it write, so bundles are copied into a folder of
the process's own and merged there; what lies there after tuning goes into new bundles.
"""

from __future__ import annotations

import atexit
import os
import sqlite3
import tempfile
from contextlib import ExitStack, closing
from functools import cache
from pathlib import Path

from sdort.console import detail
from sdort.errors import OutputError
from sdort.files.input_file import copy_input, open_input, read_input
from sdort.files.staging import temporary_folder
from sdort.operator_library.tuning_table import Entry, read_table
from sdort.tuning.bundle import MAX_BYTES, MAX_TEXT, MIOPEN, OPS, PASSING, PROGRAMS, Bundle
from sdort.tuning.store import Store

MIOPEN_FOLDERS = {"MIOPEN_USER_DB_PATH": "db", "MIOPEN_CUSTOM_CACHE_DIR": "cache"}
OPS_TABLE, OPS_TUNE = "SDORT_OPS_TUNING", "SDORT_OPS_TUNE"
_SQLITE = b"SQLite format 3\0"


class WorkingFolder:
    """A folder of this process. What the user's own environment points elsewhere stays where it is."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._tables = 0

    def use_miopen(self) -> None:
        """Point MIOpen here, before it is first used."""
        for variable, name in MIOPEN_FOLDERS.items():
            place = self.folder / MIOPEN / name
            if os.environ.setdefault(variable, str(place)) == str(place):
                place.mkdir(parents=True, exist_ok=True)
            else:
                detail(f"{variable} is set: what MIOpen finds stays in {os.environ[variable]}")

    def use_temporary(self) -> None:
        """Have the libraries' temporary files here, which a killed process leaves: of MIGraphX, MIOpen, comgr."""
        tempfile.gettempdir()  # Python's stay where they are: it looks once
        place = self.folder / "tmp"
        place.mkdir(exist_ok=True)
        os.environ.setdefault("TMPDIR", str(place))

    def use_ops(self, table: Path, more: list[Entry], tune: bool) -> None:
        """Give sdort's kernels a table: ``table``, what an earlier session found, and ``more``."""
        current = os.environ.get(OPS_TABLE)
        ours = current is None or Path(current) == table or Path(current).parent == self.folder
        if tune:
            os.environ[OPS_TUNE] = "1"
        if not ours:
            detail(f"{OPS_TABLE} is set: what sdort's kernels find stays in {current}")
            return
        # A name of its own, as the library reads a table again when its name changes.
        self._tables += 1
        entries = {(e.architecture, e.key): e for e in [*read_table(table), *self.ops(), *more]}
        target = self.folder / f"{self._tables}-{OPS}"
        write_table(target, list(entries.values()))
        os.environ[OPS_TABLE] = str(target)

    def ops(self) -> list[Entry]:
        """The table of sdort's kernels: entries that were measured here and those of bundles."""
        table = Path(os.environ.get(OPS_TABLE, ""))
        return read_table(table) if table.parent == self.folder else []

    def programs(self, name: str) -> Path:
        """The folder of a model's programs compiled by MIGraphX (:attr:`sdort.tuning.key.Key.programs`)."""
        folder = self.folder / PROGRAMS / name
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def contents(self, programs: str) -> list[tuple[str, int]]:
        """The files that MIOpen and MIGraphX left here, with their sizes."""
        paths = [path for top in (MIOPEN, f"{PROGRAMS}/{programs}") for path in (self.folder / top).rglob("*")]
        return sorted((str(path), path.stat().st_size) for path in paths if path.is_file())

    def has_programs(self, bundle: Bundle) -> bool:
        """Whether all programs of a bundle lie here."""
        folder, names = self.folder / PROGRAMS / bundle.key.programs, [name.partition("/") for name in bundle.files]
        return all((folder / rest).exists() for top, _, rest in names if top == PROGRAMS)

    def take(self, bundle: Bundle) -> None:
        """Copy and merge the files of a bundle that was checked."""
        for name in bundle.files:
            top, _, rest = name.partition("/")
            if top == MIOPEN:
                merge(bundle.folder / name, self.folder / name)
            elif top == PROGRAMS:
                link(bundle.folder / name, self.programs(bundle.key.programs) / rest)

    def copy_to(self, programs: str, stage: Path) -> None:
        """Copy what lies here into the folder of a bundle that is being filled."""
        for path in sorted((self.folder / MIOPEN).rglob("*")):
            if path.is_file() and not path.name.endswith(PASSING):
                copy(path, stage / path.relative_to(self.folder))
        compiled = self.folder / PROGRAMS / programs
        for path in sorted(compiled.rglob("*")):
            if path.is_file() and not path.name.endswith(PASSING):
                link(path, stage / PROGRAMS / path.relative_to(compiled))
        if entries := self.ops():
            write_table(stage / OPS, entries)


@cache
def working_folder() -> WorkingFolder:
    """This process's folder: in the cache, or for want of room in the system's folder for temporary files."""
    stack = ExitStack()
    try:
        folder = stack.enter_context(Store().hidden())
    except OutputError as error:
        detail(str(error))
        folder = stack.enter_context(temporary_folder("tuning"))
    atexit.register(stack.close)
    return WorkingFolder(folder)


def write_table(path: Path, entries: list[Entry]) -> None:
    """A table as :func:`sdort.operator_library.tuning_table.read_table` and the library read it."""
    lines = [f"{e.architecture}\t{e.key}\t{e.variant}\t{e.microseconds!r}\n" for e in entries]
    path.write_text("".join(["# architecture\tkey\tvariant\tmicroseconds\n", *sorted(lines)]), encoding="utf-8")


def link(source: Path, target: Path) -> None:
    """The same file under another name where the file system can: compiled programs hold a model's weights."""
    if target.exists():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source, target)
        os.chmod(target, 0o444)
    except OSError:
        copy_input(source, target, limit=MAX_BYTES)


def copy(source: Path, target: Path) -> None:
    """Copy a file; a database of SQLite with what its writer has not yet moved into it."""
    target.parent.mkdir(parents=True, exist_ok=True)
    if not (_is_sqlite(source) and _backed_up(source, target)):
        copy_input(source, target, limit=MAX_BYTES)


def _backed_up(source: Path, target: Path) -> bool:
    try:
        # As a URI: nothing is written to the source, not even what its last writer left to be done.
        uri = f"{source.absolute().as_uri()}?mode=ro"
        with closing(sqlite3.connect(uri, uri=True)) as old, closing(sqlite3.connect(target)) as new:
            old.backup(new)
    except (sqlite3.Error, UnicodeDecodeError):  # no database after all, or one with names that are no text
        target.unlink(missing_ok=True)
        return False
    return True


def merge(source: Path, target: Path) -> None:
    """Add what ``source`` has to ``target``: lines ``problem=solutions`` of text, kernels of MIOpen's database."""
    if not target.exists():
        copy(source, target)
    elif source.suffix == ".txt":
        lines = {line.partition(b"=")[0]: line for path in (target, source) for line in _lines(path)}
        target.write_bytes(b"".join(line + b"\n" for line in lines.values()))
    elif _is_sqlite(source) and _is_sqlite(target):
        try:
            _merge_kernels(source, target)
        except UnicodeDecodeError as error:  # Python's module reads SQLite's messages as UTF-8
            raise sqlite3.DatabaseError(f"{source.name} or {target.name} is damaged") from error


def _lines(path: Path) -> list[bytes]:
    return read_input(path, limit=MAX_TEXT, links=False).splitlines()


def _merge_kernels(source: Path, target: Path) -> None:
    """Copy the compiled kernels that ``target`` lacks; the table ``kern_db`` of MIOpen's kern_db.hpp."""
    with closing(sqlite3.connect(target.absolute().as_uri(), uri=True)) as database:
        database.execute("PRAGMA trusted_schema = OFF")
        # A bundle's file does not change: SQLite writes nothing there, and obeys no journal.
        database.execute("ATTACH ? AS other", (f"{source.absolute().as_uri()}?immutable=1",))
        if any(_acts(database, schema) for schema in ("other", "main")):
            raise sqlite3.DatabaseError(f"{source.name} or {target.name} has more than tables and indexes")
        theirs, ours = (
            [row[1] for row in database.execute(f"PRAGMA {schema}.table_info(kern_db)") if row[1] != "id"]
            for schema in ("other", "main")
        )
        if theirs and theirs == ours:
            names = ", ".join('"' + name.replace('"', '""') + '"' for name in ours)
            database.execute(f"INSERT OR IGNORE INTO main.kern_db ({names}) SELECT {names} FROM other.kern_db")
            database.commit()


def _acts(database: sqlite3.Connection, schema: str) -> bool:
    """Whether a database has what runs when it is read or written: views and triggers, which may never end."""
    kinds = {kind for (kind,) in database.execute(f"SELECT type FROM {schema}.sqlite_master")}
    return not kinds <= {"table", "index"}


def _is_sqlite(path: Path) -> bool:
    with open_input(path, links=False) as stream:
        return stream.read(len(_SQLITE)) == _SQLITE
