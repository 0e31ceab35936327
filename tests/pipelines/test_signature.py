"""Signatures: an optional package, without which they are refused; with it, what was signed is verified by its key."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from sdort.errors import BadModelError, UsageError
from sdort.pipelines.signature import PACKAGES, make_signer, verify_signature

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


def test_what_was_signed_is_verified_here_and_by_the_package(tmp_path: Path) -> None:
    pytest.importorskip("model_signing")
    ec = pytest.importorskip("cryptography.hazmat.primitives.asymmetric.ec")
    serialization = pytest.importorskip("cryptography.hazmat.primitives.serialization")
    pem = serialization.Encoding.PEM
    for name in ("author", "other"):
        key = ec.generate_private_key(ec.SECP256R1())
        private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        (tmp_path / f"{name}.pem").write_bytes(private)
        public = key.public_key().public_bytes(pem, serialization.PublicFormat.SubjectPublicKeyInfo)
        (tmp_path / f"{name}.pub").write_bytes(public)
    folder, model, public_key = tmp_path / "out", tmp_path / "out" / "unet" / "model.onnx", tmp_path / "author.pub"
    model.parent.mkdir(parents=True)
    model.write_text("graph")
    signer = make_signer(tmp_path / "author.pem", None)
    assert signer
    signer.sign(folder, "fast")
    assert verify_signature(folder, public_key).signature == folder / "model.sig"
    options = ["--public_key", str(public_key), "--signature", str(folder / "model.sig"), str(folder)]
    subprocess.run([sys.executable, "-m", "model_signing", "verify", "key", *options], check=True)
    with pytest.raises(BadModelError, match="is not what the holder of"):
        verify_signature(folder, tmp_path / "other.pub")
    with pytest.raises(UsageError, match="cannot verify"):
        verify_signature(folder, tmp_path / "author.pem")
    (folder / "added").touch()
    with pytest.raises(BadModelError, match="Extra files found in model 'out': added"):
        verify_signature(folder, public_key)
    (folder / "added").unlink()
    model.write_text("other")
    with pytest.raises(BadModelError, match=r"Hash mismatch for 'unet/model\.onnx'"):
        verify_signature(folder, public_key)
    (folder / "model.sig").write_text("{}")
    with pytest.raises(BadModelError, match="is not what the holder of"):
        verify_signature(folder, public_key)
