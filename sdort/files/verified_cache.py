"""The one way in which bytes are cached: entries named by a hash of everything they depend on, checked on every read.

An entry is a file of three parts: the SHA-256 of the other two in a line of its own; its key, as a line of JSON; its
content. One that is damaged, or that was made for another key and given this one's name, is told and made anew. The
hash notices damage and mix-ups; whoever can write the folder can write a hash, so content is parsed as a stranger's.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sdort.console import warn, warn_once
from sdort.errors import BadModelError
from sdort.files.input_file import open_input, read_input
from sdort.files.json_text import parse_json
from sdort.files.staging import staged_file
from sdort.tables import size_text

_FIRST_LINE = 65
"""Bytes of a SHA-256 in hexadecimal and a line's end."""
_MAX_KEY = 1 << 20
"""Bytes within which a key ends; that of a trace has some thousand."""
_NAME_DIGITS = 32
"""Hexadecimal digits of the key's hash in a file's name: 128 bits."""


@dataclass(frozen=True)
class VerifiedCache:
    """Entries of one kind in a folder, which is made when the first one is stored.

    Attributes:
        folder: where the entries lie.
        what: one of them, for messages: ``the trace``.
        suffix: the end of their names, such as ``.trace``.
        limit: the most bytes that an entry has.
        keeps: False stores nothing.
    """

    folder: Path
    what: str
    suffix: str
    limit: int
    keeps: bool = True

    def path(self, name: str, key: Mapping[str, Any]) -> Path:
        """Where the entry of a key lies: ``NAME-HASH.SUFFIX``."""
        return self.folder / f"{name}-{_name_of(_line(key))}{self.suffix}"

    def load(self, name: str, key: Mapping[str, Any]) -> bytes | None:
        """The content that was stored for a key; None where there is none, or none that is whole.

        Args:
            name: a word for people, the beginning of the file's name: letters, digits and underscores.
            key: everything that the content depends on, as JSON values.
        """
        path = self.path(name, key)
        if not os.path.lexists(path):  # False also where the folder may not be searched
            return None
        try:
            digest, _, rest = read_input(path, self.what, limit=self.limit, links=False).partition(b"\n")
        except BadModelError as error:
            warn(f"{error.message}; it is made anew")
            return None
        if digest != hashlib.sha256(rest).hexdigest().encode():
            warn(f"{self.what} {path} is damaged (it was changed or cut off); it is made anew")
            return None
        known, _, content = rest.partition(b"\n")
        if known + b"\n" != _line(key):
            warn(f"{self.what} {path} was made for something else (it was renamed or copied); it is made anew")
            return None
        return content

    def load_json(self, name: str, key: Mapping[str, Any]) -> Any:
        """The content of :meth:`load` as a value of JSON, which a stranger may have made; None where it is none."""
        content = self.load(name, key)
        if content is None:
            return None
        try:
            return parse_json(content, infinity=True)
        except ValueError as error:
            warn(f"{self.what} {self.path(name, key)} {error}; it is made anew")
            return None

    def store(self, name: str, key: Mapping[str, Any], content: bytes) -> None:
        """Keep the content of a key; a folder that cannot be written costs a warning, not the work."""
        if not self.keeps:
            return
        rest = _line(key) + content
        if len(rest) > self.limit - _FIRST_LINE:
            warn(f"{self.what} is not kept: it has {size_text(len(rest))}, more than the cache takes")
            return
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with staged_file(self.path(name, key)) as file:
                file.write(hashlib.sha256(rest).hexdigest().encode() + b"\n" + rest)
        except OSError as error:
            warn_once(f"cannot keep {self.what} in {self.folder}: {error.strerror or error}")


def is_entry(path: Path) -> bool:
    """Whether a file holds a key and is named by it; one of an earlier sdort does not, nor one that was renamed."""
    return key_of(path) is not None


def key_of(path: Path) -> dict[str, Any] | None:
    """The key that a file holds and is named by; None where it is no such entry.

    Whoever can write the folder can name a file by what is no key, so it is parsed as a stranger's.
    """
    try:
        with open_input(path, links=False) as file:
            _, _, rest = file.read(_MAX_KEY).partition(b"\n")
    except (BadModelError, OSError):
        return None
    known, end, _ = rest.partition(b"\n")
    if not path.stem.endswith(f"-{_name_of(known + end)}"):
        return None
    try:
        key = parse_json(known)
    except ValueError:
        return None
    return key if isinstance(key, dict) else None


def _name_of(line: bytes) -> str:
    return hashlib.sha256(line).hexdigest()[:_NAME_DIGITS]


def _line(key: Mapping[str, Any]) -> bytes:
    return json.dumps(key, sort_keys=True, allow_nan=False).encode() + b"\n"
