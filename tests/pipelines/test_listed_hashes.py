"""Hashes of the files of a list: which are computed, which are remembered, and what a list may not hold."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sdort.errors import BadModelError, UsageError
from sdort.pipelines import manifest
from sdort.pipelines.manifest import ListedFile, _hash, _is_as_listed, _listed
from sdort.samplers.scheduler_names import NOISE_LEVELS, SAMPLERS, WITHOUT_SIGMAS, _check_levels, _known, _meant

DIGEST = "0123456789abcdef" * 2


@pytest.mark.parametrize("size", [9, 10, 11])
@pytest.mark.parametrize("listed", [10, 11])
@pytest.mark.parametrize("remembered", [DIGEST, "other", None])
@pytest.mark.parametrize("real", [DIGEST, "other", None])
def test_a_file_is_as_it_was_listed(
    size: int, listed: int, remembered: str | None, real: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its size first; what is remembered counts for large files alone, and is no reason against one."""
    hashed: Any = list[Path]()
    monkeypatch.setattr(manifest, "SMALL", 10)
    monkeypatch.setattr(manifest, "_hash", lambda path: hashed.append(path) or real)
    (tmp_path / "a").write_bytes(bytes(size))
    hashes: Any = SimpleNamespace(find=lambda place: remembered if place == "a" else None)
    trusted = listed > 10 and remembered == DIGEST
    found = _is_as_listed(tmp_path, "a", ListedFile(listed, DIGEST), hashes)
    assert found == (size == listed and (trusted or real == DIGEST))
    assert hashed == ([tmp_path / "a"] if size == listed and not trusted else [])


def test_a_file_is_hashed_once_until_it_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: Any = list[int]()
    monkeypatch.setattr(manifest, "_HASHES", {})
    monkeypatch.setattr(manifest, "hash_open", lambda number: calls.append(number) or f"hash {len(calls)}")
    path, other = tmp_path / "a", tmp_path / "b"
    for each in (path, other):
        each.write_bytes(b"12")
    assert [_hash(path), _hash(other), _hash(path)] == ["hash 1", "hash 2", "hash 1"]
    (tmp_path / "folder").mkdir()
    path.rename(tmp_path / "folder" / "a")  # its time of change may be another now
    os.utime(tmp_path / "folder" / "a", ns=(5, 5))
    assert _hash(tmp_path / "folder" / "a") == "hash 3"
    other.write_bytes(b"123")
    assert _hash(other) == "hash 4"
    link = tmp_path / "link"
    link.symlink_to(other)
    for wrong in (link, tmp_path / "nowhere", tmp_path / "folder"):
        assert _hash(wrong) is None
    assert len(calls) == 4


def test_a_file_is_another_by_each_part_of_its_identity(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = iter(range(99))
    status = {"st_dev": 1, "st_ino": 2, "st_size": 3, "st_mtime_ns": 4, "st_ctime_ns": 5, "st_atime_ns": 6}
    monkeypatch.setattr(manifest, "_HASHES", {})
    monkeypatch.setattr(manifest, "hash_open", lambda number: str(next(numbers)))
    monkeypatch.setattr(manifest, "os", SimpleNamespace(fstat=lambda number: SimpleNamespace(**status)))
    (tmp_path / "a").touch()
    assert [_hash(tmp_path / "a"), _hash(tmp_path / "a")] == ["0", "0"]
    for count, key in enumerate(("st_dev", "st_ino", "st_size", "st_mtime_ns", "st_ctime_ns"), 1):
        status[key] += 100
        assert _hash(tmp_path / "a") == str(count)
    status["st_atime_ns"] += 100
    assert _hash(tmp_path / "a") == "5"


@pytest.mark.parametrize(
    ("place", "entry", "words"),
    [
        ("a", {"bytes": 0, "xxh128": DIGEST}, None),
        ("a/b.onnx", {"bytes": 5, "xxh128": DIGEST, "more": 1}, None),
        ("sdort.json", {"bytes": 5, "xxh128": DIGEST}, "it lists 'sdort.json', which cannot be"),
        ("a\0b", {"bytes": 5, "xxh128": DIGEST}, "which cannot be a file"),
        ("../a", {"bytes": 5, "xxh128": DIGEST}, "it lists '../a'"),
        ("/a", {"bytes": 5, "xxh128": DIGEST}, "it lists '/a'"),
        ("a//b", {"bytes": 5, "xxh128": DIGEST}, "it lists 'a//b'"),
        ("./a", {"bytes": 5, "xxh128": DIGEST}, "it lists './a'"),
        ("", {"bytes": 5, "xxh128": DIGEST}, "it lists ''"),
        ("x" * 300 + "/..", {"bytes": 5, "xxh128": DIGEST}, f"it lists '{'x' * 200}', which"),
        ("a", {"bytes": -1, "xxh128": DIGEST}, "'a' has no size or no hash in it"),
        ("a", {"bytes": True, "xxh128": DIGEST}, "has no size or no hash"),
        ("a", {"bytes": 1.0, "xxh128": DIGEST}, "has no size or no hash"),
        ("a", {"xxh128": DIGEST}, "has no size or no hash"),
        ("a", {"bytes": 1}, "has no size or no hash"),
        ("a", {"bytes": 1, "xxh128": DIGEST[1:]}, "has no size or no hash"),
        ("a", {"bytes": 1, "xxh128": f"{DIGEST}0"}, "has no size or no hash"),
        ("a", {"bytes": 1, "xxh128": "g" * 32}, "has no size or no hash"),
        ("a", {"bytes": 1, "xxh128": 5}, "has no size or no hash"),
        ("a", [1, DIGEST], "has no size or no hash"),
        ("a", None, "has no size or no hash"),
        ("y" * 201, None, f"broken: '{'y' * 200}' has no size or no hash"),
    ],
    ids=lambda value: value[:20].encode("unicode_escape").decode() if isinstance(value, str) else "",
)
def test_entries_of_a_list(place: str, entry: Any, words: str | None, tmp_path: Path) -> None:
    if words is None:
        assert _listed(tmp_path, place, entry) == ListedFile(entry["bytes"], DIGEST)
        return
    with pytest.raises(BadModelError) as caught:
        _listed(tmp_path, place, entry)
    assert caught.value.message.startswith(f"{tmp_path / 'sdort.json'} is broken: ")
    assert words in caught.value.message


SIGMAS, SPACED = ("karras", "exponential", "beta"), ("sgm-uniform", "simple", "normal", "ddim-uniform")


@pytest.mark.parametrize("class_name", sorted({sampler.class_name for sampler in SAMPLERS.values()}))
def test_noise_levels_of_a_class(class_name: str) -> None:
    """Other sigmas for classes with some of their own, other timesteps for those with a spacing."""
    assert set(NOISE_LEVELS) == {*SIGMAS, *SPACED}
    _check_levels(class_name, "")
    for levels in NOISE_LEVELS:
        if levels in SIGMAS and class_name in WITHOUT_SIGMAS:
            with pytest.raises(UsageError, match=f"{class_name} has no {levels} noise levels"):
                _check_levels(class_name, levels)
        elif levels in SPACED and class_name == "DPMSolverSinglestepScheduler":
            with pytest.raises(UsageError, match=f"{class_name} has no timestep spacing"):
                _check_levels(class_name, levels)
        else:
            _check_levels(class_name, levels)


@pytest.mark.parametrize(
    ("asked", "meant"),
    [
        ("eulr", "euler"), ("eulerkaras", "euler-karras"), ("dpm++2mkarass", "dpm++-2m-karras"),
        ("ddimschedular", "DDIMScheduler"), ("qqqqqqqqqqqq", None),
    ],
)  # fmt: skip
def test_a_name_that_may_be_meant(asked: str, meant: str | None) -> None:
    question, _, rest = _meant(asked).rpartition("There are: ")
    assert question == (f"Did you mean {meant}? " if meant else "")
    assert rest.startswith(", ".join(SAMPLERS))
    assert all(f"-{levels}" in rest for levels in NOISE_LEVELS)
    known = _known()
    assert (known["pndm"], known["pndmscheduler"], known["eulerddimuniform"]) == (
        "pndm", "PNDMScheduler", "euler-ddim-uniform",
    )  # fmt: skip
