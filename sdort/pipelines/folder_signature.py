"""Signatures of output folders, in the format of sigstore's model-signing: who made a folder, by a key.

Keys and certificates are files in PEM; nothing asks a network. The package's own command line verifies what sdort
signed, and the other way round.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sdort.console import document
from sdort.errors import BadModelError, UsageError
from sdort.files.input_file import read_input
from sdort.machine.distributions import pip
from sdort.options.option_types import typed
from sdort.pipelines.manifest import SIGNATURE, is_plain, places_in

PACKAGES = ("model-signing>=1.1", "pyopenssl>=24")
"""Requirements of the extra ``sign`` in pyproject.toml. The first imports the second and does not ask for it."""

_PEM_LIMIT = 2**20
_SIGNATURE_LIMIT = 16 * 2**20


@document("signature", 1)
@dataclass(frozen=True)
class SignatureCheck:
    """A signature that holds."""

    folder: Path
    """The folder that is signed, with every file in it."""
    signature: Path
    """The signature's file."""
    trusted: Path
    """The public key, or the certificates, that it was made for."""


class Signer:
    """Signs folders with a private key.

    Args:
        key: an elliptic-curve private key in PEM, without a password.
        certificate: certificates in PEM, the key's first and then those that lead to a root; None for a bare key.

    Raises:
        UsageError: the package model-signing is not installed, or a file is no such key or certificate.
    """

    def __init__(self, key: Path, certificate: Path | None = None) -> None:
        _require_package("--sign")
        from model_signing import signing

        for path in filter(None, (key, certificate)):
            _read_pem(path)
        self._config = signing.Config()
        with _unusable(f"{key} cannot sign"):
            if certificate:
                self._config.use_certificate_signer(
                    private_key=key, signing_certificate=certificate, certificate_chain=[certificate]
                )
            else:
                self._config.use_elliptic_key_signer(private_key=key)

    def sign(self, folder: Path, name: str) -> None:
        """Sign all files of a folder, and write ``model.sig`` beside them.

        Args:
            name: the folder's name from now on, which the signature tells.
        """
        target = folder / SIGNATURE
        everything = _everything_else()
        plain = everything.hash

        def hash_named(*arguments: Any, **options: Any) -> Any:
            manifest = plain(*arguments, **options)
            manifest._name = name  # for people only; it would be that of the hidden folder
            return manifest

        everything.hash = hash_named
        self._config.set_hashing_config(everything).sign(folder, target)


def make_signer(key: str | Path | None, certificate: str | Path | None) -> Signer | None:
    """The signer with a key, None without one.

    Raises:
        UsageError: as :class:`Signer`; or there is a certificate and no key.
    """
    if key is None and certificate is not None:
        raise UsageError("--certificate needs --sign")
    return Signer(Path(key), Path(certificate) if certificate else None) if key is not None else None


@typed
def verify_signature(folder: str | Path, trusted: str | Path) -> SignatureCheck:
    """Verify that a folder is what the holder of a key signed: every file, none missing, none added.

    What a signature leaves out, as the package's command line allows, is as unsigned as a file that was added.

    Args:
        folder: the folder, with its ``model.sig``.
        trusted: a public key in PEM; or certificates in PEM that the signer's leads to.

    Raises:
        UsageError: the package model-signing is not installed, or ``trusted`` is no key and no certificate.
        BadModelError: there is no signature, it does not hold, or the folder holds links or what is no file.

    Example:
        >>> sdort.verify_signature("fast", "author.pub").signature
        PosixPath('fast/model.sig')
    """
    _require_package("--signature")
    from model_signing import verifying

    folder, trusted = Path(folder), Path(trusted)
    signature = folder / SIGNATURE
    config = verifying.Config()
    with _unusable(f"{trusted} cannot verify"):
        if b"CERTIFICATE" in _read_pem(trusted):
            config.use_certificate_verifier(certificate_chain=[trusted])
        else:
            config.use_elliptic_key_verifier(public_key=trusted)
    hint = "It was never signed, or its signature is gone."
    read_input(signature, "the signature", limit=_SIGNATURE_LIMIT, links=False, hint=hint)
    _refuse_no_files(folder)
    try:
        config.set_hashing_config(_everything_else()).verify(folder, signature)
    except Exception as error:  # the package's own, cryptography's, and those of parsers
        raise BadModelError(
            f"{folder} is not what the holder of {trusted} signed: {_reason(error)}",
            hint="Take it from its author again, and the key from another place than the folder.",
        ) from error
    return SignatureCheck(folder, signature, trusted)


def _everything_else() -> Any:
    """How the package hashes a folder: all but the signature, whatever that says may be left out."""
    from model_signing import hashing

    everything = hashing.Config().set_ignored_paths(paths=[SIGNATURE], ignore_git_paths=False)
    everything.add_ignored_paths = lambda **_: None  # what verifying calls with the signature's own exclusions
    return everything


def _refuse_no_files(folder: Path) -> None:
    """The package hashes what names lead to; a signature is of what lies in the folder."""
    for place in sorted(places_in(folder)):
        if not is_plain(folder / place):
            raise BadModelError(
                f"{folder / place} is a link or no regular file, which no signature covers",
                hint="Take the folder from its author again, as the files themselves.",
            )


def _reason(error: Exception) -> str:
    """The package's message in a line; of a file's hashes only that they differ."""
    text = " ".join(str(error).split()).replace("\\'", "'") or type(error).__name__
    first = text.removeprefix("Signature mismatch: ").split(": Expected ")[0]
    return first.removeprefix("['").removeprefix('["').removesuffix("']").removesuffix('"]')[:300]


def _require_package(option: str) -> None:
    missing = [name for name in ("model_signing", "OpenSSL") if importlib.util.find_spec(name) is None]
    if missing:
        raise UsageError(
            f"{option} needs the package model-signing, which is not installed",
            hint=f"Install it:\n{pip('install', *PACKAGES)}",
        )


def _read_pem(path: Path) -> bytes:
    try:
        content = read_input(path, limit=_PEM_LIMIT)
    except BadModelError as error:
        raise UsageError(error.message) from error
    if b"-----BEGIN " not in content:
        raise UsageError(f"{path} is no PEM file", hint="A key: openssl ecparam -name prime256v1 -genkey -noout")
    return content


@contextmanager
def _unusable(what: str) -> Iterator[None]:
    """A block in which a library takes a key or certificate."""
    try:
        yield
    except UsageError:
        raise
    except Exception as error:  # cryptography's errors share no base
        known: Any = "it has a password" if "assword" in str(error) else error
        raise UsageError(
            f"{what}: {known}", hint="Keys are of elliptic curves (P-256, P-384, P-521), in PEM, without a password."
        ) from error
