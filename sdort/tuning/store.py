"""The bundles of this user: a folder in the cache, safe against kills and against other processes.

A bundle is filled in a hidden folder that its writer holds a lock on, and takes its place in one rename. Whoever
renames or removes holds the store's lock alone, whoever reads shares it, so nobody sees half of a bundle or a mix of
two. The kernel drops locks when a process ends, however it ends: hidden folders without a lock are leftovers.
"""

from __future__ import annotations

import os
import secrets
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from sdort.errors import OutputError, UsageError
from sdort.files.staging import remove_abandoned
from sdort.files.user_folders import cache_folder
from sdort.machine.os_calls import os_calls
from sdort.tuning.bundle import Bundle, BundleError, check_files, read_bundle, seal
from sdort.tuning.key import Key

_LOCK = ".lock"


def tuning_folder() -> Path:
    """``$XDG_CACHE_HOME/sdort/tuning``, by default below ``~/.cache``."""
    return cache_folder() / "tuning"


@dataclass
class Filling:
    """A bundle that is being filled: files go into ``folder``."""

    folder: Path
    first_run_s: float | None = None


class Store:
    """The bundles in a folder, which is made when the first one is stored."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder or tuning_folder()

    def names(self) -> list[str]:
        """The bundles' names, damaged ones too."""
        try:
            return sorted(entry.name for entry in os.scandir(self.folder) if entry.is_dir() and entry.name[0] != ".")
        except OSError:
            return []

    def resolve(self, names: Sequence[str]) -> list[str]:
        """The full names of bundles, of which the first letters may be given; all bundles where none is named.

        Raises:
            UsageError: no bundle, or more than one, begins like that.
        """
        there = self.names()
        return [self._resolved(name, there) for name in names] if names else there

    def _resolved(self, name: str, there: Sequence[str]) -> str:
        matching = [name] if name in there else [full for full in there if full.startswith(name)]
        if len(matching) > 1:
            raise UsageError(f"{len(matching)} tuning bundles begin with {name}: {', '.join(matching)}")
        if not matching:
            raise UsageError(
                f"there is no tuning bundle {name}", hint="This shows what is kept:\n    sdort tuning list"
            )
        return matching[0]

    def read(self, name: str) -> Bundle:
        """A bundle, its files not yet compared with their hashes.

        Raises:
            BundleError: there is none, or it is damaged.
        """
        return read_bundle(self.folder / name)

    def find(self, key: Key) -> Bundle | None:
        """The undamaged bundle of exactly this key; None if there is none."""
        try:
            with self.reading():
                bundle = self.read(key.name)
                check_files(bundle)
        except BundleError:
            return None
        return bundle

    def of_model(self, key: Key) -> Iterator[Bundle]:
        """Bundles whose keys differ from ``key`` in the shapes alone. Damaged ones are passed over."""
        fixed = [name for name in key.to_json() if name != "shapes"]
        return (each for each in self.of_component(key.component) if key.difference(each.key, fixed) is None)

    def of_component(self, component: str) -> Iterator[Bundle]:
        """Bundles of a component of any model, on any machine. Damaged ones are passed over."""
        for name in self.names():
            if name.startswith(f"{component}-"):
                with suppress(BundleError):
                    yield self.read(name)

    @contextmanager
    def reading(self) -> Iterator[None]:
        """No bundle is replaced or removed while the block runs."""
        try:
            descriptor = os_calls.open_file(self.folder / _LOCK, links=False)
        except OSError:  # nothing was ever stored here
            yield
            return
        with _locked(descriptor, shared=True):
            yield

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Nobody reads or writes but the block.

        Raises:
            OutputError: the folder cannot be written.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            descriptor = os_calls.open_file(self.folder / _LOCK, os.O_RDWR | os.O_CREAT, links=False)
        except OSError as error:
            raise self._refused(error) from error
        with _locked(descriptor):
            yield

    @contextmanager
    def hidden(self) -> Iterator[Path]:
        """A new hidden folder, gone after the block; leftovers of killed processes go too.

        Raises:
            OutputError: the folder cannot be written.
        """
        stage = self.folder / f".new-{secrets.token_hex(8)}"
        with self.writing():
            self.clean()
            try:
                stage.mkdir()
                lock = os_calls.open_lock(stage)
            except OSError as error:
                raise self._refused(error) from error
            with suppress(OSError):  # a file system without locks: nothing will be cleaned there either
                os_calls.lock(lock)
        try:
            yield stage
        finally:
            shutil.rmtree(stage, ignore_errors=True)
            os.close(lock)

    @contextmanager
    def filling(self, key: Key) -> Iterator[Filling]:
        """Fill the bundle of ``key``; it replaces an older one if the block succeeds.

        Raises:
            OutputError: the folder cannot be written, the disk is full.
        """
        with self.hidden() as hidden:
            stage = hidden / key.name
            filling = Filling(stage)
            try:
                stage.mkdir()
                yield filling
                seal(stage, key, filling.first_run_s)
            except OSError as error:
                raise self._refused(error) from error
            self.place([stage])

    def place(self, sealed: list[Path]) -> None:
        """Put complete bundles, which lie in a :meth:`hidden` folder, in their places.

        Raises:
            OutputError: the folder cannot be written.
        """
        with self.writing():
            try:
                for stage in sealed:
                    target = self.folder / stage.name
                    if not target.exists():
                        stage.rename(target)
                    elif not os_calls.exchange(stage, target):
                        target.rename(stage.with_name(f"old-{stage.name}"))
                        stage.rename(target)
                os_calls.sync(self.folder)
            except OSError as error:
                raise self._refused(error) from error

    def remove(self, name: str) -> None:
        """Remove a bundle; it vanishes at once.

        Raises:
            OutputError: the folder cannot be written.
        """
        with self.hidden() as hidden, self.writing():
            try:
                (self.folder / name).rename(hidden / name)
            except OSError as error:
                raise self._refused(error) from error

    def clean(self) -> None:
        """Remove what killed processes left behind."""
        for path in self.folder.glob(".new-*"):
            remove_abandoned(path)

    def _refused(self, error: OSError) -> OutputError:
        return OutputError(
            f"cannot keep tuning results in {self.folder}: {error.strerror or error}",
            hint="Free space there or make it writable, or name another cache folder with XDG_CACHE_HOME.",
        )


def age(bundle: Bundle) -> float:
    """Seconds since it was made."""
    return max(0.0, time.time() - bundle.made)


@contextmanager
def _locked(descriptor: int, *, shared: bool = False) -> Iterator[None]:
    try:
        with suppress(OSError):  # a file system without locks: renames alone then keep bundles whole
            os_calls.lock(descriptor, shared=shared, wait=True)
        yield
    finally:
        os.close(descriptor)
