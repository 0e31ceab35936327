"""The memory that ONNX Runtime really takes for a model's run on the CPU: every block is counted by a C library."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from support import native

SOURCE = Path(__file__).with_suffix(".c")
SCRIPT = """
import ctypes, json, sys
import numpy as np, onnxruntime
counter = ctypes.CDLL(sys.argv[1])
counter.allocations_start.restype = counter.allocations_most.restype = ctypes.c_long
options = onnxruntime.SessionOptions()
options.enable_mem_pattern = options.enable_mem_reuse = False  # as sdort's sessions have it
options.enable_cpu_mem_arena = False  # an arena takes more than it is asked for
options.intra_op_num_threads, options.log_severity_level = 1, 4
session = onnxruntime.InferenceSession(sys.argv[2], options, providers=["CPUExecutionProvider"])
kinds = {"tensor(float)": "f4", "tensor(float16)": "f2", "tensor(int64)": "i8"}
found = []
for shapes in json.loads(sys.argv[3]):
    feeds = {each.name: np.ones(shapes[each.name], kinds[each.type]) for each in session.get_inputs()}
    for _ in range(2):  # the first run of a session sets things up
        start = counter.allocations_start()
        session.run(None, feeds)
        most = counter.allocations_most() - start
    found.append(most + sum(values.nbytes for values in feeds.values()))
print(json.dumps(found))
"""


def library() -> Path | None:
    """The counter, built once; None without a compiler or glibc."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None or not sys.platform.startswith("linux"):
        return None

    def build(folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        subprocess.run(
            [compiler, "-O2", "-shared", "-fPIC", str(SOURCE), "-o", str(folder / "count.so"), "-ldl"], check=True
        )

    return native.built({"allocations": SOURCE.read_bytes()}, build) / "count.so"


def most_taken(counter: Path, model: Path, shapes: Sequence[Mapping[str, tuple[int, ...]]]) -> list[int]:
    """The most bytes that each run takes at once, with its inputs."""
    command = [sys.executable, "-c", SCRIPT, str(counter), str(model), json.dumps(shapes)]
    environment = {**os.environ, "LD_PRELOAD": str(counter)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    found: list[int] = json.loads(done.stdout)
    return found
