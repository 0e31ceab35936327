"""The cache of checkpoints that are optimized on first use: each is read once, and gets its own model or none."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from support.first_use import copy_of, replace_making

from sdort.doctor.cache_entries import folder_bytes
from sdort.doctor.caches import clean_cache
from sdort.errors import BadModelError, MissingPackageError, OutputError
from sdort.files import disk
from sdort.files.file_digest import file_digest
from sdort.files.user_folders import models_folder
from sdort.first_use import cache_limit as limits
from sdort.first_use import given_checkpoint, making, models
from sdort.first_use.cache_limit import cache_limit
from sdort.first_use.given_checkpoint import find_checkpoint
from sdort.first_use.making import Steps, estimate
from sdort.first_use.making_plan import Making
from sdort.first_use.models import optimized_model, plan_model
from sdort.machine.version import __version__
from sdort.pipelines import model_cache, remembered_hashes
from sdort.pipelines.model_cache import MADE_OF, MODEL, USED

MAKING = Making(("unet",), "cpu")


@pytest.fixture(autouse=True)
def _made_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is made of a checkpoint is a file of its content."""
    replace_making(monkeypatch)


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the files that are read, which count as settled at once."""
    names: list[str] = []

    def digest(path: Path, **options: Any) -> str:
        names.append(path.name)
        return file_digest(path, **options)

    monkeypatch.setattr(remembered_hashes, "SETTLED_NS", 0)
    monkeypatch.setattr(given_checkpoint, "file_digest", digest)
    return names


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_a_checkpoint_is_read_once_until_it_changes(kind: str, read: list[str], tmp_path: Path) -> None:
    checkpoint = tmp_path / "models"
    checkpoint.mkdir()
    file, other = checkpoint / "of.safetensors", checkpoint / "other.json"
    for path in (file, other):
        path.write_bytes(b"one")
    asked = file if kind == "file" else checkpoint
    expected = [file.name] if kind == "file" else [file.name, other.name]
    first = optimized_model(asked, MAKING)
    assert optimized_model(asked, MAKING) == first
    assert read == expected
    status = file.stat()
    with file.open("r+b") as opened:  # in place, of the same size, as old as before
        opened.write(b"two")
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    second = optimized_model(asked, MAKING)
    assert (second / "of").read_bytes() == b"two"
    assert (first / "of").read_bytes() == b"one"
    assert read == [*expected, file.name]


def test_a_model_of_another_checkpoint_is_refused(tmp_path: Path) -> None:
    folders = []
    for content in (b"one", b"two"):
        (tmp_path / f"{content.decode()}.safetensors").write_bytes(content)
        folders.append(optimized_model(tmp_path / f"{content.decode()}.safetensors", MAKING))
        assert (folders[-1] / "of").read_bytes() == content
    one, two = (folder.parent for folder in folders)
    two.rename(tmp_path / "away")
    one.rename(two)
    with pytest.raises(BadModelError, match="is not of two: its record"):
        optimized_model(tmp_path / "two.safetensors", MAKING)


def _cut(path: Path) -> None:
    path.write_text(path.read_text()[:20])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        pytest.param(lambda folder: (folder / MADE_OF).unlink(), r"made-of\.json: No such file", id="record"),
        pytest.param(
            lambda folder: (folder / MODEL / "sdort.json").unlink(),
            r"model has no sdort\.json that lists its files",
            id="list",
        ),
        pytest.param(lambda folder: _cut(folder / MODEL / "sdort.json"), r"model.sdort\.json", id="half a list"),
    ],
)
def test_a_model_that_cannot_be_checked_is_refused(
    change: Callable[[Path], None], message: str, tmp_path: Path
) -> None:
    file = tmp_path / "one.safetensors"
    file.write_bytes(b"one")
    change(optimized_model(file, MAKING).parent)
    with pytest.raises(BadModelError, match=rf"{message}(.|\n)*made anew:\n    rm -r "):
        optimized_model(file, MAKING)


def test_a_checkpoint_that_changes_while_it_is_made_is_not_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "one.safetensors"

    def fill(*given: Any) -> None:
        copy_of(*given)
        file.write_bytes(b"half of another")

    replace_making(monkeypatch, fill)
    file.write_bytes(b"one")
    with pytest.raises(BadModelError, match="changed while it was exported"):
        optimized_model(file, MAKING)
    assert not list(models_folder().glob("model-*"))


def test_two_at_once_make_it_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fill(source: Path, out: Path, request: Any) -> None:
        time.sleep(0.3)
        copy_of(source, out, request)

    made = replace_making(monkeypatch, fill)
    file = tmp_path / "one.safetensors"
    file.write_bytes(b"one")
    with ThreadPoolExecutor(3) as pool:
        folders = set(pool.map(lambda _: optimized_model(file, MAKING), range(3)))
    assert len(folders) == len(made.requests) == 1
    assert [path.name for path in models_folder().iterdir()] == [folders.pop().parent.name]


@pytest.mark.parametrize("error", [KeyboardInterrupt, BadModelError("broken")])
def test_what_is_not_made_whole_leaves_nothing(
    error: BaseException, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fill(source: Path, out: Path, _: Any) -> None:
        (out / "half").write_bytes(source.read_bytes())
        raise error

    replace_making(monkeypatch, fill)
    file = tmp_path / "one.safetensors"
    file.write_bytes(b"one")
    with pytest.raises((KeyboardInterrupt, BadModelError)):
        optimized_model(file, MAKING)
    assert list(models_folder().iterdir()) == []


def _release() -> None:
    """As where the processes that used the models have ended."""
    while model_cache._HELD:
        model_cache._HELD.popitem()[1].close()


def test_the_least_recently_used_go_where_the_room_is_full(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def made(name: str) -> Path:
        file = tmp_path / f"{name}.safetensors"
        file.write_bytes(name.encode() * 100)
        return optimized_model(file, MAKING).parent

    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setattr(making, "_result_bytes", lambda *_: 100)
    assert cache_limit().limit == limits.DEFAULT_LIMIT
    folders = {name: made(name) for name in ("a", "b", "c")}
    size = folder_bytes(folders["a"])
    cache_limit(3 * size + 100)
    for age, name in enumerate(("a", "c", "b")):  # a was used last
        os.utime(folders[name] / USED, (1e9 - age, 1e9 - age))
    left = folders["a"].with_name(f".{folders['a'].name}.sdort-new-{'0' * 8}")
    left.mkdir()  # of a killed process
    cache_limit(3 * size)
    capsys.readouterr()
    made("d")  # all are held by this process
    said = capsys.readouterr().err
    assert "more than the limit" in said
    assert "removed" not in said
    assert not left.exists()
    _release()
    for age, name in enumerate(("a", "c", "b")):
        os.utime(folders[name] / USED, (1e9 - age, 1e9 - age))
    made("e")
    assert {name for name, folder in folders.items() if folder.is_dir()} == {"a"}
    said = capsys.readouterr().err
    assert said.index("removed from the cache: b (cpu, fp32") < said.index("removed from the cache: c (cpu, fp32")


@pytest.mark.parametrize("take", [optimized_model, plan_model, models.kept_model])
def test_a_model_that_is_taken_again_is_used_from_then_on(take: Callable[[Any, Making], Any], tmp_path: Path) -> None:
    """By whichever way; what was used longest ago goes first."""
    file = tmp_path / "one.safetensors"
    file.write_bytes(b"one")
    folder = optimized_model(file, MAKING).parent
    os.utime(folder / USED, (1, 1))
    assert take(find_checkpoint(file), MAKING) == folder / MODEL
    assert model_cache.read_kept(folder).used > model_cache.read_kept(folder).made - 60


def test_models_of_another_version_go_before_those_that_were_used_earlier(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    made = (("new", __version__, 40), ("next", "999", 50), ("newer", __version__, 60), ("past", "0.0.1", 30))
    for number, (name, version, used) in enumerate(made):
        folder = models_folder() / f"model-{number:032x}"
        folder.mkdir(parents=True)
        (folder / MODEL).write_bytes(bytes(10_000))
        model_cache.write_kept(folder, name, "somebody/a", {"sdort": version, "provider": "cpu", "precision": "fp32"})
        os.utime(folder / USED, (used, used))
    cache_limit(cache_limit().used)
    limits.make_room("a", 30_000)
    assert re.findall(r"removed from the cache: (\w+)", capsys.readouterr().err) == ["past", "next", "new"]
    assert [kept.name for kept in model_cache.kept_models()] == ["newer"]


def test_kept_models_are_those_whose_records_are_whole_the_last_used_first(tmp_path: Path) -> None:
    for number, used in enumerate((30, 10, 40, 20)):
        folder = models_folder() / f"model-{number:032x}"
        folder.mkdir(parents=True)
        model_cache.write_kept(folder, str(number), "somebody/a", {})
        os.utime(folder / USED, (used, used))
    (models_folder() / f"model-{1:032x}" / MADE_OF).write_text("{}")
    assert [kept.name for kept in model_cache.kept_models()] == ["2", "0", "3"]


def test_a_model_in_use_is_not_cleaned(tmp_path: Path) -> None:
    file = tmp_path / "one.safetensors"
    file.write_bytes(b"one")
    folder = optimized_model(file, MAKING).parent
    assert clean_cache(["models"]).removed
    assert folder.is_dir()
    _release()
    clean_cache(["models"])
    assert not folder.exists()
    assert optimized_model(file, MAKING).parent == folder
    assert folder.is_dir()


def test_steps_tell_what_is_left() -> None:
    seconds = estimate({"unet": 100, "vae_decoder": 10}, ["unet"], 10**9)
    steps = Steps(seconds)
    assert steps.remaining() == pytest.approx(steps.total, abs=0.5)
    for description in seconds:
        steps.follow(description, 0, None)
        steps.follow("something else", 1, 2)
        assert steps.step == description
        before = steps.done
        steps.follow(description, 3, 4)
        assert steps.done - before == pytest.approx(0.75 * seconds[description])
    left = steps.remaining()
    assert left is not None
    assert 0 <= left <= steps.total


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Makes a model of a name, of 100 bytes and what surrounds them; no process uses it afterwards."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setattr(making, "_result_bytes", lambda *_: 100)

    def made(name: str) -> Path:
        file = tmp_path / f"{name}.safetensors"
        file.write_bytes(name.encode() * 100)
        folder = optimized_model(file, MAKING).parent
        _release()
        return folder

    return made


@pytest.mark.parametrize("planned", [False, True])
def test_a_model_that_is_larger_than_the_room_costs_no_other(
    planned: bool, kept: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = kept("a")
    cache_limit(10**6)
    monkeypatch.setattr(making, "_result_bytes", lambda *_: 2 * 10**9 + 1)
    made = replace_making(monkeypatch)
    file = tmp_path / "b.safetensors"
    file.write_bytes(b"b")
    with pytest.raises(
        OutputError, match=r"b takes 2\.0 GB in the cache, .* 1\.0 MB together\n.*\n *sdort cache limit 3GB"
    ):
        plan_model(find_checkpoint(file), MAKING) if planned else optimized_model(file, MAKING)
    assert not made.requests
    assert [path.name for path in models_folder().iterdir()] == [other.name]


@pytest.mark.parametrize(("free", "fits"), [(0, False), (99, False), (100, True)])
@pytest.mark.parametrize("planned", [False, True])
def test_a_disk_without_room_is_told_before_the_work(
    free: int, fits: bool, planned: bool, kept: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept("a")
    monkeypatch.setattr(disk, "free_bytes", lambda _: free)
    made = replace_making(monkeypatch)
    file = tmp_path / "b.safetensors"
    file.write_bytes(b"b")
    if fits:
        plan_model(find_checkpoint(file), MAKING) if planned else optimized_model(file, MAKING)
        return
    with pytest.raises(
        OutputError, match=r"not enough disk space at \S+models: 100 B are needed and(.|\n)*cache clean models"
    ):
        plan_model(find_checkpoint(file), MAKING) if planned else optimized_model(file, MAKING)
    assert not made.requests
    assert len(list(models_folder().iterdir())) == 1


def test_models_that_go_make_room_on_the_disk(kept: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    size = folder_bytes(kept("a"))
    cache_limit(max(size, 100))
    monkeypatch.setattr(disk, "free_bytes", lambda _: 100 - size)
    assert kept("b").is_dir()
    assert len(list(models_folder().iterdir())) == 1


@pytest.mark.parametrize("planned", [False, True])
def test_a_lack_of_packages_is_told_before_a_checkpoint_is_read(
    planned: bool, kept: Callable[[str], Path], read: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or downloaded; one that was made ready before needs none of them."""

    def lack(*names: str, what: str) -> None:
        raise MissingPackageError(f"{what} needs {names[0]}")

    def asked(model: str | Path) -> object:
        return plan_model(find_checkpoint(model), MAKING) if planned else optimized_model(model, MAKING)

    monkeypatch.setattr(models, "need_packages", lack)
    monkeypatch.setattr(models, "downloaded", lambda _: pytest.fail("it was downloaded"))
    file = tmp_path / "a.safetensors"
    file.write_bytes(b"a")
    for model in (file, "owner/name"):
        with pytest.raises(MissingPackageError, match="making a checkpoint ready needs torch"):
            asked(model)
    assert read == []
    monkeypatch.undo()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    replace_making(monkeypatch)
    folder = optimized_model(file, MAKING)
    monkeypatch.setattr(models, "need_packages", lack)
    assert asked(file) == folder
