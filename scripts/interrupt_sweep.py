"""Interrupt commands at every moment of their start, and say how each ended.

Every command must end by itself or with exit code 130 and the sentence "Error: interrupted", and never with a
traceback. Before the first line of sdort runs (Python's own start) an interrupt is Python's, and so is one in the
last instants of a process.

    python scripts/interrupt_sweep.py --step 5 --until 500 -- export demo OUT
"""

from __future__ import annotations

import argparse
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path


def interrupt(arguments: list[str], seconds: float, signum: int) -> tuple[int, str]:
    """Exit code and stderr of ``sdort ARGUMENTS`` that gets a signal after so many seconds."""
    command = [shutil.which("sdort", path=str(Path(sys.executable).parent)) or "sdort", *arguments]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        time.sleep(seconds)
        process.send_signal(signum)
        return process.wait(), process.stderr.read() if process.stderr else ""


def describe(said: str) -> str:
    """The last line on stderr, or in which file Python was interrupted, and whether that is ours."""
    lines = said.strip().splitlines()
    if "Traceback" not in said:
        return lines[-1] if lines else "nothing said"
    if "init_import_site" in said:
        return "traceback of Python's own start"
    files = [line.strip() for line in lines if line.strip().startswith("File")]
    ours = [line for line in files if "/sdort/" in line]
    return f"TRACEBACK in {(ours or files)[-1]}"


def main() -> None:
    """Sweep over the delays and print a line for each outcome."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--step", type=int, default=5, help="milliseconds between two moments")
    parser.add_argument("--until", type=int, default=500, help="the last moment, in milliseconds")
    parser.add_argument("--signal", default="INT", choices=("INT", "TERM", "HUP"))
    parser.add_argument("arguments", nargs="+", metavar="ARGUMENT", help="of sdort; OUT is a new folder's path")
    given = parser.parse_args()
    signum = signal.Signals[f"SIG{given.signal}"]
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's & makes children deaf to it
    outcomes: Counter[str] = Counter()
    moments: dict[str, list[int]] = {}
    for delay in range(0, given.until + 1, given.step):
        with tempfile.TemporaryDirectory() as folder:
            arguments = [str(Path(folder) / "out") if argument == "OUT" else argument for argument in given.arguments]
            code, said = interrupt(arguments, delay / 1000, signum)
            left = [path.name for path in Path(folder).iterdir() if path.name != "out"]
        outcome = f"exit {code}, {left} left over, {describe(said)}"
        outcomes[outcome] += 1
        moments.setdefault(outcome, []).append(delay)
    for outcome, count in outcomes.most_common():
        print(f"{count:4d}  {outcome}  ({moments[outcome][0]} to {moments[outcome][-1]} ms)")


if __name__ == "__main__":
    main()
