"""Feed hostile input to whatever in sdort reads files of strangers, guided by the coverage of its code.

    scripts/fuzz.py                            every target, a minute each
    scripts/fuzz.py loader external --seconds 3600 --corpus corpus
    scripts/fuzz.py --case tests/fuzz/cases/loader/0123abcd

A target (tests/support/fuzzing/targets.py) passes where it raises SdortError or succeeds, in bounded time and memory,
and touches nothing outside of its folder. What fails is kept as a file in tests/fuzz/cases/TARGET, one for each place
in the code, the smallest that was seen; tests/project/test_fuzz.py replays these. The fuzzing is done by atheris
(libFuzzer), which has wheels for Python 3.11 to 3.13 on x86-64.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import os
import re
import shutil
import sys
import tempfile
import traceback
from contextlib import redirect_stderr
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, NoReturn

ROOT = Path(__file__).resolve().parent.parent
CASES = ROOT / "tests" / "fuzz" / "cases"
MEMORY = Path("/dev/shm")
"""Where files cost least."""
MOST = 8192
"""Bytes of an input."""

if TYPE_CHECKING:
    from support.fuzzing.targets import Target


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help="which readers (all)")
    parser.add_argument("--seconds", type=int, default=60, help="of each target (60)")
    parser.add_argument("--ci", action="store_true", help="a fixed number of inputs from a fixed seed, in place of it")
    parser.add_argument("--seed", type=int, default=0, help="of the random numbers (0: another one each time; --ci: 1)")
    parser.add_argument("--corpus", type=Path, help="keep inputs that reach new code in this folder, and begin there")
    parser.add_argument("--cases", type=Path, default=CASES, help="where what fails is kept (tests/fuzz/cases)")
    parser.add_argument("--case", type=Path, nargs="+", help="only run these files: .../TARGET/NAME")
    args = parser.parse_args()
    sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
    if args.case:
        replay(args.case)
    sys.exit(fuzz(args))


def replay(files: list[Path]) -> NoReturn:
    """Run kept cases, without a bound of time, for a debugger."""
    from support.fuzzing.targets import run

    for file in files:
        with tempfile.TemporaryDirectory(prefix="sdort-fuzz-", dir=MEMORY if MEMORY.is_dir() else None) as folder:
            print(f"{file}: {run(file.absolute().parent.name, Path(folder), file.read_bytes()) or 'accepted'}")
    sys.exit()


def fuzz(args: argparse.Namespace) -> int:
    """Run the targets one after the other, each in a process of its own; 1 where one failed."""
    try:
        import atheris
    except ImportError:
        sys.exit("This needs atheris, which has wheels for Python 3.11 to 3.13 on x86-64:\n    pip install atheris")
    if args.ci and os.environ.get("PYTHONHASHSEED") != "0":  # the order of sets is part of what a seed repeats
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, "PYTHONHASHSEED": "0"})
    with atheris.instrument_imports(include=["sdort"]):
        with redirect_stderr(io.StringIO()):  # it says of each module that it is instrumented
            from support.fuzzing.targets import TARGETS

        unknown = sorted(set(args.targets) - TARGETS.keys())
        if unknown:
            sys.exit(f"There is no target {', '.join(unknown)}; there are: {', '.join(TARGETS)}.")
        print(f"{'target':12} {'inputs':>9} {'a second':>9} {'edges':>6} {'features':>8}  finds", flush=True)
        done = [run_target(name, TARGETS[name], args) for name in args.targets or TARGETS]
    return int(any(done))


def run_target(name: str, target: Target, args: argparse.Namespace) -> int:
    """Fuzz one target in a forked process, print a line, and return the number of finds."""
    cases = (args.cases / name).absolute()
    before = {path.name for path in cases.glob("*")}
    with tempfile.TemporaryDirectory(prefix="sdort-fuzz-", dir=MEMORY if MEMORY.is_dir() else None) as folder:
        log = Path(folder) / "log"
        child = os.fork()
        if child == 0:
            try:
                in_child(name, target, args, Path(folder), log, cases)
            finally:  # nothing of the parent's is to be cleaned up here
                traceback.print_exc()
                sys.stderr.flush()
                os._exit(1)
        _, status = os.waitpid(child, 0)
        text = log.read_text(errors="replace")
    found = re.findall(r"^#(\d+)\s.*?cov: (\d+) ft: (\d+).*?exec/s: (\d+)", text, re.MULTILINE)
    inputs, edges, features, speed = found[-1] if found else ("0",) * 4
    finds = sorted({path.name for path in cases.glob("*")} - before)
    print(f"{name:12} {inputs:>9} {speed:>9} {edges:>6} {features:>8}  {', '.join(finds) or '-'}", flush=True)
    for report in re.findall(r"^FOUND .*?^END$", text, re.MULTILINE | re.DOTALL):
        print(report.removesuffix("END"))
    if status and not finds:
        print(f"{name} ended with {os.waitstatus_to_exitcode(status)}:\n{text[-3000:]}")
    for case in finds:
        content = (cases / case).read_bytes()
        print(f"{cases / case}: {len(content)} bytes: {content[:4096].hex()}" if args.ci else cases / case)
    return len(finds) + (status != 0 and not finds)


def in_child(name: str, target: Target, args: argparse.Namespace, folder: Path, log: Path, cases: Path) -> NoReturn:
    """Fuzz until the time or the number of inputs is over. libFuzzer ends the process."""
    import atheris

    output = os.open(log, os.O_WRONLY | os.O_CREAT)
    os.dup2(output, 1)
    os.dup2(output, 2)
    corpus = (args.corpus / name).absolute() if args.corpus else folder / "corpus"
    corpus.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(target.seeds()):
        (corpus / f"seed-{number}").write_bytes(seed)
    for case in CASES.glob(f"{name}/*"):
        shutil.copy(case, corpus)
    cases.mkdir(parents=True, exist_ok=True)
    bound = [f"-runs={target.runs}"] if args.ci else [f"-max_total_time={args.seconds}"]
    options = [
        *bound, f"-seed={args.seed or (1 if args.ci else 0)}", f"-max_len={MOST}", "-timeout=120", "-rss_limit_mb=0",
        f"-artifact_prefix={cases}/", "-len_control=0", "-print_final_stats=1", str(corpus),
    ]  # fmt: skip
    harness = Harness(name, folder / "work", cases)
    extra = {}
    if target.mutator:
        mutator = target.mutator
        extra["custom_mutator"] = lambda data, most, seed: mutator(data, most, seed, atheris.Mutate)
    atheris.Setup([sys.argv[0], *options], harness, **extra)
    os.environ["TMPDIR"] = str(folder / "work")
    tempfile.tempdir = None
    atheris.Fuzz()
    raise AssertionError("libFuzzer ends the process")


@dataclass
class Harness:
    """Runs inputs, and keeps the smallest of those that fail at one place."""

    name: str
    work: Path
    cases: Path

    def __post_init__(self) -> None:
        self.smallest: dict[str, int] = {}

    def __call__(self, data: bytes) -> None:
        from support.fuzzing.targets import run
        from support.fuzzing.watch import EscapeError, TooSlowError, bounded

        if self.work.exists():
            shutil.rmtree(self.work)
        self.work.mkdir()
        try:
            with bounded(self.work):
                run(self.name, self.work, data)
        except (Exception, EscapeError, TooSlowError) as error:
            self.keep(data, error)

    def keep(self, data: bytes, error: BaseException) -> None:
        place = where(error)
        if len(data) >= self.smallest.get(place, MOST + 1):
            return
        if place not in self.smallest:
            text = "".join(traceback.format_exception(error, limit=-6))
            print(f"FOUND in {self.name}: {place}\n{text}\nEND", flush=True)
        self.smallest[place] = len(data)
        (self.cases / hashlib.sha256(place.encode()).hexdigest()[:12]).write_bytes(data)


def where(error: BaseException) -> str:
    """The class of the first cause and the last line of the project's that it passed, which names a find."""
    while error.__cause__:
        error = error.__cause__
    last, step = "", error.__traceback__
    while step:
        last, step = _line(step, last), step.tb_next
    return f"{type(error).__name__} at {last}"


def _line(step: TracebackType, last: str) -> str:
    code = step.tb_frame.f_code
    here = Path(code.co_filename)
    return f"{here.relative_to(ROOT)}:{code.co_name}" if here.is_relative_to(ROOT / "sdort") else last


if __name__ == "__main__":
    main()
