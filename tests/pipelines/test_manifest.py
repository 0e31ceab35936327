"""sdort.json's list: what in a folder is sdort's own, and so may be replaced."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import xxhash

from sdort.errors import BadModelError, OutputError
from sdort.files.staging import staged_directory
from sdort.pipelines.manifest import listed_files, why_foreign, write_listed_files


def made(folder: Path, known: str | None = None) -> Path:
    """A folder as sdort writes it, with the list of its files; ``known`` is the graph's hash, by somebody's account."""
    for place in ("unet/model.onnx", "unet/model.onnx.data", "tokenizer/vocab.json", "model_index.json"):
        (folder / place).parent.mkdir(parents=True, exist_ok=True)
        (folder / place).write_text(place)
    write_listed_files(folder, {"source": "demo"}, {folder / "unet" / "model.onnx": known} if known else {})
    return folder


def replace(out: Path) -> None:
    with staged_directory(out, True, why_foreign=why_foreign) as stage:
        (stage / "new").touch()


def test_all_files_are_listed_and_a_known_hash_is_not_computed_again(tmp_path: Path) -> None:
    listed = listed_files(made(tmp_path, "0" * 32))
    assert listed is not None
    assert set(listed) == {"unet/model.onnx", "unet/model.onnx.data", "tokenizer/vocab.json", "model_index.json"}
    assert (listed["unet/model.onnx"].bytes, listed["unet/model.onnx"].xxh128) == (15, "0" * 32)
    assert listed["model_index.json"].xxh128 == xxhash.xxh3_128_hexdigest(b"model_index.json")


def _nothing(out: Path) -> None: ...


def _part_of_it(out: Path) -> None:
    (out / "unet" / "model.onnx").unlink()
    (out / "empty" / "folders").mkdir(parents=True)


def _signed(out: Path) -> None:
    (out / "model.sig").touch()


@pytest.mark.parametrize("change", [_nothing, _part_of_it, _signed])
def test_what_sdort_wrote_is_replaced(tmp_path: Path, change: Callable[[Path], None]) -> None:
    change(made(tmp_path / "out"))
    replace(tmp_path / "out")
    assert os.listdir(tmp_path / "out") == ["new"]


def _thesis(out: Path) -> None:
    for number in range(5):
        (out / f"thesis{number}.txt").touch()


def _hidden(out: Path) -> None:
    (out / "unet" / ".notes").touch()


def _link_in_place_of_a_file(out: Path) -> None:
    (out / "model_index.json").unlink()
    (out / "model_index.json").symlink_to("/etc/passwd")


def _link_to_a_folder(out: Path) -> None:
    (out / "photos").symlink_to(out.parent)


def _pipe(out: Path) -> None:
    (out / "unet" / "model.onnx").unlink()
    os.mkfifo(out / "unet" / "model.onnx")


def _no_manifest(out: Path) -> None:
    (out / "sdort.json").unlink()


def _older(out: Path) -> None:
    (out / "sdort.json").write_text('{"source": "demo"}')


def _lists_another_folder(out: Path) -> None:
    entry = {"bytes": 0, "xxh128": "0" * 32}
    (out / "sdort.json").write_text(json.dumps({"files": {"../out/model_index.json": entry}}))


def _edited(out: Path) -> None:
    (out / "model_index.json").write_text("edited by hand")


def _edited_to_the_same_size(out: Path) -> None:
    path = out / "unet" / "model.onnx"
    content, status = bytearray(path.read_bytes()), path.stat()
    content[-1] ^= 1
    path.write_bytes(content)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def _forged_list(out: Path) -> None:
    """A stranger's folder that names the file of whoever unpacks something into it."""
    manifest = json.loads((out / "sdort.json").read_text())
    manifest["files"]["thesis.txt"] = next(iter(manifest["files"].values()))
    (out / "sdort.json").write_text(json.dumps(manifest))
    (out / "thesis.txt").write_text("years of work")


def _damaged(out: Path) -> None:
    for place in ("model_index.json", "unet/model.onnx"):
        os.truncate(out / place, 0)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (_thesis, r"holds what sdort did not write there: thesis0.txt, thesis1.txt, thesis2.txt and 2 more"),
        (_hidden, "did not write there: unet/.notes"),
        (_link_in_place_of_a_file, "did not write there: model_index.json"),
        (_link_to_a_folder, "did not write there: photos"),
        (_pipe, "did not write there: unet/model.onnx"),
        (_no_manifest, r"has no sdort.json, and holds model_index.json, .*, unet/model.onnx and 1 more"),
        (_older, "is of an older sdort"),
        (_edited, "edited or damaged: model_index.json"),
        (_edited_to_the_same_size, "edited or damaged: unet/model.onnx"),
        (_forged_list, "edited or damaged: thesis.txt"),
        (_damaged, "edited or damaged: model_index.json, unet/model.onnx"),
        (_lists_another_folder, "lists '../out/model_index.json', which cannot be a file of its folder"),
    ],
)
def test_what_sdort_did_not_write_stays(tmp_path: Path, change: Callable[[Path], None], reason: str) -> None:
    out = made(tmp_path / "out")
    change(out)
    before = sorted(path for path in out.rglob("*"))
    with pytest.raises(OutputError, match=reason):
        replace(out)
    assert sorted(path for path in out.rglob("*")) == before
    assert os.listdir(tmp_path) == ["out"]


GOOD = {"bytes": 1, "xxh128": "0" * 32}


@pytest.mark.parametrize(
    "files",
    [
        [],
        "unet/model.onnx",
        *({place: GOOD} for place in ("/etc/passwd", "..", "a/../b", "./a", "a//b", "", ".", "a\0b", "sdort.json")),
        *({"a": {**GOOD, "bytes": size}} for size in (-1, 1.5, True, "1", None)),
        *({"a": {**GOOD, "xxh128": digest}} for digest in ("0" * 31, "G" * 32, 0, None)),
        {"a": None},
    ],
)
def test_a_list_that_cannot_be_one_is_refused(tmp_path: Path, files: Any) -> None:
    (tmp_path / "sdort.json").write_text(json.dumps({"files": files}))
    with pytest.raises(BadModelError, match=r"sdort.json is broken"):
        listed_files(tmp_path)
