"""``sdort cache`` shows what is kept, and removes that and nothing else."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

import sdort
from sdort.cli import cli
from sdort.doctor.cache_entries import remove
from sdort.errors import UsageError
from sdort.files.staging import TEMPORARY_PREFIX, held, temporary_folder
from sdort.files.user_folders import cache_folder
from sdort.files.verified_cache import VerifiedCache

DAY = 86400
OURS = {
    f"traces/unet-{'a' * 32}.trace": ("traces", 3, 40),
    "traces/AutoencoderKL-0.42.1.json": ("traces", 2, 1),
    "traces/.x.trace.sdort-new-00000000": ("traces", 1, 40),
    f"schedules/schedule-{'a' * 32}.schedule": ("schedules", 6, 40),
    f"checked/files-{'a' * 32}.json": ("checked", 4, 40),
    f"models/model-{'a' * 32}/made-of.json": ("models", 8, 40),
    f"models/.making-{'0' * 16}/exported": ("models", 3, 40),
    "tuning/unet-0123456789abcdef01234567/bundle.json": ("tuning", 5, 40),
    "ops/tuning.tsv": ("tuning", 7, 1),
    f"trials/webgpu-{'a' * 32}.trials": ("trials", 2, 40),
    f"ops/{'0' * 16}/libsdort_ops.so": ("ops", 9, 40),
    f"ops/{'0' * 16}/build.json": ("ops", 2, 40),
}
"""File -> its cache, bytes and age in days."""
OTHERS = (
    "traces/notes.txt",
    "traces/mine/unet.trace",
    "checked/notes.json",
    "models/mine/model.onnx",
    "ops/mine/a.so",
    "other/file",
    "tuning/.lock",
    "tuning/mine/notes.txt",
    "traces/package-1.0.json",
    f"ops/{'5' * 16}/photograph.jpg",
)
"""What is nobody's here; a folder of 16 digits among it, which no build made."""


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder with entries of all kinds, and files of others among them."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    folder = cache_folder()
    for name in (*OURS, *OTHERS):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        _, size, age = OURS.get(name, ("", 13, 40))
        path.write_bytes(b"x" * size)
        made = time.time() - age * DAY
        for part in (path, path.parent):
            os.utime(part, (made, made))
    return folder


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_every_entry_is_listed_with_its_size(cache: Path) -> None:
    report = sdort.list_cache()
    assert report.folder == cache
    sizes = {(kind, size) for kind, size, _ in OURS.values() if kind != "ops"} | {("ops", 11)}
    assert {(entry.kind, entry.bytes) for entry in report.entries} == sizes
    assert len(report.entries) == len(sizes)
    assert {entry.kind for entry in sdort.list_cache(["ops"]).entries} == {"ops"}
    with pytest.raises(UsageError, match="no cache 'opps'"):
        sdort.list_cache(["opps"])


def test_cleaning_takes_only_what_is_sdorts(cache: Path) -> None:
    before = files(cache)
    plan = sdort.clean_cache(dry_run=True)
    assert (plan.removed, plan.bytes, files(cache)) == (False, sum(size for _, size, _ in OURS.values()), before)
    done = sdort.clean_cache()
    assert (done.removed, done.bytes, done.kept) == (True, plan.bytes, [])
    assert files(cache) == set(OTHERS)
    assert sdort.list_cache().entries == []


def test_entries_of_an_earlier_sdort_are_told(cache: Path) -> None:
    traces = VerifiedCache(cache / "traces", "the trace", ".trace", 1000)
    traces.store("unet", {"opset": 23}, b"graph")
    new = traces.path("unet", {"opset": 23})
    outdated = {entry.path.name: entry.outdated for entry in sdort.list_cache(["traces"]).entries}
    old = (f"unet-{'a' * 32}.trace", "AutoencoderKL-0.42.1.json")
    assert outdated == {new.name: False, ".x.trace.sdort-new-00000000": False, **dict.fromkeys(old, True)}
    new.rename(cache / "traces" / old[0])
    assert all(e.outdated for e in sdort.list_cache(["traces"]).entries if e.name in old)


def test_cleaning_by_kind_and_age(cache: Path) -> None:
    before = files(cache)
    sdort.clean_cache(["traces"], older_than=30 * DAY)
    gone = {name for name, (kind, _, age) in OURS.items() if kind == "traces" and age > 30}
    assert before - files(cache) == gone


def test_what_a_command_holds_stays(cache: Path) -> None:
    library = cache / "ops" / ("0" * 16)
    with held(library), temporary_folder("demo") as running:
        os.utime(running, (0, 0))
        done = sdort.clean_cache(["ops", "temporary"])
        assert {entry.path for entry in done.kept} == {library, running}
        assert (done.entries, library.is_dir(), running.is_dir()) == ([], True, True)
    assert not running.exists()
    assert [entry.path for entry in sdort.clean_cache(["ops"]).entries] == [library]


def test_temporary_folders_of_killed_commands_go_and_no_others(cache: Path, tmp_path: Path) -> None:
    killed, new, foreign = (
        tmp_path / f"{name}x" for name in (TEMPORARY_PREFIX, f"{TEMPORARY_PREFIX}new", "sdort-demo-")
    )
    for folder in (killed, new, foreign):
        folder.mkdir()
        (folder / "weights").write_bytes(b"x" * 9)
    with held(new):
        done = sdort.clean_cache(["temporary"])
    assert ([entry.path for entry in done.entries], done.bytes) == ([killed], 9)
    assert [entry.path for entry in done.kept] == [new]
    assert (killed.exists(), new.exists(), foreign.exists()) == (False, True, True)


def test_what_a_killed_cleaning_left_goes_too(cache: Path, tmp_path: Path) -> None:
    left = [cache / "ops" / f".removed-{'2' * 16}", tmp_path / f".removed-{TEMPORARY_PREFIX}demo-x"]
    for folder in left:
        folder.mkdir()
        os.utime(folder, (0, 0))
    assert {entry.path for entry in sdort.clean_cache(["ops", "temporary"]).entries} >= set(left)
    assert [folder for folder in left if folder.exists()] == []


def test_temporary_folders_of_other_users_stay(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / f"{TEMPORARY_PREFIX}demo-x"
    folder.mkdir()
    os.utime(folder, (0, 0))
    monkeypatch.setattr(os, "getuid", lambda: folder.stat().st_uid + 1)
    assert sdort.clean_cache(["temporary"]).entries == []
    assert folder.exists()


def test_two_cleanings_at_once_do_no_harm(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other one removes a library between this one's look at it and its removal."""
    (library,) = sdort.list_cache(["ops"]).entries
    rename = Path.rename

    def late(path: Path, target: Path) -> Path:
        shutil.rmtree(path)
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", late)
    remove(library)
    assert sdort.list_cache(["ops"]).entries == []


def test_a_link_is_not_followed(cache: Path, tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "file").touch()
    (cache / "ops" / ("1" * 16)).symlink_to(tmp_path / "kept")
    sdort.clean_cache()
    assert (tmp_path / "kept" / "file").exists()


@pytest.mark.parametrize("name", sorted({name.partition("/")[0] + "/" + name.split("/")[1] for name in OURS}))
def test_a_link_is_no_entry_whatever_it_is_called(name: str, cache: Path, tmp_path: Path) -> None:
    """It is listed nowhere, and stays as what it leads to does."""
    (tmp_path / "elsewhere").mkdir()
    kept = (cache / name).rename(tmp_path / "elsewhere" / "kept")
    (cache / name).symlink_to(kept)
    assert cache / name not in {entry.path for entry in sdort.list_cache().entries}
    sdort.clean_cache()
    assert (cache / name).is_symlink()
    assert kept.exists()


def test_the_commands(cache: Path) -> None:
    def run(*arguments: str) -> str:
        done = CliRunner().invoke(cli, ["cache", *arguments])
        assert done.exit_code == 0, done.output
        return done.stdout

    assert run() == run("size")
    assert run().splitlines()[-1] == "11 entries, 52 B"
    assert json.loads(run("size", "--json"))["schema"] == json.loads(run("list", "--json"))["schema"] == "sdort-cache-1"
    assert json.loads(run("--json")) == json.loads(run("size", "--json"))
    refused = CliRunner().invoke(cli, ["cache", "--json", "list"])
    assert (refused.exit_code, "sdort cache list --json" in refused.stderr) == (2, True)
    assert run("list", "ops").splitlines()[-1] == "1 entry, 11 B"
    assert run("clean", "--older-than", "30d", "--dry-run").splitlines()[-1] == "Would remove 9 entries, 43 B"
    assert json.loads(run("clean", "traces", "--json"))["bytes"] == 6
    assert run("clean", "--dry-run", "-q") != ""
    assert run("clean", "ops", "-q") == ""
    assert run("clean").splitlines()[-1] == "Removed 7 entries, 35 B"
    assert run("clean") == "Removed 0 entries, 0 B\n"
