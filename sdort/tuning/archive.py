"""Bundles in one file, to carry to another machine of the same kind.

An archive is a plain tar: ``sdort-tuning.json`` with the format and the bundles' names, then each bundle's ``key.json``
and files in the order of their names, without times and owners, so that the same bundles make the same bytes. A program
of several bundles is in the first of them alone; ``key.json`` has the hash by which the others find it. Nothing of an
archive is used before all of it was checked.
"""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

from sdort.errors import OutputError, ProviderError, UsageError
from sdort.files.input_file import open_input
from sdort.files.json_text import parse_json
from sdort.files.staging import check_output_file, staged_output
from sdort.operator_library.library import AUTO
from sdort.tuning.bundle import (
    FORMAT,
    MAX_BYTES,
    MAX_RECORD,
    PROGRAMS,
    RECORD,
    Bundle,
    BundleError,
    check_files,
    check_name,
    read_bundle,
)
from sdort.tuning.store import Store
from sdort.tuning.working_folder import link

ARCHIVE_INDEX = "sdort-tuning.json"
MAX_FILES = 100_000
"""Files of an archive: some compiled programs of the largest models."""

_CLASHES = (FileExistsError, NotADirectoryError, IsADirectoryError)
"""Exceptions of unpacking a file in the place of a folder."""
_NAME = re.compile(r"[a-z0-9_]+-[0-9a-f]{24}")


@dataclass(frozen=True)
class Imported:
    """Bundles that an import stored, and the names of those that this machine cannot use."""

    bundles: list[Bundle]
    elsewhere: list[str]


def export_bundles(store: Store, names: Sequence[str], output: Path, *, overwrite: bool = False) -> list[Bundle]:
    """Write bundles to an archive, by default all of them.

    Raises:
        UsageError: there is no such bundle, or none at all.
        BundleError: one is damaged.
        OutputError: the file exists without ``overwrite``, or cannot be written.
    """
    resolved = sorted(set(store.resolve(names)))
    if not resolved:
        raise UsageError("nothing was tuned yet", hint="This makes bundles:\n    sdort warm PIPELINE")
    check_output_file(output, overwrite)
    with store.reading(), staged_output(output) as file:
        bundles = [store.read(name) for name in resolved]
        for bundle in bundles:
            check_files(bundle)
        with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as archive:
            index = json.dumps({"format": FORMAT, "bundles": [bundle.name for bundle in bundles]}, indent=1)
            _add(archive, ARCHIVE_INDEX, io.BytesIO(index.encode()), len(index))
            written = set[str]()
            for bundle in bundles:
                for name in (RECORD, *_unwritten(bundle, written)):
                    with open_input(bundle.folder / name, links=False) as source:
                        _add(archive, f"{bundle.name}/{name}", source, os.fstat(source.fileno()).st_size)
        file.flush()
        os.fsync(file.fileno())
    return bundles


def _unwritten(bundle: Bundle, written: set[str]) -> list[str]:
    """The files of a bundle without those programs whose hashes are in ``written``; it takes in those of the others."""
    programs = {name: file.sha256 for name, file in bundle.files.items() if name.startswith(f"{PROGRAMS}/")}
    names = [name for name in sorted(bundle.files) if programs.get(name) not in written]
    written.update(programs.values())
    return names


def _complete(folder: Path, bundles: Sequence[Bundle]) -> None:
    """Give unpacked bundles the programs that the archive has in others of them."""
    files = [(file.sha256, folder / bundle.name / name) for bundle in bundles for name, file in bundle.files.items()]
    there = {digest: path for digest, path in files if path.is_file()}
    for digest, path in files:
        if not path.exists() and digest in there and path.relative_to(folder).parts[1] == PROGRAMS:
            link(there[digest], path)


def _add(archive: tarfile.TarFile, name: str, content: IO[bytes], size: int) -> None:
    member = tarfile.TarInfo(name)
    member.size, member.mode = size, 0o644
    archive.addfile(member, content)


def import_bundles(
    store: Store, archive: Path, *, any_machine: bool = False, device_id: int = 0, custom_ops: str = AUTO
) -> Imported:
    """Check an archive and store all its bundles, or none.

    Args:
        any_machine: also take bundles of another machine. They are stored and exported as the others are, and no run
            here uses them, as their keys differ: for a machine that prepares the cache of others.
        custom_ops: the library of custom operators that runs here take.

    Raises:
        BundleError: the archive is damaged, unsafe, or of another format.
        ProviderError: a bundle is another machine's; which field of the key differs, and both values.
        OutputError: the cache cannot be written.
    """
    with store.hidden() as hidden:
        try:
            names = _unpack(archive, hidden)
        except (tarfile.TarError, EOFError, ValueError, TypeError, ArithmeticError, RecursionError, *_CLASHES) as error:
            raise BundleError(f"{archive} is no archive of tuning bundles, or damaged: {error}") from error
        except OSError as error:
            raise OutputError(f"cannot unpack {archive}: {error.strerror or error}") from error
        bundles = [read_bundle(hidden / name) for name in names]
        _complete(hidden, bundles)
        for bundle in bundles:
            check_files(bundle)
        elsewhere = [bundle.name for bundle in bundles if _refusal(bundle, any_machine, device_id, custom_ops)]
        store.place([hidden / name for name in names])
    return Imported([store.read(name) for name in names], elsewhere)


def _refusal(bundle: Bundle, any_machine: bool, device_id: int, custom_ops: str) -> bool:
    """Whether a bundle is another machine's, where such are taken."""
    try:
        difference = bundle.key.elsewhere(device_id, custom_ops)
    except ProviderError:
        if any_machine:
            return True
        raise
    if difference is None or any_machine:
        return difference is not None
    name, there, here = difference
    library = "If runs here take such a library from elsewhere, name it with --custom-ops PATH. "
    raise ProviderError(
        f"the tuning bundle {bundle.name} was made elsewhere: {name} is {there!r} there and {here!r} here",
        hint=f"Nothing was imported. {library if name == 'custom_ops' else ''}"
        "--any-machine stores it for other machines; no run here will use it.",
    )


class _Reader(io.BufferedReader):
    """Reads no more at once than any part of an archive needs: tarfile takes an extended header's word for its size."""

    def read(self, size: int | None = -1, /) -> bytes:
        if size is None or not 0 <= size <= MAX_RECORD:
            raise ValueError(f"a header asks for {size} bytes")
        return super().read(size)


def _reader(file: IO[bytes]) -> IO[bytes]:
    return cast("IO[bytes]", _Reader(cast("io.RawIOBase", file)))


def _unpack(archive: Path, folder: Path) -> list[str]:
    """Unpack into ``folder`` and return the bundles' names.

    Raises:
        ValueError, tarfile.TarError, EOFError: it is not what :func:`export_bundles` writes.
        OSError: it cannot be read or unpacked.
    """
    # Without compression: what is unpacked is no larger than the file.
    with open_input(archive) as file, tarfile.open(fileobj=_reader(file), mode="r:") as tar:
        members = iter(tar)
        names = _read_index(tar, next(members, None))
        seen: set[str] = set()
        total = 0
        for member in members:
            target = _checked(member, names)
            total += member.size
            if target in seen:
                raise ValueError(f"{target} is there twice")
            if len(seen) > MAX_FILES or total > MAX_BYTES:
                raise ValueError(f"it has more than {MAX_FILES} files or {MAX_BYTES >> 30} GiB")
            seen.add(target)
            _extract(tar, member, folder / target)
    missing = [name for name in names if f"{name}/{RECORD}" not in seen]
    if missing:
        raise ValueError(f"it ends before {missing[0]}/{RECORD}")
    return names


def _read_index(tar: tarfile.TarFile, member: tarfile.TarInfo | None) -> list[str]:
    if member is None or member.name != ARCHIVE_INDEX or not member.isreg() or member.size > MAX_RECORD:
        raise ValueError(f"it does not begin with {ARCHIVE_INDEX}")
    stream = tar.extractfile(member)
    index: Any = parse_json(stream.read() if stream else b"")
    if not isinstance(index, dict) or index.get("format") != FORMAT:
        format_name = index.get("format") if isinstance(index, dict) else None
        raise ValueError(f"its format is {format_name!r}, this sdort reads {FORMAT}")
    names = index.get("bundles")
    if not isinstance(names, list) or not all(isinstance(name, str) and _NAME.fullmatch(name) for name in names):
        raise ValueError(f"{ARCHIVE_INDEX} names no bundles")
    if not names or len(set(names)) < len(names):
        raise ValueError(f"{ARCHIVE_INDEX} names no bundle, or one twice")
    return names


def _checked(member: tarfile.TarInfo, names: Sequence[str]) -> str:
    """The place of a member within the folder."""
    bundle, _, name = member.name.partition("/")
    if not member.isreg() or member.issparse():
        raise ValueError(f"{member.name!r} is a link, a device, or another thing that a bundle does not hold")
    if bundle not in names:
        raise ValueError(f"{member.name!r} belongs to no bundle of it")
    return f"{bundle}/{name if name == RECORD else check_name(name)}"


def _extract(tar: tarfile.TarFile, member: tarfile.TarInfo, target: Path) -> None:
    stream = tar.extractfile(member)
    assert stream is not None  # a regular file has content
    target.parent.mkdir(parents=True, exist_ok=True)
    with open(target, "xb") as file:
        shutil.copyfileobj(stream, file, 1 << 20)
        file.flush()
        os.fsync(file.fileno())
    if target.stat().st_size != member.size:
        raise ValueError(f"it ends within {member.name}")
