"""Ctrl-C and other signals: when a command starts, in C code, while it cleans up."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.processes import heed

from sdort.cli import interruption
from sdort.files.staging import staged_directory
from sdort.runtime import opener


def start(code: str) -> subprocess.Popen[str]:
    """A process that handles signals as the command does, runs ``code`` as one, and has printed a line."""
    program = f"""\
import signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)
import click
from pathlib import Path
from sdort.cli import cli, main
@click.command()
def command():
{textwrap.indent(textwrap.dedent(code), "    ")}
cli.commands["doctor"] = command
sys.argv[1:] = ["doctor"]
main()
"""
    pipe = subprocess.PIPE
    process = subprocess.Popen([sys.executable, "-c", program], stdout=pipe, stderr=pipe, text=True, preexec_fn=heed)
    assert process.stdout
    assert process.stdout.readline() == "here\n"
    return process


def finish(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Exit code and stderr."""
    with process:
        try:
            _, said = process.communicate(timeout=60)
        finally:
            process.kill()  # one that hangs would fail other tests, too
    return process.returncode, said


def test_an_interrupt_before_anything_is_imported_ends_in_a_sentence() -> None:
    """The first thing that ``main`` does; what it imports then is where the interrupt arrives."""
    code = """\
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from sdort.__main__ import main
class Interrupt:
    def find_spec(self, name, *_):
        if name == "sdort.cli":
            assert "click" not in sys.modules
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupt())
main()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (130, "Error: interrupted\n")


@pytest.mark.parametrize("milliseconds", [150, 300, 600])
@pytest.mark.parametrize("arguments", [("doctor",), ("inspect", "--help")], ids=" ".join)
def test_an_interrupt_at_the_start_leaves_no_traceback(arguments: tuple[str, ...], milliseconds: int) -> None:
    code = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); print('here', flush=True);"
        f"import sys; sys.argv[1:] = {list(arguments)}; from sdort.__main__ import main; main()"
    )
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", code], stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stdout
        process.stdout.readline()
        time.sleep(milliseconds / 1000)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate()
    assert process.returncode in (0, 130)  # 0: it had ended already
    assert "Traceback" not in said
    assert process.returncode == 0 or said.endswith("Error: interrupted\n")


@pytest.mark.parametrize(
    ("signum", "words"), [("SIGINT", "interrupted"), ("SIGTERM", "terminated"), ("SIGHUP", "the terminal has gone")]
)
def test_a_signal_cleans_up_and_gives_its_exit_code(signum: str, words: str, tmp_path: Path) -> None:
    process = start(f"""\
        from sdort.files.staging import staged_directory
        with staged_directory(Path({str(tmp_path)!r}) / "out", False):
            print("here", flush=True)
            time.sleep(60)
        """)
    process.send_signal(getattr(signal, signum))
    assert finish(process) == (128 + getattr(signal, signum), f"Error: {words}\n")
    assert os.listdir(tmp_path) == []


SWALLOWED = {
    "an import that turned it into ImportError": 'raise ImportError("numpy.core.multiarray failed to import")',
    "a bare except": "pass",
}


@pytest.mark.parametrize("what", SWALLOWED)
def test_an_interrupt_that_became_something_else_is_one(what: str) -> None:
    process = start(f"""\
        try:
            print("here", flush=True)
            time.sleep(60)
        except BaseException:
            {SWALLOWED[what]}
        """)
    process.send_signal(signal.SIGINT)
    assert finish(process) == (130, "Error: interrupted\n")


def test_an_import_is_not_broken_off(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text("import time\nprint('here', flush=True)\ntime.sleep(0.3)\nprint('whole')\n")
    process = start(f"""\
        sys.path.insert(0, {str(tmp_path)!r})
        import slow
        time.sleep(60)
        """)
    process.send_signal(signal.SIGINT)
    assert process.stdout
    assert process.stdout.readline() == "whole\n"
    assert finish(process) == (130, "Error: interrupted\n")


def test_a_long_import_is_explained_while_it_is_waited_for(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text("import time\nprint('here', flush=True)\ntime.sleep(0.6)\n")
    process = start(f"""\
        from sdort.cli import interruption
        interruption._PATIENCE = 0.1
        sys.path.insert(0, {str(tmp_path)!r})
        import slow
        time.sleep(60)
        """)
    process.send_signal(signal.SIGINT)
    assert finish(process) == (130, "stopping; Ctrl-C again ends it at once\nError: interrupted\n")


def test_a_run_that_begins_while_the_interrupt_waits_ends_too(tmp_path: Path) -> None:
    """The main thread goes from an import, which is whole, into C code before the interrupt is raised."""
    (tmp_path / "slow.py").write_text(
        "import signal, time\nprint('here', flush=True)\ntime.sleep(0.3)\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])\n"
    )
    process = start(f"""\
        import threading
        from sdort.runtime.opener import stoppable
        ended = threading.Event()
        sys.path.insert(0, {str(tmp_path)!r})
        import slow
        with stoppable(ended.set):
            ended.wait()
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGALRM])  # the sleep is no run that anyone stops
        time.sleep(60)
        """)
    process.send_signal(signal.SIGINT)
    assert finish(process) == (130, "Error: interrupted\n")


def test_a_system_call_that_the_signal_did_not_break_off_is_woken() -> None:
    """As for one that arrives between Python's last look and the call: here another thread has it."""
    process = start("""\
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
        print("here", flush=True)
        time.sleep(60)
        """)
    process.send_signal(signal.SIGINT)
    assert finish(process) == (130, "Error: interrupted\n")


def test_an_interrupt_while_an_error_is_printed_has_its_exit_code() -> None:
    process = start("""\
        from sdort import console
        def slow(message):
            print("here", flush=True)
            time.sleep(60)
        console.print_error = slow
        raise ValueError
        """)
    process.send_signal(signal.SIGINT)
    assert finish(process) == (130, "Error: interrupted\n")


def test_a_signal_in_the_handler_breaks_off_no_more_than_the_handler() -> None:
    """The one before found a ``with`` that is being entered; what is raised in its handler would end up there."""

    def called(*files: str) -> bool:
        """What is said of a frame of the last file, which one of the file before has called."""
        call: Callable[[], bool] = lambda: interruption._is_whole(sys._getframe(1))  # noqa: E731
        for file in reversed(files):
            scope: dict[str, Any] = {}
            exec(compile("def through(call): return call()", file, "exec"), scope)
            call = partial(scope["through"], call)
        return call()

    entering, handling = contextlib.__file__, interruption.__file__
    assert called(entering)
    assert called(entering, handling)
    assert called(entering, handling, handling)
    assert not called(entering, __file__)
    assert not called(__file__, handling)


def test_an_interrupt_in_a_destructor_is_raised_again() -> None:
    process = start("""\
        class Slow:
            def __del__(self):
                print("here", flush=True)
                time.sleep(60)
        Slow()
        time.sleep(60)
        """)
    process.send_signal(signal.SIGINT)
    assert finish(process) == (130, "Error: interrupted\n")


def test_who_interrupts_again_while_it_cleans_up_is_told_and_then_obeyed() -> None:
    process = start("""\
        try:
            print("here", flush=True)
            time.sleep(60)
        finally:
            print("cleaning", flush=True)
            time.sleep(60)
        """)
    process.send_signal(signal.SIGINT)
    assert process.stdout
    assert process.stdout.readline() == "cleaning\n"
    process.send_signal(signal.SIGINT)
    assert process.stderr
    assert process.stderr.readline() == "cleaning up; Ctrl-C once more ends it at once\n"
    process.send_signal(signal.SIGINT)
    assert finish(process) == (130, "Error: interrupted\n")


def test_what_cleans_up_is_interrupted_once() -> None:
    process = start("""\
        try:
            print("here", flush=True)
            time.sleep(60)
        finally:
            time.sleep(0.2)
            print("clean", flush=True)
        """)
    process.send_signal(signal.SIGINT)
    assert process.stdout
    assert process.stdout.read() == "clean\n"
    assert finish(process) == (130, "Error: interrupted\n")


def test_a_run_of_onnxruntime_ends() -> None:
    """Its run does not return to Python by itself: ``stop`` ends it."""
    process = start("""\
        import threading
        from sdort.runtime.opener import stoppable
        ended = threading.Event()
        signals = [signal.SIGINT, signal.SIGALRM]
        with stoppable(ended.set):
            print("here", flush=True)
            signal.pthread_sigmask(signal.SIG_BLOCK, signals)  # the main thread hears of nothing, as in C code
            ended.wait()
            signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)
        time.sleep(60)
        """)
    process.send_signal(signal.SIGINT)
    assert finish(process) == (130, "Error: interrupted\n")


def test_a_program_that_imports_sdort_keeps_its_own_handlers() -> None:
    """Only the command line handles signals: importing it, or calling its click command, changes nothing."""
    code = """\
import signal, sys, threading
signals = signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}
def state():
    return [signal.getsignal(each) for each in signals], sys.unraisablehook, threading.active_count()
before = state()
import sdort, sdort.cli, sdort.__main__
sdort.cli.cli(["tuning", "list", "-q", "--json"], standalone_mode=False)
print(state() == before, signal.set_wakeup_fd(-1), file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == "True -1\n"
    silent = subprocess.run([sys.executable, "-c", "import sdort"], capture_output=True, text=True, check=True)
    assert silent.stdout + silent.stderr == ""


def test_what_is_over_is_not_stopped() -> None:
    stopped: list[str] = []
    with opener.stoppable(lambda: stopped.append("outer")):
        with opener.stoppable(lambda: stopped.append("inner")):
            pass
        opener.stop_all()
    opener.stop_all()
    assert stopped == ["outer"]


def test_the_staging_is_not_broken_off_and_its_block_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen: list[bool] = []

    def look(*_: object) -> None:
        seen.append(interruption._is_whole(sys._getframe()))

    monkeypatch.setattr("sdort.files.staging._refuse_input", look)
    with staged_directory(tmp_path / "out", False):
        look()
    assert seen == [True, False]


@pytest.mark.parametrize("where", ["__enter__", "__exit__"])
def test_an_interrupt_on_the_way_into_or_out_of_a_block_waits(where: str) -> None:
    """The signal arrives without a call, so that Python handles it in contextlib, with the generator suspended."""
    process = start(f"""\
        import _thread, contextlib
        class Trip:
            __neg__ = _thread.interrupt_main
        @contextlib.contextmanager
        def block():
            try:
                yield -Trip() if {where!r} == "__enter__" else None
            finally:
                print("undone", flush=True)
        print("here", flush=True)
        try:
            with block():
                if {where!r} == "__exit__":
                    -Trip()
            time.sleep(60)
        except KeyboardInterrupt as interrupt:
            print("caught", flush=True)
        """)
    assert process.stdout
    assert process.stdout.read() == "undone\ncaught\n"
    assert finish(process) == (130, "Error: interrupted\n")
