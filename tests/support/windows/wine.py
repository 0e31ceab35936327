"""Windows' ONNX Runtime and sdort's library for it, run on Linux by Wine."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from support import native, wheels

Array = npt.NDArray[Any]

VERSION = "1.31.1"
"""Release of ONNX Runtime for Windows."""
_PROGRAM = Path(__file__).with_name("run_models.cpp")
_COMPILER = "x86_64-w64-mingw32-g++-posix"


@cache
def runtime() -> Path:
    """Windows' onnxruntime.dll, from its wheel, kept between runs.

    Raises:
        RuntimeError: it cannot be downloaded; pip's text.
    """
    folder = wheels.ROOT / ".test-venv-onnxruntime-windows"
    folder.mkdir(exist_ok=True)
    library = folder / f"onnxruntime-{VERSION}.dll"
    with open(folder / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not library.exists():
            pip = [sys.executable, "-m", "pip", "download", "-q", "--disable-pip-version-check", "--no-deps", "-d"]
            wanted = ["--platform", "win_amd64", "--python-version", "3.12", "--only-binary=:all:"]
            wheels.run_command([*pip, str(folder), *wanted, f"onnxruntime=={VERSION}"])
            [wheel] = folder.glob(f"onnxruntime-{VERSION}-*.whl")
            with zipfile.ZipFile(wheel) as archive:
                (folder / "new").write_bytes(archive.read("onnxruntime/capi/onnxruntime.dll"))
            wheel.unlink()
            (folder / "new").rename(library)
    return library


@cache
def program() -> Path:
    """``run_models.exe``, compiled once for these sources."""
    headers = native.headers_of(native.build_folder())

    def make(folder: Path) -> None:
        folder.mkdir()
        output = ["-o", str(folder / "run_models.exe")]
        wheels.run_command([_COMPILER, "-std=c++20", "-static", "-isystem", str(headers), str(_PROGRAM), *output])

    return native.built({_PROGRAM.name: _PROGRAM.read_bytes()}, make) / "run_models.exe"


def run_models(folder: Path) -> list[str]:
    """Run all models of a folder, ``NAME.onnx`` with the inputs in ``NAME.in``; their outputs are in ``NAME.out``.

    Returns:
        The version of ONNX Runtime, the library's description of itself, and the number of models.
    """
    shutil.copy(runtime(), folder / "onnxruntime.dll")
    shutil.copy(native.windows_library(), folder / "sdort_ops.dll")
    done = run(program(), folder)
    assert done.returncode == 0, f"{done.stdout[-2000:]}{done.stderr[-2000:]}"
    return done.stdout.splitlines()


def run(executable: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a program for Windows with a folder, in which Wine keeps its own files too."""
    environment = {
        **os.environ,
        "WINEPREFIX": str(folder / "wine"),
        "WINEDEBUG": "-all",
        "WINEDLLOVERRIDES": "mscoree=",
    }
    wine = shutil.which("wine64") or "/usr/lib/wine/wine64"
    command = [wine, str(executable), f"Z:{folder}"]
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)


def write_tensors(path: Path, tensors: Mapping[str, Array]) -> None:
    """Write tensors as ``run_models.cpp`` reads them."""
    with open(path, "wb") as file:
        for name, values in tensors.items():
            numbers = (onnx.helper.np_dtype_to_tensor_dtype(values.dtype), values.ndim, *values.shape)
            file.write(np.int64(len(name)).tobytes() + name.encode())
            file.write(np.array(numbers, np.int64).tobytes() + np.ascontiguousarray(values).tobytes())


def read_tensors(path: Path) -> dict[str, Array]:
    """Read the tensors that ``run_models.cpp`` wrote."""
    tensors: dict[str, Array] = {}
    with open(path, "rb") as file:

        def number() -> int:
            return int(np.frombuffer(file.read(8), np.int64)[0])

        size = path.stat().st_size
        while file.tell() < size:
            name = file.read(number()).decode()
            dtype = onnx.helper.tensor_dtype_to_np_dtype(number())
            shape = [number() for _ in range(number())]
            tensors[name] = np.frombuffer(file.read(int(np.prod(shape)) * dtype.itemsize), dtype).reshape(shape)
    return tensors
