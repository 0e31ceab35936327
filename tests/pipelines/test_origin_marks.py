"""The mark of a model: what changes it, what does not, and what is no model's own."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from sdort.pipelines.origin import has_mark, origin_mark

FILES = {
    "model_index.json": b'{"_class_name": "X"}',
    "unet/model.onnx": b"graph",
    "unet/model.onnx.data": bytes(range(256)) * 300,
    "unet/a.onnx_data": b"1",
    "vae/b.safetensors": b"2",
    "vae/c.bin": b"3",
    "d.pb": b"4",
}


def make(folder: Path, listed: bool = False) -> Path:
    for place, content in FILES.items():
        (folder / place).parent.mkdir(parents=True, exist_ok=True)
        (folder / place).write_bytes(content)
    if listed:
        manifest = {"files": {"b": {"bytes": 1, "xxh128": "0" * 32}, "a": {"bytes": 2, "xxh128": "1" * 32}}}
        (folder / "sdort.json").write_text(json.dumps(manifest))
    return folder


def replaced(place: str, content: bytes) -> Callable[[Path], object]:
    return lambda folder: (folder / place).write_bytes(content)


def changed_at(index: int) -> Callable[[Path], object]:
    content = bytearray(FILES["unet/model.onnx.data"])
    content[index] ^= 1
    return replaced("unet/model.onnx.data", bytes(content))


CHANGES: dict[str, Callable[[Path], object]] = {
    **{f"a byte of {place}": replaced(place, b"x" * len(content)) for place, content in FILES.items()},
    **{f"the size of {place}": replaced(place, content + b"x") for place, content in FILES.items()},
    "the first byte": changed_at(0),
    "the last byte": changed_at(-1),
    "no index": lambda folder: (folder / "model_index.json").unlink(),
    "a file less": lambda folder: (folder / "vae" / "c.bin").unlink(),
    "a file more": lambda folder: (folder / "vae" / "more.bin").touch(),
    "another name": lambda folder: (folder / "vae" / "c.bin").rename(folder / "vae" / "d.bin"),
    "another folder": lambda folder: (folder / "vae" / "c.bin").rename(folder / "unet" / "c.bin"),
    "two exchanged": lambda folder: [
        replaced("unet/a.onnx_data", b"2")(folder), replaced("vae/b.safetensors", b"1")(folder),
    ],
}  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
def test_what_makes_another_model(tmp_path: Path, change: str) -> None:
    mark = origin_mark(make(tmp_path))
    assert has_mark(tmp_path, mark)
    CHANGES[change](tmp_path)
    assert not has_mark(tmp_path, mark)


def linked(folder: Path) -> None:
    (folder / "vae" / "link.bin").symlink_to("/etc/passwd")
    (folder / "outside").symlink_to("/etc")


def hidden(folder: Path) -> None:
    (folder / ".git").mkdir()
    (folder / ".git" / "x.bin").touch()
    (folder / ".a.bin").touch()


def deeper(folder: Path) -> None:
    (folder / "unet" / "old").mkdir()
    (folder / "unet" / "old" / "x.bin").touch()


SAME: dict[str, Callable[[Path], object]] = {
    "other files": replaced("README.md", b"x"),
    "a config": replaced("unet/config.json", b"{}"),
    "hidden": hidden,
    "deeper": deeper,
    "a pipe": lambda folder: os.mkfifo(folder / "vae" / "pipe.bin"),
    "a folder of that name": lambda folder: (folder / "x.safetensors").mkdir(),
    "links that lead out": linked,
}


@pytest.mark.parametrize("change", SAME)
def test_what_stays_the_same_model(tmp_path: Path, change: str) -> None:
    mark = origin_mark(make(tmp_path / "model"))
    SAME[change](tmp_path / "model")
    assert has_mark(tmp_path / "model", mark)
    assert origin_mark(tmp_path / "model") == mark


def test_a_list_stands_for_the_files(tmp_path: Path) -> None:
    folder = make(tmp_path, listed=True)
    mark = origin_mark(folder)
    assert mark["weights"] is None
    (folder / "unet" / "model.onnx").write_bytes(b"other")  # which the list's hash would tell
    assert has_mark(folder, mark)
    manifest = json.loads((folder / "sdort.json").read_text())
    manifest["files"] = dict(reversed(manifest["files"].items()))
    (folder / "sdort.json").write_text(json.dumps({**manifest, "source": "elsewhere"}))
    assert has_mark(folder, mark)
    assert not has_mark(folder, {**mark, "weights": "x"})
    assert not has_mark(folder, {**mark, "description": "x"})
    assert not has_mark(folder, {})
    manifest["files"]["a"]["bytes"] = 3
    (folder / "sdort.json").write_text(json.dumps(manifest))
    assert not has_mark(folder, mark)


def test_without_a_list_the_weights_are_looked_at(tmp_path: Path) -> None:
    mark = origin_mark(make(tmp_path))
    assert None not in mark.values()
    assert not has_mark(tmp_path, {**mark, "weights": None})
    assert not has_mark(tmp_path / "nowhere", mark)
    (tmp_path / "sdort.json").write_text('{"source": "x"}')  # of an older sdort, without a list
    assert has_mark(tmp_path, mark)
    (tmp_path / "sdort.json").write_text("{")
    assert has_mark(tmp_path, mark)
