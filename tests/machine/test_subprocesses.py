"""Programs that sdort starts end with it, and so does what they start, however it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.processes import heed, is_running, wait_for_end

from sdort.errors import SdortError
from sdort.machine import subprocesses
from sdort.machine.subprocesses import WorkerError, run_child, run_worker

FAMILY = """\
import os, subprocess, sys, time
with open(sys.argv[1], "a") as file:
    file.write(f"{os.getpid()} ")
deeper = int(sys.argv[2])
if deeper:  # in a session of its own, as ninja gives its compilers a group; the middle one ends before its child does
    subprocess.Popen([sys.executable, "-S", *sys.argv[:2], str(deeper - 1)], start_new_session=True)
if deeper != 1:
    time.sleep(60)
"""


@pytest.fixture
def family(tmp_path: Path) -> list[str]:
    """A program with a child, which has ended, and a grandchild; each writes its process id to ``pids``."""
    program = tmp_path / "family.py"
    program.write_text(FAMILY)
    return [sys.executable, "-S", str(program), str(tmp_path / "pids"), "2"]


def wait_for_family(folder: Path) -> list[int]:
    """The process ids once all three run."""
    pids: list[str] = []
    while len(pids) < 3:
        time.sleep(0.005)
        pids = (folder / "pids").read_text().split() if (folder / "pids").exists() else []
    return [*map(int, pids)]


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def name(pid: int) -> str:
    return Path(f"/proc/{pid}/comm").read_text().strip()


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV], ids=lambda signum: signum.name)
def test_children_and_their_orphans_end_with_sdort(signum: signal.Signals, family: list[str], tmp_path: Path) -> None:
    code = f"from sdort.machine.subprocesses import run_child; run_child({family!r})"
    with subprocess.Popen([sys.executable, "-c", code], preexec_fn=heed) as sdort:
        pids = wait_for_family(tmp_path)
        assert name(parent(pids[0])) == "sdort-programs"  # killall python does not reach it
        sdort.send_signal(signum)
    assert sdort.returncode == -signum
    wait_for_end(pids)


@contextmanager
def interrupted_when(ready: Callable[[], object]) -> Iterator[None]:
    """A block that gets SIGINT, as from Ctrl-C, when ``ready`` says so in another thread."""

    def watch() -> None:
        while not ready():
            time.sleep(0.005)
        os.kill(os.getpid(), signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    thread = threading.Thread(target=watch)
    thread.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            yield
    finally:
        thread.join()
        signal.signal(signal.SIGINT, before)


def test_they_have_ended_when_ctrl_c_breaks_the_call_off(family: list[str], tmp_path: Path) -> None:
    with interrupted_when(lambda: wait_for_family(tmp_path)):
        run_child(family)
    assert not any(is_running(pid) for pid in wait_for_family(tmp_path))


def test_one_that_takes_too_long_is_ended() -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        run_child(["sleep", "60"], timeout=0.1)
    with pytest.raises(subprocess.TimeoutExpired):
        run_child(["sh", "-c", "exec >&- 2>&-; sleep 60"], timeout=0.1)


def test_a_supervisor_that_is_terminated_ends_them(family: list[str], tmp_path: Path) -> None:
    """As systemd does, which sends SIGTERM to every process of a service."""
    code = f"from sdort.machine.subprocesses import run_child; print(run_child({family!r}).returncode)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, preexec_fn=heed) as sdort:
        pids = wait_for_family(tmp_path)
        os.kill(parent(pids[0]), signal.SIGTERM)
        assert sdort.stdout
        assert sdort.stdout.read() == "137\n"
    wait_for_end(pids)


def test_exit_codes_and_signals_are_the_program_s() -> None:
    done = run_child(["sh", "-c", "echo said; echo wrong >&2; exit 3"])
    assert (done.returncode, done.stdout, done.stderr) == (3, "said\n", "wrong\n")
    assert run_child(["sh", "-c", "kill -SEGV $$"]).returncode == -signal.SIGSEGV
    assert run_child(["sh", "-c", "echo a; echo b >&2"], merge=True).stdout == "a\nb\n"
    assert run_child(["sh", "-c", "cat; kill -PIPE $$"]).returncode == -signal.SIGPIPE


def test_a_program_that_is_not_there_or_cannot_run(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        run_child(["no-such-program"])
    broken = tmp_path / "broken"
    broken.write_bytes(b"\x7fELF")
    broken.chmod(0o755)
    done = run_child([str(broken)])
    assert (done.returncode, done.stderr) == (127, f"{broken}: Exec format error\n")


def test_endless_output_ends_the_program() -> None:
    with pytest.raises(SdortError, match=r"yes was ended: it printed more than 1\.0 MB"):
        run_child(["yes"], limit=10**6)


def test_a_worker_answers_in_a_process_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What lies in the folder that one works in is not imported."""
    (tmp_path / "json.py").write_text("raise SystemExit('a stranger was imported')")
    monkeypatch.chdir(tmp_path)
    assert run_worker("os:getppid", {}) != os.getpid()
    assert run_worker("sdort.tables:size_text", {"count": 1500}) == "1.5 kB"
    with pytest.raises(WorkerError, match=r"it ended with code 1 and said: TypeError: .*'wrong'"):
        run_worker("sdort.tables:size_text", {"wrong": 1})


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # a process that nobody waited for
def test_one_that_cannot_be_killed_is_left_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A supervisor that waits for what hangs in a driver: stopped here."""
    monkeypatch.setattr(subprocesses, "_PATIENCE", 0.01)
    pid = tmp_path / "pid"
    with interrupted_when(lambda: pid.exists() and Path(f"/proc/{pid.read_text()[:-1]}/stat").read_text().count(") T")):
        run_child(["sh", "-c", f"echo $PPID >{pid}.new; mv {pid}.new {pid}; kill -STOP $PPID; sleep 60"])
    assert is_running(int(pid.read_text()))
    os.kill(int(pid.read_text()), signal.SIGCONT)
    wait_for_end([int(pid.read_text())])


def test_a_programs_environment_is_the_one_that_is_given(tmp_path: Path) -> None:
    (tmp_path / "ask-it").write_text('#!/bin/sh\necho "$HOME,$MINE"\n')
    (tmp_path / "ask-it").chmod(0o755)
    environ = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "MINE": "1"}
    assert run_child(["ask-it"], environ=environ).stdout == ",1\n"
    with pytest.raises(FileNotFoundError):
        run_child(["ask-it"])
    with pytest.raises(FileNotFoundError):
        run_child(["sh", "-c", "true"], environ={"PATH": str(tmp_path)})
    assert run_worker("os:getenv", {"key": "MINE"}, environ={**os.environ, "MINE": "2"}) == "2"


def test_what_a_program_prints_counts_together_and_need_be_no_text() -> None:
    both = "printf 12345; printf 67890 >&2"
    assert run_child(["sh", "-c", both], limit=10).stdout == "12345"
    with pytest.raises(SdortError, match=r"printed more than 9 B"):
        run_child(["sh", "-c", both], limit=9)
    assert run_child(["sh", "-c", r"printf 'a\377b'"]).stdout == "a\N{REPLACEMENT CHARACTER}b"


def test_a_worker_that_ends_early_said_its_last_line_or_nothing() -> None:
    with pytest.raises(WorkerError, match="it ended with code 3 and said: nothing") as caught:
        run_worker("os:_exit", {"status": 3})
    assert (caught.value.code, caught.value.said) == (3, "nothing")
    with pytest.raises(WorkerError, match="it ended with code 0 and said: nothing"):
        run_worker("os:_exit", {"status": 0})
    assert run_worker("builtins:print", {}) is None
    with pytest.raises(subprocess.TimeoutExpired):
        run_worker("time:sleep", {}, timeout=0.0)
