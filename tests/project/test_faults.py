"""Killed and interrupted at any moment: no half of an output, no broken cache, and what was there before stays.

``KILLS=100`` kills each command a hundred times: minutes of work, for people.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from PIL import Image
from support import forked, pipelines, tiny_pipeline
from support.moments import KILLED, KILLED_BY_CLOCK, Strikes
from support.processes import wait_for_end

from sdort.pipelines.manifest import write_listed_files
from sdort.tuning.bundle import check_files
from sdort.tuning.store import Store

pytestmark = pytest.mark.long

ROUNDS = int(os.environ.get("KILLS", "5"))
"""Kills of each command, spread over all that it does."""
RUN = ("--height", "64", "--width", "64", "--provider", "cpu", "--seed", "1", "-o", "out/image.png")
OLD = b"what was there before"
OLD_FOLDER = {"old.onnx": OLD, "sdort.json": b"['files']"}
"""The :func:`tree` of a folder that sdort wrote: --overwrite replaces no other."""


@pytest.fixture(autouse=True)
def _interruptible() -> Iterator[None]:
    """A shell starts what runs in the background deaf to SIGINT, and the commands that it starts inherit that."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> pipelines.Exported:
    """The demo's export, and traces that exports of it find."""
    return pipelines.export_family("sd1", tmp_path_factory.mktemp("demo"), pipelines.trace_folder(request.config))


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_pipeline.shared(tmp_path_factory.mktemp("tiny")).onnx


@pytest.fixture
def folder(tmp_path: Path, demo: pipelines.Exported) -> Path:
    """Where commands run, with a cache that knows the demo's traces."""
    shutil.copytree(demo.traces, tmp_path / "cache" / "sdort" / "traces")
    return tmp_path


def tree(folder: Path) -> dict[str, bytes]:
    """Every file's content; of sdort's own record the kind of its entries only, for it holds times."""
    found = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    if "sdort.json" in found:
        found["sdort.json"] = str(sorted(json.loads(found["sdort.json"]))).encode()
    return found


def place_old(out: Path) -> None:
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir()
    (out / "old.onnx").write_bytes(OLD)
    write_listed_files(out, {}, {})


def hidden(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob(".*sdort-*"))


def making(command: str, demo: pipelines.Exported) -> tuple[str, ...]:
    """The command line that makes ``out``."""
    if command == "export":
        return "export", "random:tiny", "out"
    return "optimize", str(demo.out), "out", "--fp16", "--provider", "cpu"


@pytest.mark.parametrize("command", ["export", "optimize"])
def test_a_kill_leaves_a_whole_folder_or_what_was_there(command: str, folder: Path, demo: pipelines.Exported) -> None:
    out, args = folder / "out", (*making(command, demo), "--overwrite")
    seconds = forked.work(folder, *args)
    new, traces = tree(out), tree(folder / "cache")
    for number, moment in enumerate(strikes := Strikes(seconds, ROUNDS, seed=len(command))):
        shutil.rmtree(out, ignore_errors=True)
        before = OLD_FOLDER if number % 2 else {}
        if before:
            place_old(out)
        strikes.struck = forked.start(folder, *args, moment=moment).finish() == KILLED
        assert out.exists() or not before
        assert tree(out) in (before, new)
        assert len(hidden(folder)) <= 1  # each run removes what the one before left behind
    forked.work(folder, *args)
    assert tree(out) == new
    assert tree(folder / "cache") == traces
    assert hidden(folder) == leftovers(folder) == []


def test_a_kill_before_any_change_of_the_file_system(folder: Path, demo: pipelines.Exported) -> None:
    """Of a folder that is being replaced: every instant at which the disk could hold half of something."""
    out, args = folder / "out", (*making("optimize", demo), "--component", "vae_decoder", "--overwrite")
    forked.work(folder, *args)
    new = tree(out)
    assert len(new) > 3

    def state(place: Path) -> tuple[bool, bool]:
        assert tree(place / "out") in (OLD_FOLDER, new), place
        return tree(place / "out") == new, bool(hidden(place))

    # At first nothing, then a hidden folder beside the old one, then the new one with the old one hidden, at last that.
    order = [(False, False), (False, True), (True, True), (True, False)]
    check_kills(folder, args, lambda: place_old(out), state, order)
    assert tree(out) == new


def check_kills(
    folder: Path,
    args: tuple[str, ...],
    prepare: Callable[[], object],
    state: Callable[[Path], tuple[bool, bool]],
    order: list[tuple[bool, bool]],
) -> None:
    """What the folder holds before each change of a command that works has these states; so it is after a kill there.

    A kill leaves on the disk what is there just before the next change, so one run shows them all. That kills do leave
    that, and that the next run removes it, is seen where a state begins.
    """
    prepare()
    assert forked.start(folder, *args, recorded=True).finish() == 0
    states = [state(place) for place in forked.records(folder)]
    assert len(states) > 3
    assert list(dict.fromkeys([*states, state(folder)])) == order
    for number in sorted({states.index(each) for each in states}):
        prepare()
        assert forked.start(folder, *args, dies_at=number + 1).finish() == -signal.SIGKILL
        assert state(folder) == states[number]
        forked.work(folder, *args)
        assert state(folder) == order[-1]


# ---- drawing ----


def images(folder: Path) -> list[Path]:
    """Those that are there, each looked at to the last pixel."""
    found = sorted((folder / "out").glob("*.png"))
    for path in found:
        if path.read_bytes() != OLD:
            with Image.open(path) as image:
                image.load()
                assert image.size == (64, 64)
                assert json.loads(image.text["sdort"])["prompt"] == "a"  # type: ignore[attr-defined]
    return found


def test_a_kill_leaves_whole_images(folder: Path, tiny: Path) -> None:
    (folder / "out").mkdir()
    args = ("run", str(tiny), "--prompt", "a", *RUN, "--steps", "2", "--num-images", "6", "--overwrite")
    seconds = forked.work(folder, *args)
    paths = images(folder)
    assert len(paths) == 6
    kept = 0
    for moment in (strikes := Strikes(seconds, ROUNDS, seed=3)):
        for path in paths:
            path.write_bytes(OLD)
        strikes.struck = forked.start(folder, *args, moment=moment).finish() == KILLED
        assert images(folder) == paths
        kept += sum(path.read_bytes() == OLD for path in paths)
    assert kept > 0
    forked.work(folder, *args)
    assert all(path.read_bytes() != OLD for path in images(folder))
    assert hidden(folder / "out") == []


def test_a_kill_before_any_change_leaves_an_image_or_what_was_there(folder: Path, tiny: Path) -> None:
    path, old = folder / "out" / "image.png", OLD
    path.parent.mkdir()
    args = ("run", str(tiny), "--prompt", "a", *RUN, "--steps", "1", "--overwrite")

    def state(place: Path) -> tuple[bool, bool]:
        [found] = images(place)
        return found.read_bytes() != old, bool(hidden(found.parent))

    forked.work(folder, *args)  # what the first run puts into the caches, later ones only read
    check_kills(folder, args, lambda: path.write_bytes(old), state, [(False, False), (False, True), (True, False)])


# ---- caches ----


def bundles(folder: Path) -> list[str]:
    """The names of the bundles in the cache, each of whose files has its hash."""
    store = Store(folder / "cache" / "sdort" / "tuning")
    for name in store.names():
        check_files(store.read(name))
    return store.names()


def _processes_of(folder: Path) -> Iterator[int]:
    """The processes that a path in the folder was given to, as compilers that have not yet said that they run."""
    for line in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # it has ended
            if os.fsencode(folder) in line.read_bytes():
                yield int(line.parent.name)


def leftovers(folder: Path) -> list[str]:
    """What of killed commands lies in the caches and among the temporary files."""
    hidden = [*(folder / "cache").rglob(".new-*"), *(folder / "cache").rglob(".build-*"), *(folder / "tmp").iterdir()]
    return sorted(path.name for path in hidden)


@pytest.mark.parametrize("command", ["warm", "import"])
def test_a_kill_leaves_whole_bundles(command: str, tmp_path: Path, tiny: Path) -> None:
    folder, cache = tmp_path, tmp_path / "cache" / "sdort" / "tuning"
    args: tuple[str, ...] = ("warm", str(tiny), "--provider", "cpu", "--size", "64x64", "--component", "unet")
    if command == "import":
        forked.work(folder, *args)
        forked.work(folder, "tuning", "export", "tuned.tar")
        shutil.rmtree(cache)
        args = ("tuning", "import", "tuned.tar")
    seconds = forked.work(folder, *args)
    names = bundles(folder)
    for moment in (strikes := Strikes(seconds, ROUNDS, seed=len(command))):
        shutil.rmtree(cache)
        strikes.struck = forked.start(folder, *args, moment=moment).finish() == KILLED
        assert bundles(folder) in ([], names)
        forked.work(folder, *args)
        assert bundles(folder) == names
        assert leftovers(folder) == []


COMPILER = """\
#!/bin/sh
# A compiler in a group of its own, as ninja starts them, writes its process id; cmake waits for it.
[ "$1" = --build ] || { mkdir -p "$4"; echo "-- ONNX Runtime headers: here"; exit; }
setsid sh -c 'echo $$ >>"$0/pids"; sleep 0.2' PLACE &
wait
cp PLACE/library.so "$2/libsdort_ops.so"
"""


@pytest.fixture
def compiler(tmp_path: Path) -> Path:
    """Where commands run, with a cmake that takes no time."""
    source = tmp_path / "library.c"
    source.write_text('char *sdort_ops_describe(void) { return "{\\"operators\\": [], \\"code_objects\\": []}"; }\n')
    subprocess.run(["cc", "-shared", "-fPIC", "-o", tmp_path / "library.so", source], check=True)
    cmake = tmp_path / "bin" / "cmake"
    cmake.parent.mkdir()
    cmake.write_text(COMPILER.replace("PLACE", str(tmp_path)))
    cmake.chmod(0o755)
    return tmp_path


def test_a_kill_of_a_build_leaves_a_whole_library_and_no_compiler(compiler: Path) -> None:
    folder, args = compiler, ("ops", "build", "--force")
    seconds = forked.work(folder, *args, timer=signal.ITIMER_REAL)
    [library] = (folder / "cache").rglob("libsdort_ops.so")
    new = library.read_bytes()
    for number, moment in enumerate(strikes := Strikes(seconds, ROUNDS, seed=5)):
        if number % 2:
            shutil.rmtree(library.parent)
        (folder / "pids").unlink(missing_ok=True)
        status = forked.start(folder, *args, moment=moment, timer=signal.ITIMER_REAL).finish()
        strikes.struck = status == KILLED_BY_CLOCK
        pids = (folder / "pids").read_text().split() if (folder / "pids").exists() else []
        wait_for_end([*map(int, pids), *_processes_of(folder)])  # its supervisor kills it
        assert not library.exists() or library.read_bytes() == new
        assert number % 2 or forked.start(folder, "ops", "list").finish() == 0  # the old one or the new one is used
        forked.work(folder, *args)
        assert library.read_bytes() == new
        assert leftovers(folder) == []


# ---- ctrl-C ----


@pytest.mark.parametrize("command", ["export", "optimize"])
def test_an_interrupted_command_cleans_up(command: str, folder: Path, demo: pipelines.Exported) -> None:
    out, args = folder / "out", (*making(command, demo), "--overwrite")
    seconds = forked.work(folder, *args)
    new = tree(out)
    kept = 0
    for moment in (strikes := Strikes(seconds, 4, seed=1)):
        place_old(out)
        running = forked.start(folder, *args, moment=moment, how=signal.SIGINT)
        status = running.finish()
        strikes.struck = status == 130
        assert strikes.struck or status == 0
        # After the last rename there is only a line to print.
        left = tree(out)
        assert left == new or (strikes.struck and left == OLD_FOLDER)
        kept += left == OLD_FOLDER
        assert hidden(folder) == []
        if strikes.struck:
            assert running.said().splitlines()[-1] == "Error: interrupted"
            assert "Traceback" not in running.said()
    assert kept > 0


def test_images_that_are_done_stay_after_ctrl_c(folder: Path, tiny: Path) -> None:
    (folder / "out").mkdir()
    args = ("run", str(tiny), "--prompt", "a", *RUN, "--steps", "8", "--num-images", "40")
    running = forked.start(folder, *args)
    while not images(folder) and running.process.is_alive():
        time.sleep(0.005)
    assert running.send(signal.SIGINT) == 130
    done = images(folder)
    assert 0 < len(done) < 40
    lines = running.said().splitlines()
    # Which of them may be known to be written when it ends, the last one not.
    assert set(lines) >= {f"wrote {path.relative_to(folder)}" for path in done[:-1]}
    assert lines[-1] == "Error: interrupted"
    assert "Traceback" not in running.said()
    assert hidden(folder / "out") == []


@pytest.mark.parametrize("library", ["onnx", "sdort.exporter.template", "sdort.onnx_io.save"])
def test_ctrl_c_while_libraries_are_imported(library: str, tmp_path: Path) -> None:
    """Here a command starts as people start it; Python tells what it has imported."""
    command = [sys.executable, "-v", "-m", "sdort", "export", "demo", str(tmp_path / "out")]
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as process:
        assert process.stderr
        while not process.stderr.readline().startswith(f"import '{library}'"):
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        said = process.stderr.read()
    assert process.returncode == 130
    assert "Error: interrupted\n" in said
    assert "Traceback" not in said
    assert list(tmp_path.iterdir()) == []


# ---- two at once ----


@pytest.mark.parametrize("overwrite", [False, True])
def test_two_at_once_do_not_mix(overwrite: bool, folder: Path, demo: pipelines.Exported) -> None:
    out = folder / "out"
    both = [(*making("optimize", demo), "--component", each) for each in ("vae_decoder", "vae_encoder")]
    whole = []
    for args in both:
        forked.work(folder, *args)
        whole.append(tree(out))
        shutil.rmtree(out)
    assert whole[0] != whole[1]
    for _ in range(3):
        if overwrite:
            place_old(out)
        end = ["--overwrite"] if overwrite else []
        started = [forked.start(folder, *args, *end, log=f"log{index}") for index, args in enumerate(both)]
        statuses = [each.finish() for each in started]
        assert tree(out) in whole
        assert hidden(folder) == []
        if overwrite:
            assert statuses == [0, 0]
        else:
            assert sorted(statuses) == [0, 7]
            loser = statuses.index(7)
            assert tree(out) == whole[1 - loser]
            assert started[loser].said().startswith(f"Error: {out} exists")
        shutil.rmtree(out)
