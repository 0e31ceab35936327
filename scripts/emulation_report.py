#!/usr/bin/env python3
"""The emulator's runs as a Markdown table: kernel x target, each with its largest error.

    python scripts/emulation_report.py [--kernel SUBSTRING]

An error is in units of what the kernel's other tests allow (their tolerances, against float64): 1 and less is right.
Builds the machine code where that has not been done (tests/support/native.py). A cell says "stop" where the
emulator refused to go on, and "-" where a target has no such kernel; targets whose machine code of a kernel is the same
share a run. The exit code is 1 if one is wrong or stopped.
"""

from __future__ import annotations

import math
import sys
from collections import defaultdict
from pathlib import Path

from measuring import Arguments

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from kernel_report import natural
from support import emulated, machine_code_cases
from support.emulator import EmulationError


def main() -> int:
    parser = Arguments(__doc__)
    parser.add_argument("--kernel", default="", metavar="SUBSTRING", help="only kernels whose names contain it")
    args = parser.parse_args()
    targets = sorted(emulated.targets(), key=lambda target: natural(target.architecture))
    errors = {target.architecture: errors_of(target, args.kernel) for target in targets}
    columns = [name.removeprefix("gfx") for name in errors]
    print(f"|{'kernel':31}|{'|'.join(f'{name:>4}' for name in columns)}|")
    print(f"|{'-' * 31}|{'---:|' * len(columns)}")
    for kernel in sorted(set[str]().union(*errors.values()), key=natural):
        cells = [errors[name].get(kernel, "-") for name in errors]
        print(f"|{kernel:31}|{'|'.join(f'{cell:>4}' for cell in cells)}|")
    distinct = {code for target in targets for name, code in target.code.items() if args.kernel in name}
    total = sum(args.kernel in name for target in targets for name in target.code)
    wrong = [
        f"{name}: {kernel}" for name, found in errors.items() for kernel, error in found.items() if not right(error)
    ]
    print(f"\n{total} kernels in {len(targets)} objects, {len(distinct)} of them different.")
    print(*[f"wrong: {each}" for each in wrong], sep="\n", end="\n" if wrong else "", file=sys.stderr)
    return 1 if wrong else 0


def errors_of(target: emulated.Target, part: str) -> dict[str, str]:
    """Kernel -> its largest error of all runs that it took part in, or "stop"."""
    worst: dict[str, float] = defaultdict(float)
    for case in machine_code_cases.cases(target):
        if part not in case.kernel:
            continue
        try:
            outcome = machine_code_cases.run(target, case)
        except EmulationError as error:
            print(f"{target.architecture}: {case}: {error}", file=sys.stderr)
            worst[case.kernel] = math.nan
            continue
        for kernel in outcome.kernels:
            worst[kernel] = max(worst[kernel], outcome.error if outcome.same else math.inf)
    return {kernel: text_of(error) for kernel, error in worst.items()}


def right(text: str) -> bool:
    return text not in ("stop", ">10") and float(text) <= 1


def text_of(error: float) -> str:
    return "stop" if math.isnan(error) else f"{error:.2f}" if error < 10 else ">10"


if __name__ == "__main__":
    sys.exit(main())
