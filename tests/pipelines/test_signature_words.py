"""What is said of a signature, of its key and of the package, with made-up errors in the place of the package's."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sdort.errors import BadModelError, UsageError
from sdort.pipelines import folder_signature
from sdort.pipelines.folder_signature import (
    PACKAGES,
    _read_pem,
    _reason,
    _refuse_no_files,
    _require_package,
    _unusable,
    make_signer,
    verify_signature,
)

PEM = b"x\n-----BEGIN EC PRIVATE KEY-----\n"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Signature mismatch: [\"Hash mismatch for 'a': Expected '1', Actual '2'\"]", "Hash mismatch for 'a'"),
        ("Signature mismatch: ['Extra files found in model: b']", "Extra files found in model: b"),
        ("Signature mismatch: [\"one\",\n   'two']", "one\", 'two"),
        ("it\\'s\n\tgone", "it's gone"),
        ("plain: Expected more", "plain"),
        ("Expected at the begin", "Expected at the begin"),
        ("", "KeyError"),
        ("x" * 400, "x" * 300),
    ],
)
def test_the_packages_error_in_a_line(text: str, words: str) -> None:
    class Named(KeyError):
        __str__ = Exception.__str__

    Named.__name__ = "KeyError"
    assert _reason(Named(text)) == words


@pytest.mark.parametrize("missing", [(), ("model_signing",), ("OpenSSL",), ("model_signing", "OpenSSL")])
@pytest.mark.parametrize("option", ["--sign", "--signature"])
def test_both_packages_are_needed(missing: tuple[str, ...], option: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name in missing else "found")
    if not missing:
        _require_package(option)
        return
    with pytest.raises(UsageError, match=f"{option} needs the package model-signing, which is not") as caught:
        _require_package(option)
    hint = str(caught.value.hint)
    assert hint.startswith("Install it:\n")
    assert "install" in hint.partition("\n")[2]
    assert all(package in hint for package in PACKAGES)


def test_a_key_is_a_small_file_in_pem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder_signature, "_PEM_LIMIT", 100)
    path = tmp_path / "key.pem"
    path.write_bytes(PEM)
    assert _read_pem(path) == PEM
    for content, words in (
        (b"-----BEGIN", "is no PEM file"),
        (b"\x30\x77", "is no PEM file"),
        (PEM + b"x" * 99, "100"),
    ):
        path.write_bytes(content)
        with pytest.raises(UsageError, match=words):
            _read_pem(path)
    path.unlink()
    with pytest.raises(UsageError, match="No such file"):
        _read_pem(path)


class Config:
    """Of the package: notes what it is told, and takes no key that is called ``bad``."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def __getattr__(self, name: str) -> Any:
        def note(**given: Any) -> Config:
            if Path("bad") in given.values():
                raise ValueError("no curve")
            self.calls.append((name, given))
            return self

        return note


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch) -> list[Config]:
    """The configs that are made of the package's in its place."""
    made: list[Config] = []

    def make() -> Config:
        made.append(Config())
        return made[-1]

    part = SimpleNamespace(Config=make)
    whole = SimpleNamespace(signing=part, verifying=part, hashing=part)
    monkeypatch.setattr(folder_signature, "_require_package", lambda option: None)
    monkeypatch.setitem(sys.modules, "model_signing", whole)
    return made


@pytest.mark.parametrize("kind", [str, Path])
def test_a_signer_has_a_key_and_perhaps_its_certificate(
    kind: type, package: list[Config], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("key", "certificate", "bad"):
        Path(name).write_bytes(PEM)
    key, certificate = Path("key"), Path("certificate")
    make_signer(kind("key"), None)
    make_signer(kind("key"), kind("certificate"))
    assert [config.calls for config in package] == [
        [("use_elliptic_key_signer", {"private_key": key})],
        [("use_certificate_signer",
          {"private_key": key, "signing_certificate": certificate, "certificate_chain": [certificate]})],
    ]  # fmt: skip
    with pytest.raises(UsageError, match="bad cannot sign: no curve") as caught:
        make_signer("bad", None)
    assert "elliptic curves" in str(caught.value.hint)
    certificate.write_bytes(b"none")
    with pytest.raises(UsageError, match="certificate is no PEM file"):
        make_signer("key", "certificate")
    key.write_bytes(b"none")
    with pytest.raises(UsageError, match="key is no PEM file"):
        make_signer("key", None)


@pytest.mark.parametrize("is_certificate", [False, True])
def test_a_key_or_certificates_verify(
    is_certificate: bool, package: list[Config], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("p").mkdir()
    trusted = Path("trusted")
    trusted.write_bytes(b"-----BEGIN CERTIFICATE-----" if is_certificate else b"-----BEGIN PUBLIC KEY-----")
    with pytest.raises(BadModelError) as caught:
        verify_signature("p", "trusted")
    assert caught.value.hint == "It was never signed, or its signature is gone."
    Path("p/model.sig").touch()
    config: Any = package[0]
    config.set_hashing_config = lambda hashing: SimpleNamespace(
        verify=lambda *given: config.calls.append((hashing, *given)))  # fmt: skip
    package.clear()
    monkeypatch.setattr(sys.modules["model_signing"], "verifying", SimpleNamespace(Config=lambda: config))
    config.calls.clear()
    found = verify_signature("p", "trusted")
    assert (found.folder, found.signature, found.trusted) == (Path("p"), Path("p/model.sig"), trusted)
    use = (
        ("use_certificate_verifier", {"certificate_chain": [trusted]})
        if is_certificate
        else ("use_elliptic_key_verifier", {"public_key": trusted})
    )
    (everything,) = package
    assert config.calls == [use, (everything, Path("p"), Path("p/model.sig"))]
    everything.add_ignored_paths(paths=["what a signature says"])
    assert everything.calls == [("set_ignored_paths", {"paths": ["model.sig"], "ignore_git_paths": False})]


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (TypeError("Password was not given but private key is encrypted"), "K cannot sign: it has a password"),
        (TypeError("a password is wanted"), "K cannot sign: it has a password"),
        (ValueError("no curve"), "K cannot sign: no curve"),
    ],
    ids=repr,
)
def test_a_key_that_cannot_be_used(error: Exception, words: str) -> None:
    with pytest.raises(UsageError) as caught, _unusable("K cannot sign"):
        raise error
    assert caught.value.message == words
    assert caught.value.__cause__ is error
    own = UsageError("mine")
    with pytest.raises(UsageError) as caught, _unusable("K cannot sign"):
        raise own
    assert caught.value is own


def test_a_signature_covers_regular_files_alone(tmp_path: Path) -> None:
    folder = tmp_path / "p"
    (folder / "unet").mkdir(parents=True)
    (folder / "unet" / "a").touch()
    _refuse_no_files(folder)
    makers: dict[str, Any] = {
        "link": lambda path: path.symlink_to("a"), "folder": lambda path: path.symlink_to(tmp_path),
        "pipe": os.mkfifo, "broken": lambda path: path.symlink_to("gone"),
    }  # fmt: skip
    for name, made in makers.items():
        path = folder / "unet" / name
        made(path)
        with pytest.raises(BadModelError, match=f"{path} is a link or no regular file"):
            _refuse_no_files(folder)
        path.unlink()
