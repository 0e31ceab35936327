"""Keys of clients: a file with one a line, and what a request says beside its body."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import ipaddress
from collections.abc import Sequence
from pathlib import Path

from sdort.console import warn
from sdort.errors import UsageError
from sdort.files.input_file import read_input

MAX_FILE = 1 << 20
"""Bytes of a file of keys."""
_SHORTEST = 16
"""Characters of a key: fewer can be guessed."""


class Keys:
    """The keys of a file, of which only hashes are held: all have one length, and are compared in constant time.

    Raises:
        UsageError: the file has no keys, or a short one.
        BadModelError: it cannot be read.
    """

    def __init__(self, path: Path) -> None:
        lines = read_input(path, "the keys", limit=MAX_FILE).decode("utf-8", "replace").splitlines()
        keys = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
        short = next((number for number, key in enumerate(keys, 1) if len(key) < _SHORTEST), None)
        if short or not keys:
            raise UsageError(
                f"key {short} of {path} has less than {_SHORTEST} characters" if short else f"{path} has no keys",
                hint=f"Write a key a line. To make one:\n    openssl rand -hex 24 >> {path}",
            )
        if path.stat().st_mode & 0o077:
            warn(f"other users of this machine can read {path}: chmod 600 {path}")
        self._hashes = [_hash(key.encode()) for key in keys]

    def accept(self, authorization: str) -> bool:
        """Whether the header ``Authorization`` has a key: as a bearer's token, or as the password of any user."""
        scheme, _, value = authorization.partition(" ")
        given = value.strip().encode("latin-1", "replace")
        if scheme.lower() == "basic":
            try:
                given = base64.b64decode(given, validate=True).partition(b":")[2]
            except binascii.Error:
                return False
        elif scheme.lower() != "bearer":
            return False
        return sum(hmac.compare_digest(_hash(given), known) for known in self._hashes) > 0  # all are compared


def _hash(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


def is_loopback(host: str) -> bool:
    """Whether nobody but this machine reaches an address."""
    try:
        return host == "localhost" or ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def check_host(host: str, keys: Path | None, no_keys: bool) -> None:
    """Refuse an address that others reach without a word on who may ask.

    Raises:
        UsageError: there are neither keys nor the word that there are none; or both.
    """
    if keys and no_keys:
        raise UsageError("--api-keys and --no-keys say opposite things", hint="Leave one of them out.")
    if not (is_loopback(host) or keys or no_keys):
        raise UsageError(
            f"others reach {host}, and everybody could draw",
            hint="Name a file of keys with --api-keys FILE, one a line. --no-keys lets everybody in.",
        )


def own_names(host: str, more: Sequence[str]) -> frozenset[str]:
    """The names by which a server is asked for that only this machine reaches."""
    return frozenset({"localhost", "127.0.0.1", "::1", host.strip("[]").lower(), *(name.lower() for name in more)})
