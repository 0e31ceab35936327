"""A first use that ends in the middle, or that another process is at: the cache tells the truth, and the next works."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support.first_use import STAGES, copy_of, replace_making, strike

import sdort
from sdort.errors import OutputError, SdortError
from sdort.exporter import open_source
from sdort.files.user_folders import models_folder
from sdort.first_use.making_plan import Making
from sdort.first_use.models import optimized_model
from sdort.pipelines.model_cache import KEPT

MAKING = Making(("unet",), "cpu")


@dataclass(frozen=True)
class FirstUse:
    """A first use in a process of its own, which has imported nothing yet: a fork of this one, whose libraries have
    threads, may find a lock that nobody gives back.

    Attributes:
        model: what is used first.
        snapshot: the folder of the stand-in for the hub.
        stage: where it is killed.
        told: gets a word when it makes the model, which takes a while then.
        dies: it is killed there.
    """

    model: str | Path
    snapshot: Path | None = None
    stage: str | None = None
    told: Any = None
    dies: bool = False

    def start(self) -> Any:
        context = multiprocessing.get_context("spawn")
        process = context.Process(target=self.work, args=(dict(os.environ),))
        process.start()
        return process

    def work(self, environment: dict[str, str]) -> None:
        os.environ.update(environment)
        replacing = pytest.MonkeyPatch()
        if self.snapshot:
            replacing.setattr(open_source, "run_worker", lambda *_: {"folder": str(self.snapshot)})
        replace_making(replacing, self.fill)
        if self.stage:
            strike(self.stage, die, replacing)
        optimized_model(self.model, MAKING)

    def fill(self, source: Path, out: Path, request: Any) -> None:
        if self.told:
            self.told.send_bytes(b".")
            time.sleep(0.3)
        if self.dies:
            die()
        copy_of(source, out, request)


def ended(process: Any) -> int:
    """How a process ended, which takes no minute."""
    process.join(60)
    if process.exitcode is None:
        process.kill()
    return int(process.exitcode)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.fixture
def checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A pipeline of a stand-in for the hub, which goes through all stages."""
    snapshot = tmp_path / "snapshot"
    snapshot.mkdir()
    (snapshot / "of.safetensors").write_bytes(b"one")
    monkeypatch.setattr(open_source, "run_worker", lambda *_: {"folder": str(snapshot)})
    replace_making(monkeypatch)
    return "owner/name"


def kept() -> list[str]:
    """All that lies where models are kept, hidden files too."""
    return sorted(path.name for path in models_folder().iterdir()) if models_folder().is_dir() else []


@pytest.mark.parametrize("stage", STAGES)
def test_what_a_kill_leaves_is_told_and_the_next_run_removes_it(stage: str, checkpoint: str, tmp_path: Path) -> None:
    assert ended(FirstUse(checkpoint, tmp_path / "snapshot", stage).start()) == -signal.SIGKILL
    entries = sdort.list_cache(["models"]).entries
    assert {entry.name for entry in entries} == set(kept())
    assert not any(entry.in_use for entry in entries)
    whole = [entry.checkpoint for entry in entries if KEPT.fullmatch(entry.name)]
    assert whole == ([checkpoint] if stage == "after it was moved" else [])
    folder = optimized_model(checkpoint, MAKING)
    assert (folder / "of").read_bytes() == b"one"
    if whole:  # nothing was made, which cleans up
        optimized_model(checkpoint, Making(("vae_decoder",), "cpu"))
        assert len(kept()) == 2
    assert all(map(KEPT.fullmatch, kept()))


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("error", [KeyboardInterrupt(), SdortError("broken"), OSError(28, "No space left on device")])
def test_what_ends_with_an_error_leaves_nothing(
    stage: str, error: BaseException, checkpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise error

    with monkeypatch.context() as struck:
        strike(stage, fail, struck)
        with pytest.raises((KeyboardInterrupt, SdortError, OSError)):
            optimized_model(checkpoint, MAKING)
    assert [name for name in kept() if not KEPT.fullmatch(name)] == []
    assert len(kept()) == (stage == "after it was moved")
    assert (optimized_model(checkpoint, MAKING) / "of").read_bytes() == b"one"


@pytest.mark.parametrize("dies", [False, True])
def test_another_process_is_waited_for(
    dies: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What it made is taken; where it was killed, this one makes it."""
    heard, told = multiprocessing.get_context("spawn").Pipe(duplex=False)
    made = replace_making(monkeypatch)
    file = tmp_path / "one.safetensors"
    file.write_bytes(b"one")
    other = FirstUse(file, told=told, dies=dies).start()
    assert heard.poll(60)
    assert [entry.in_use for entry in sdort.list_cache(["models"]).entries] == [True] * 3
    folder = optimized_model(file, MAKING)
    assert ended(other) == (-signal.SIGKILL if dies else 0)
    assert "another sdort is making the same model: this one waits" in " ".join(capsys.readouterr().err.split())
    assert len(made.requests) == dies
    assert (folder / "of").read_bytes() == b"one"
    assert kept() == [folder.parent.name]


def test_a_cache_that_cannot_be_written_is_told(
    checkpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(OutputError, match=r"cannot write in sdort's cache .*: Not a directory\n *XDG_CACHE_HOME"):
        optimized_model(checkpoint, MAKING)
