"""What a command reads of a pipeline is what sdort wrote, or the command ends with the name of the file."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import sdort.onnx_io.hashing
import sdort.pipelines.content_check
import sdort.pipelines.remembered_hashes
from sdort.errors import BadModelError, OutputError, ParityError
from sdort.files.user_folders import models_folder
from sdort.files.verified_cache import key_of
from sdort.pipelines.content_check import checked
from sdort.pipelines.manifest import write_listed_files

DATA = "unet/model.onnx.data"


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Weights of a megabyte are large, files on disk are settled at once, and nothing is remembered from elsewhere."""
    monkeypatch.setattr(sdort.pipelines.content_check, "SMALL", 2**16)
    monkeypatch.setattr(sdort.pipelines.remembered_hashes, "SETTLED_NS", 0)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    out = tmp_path / "out"
    files = {
        "model_index.json": b"{}",
        "scheduler/scheduler_config.json": b"{}",
        "tokenizer/vocab.json": b"{}",
        "text_encoder/model.onnx": b"graph",
        "unet/config.json": b"{}",
        "unet/model.onnx": b"graph",
        DATA: bytes(2**20),
    }
    for place, content in files.items():
        (out / place).parent.mkdir(parents=True, exist_ok=True)
        (out / place).write_bytes(content)
    write_listed_files(out, {}, {})
    return out


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of what is hashed."""
    sizes: list[int] = []
    real = sdort.onnx_io.hashing.hash_open

    def hash_open(descriptor: int, *rest: Any) -> str:
        sizes.append(os.fstat(descriptor).st_size)
        return real(descriptor, *rest)

    monkeypatch.setattr(sdort.onnx_io.hashing, "hash_open", hash_open)
    return sizes


def read(path: Path, *, check: bool = True) -> None:
    with checked(path, check) as content:
        content.reads([path / "unet" / "model.onnx"] if path.is_dir() else [path])


def flip(path: Path) -> None:
    """One bit, in the middle."""
    with open(path, "r+b") as file:
        file.seek(path.stat().st_size // 2)
        byte = file.read(1)[0]
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ 0x80]))


def test_weights_are_hashed_once(folder: Path, hashed: list[int]) -> None:
    read(folder)
    assert hashed.count(2**20) == 1
    read(folder)
    read(folder / "unet" / "model.onnx")
    assert hashed.count(2**20) == 2  # a path of its own is remembered on its own
    read(folder / "unet" / "model.onnx")
    assert hashed.count(2**20) == 2
    os.utime(folder / DATA)
    read(folder)
    assert hashed.count(2**20) == 3


def test_what_is_remembered_of_a_folder_that_is_gone_goes(folder: Path, tmp_path: Path) -> None:
    read(folder)
    notes = tmp_path / "cache" / "sdort" / "checked" / "files-notes.json"
    notes.write_text("mine")
    folder.rename(tmp_path / "moved")
    read(tmp_path / "moved")
    kept = {key_of(path)["folder"] for path in notes.parent.iterdir() if path != notes}  # type: ignore[index]
    assert kept == {str(tmp_path / "moved")}
    assert notes.exists()


def test_weights_that_nobody_reads_are_not_hashed(folder: Path, hashed: list[int]) -> None:
    with checked(folder) as content:
        content.reads([folder / "text_encoder" / "model.onnx"])
    assert 2**20 not in hashed


def test_a_file_that_was_written_just_now_is_not_remembered(
    folder: Path, hashed: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sdort.pipelines.remembered_hashes, "SETTLED_NS", 10**18)
    read(folder)
    read(folder)
    assert hashed.count(2**20) == 2


def _unlisted(path: Path) -> Callable[[Path], None]:
    def change(out: Path) -> None:
        (out / path).parent.mkdir(exist_ok=True)
        (out / path).write_text("{}")

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda out: flip(out / DATA), f"{DATA} was changed or damaged"),
        (lambda out: flip(out / "unet" / "model.onnx"), "unet/model.onnx was changed or damaged"),
        (lambda out: flip(out / "tokenizer" / "vocab.json"), "tokenizer/vocab.json was changed or damaged"),
        (lambda out: os.truncate(out / DATA, 100), f"{DATA} has 100 bytes, and sdort wrote 1,048,576"),
        (lambda out: (out / "unet" / "config.json").unlink(), "unet/config.json is missing"),
        (lambda out: (out / DATA).unlink(), f"{DATA} is missing"),
        (_unlisted(Path("tokenizer/added_tokens.json")), "tokenizer/added_tokens.json is not on .*'s list"),
        (_unlisted(Path("vae_decoder/config.json")), "vae_decoder/config.json is not on .*'s list"),
    ],
)
def test_another_file_than_sdort_wrote_is_named(folder: Path, change: Callable[[Path], None], message: str) -> None:
    change(folder)
    with pytest.raises(BadModelError, match=message) as caught:
        read(folder)
    assert "--no-check" in str(caught.value.hint)
    read(folder, check=False)


def test_a_model_that_is_not_listed_is_not_read(folder: Path) -> None:
    (folder / "unet" / "other.onnx").touch()
    read(folder)  # it is not asked for
    with pytest.raises(BadModelError, match=r"other\.onnx is not on"), checked(folder) as content:
        content.reads([folder / "unet" / "other.onnx"])


def test_a_component_of_which_nothing_is_there_is_told(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "text_encoder" / "model.onnx").unlink()
    (folder / "text_encoder").rmdir()
    read(folder)
    assert "lists text_encoder, of which nothing is there" in capsys.readouterr().err


def test_one_model_is_compared_by_its_pipelines_manifest(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flip(folder / "tokenizer" / "vocab.json")  # no part of it
    monkeypatch.chdir(folder / "unet")
    read(Path("model.onnx"))
    flip(folder / DATA)
    for path in (Path("model.onnx"), folder / "unet" / "model.onnx", Path("..") / "unet"):
        with pytest.raises(BadModelError, match=r"model.onnx.data was changed or damaged"), checked(path) as content:
            content.reads([path if path.suffix else path / "model.onnx"])


def test_of_a_model_that_was_made_on_first_use_the_cache_is_named(folder: Path) -> None:
    kept = models_folder() / "model-0"
    kept.mkdir(parents=True)
    folder.rename(kept / "model")
    flip(kept / "model" / DATA)
    with pytest.raises(BadModelError) as caught:
        read(kept / "model")
    assert caught.value.hint == f"It is in sdort's cache. Remove it, and the next use makes it anew:\n    rm -r {kept}"


def fail(folder: Path, error: BaseException) -> None:
    with checked(folder) as content:
        content.reads([folder / "unet" / "model.onnx"])
        raise error


def test_damage_explains_other_errors_and_not_the_users(folder: Path) -> None:
    flip(folder / DATA)
    for error, raised in ((ParityError("NaN"), BadModelError), (OutputError("disk full"), OutputError)):
        with pytest.raises(raised):
            fail(folder, error)


@pytest.mark.parametrize("manifest", [None, "{}", '{"source": "demo"}'])
def test_without_a_list_nothing_is_compared(folder: Path, manifest: str | None, hashed: list[int]) -> None:
    flip(folder / DATA)
    (folder / "sdort.json").unlink()
    if manifest:
        (folder / "sdort.json").write_text(manifest)
    read(folder)
    assert hashed == []


def test_an_interrupt_ends_the_thread_at_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = threading.Event()

    def slow(descriptor: int, goes_on: Callable[[], bool]) -> str:
        begun.set()
        while goes_on():
            pass
        return ""

    def interrupted() -> None:
        with checked(folder) as content:
            monkeypatch.setattr(sdort.onnx_io.hashing, "hash_open", slow)
            content.reads([folder / "unet" / "model.onnx"])
            assert begun.wait(60)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert not any(thread.name.startswith("sdort-check") for thread in threading.enumerate())
    assert not (folder.parent / "cache").exists()  # what was not compared is not remembered
