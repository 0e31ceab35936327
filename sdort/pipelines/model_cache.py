"""Models that were made ready on first use and are kept in the cache: a folder each, with a record of it.

:mod:`sdort.first_use` makes them of checkpoints, and :mod:`sdort.upscaling` of upscalers. The record says of what a
folder was made, and for what; it is compared whenever the folder is opened, so that nothing gets another one's graphs.
A process holds the folders that it uses, so that no cleaning removes them before it ends.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sdort.checkpoints.configs import read_config, write_json
from sdort.console import progress, say
from sdort.errors import BadModelError, OutputError
from sdort.files.staging import held, locked
from sdort.files.user_folders import models_folder

MADE_OF, MODEL, USED = "made-of.json", "model", "used"
"""Contents of a folder of the cache: the record of what it was made of, the optimized model, and a file whose time is
that of its last use."""

KEPT = re.compile(r"model-[0-9a-f]{32}")
"""The names of these folders."""


@dataclass(frozen=True)
class KeptModel:
    """A model in the cache.

    Attributes:
        folder: the cache's folder, which holds the model.
        name: the checkpoint's name.
        source: what was given to make it: a path, a hub id, or ``demo``.
        made_of: everything that the model depends on, as JSON values.
        made: seconds since 1970.
        used: when it was last used, in seconds since 1970.
    """

    folder: Path
    name: str
    source: str
    made_of: dict[str, Any]
    made: float
    used: float

    @property
    def provider(self) -> str:
        """The execution provider that it was made for, by name."""
        return str(self.made_of.get("provider", ""))

    @property
    def precision(self) -> str:
        """``fp32`` or ``fp16``."""
        return str(self.made_of.get("precision", ""))


def read_kept(folder: Path) -> KeptModel:
    """The model in a folder of the cache.

    Raises:
        BadModelError: its record is missing or broken.
    """
    record = read_config(folder / MADE_OF)
    name, source, made_of, made = (record.get(key) for key in ("name", "source", "made_of", "made"))
    whole = isinstance(name, str) and isinstance(source, str) and isinstance(made_of, dict)
    if not whole or not isinstance(made, (int, float)) or isinstance(made, bool):
        raise BadModelError(f"{folder / MADE_OF} does not say what the model was made of")
    used = float(made)
    with suppress(OSError):
        used = (folder / USED).stat().st_mtime
    return KeptModel(folder, str(name), str(source), dict(made_of or {}), float(made), used)


def write_kept(folder: Path, name: str, source: str, made_of: dict[str, Any]) -> None:
    """Write the record of a model into its folder, as of now.

    Raises:
        OutputError: it cannot be written.
    """
    write_json(folder / MADE_OF, {"name": name, "source": source, "made": time.time(), "made_of": made_of})
    (folder / USED).touch()


def mark_used(folder: Path) -> None:
    """Note that a folder of the cache is used now."""
    with suppress(OSError):  # a cache that is read only
        (folder / USED).touch()


def kept_folder(made_of: dict[str, Any]) -> Path:
    """The folder of the cache for what is made of ``made_of``, whether it is there or not."""
    key = hashlib.sha256(json.dumps(made_of, sort_keys=True).encode()).hexdigest()[:32]
    return models_folder() / f"model-{key}"


def remake_hint(folder: Path) -> str:
    """The hint for a folder of the cache that is not what it should be."""
    return f"Somebody moved or changed it. Remove it, and it is made anew:\n    rm -r {shlex.quote(str(folder))}"


_HELD: dict[Path, ExitStack] = {}
"""The cache's folders that this process uses."""


def hold(folder: Path) -> bool:
    """Keep a folder from being removed until this process ends; False if there is none."""
    if folder in _HELD and folder.is_dir():
        return True
    with ExitStack() as stack:
        try:
            stack.enter_context(held(folder))
        except (FileNotFoundError, NotADirectoryError):
            return False
        if not folder.is_dir():  # it was removed between
            return False
        _HELD[folder] = stack.pop_all()
    return True


def make_once(folder: Path, make: Callable[[], None]) -> None:
    """Have ``make`` make a folder of the cache, if no other process does it meanwhile: it is there in the end.

    Raises:
        OutputError: the cache cannot be written.
    """
    with ExitStack() as stack:
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            stack.enter_context(locked(folder.with_name(f".{folder.name}.lock"), _waiting))
        except OSError as error:
            raise OutputError(
                f"cannot write in sdort's cache {folder.parent}: {error.strerror or error}",
                hint="XDG_CACHE_HOME says where it is.",
            ) from error
        if not folder.is_dir():
            make()


@contextmanager
def _waiting() -> Iterator[None]:
    """The time in which another process makes the same model."""
    say("another sdort is making the same model: this one waits for it")
    with progress("waiting for another sdort"):
        yield


def kept_models() -> list[KeptModel]:
    """The models in the cache whose records can be read, the last used ones first."""
    found = []
    with suppress(OSError):
        for folder in sorted(models_folder().iterdir()):
            if KEPT.fullmatch(folder.name) and os.path.isdir(folder) and not folder.is_symlink():
                with suppress(BadModelError):
                    found.append(read_kept(folder))
    return sorted(found, key=lambda kept: -kept.used)
