"""A first use that ends in the middle, or that another process is at: the cache tells the truth, and the next works."""

from __future__ import annotations

import faulthandler
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.first_use import copy_of, replace_making

import sdort
from sdort.errors import OutputError, SdortError
from sdort.exporter import open_source
from sdort.files import staging
from sdort.files.user_folders import models_folder
from sdort.first_use import given_checkpoint, making
from sdort.first_use.making_plan import Making
from sdort.first_use.models import optimized_model
from sdort.pipelines.model_cache import KEPT

MAKING = Making(("unet",), "cpu")
STAGES: dict[str, tuple[Any, str, bool]] = {
    "before the download": (open_source, "run_worker", False),
    "before it is read": (given_checkpoint, "file_digest", False),
    "before it is opened": (making, "open_export", False),
    "before it is fused": (making, "optimize_request", False),
    "after it was fused": (making, "optimize_request", True),
    "before its record": (making, "write_kept", False),
    "before it is moved": (staging, "_swap", False),
    "after it was moved": (staging, "_swap", True),
}
"""Where it ends: a module, a function of it, and whether that is done by then."""


def strike(stage: str, act: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a first use call ``act`` at a stage."""
    module, name, after = STAGES[stage]
    own = getattr(module, name)

    def struck(*given: Any, **options: Any) -> Any:
        if not after:
            act()
        result = own(*given, **options)
        if after:
            act()
        return result

    monkeypatch.setattr(module, name, struck)


def in_a_child(work: Callable[[], object]) -> int:
    """The process that does some work; what it raises ends it."""
    child = os.fork()
    if not child:
        try:
            # A fork of many threads may find a lock that nobody gives back.
            faulthandler.dump_traceback_later(60, exit=True, file=2)
            work()
            os._exit(0)
        finally:
            os._exit(1)
    return child


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
def test_what_a_kill_leaves_is_told_and_the_next_run_removes_it(
    stage: str, checkpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as struck:
        strike(stage, die, struck)
        _, status = os.waitpid(in_a_child(lambda: optimized_model(checkpoint, MAKING)), 0)
    assert os.WIFSIGNALED(status)
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
    parent, (heard, told) = os.getpid(), os.pipe()

    def fill(source: Path, out: Path, request: Any) -> None:
        if os.getpid() != parent:
            os.write(told, b".")
            time.sleep(0.3)
            if dies:
                die()
        copy_of(source, out, request)

    made = replace_making(monkeypatch, fill)
    file = tmp_path / "one.safetensors"
    file.write_bytes(b"one")
    child = in_a_child(lambda: optimized_model(file, MAKING))
    os.close(told)
    assert os.read(heard, 1) == b"."  # nothing of a child that ended
    assert [entry.in_use for entry in sdort.list_cache(["models"]).entries] == [True] * 3
    folder = optimized_model(file, MAKING)
    os.waitpid(child, 0)
    assert "another sdort is making the same model: this one waits" in " ".join(capsys.readouterr().err.split())
    assert len(made.requests) == dies
    assert (folder / "of").read_bytes() == b"one"
    assert kept() == [folder.parent.name]
    os.close(heard)


def test_a_cache_that_cannot_be_written_is_told(
    checkpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(OutputError, match=r"cannot write in sdort's cache .*: Not a directory\n *XDG_CACHE_HOME"):
        optimized_model(checkpoint, MAKING)
