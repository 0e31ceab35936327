"""The native library and its kernels as CPU code, built once for all tests (and kept between runs)."""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

from support.turns import ALL

SOURCE = Path(__file__).resolve().parents[2] / "custom_ops"
MACHINES = ("mfma", "wmma_gfx11", "wmma_gfx12", "mma_sync")
"""The simulated machines: a wave size and a matrix instruction each (custom_ops/cmake/simulated.cmake)."""

COVERED = {"gfx1101": "gfx1100", "gfx1102": "gfx1100", "gfx1200": "gfx1201"}
"""GPUs for which nothing is built -> the one whose code stands for theirs.

They have its instructions, and no source tells them apart. gfx1200's code is gfx1201's byte for byte; the others' takes
as many vector registers or fewer, which test_ops_code.py reads in REGISTERS.md. ``MATRIX=all`` builds them too.
"""
ARCHITECTURES = {"gfx90a", "gfx942", "gfx1100", "gfx1151", "gfx1201"} | (COVERED.keys() if ALL else set())
"""What is built of all that clang 19 knows; gfx950 needs a later one."""


@cache
def build_folder() -> Path:
    """Where everything is built: named by its sources, shared by parallel test processes.

    ``SDORT_OPS_BUILD`` names a folder to use as it is: while a kernel is being written, its own build is up to date.
    """
    if given := os.environ.get("SDORT_OPS_BUILD"):
        return Path(given)
    return _built_with("-DSDORT_SIMULATED=ON", f"-DSDORT_HIP_ARCHS={';'.join(sorted(ARCHITECTURES))}")


SANITIZERS = "-fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer -g1"
"""GCC's options: the first wrong access or overflow ends the process with a report.

Without optimization: its compilation takes half as long, and nothing is optimized away before it is watched.
"""


@cache
def sanitized_folder() -> Path:
    """As :func:`build_folder`, without code for GPUs and simulated machines, under :data:`SANITIZERS`."""
    options = ("-DSDORT_HIP=OFF", "-DSDORT_CUDA=OFF", "-DCMAKE_BUILD_TYPE=None")
    return _built_with(*options, f"-DCMAKE_CXX_FLAGS={SANITIZERS}")


def windows_library() -> Path:
    """sdort_ops.dll, compiled on Linux (custom_ops/cmake/mingw.cmake)."""
    toolchain = f"-DCMAKE_TOOLCHAIN_FILE={SOURCE / 'cmake' / 'mingw.cmake'}"
    headers = f"-DSDORT_ORT_INCLUDE={headers_of(build_folder())}"
    return _built_with("-DSDORT_HIP=OFF", "-DSDORT_CUDA=OFF", toolchain, headers) / "sdort_ops.dll"


def headers_of(build: Path) -> Path:
    """The folder of ONNX Runtime's headers that a library was built with."""
    cache = (build / "CMakeCache.txt").read_text().splitlines()
    for variable in ("SDORT_ORT_INCLUDE", "SDORT_ORT_SYSTEM_INCLUDE"):
        for line in cache:
            if line.startswith(f"{variable}:PATH=/"):
                return Path(line.split("=", 1)[1])
    return build / "onnxruntime"


def _built_with(*options: str) -> Path:
    return built(_sources() | {"": " ".join(options).encode()}, lambda folder: _build(folder, *options))


def sanitizer_runtimes() -> str:
    """The sanitizers' libraries, which a Python that loads a sanitized library has to load first (``LD_PRELOAD``)."""
    names = ("libasan.so", "libubsan.so")
    return " ".join(
        subprocess.run(["g++", f"-print-file-name={name}"], capture_output=True, text=True, check=True).stdout.strip()
        for name in names
    )


def _sources() -> dict[str, bytes]:
    paths = sorted(p for p in SOURCE.rglob("*") if p.is_file() and p.suffix not in {".py", ".pyc", ".md"})
    return {str(path.relative_to(SOURCE)): path.read_bytes() for path in paths}


def built(sources: Mapping[str, bytes], build: Callable[[Path], None]) -> Path:
    """The folder that ``build`` fills, once for these sources; other test processes wait for it."""
    digest = hashlib.sha256()
    for name, contents in sources.items():
        digest.update(name.encode() + b"\0" + contents)
    folder = Path(tempfile.gettempdir()) / f"sdort-ops-{os.getuid()}" / digest.hexdigest()[:16]
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "done").exists():
            shutil.rmtree(folder / "build", ignore_errors=True)  # of a process that was killed
            build(folder / "build")
            (folder / "done").touch()
    return folder / "build"


def _build(folder: Path, *options: str) -> None:
    generator = ["-G", "Ninja"] if shutil.which("ninja") else []
    configure = ["cmake", "-S", str(SOURCE), "-B", str(folder), *options, *generator]
    for command in (configure, ["cmake", "--build", str(folder), "--parallel", str(os.cpu_count() or 1)]):
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)} failed:\n{done.stdout[-4000:]}{done.stderr[-4000:]}")


def library() -> Path:
    """libsdort_ops.so."""
    return build_folder() / "libsdort_ops.so"


def install(target: Path) -> Path:
    """A copy of the library at ``target`` with the record beside it, as ``sdort ops build`` leaves them."""
    target.parent.mkdir(parents=True)
    shutil.copy(library(), target)
    stored = {
        "path": target.name,
        "code": ["gfx1100"],
        "left_out": ["gfx950"],
        "headers": "here (API 21)",
        "seconds": 3.0,
        "date": "2026-11-21 00:00:00",
        "options": {"architectures": ["gfx1100"], "hip": None, "cuda": None, "compiler": None, "ort_include": None},
        "sha256": hashlib.sha256(target.read_bytes()).hexdigest(),
        "previous": "",
    }
    (target.parent / "build.json").write_text(json.dumps(stored))
    return target


@cache
def simulated(machine: str) -> ctypes.CDLL:
    """The kernels as CPU code for one of :data:`MACHINES` (custom_ops/simulated/simulated.cpp)."""
    simulator = ctypes.CDLL(str(build_folder() / f"libsdort_simulated_{machine}.so"))
    for name in ("error", "operators", "variants", "launches"):
        getattr(simulator, f"simulated_{name}").restype = ctypes.c_char_p
    return simulator


@cache
def kernel_operators() -> tuple[str, ...]:
    """The folders of ``custom_ops/operators`` that have kernels, as the build found them."""
    return tuple(simulated(MACHINES[0]).simulated_operators().decode().split())
