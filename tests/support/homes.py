"""Homes and caches of the tests' own: whoever runs them has theirs neither read nor written.

Everything that names such a place in the environment is replaced or removed before a test module is imported, since
libraries look once, when they are imported. What still reaches into a home of the user's is seen by :class:`Watch`.
"""

from __future__ import annotations

import os
import pwd
import sys
import tempfile
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

USERS_HOME = "SDORT_TESTS_USERS_HOME"
"""Tells worker processes, which inherit a home of the tests', whose home must not be touched."""
KEPT = ("SDORT_OPS_BUILD", USERS_HOME)
PREFIXES = (
    "CUDA_CACHE_", "HF_", "HUGGINGFACE_", "MIOPEN_", "MPLCONFIG", "PIP_CACHE", "SDORT_", "TORCHINDUCTOR_CACHE",
    "TORCH_EXTENSIONS_DIR", "TORCH_HOME", "TRANSFORMERS_", "TRITON_", "XDG_",
)  # fmt: skip
"""Of variables that name a cache, a configuration or what is in one."""
EVENTS = {
    "open", "os.chmod", "os.link", "os.listdir", "os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.scandir",
    "os.symlink", "os.truncate", "os.utime", "shutil.copyfile", "shutil.copytree", "shutil.move", "shutil.rmtree",
    "sqlite3.connect",
}  # fmt: skip
"""Python's audit events that have paths among their arguments."""


def users_homes() -> list[Path]:
    """The home that the tests were started with, and the account's."""
    original = os.environ.setdefault(USERS_HOME, os.path.expanduser("~"))
    return [Path(home).resolve() for home in dict.fromkeys((original, pwd.getpwuid(os.getuid()).pw_dir))]


def settings(home: Path) -> dict[str, str]:
    """The variables that make ``home`` the home."""
    return {
        "HOME": str(home),
        "HF_HOME": str(home / ".cache" / "huggingface"),
        "XDG_CACHE_HOME": str(home / ".cache"),
        "XDG_CONFIG_HOME": str(home / ".config"),
        "XDG_DATA_HOME": str(home / ".local" / "share"),
        "XDG_STATE_HOME": str(home / ".local" / "state"),
    }


def move_in(home: Path) -> None:
    """Make ``home`` this process's, and that of all that it starts."""
    for name in [name for name in os.environ if name.startswith(PREFIXES) and name not in KEPT]:
        del os.environ[name]
    os.environ.update(settings(home))


class Watch:
    """Notes which hidden files and folders of some homes (caches, configurations) this process touches.

    Args:
        homes: whose.
        apart_from: folders that may lie in there and belong to the tests: this checkout, Python, temporary files.
    """

    def __init__(self, homes: Iterable[Path], apart_from: Iterable[Path]) -> None:
        self.hidden = tuple(os.path.join(home, ".") for home in homes)
        self.apart_from = tuple(os.path.join(folder, "") for folder in apart_from)
        self.touched: list[str] = []

    def start(self) -> None:
        """From now on; there is no end to an audit hook but that of the process.

        Millions of events are none of these (``builtins.id``, while torch traces): a function without a lookup of a
        global costs a third of what a method does.
        """

        def hook(event: str, arguments: tuple[Any, ...], events: Collection[str] = EVENTS) -> None:
            if event in events:
                self.see(event, arguments)

        sys.addaudithook(hook)

    def see(self, event: str, arguments: tuple[Any, ...]) -> None:
        """One of :data:`EVENTS`."""
        for path in arguments[:2]:
            if isinstance(path, (str, bytes, os.PathLike)):
                text = os.fsdecode(path)
                if not text.startswith("/") or "/." in text or "//" in text:
                    text = os.path.abspath(text)
                if text.startswith(self.hidden) and not f"{text}/".startswith(self.apart_from):
                    self.touched.append(f"{event} {text}")


def own_folders(root: Path) -> set[Path]:
    """What belongs to the tests wherever it lies."""
    python = {Path(place) for place in (sys.prefix, sys.base_prefix, sys.exec_prefix, *sys.path) if place}
    folders = {root, Path(tempfile.gettempdir()), *python}
    return folders | {folder.resolve() for folder in folders}
