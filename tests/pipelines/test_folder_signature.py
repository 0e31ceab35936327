"""Signatures: an optional package, without which they are refused; with it, what was signed is verified by its key."""

from __future__ import annotations

import datetime
import importlib.util
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.serialization import Encoding
from model_signing import _cli as model_signing_cli

from sdort.errors import BadModelError, UsageError
from sdort.pipelines.folder_signature import PACKAGES, make_signer, verify_signature

ROOT = Path(__file__).resolve().parents[2]


def test_a_missing_package_is_named_with_the_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    for call in (lambda: make_signer(tmp_path / "key.pem", None), lambda: verify_signature(tmp_path, tmp_path)):
        with pytest.raises(UsageError, match="needs the package model-signing, which is not installed") as caught:
            call()
        assert all(package in str(caught.value.hint) for package in PACKAGES)
    assert make_signer(None, None) is None
    with pytest.raises(UsageError, match="--certificate needs --sign"):
        make_signer(None, tmp_path / "c.pem")


def test_the_extra_asks_for_the_packages() -> None:
    listed = ", ".join(f'"{package}"' for package in PACKAGES)
    assert f"\nsign = [{listed}]" in (ROOT / "pyproject.toml").read_text()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """What is signed: a model, and a file whose name git uses."""
    out = tmp_path / "out"
    for place in ("unet/model.onnx", ".gitattributes"):
        (out / place).parent.mkdir(parents=True, exist_ok=True)
        (out / place).write_text("graph")
    return out


def write_key(folder: Path, name: str) -> EllipticCurvePrivateKey:
    """A key as ``NAME.pem`` and its public half as ``NAME.pub``."""
    key = ec.generate_private_key(ec.SECP256R1())
    private = key.private_bytes(Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    (folder / f"{name}.pem").write_bytes(private)
    public = key.public_key().public_bytes(Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    (folder / f"{name}.pub").write_bytes(public)
    return key


def sign(folder: Path, certificate: Path | None = None) -> Path:
    """Sign with a new key ``author.pem``, or the one there is; its public half."""
    author = folder.with_name("author.pub")
    if not author.exists():
        write_key(folder.parent, "author")
    signer = make_signer(author.with_suffix(".pem"), certificate)
    assert signer
    signer.sign(folder, "fast")
    return author


def package(*arguments: object) -> int:
    """The exit code of the package's own command line."""
    return CliRunner().invoke(model_signing_cli.main, [str(argument) for argument in arguments]).exit_code


def refused(folder: Path, trusted: Path, message: str) -> None:
    with pytest.raises(BadModelError, match=message):
        verify_signature(folder, trusted)


def test_what_was_signed_is_verified_here_and_by_the_package(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    author = sign(folder)
    assert verify_signature(folder, author).signature == folder / "model.sig"
    monkeypatch.chdir(folder.parent)  # the package takes what it leaves out below the folder
    assert verify_signature(folder.name, author.name).signature == Path("out/model.sig")
    verify = ("verify", "key", "--public_key", author, "--signature", folder / "model.sig", "--no-ignore-git-paths")
    assert package(*verify, folder) == 0
    write_key(folder.parent, "other")
    refused(folder, folder.with_name("other.pub"), "is not what the holder of")
    with pytest.raises(UsageError, match="cannot verify"):
        verify_signature(folder, folder.with_name("author.pem"))
    for name in ("added", ".gitignore"):
        (folder / name).touch()
        refused(folder, author, f"Extra files found in model 'out': {name}")
        (folder / name).unlink()
    (folder / "unet" / "model.onnx").write_text("other")
    refused(folder, author, r"Hash mismatch for 'unet/model\.onnx'")
    (folder / "unet" / "model.onnx").unlink()
    refused(folder, author, r"Missing files in model 'out': unet/model\.onnx")
    (folder / "model.sig").write_text("{}")
    refused(folder, author, "is not what the holder of")


def test_what_the_package_signed_is_verified_and_what_it_left_out_is_not_signed(folder: Path) -> None:
    write_key(folder.parent, "author")
    command = ("sign", "key", "--private_key", folder.with_name("author.pem"), "--signature", folder / "model.sig")
    author = folder.with_name("author.pub")
    assert package(*command, "--no-ignore-git-paths", folder) == 0
    verify_signature(folder, author)
    assert package(*command, folder) == 0
    refused(folder, author, "Extra files found in model 'out': .gitattributes")
    for left_out in ("unet", "unet/model.onnx", "."):
        assert package(*command, "--no-ignore-git-paths", "--ignore-paths", folder / left_out, folder) == 0
        refused(folder, author, "Extra files found in model 'out': .*unet/model.onnx")


def _model_as_link(folder: Path) -> None:
    (folder / "unet" / "model.onnx").rename(folder.parent / "elsewhere")
    (folder / "unet" / "model.onnx").symlink_to(folder.parent / "elsewhere")


def _folder_as_link(folder: Path) -> None:
    (folder / "unet").rename(folder.parent / "elsewhere")
    (folder / "unet").symlink_to(folder.parent / "elsewhere")


def _added_pipe(folder: Path) -> None:
    os.mkfifo(folder / "unet" / "pipe")


def _signature_as_link(folder: Path) -> None:
    (folder / "model.sig").rename(folder.parent / "elsewhere")
    (folder / "model.sig").symlink_to(folder.parent / "elsewhere")


def _signature_as_pipe(folder: Path) -> None:
    (folder / "model.sig").unlink()
    os.mkfifo(folder / "model.sig")


def _huge_signature(folder: Path) -> None:
    os.truncate(folder / "model.sig", 2**40)


def _no_signature(folder: Path) -> None:
    (folder / "model.sig").unlink()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_model_as_link, r"unet/model\.onnx is a link or no regular file, which no signature covers"),
        (_folder_as_link, "out/unet is a link or no regular file"),
        (_added_pipe, "unet/pipe is a link or no regular file"),
        (_signature_as_link, r"cannot read the signature .*model\.sig: it is a symbolic link"),
        (_signature_as_pipe, r"the signature .*model\.sig is a named pipe"),
        (_huge_signature, r"model\.sig has .*, and such a file has at most"),
        (_no_signature, r"cannot read the signature .*model\.sig: No such file"),
    ],
)
def test_only_files_are_signed_and_the_signature_is_one(
    folder: Path, change: Callable[[Path], None], message: str
) -> None:
    author = sign(folder)
    change(folder)
    refused(folder, author, message)


def certificate(name: str, key: Any, issuer: str, by: Any, *, is_root: bool = False) -> bytes:
    """A certificate of a test's own, in PEM: a root, or of a key that signs."""
    names = [x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, text)]) for text in (name, issuer)]
    now = datetime.datetime.now(datetime.timezone.utc)
    usage = dict.fromkeys(
        ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement", "crl_sign"), False
    )
    builder = x509.CertificateBuilder().subject_name(names[0]).issuer_name(names[1]).public_key(key.public_key())
    builder = builder.serial_number(x509.random_serial_number())
    builder = builder.not_valid_before(now).not_valid_after(now + datetime.timedelta(days=1))
    builder = builder.add_extension(x509.BasicConstraints(is_root, None), critical=True)
    allowed = x509.KeyUsage(
        digital_signature=not is_root, key_cert_sign=is_root, encipher_only=False, decipher_only=False, **usage
    )
    return builder.add_extension(allowed, critical=True).sign(by, hashes.SHA256()).public_bytes(Encoding.PEM)


def test_a_certificate_that_leads_to_the_trusted_root(folder: Path) -> None:
    keys = {name: write_key(folder.parent, name) for name in ("root", "author", "other")}
    chain, root, other = (folder.with_name(f"{name}.crt") for name in ("author", "root", "other"))
    chain.write_bytes(certificate("author", keys["author"], "root", keys["root"]))
    root.write_bytes(certificate("root", keys["root"], "root", keys["root"], is_root=True))
    other.write_bytes(certificate("other", keys["other"], "other", keys["other"], is_root=True))
    sign(folder, chain)
    verify_signature(folder, root)
    refused(folder, other, "is not what the holder of .*other.crt signed: ")
    (folder / "unet" / "model.onnx").write_text("other")
    refused(folder, root, "Hash mismatch")
    with pytest.raises(UsageError, match="cannot sign: The public key from the certificate does not match"):
        make_signer(folder.with_name("other.pem"), chain)
    chain.write_bytes(certificate("author", keys["author"], "root", keys["other"]))  # the root never signed this one
    sign(folder, chain)
    refused(folder, root, "is not what the holder of")
