"""ONNX Runtime's real ROCm execution provider on a machine without a GPU.

onnxruntime-rocm's provider library needs about 130 functions of HIP, hipBLAS, rocBLAS, MIOpen, hipFFT and rocm_smi.
This builds libraries that define all of them, by the names that it asks for: ``hip.c`` for what has to do something,
functions that return 0 for the rest. Sessions then initialise and place their nodes as on a real machine; ONNX
Runtime's own kernels compute nothing, sdort's run as CPU code on the buffers that ONNX Runtime bound.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import shutil
import subprocess
import tempfile
from collections import defaultdict
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from support import native, wheels

FOLDER = Path(__file__).resolve().parent
WHEEL = "onnxruntime-rocm==1.22.2.post3"
REQUIREMENTS = (WHEEL, "numpy", "onnx", "click", "rich")

LIBRARIES = {
    "libamdhip64.so.7": r"(__)?hip(?!blas|fft)",
    "libhipblas.so.3": r"hipblas|rocblas",
    "libMIOpen.so.1": r"miopen",
    "libhipfft.so.0": r"hipfft",
    "librocm_smi64.so.1": r"rsmi",
    "libroctracer64.so.4": r"roctracer",
}
"""Library -> what its functions' names begin with."""

# Functions that hand out an object through their first argument, or a number through a later one.
_CREATES = re.compile(r"miopenCreate(?!Op)|hipblasCreate|hipfftCreate")
_SIZES = {
    "miopenConvolutionForwardGetWorkSpaceSize": 6,
    "miopenGetReductionIndicesSize": 5,
    "miopenGetReductionWorkspaceSize": 5,
}


@dataclass(frozen=True)
class Runtime:
    """An environment with onnxruntime-rocm, and the stub libraries for it."""

    folder: Path
    libraries: Path

    def run(self, script: str, *arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
        """Run Python code there; ``settings`` are the variables that ``hip.c`` reads, without their prefix."""
        extra = {f"SDORT_STUB_{name.upper()}": value for name, value in settings.items() if name.islower()}
        extra |= {name: value for name, value in settings.items() if not name.islower()}
        return wheels.run_script(self.folder, script, *arguments, LD_LIBRARY_PATH=str(self.libraries), **extra)


def read_log(path: Path) -> list[dict[str, Any]]:
    """The recorded module calls."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@cache
def runtime() -> Runtime:
    """Made once per machine and kept; parallel test processes wait for the one that makes it.

    Raises:
        RuntimeError: the wheel cannot be installed, or there is no C compiler.
    """
    with wheels.environment(*REQUIREMENTS) as folder:
        libraries = folder / "stub"
        source = (FOLDER / "hip.c").read_text() + Path(__file__).read_text()
        if not (libraries / "source").exists() or (libraries / "source").read_text() != source:
            _build(next(folder.rglob("libonnxruntime_providers_rocm.so")), libraries)
            (libraries / "source").write_text(source)
    return Runtime(folder, libraries)


def _build(provider: Path, libraries: Path) -> None:
    shutil.rmtree(libraries, ignore_errors=True)
    libraries.mkdir()
    wanted = _undefined(provider)
    hand_written = _hand_written()
    for library, pattern in LIBRARIES.items():
        mine = {name: version for name, version in wanted.items() if re.match(pattern, name)}
        hip = library.startswith("libamdhip64")
        with tempfile.TemporaryDirectory() as folder:
            generated = Path(folder) / "generated.c"
            generated.write_text("".join(_function(n) for n in sorted(mine) if not (hip and n in hand_written)))
            script = Path(folder) / "versions"
            script.write_text(_versions(mine) or "{ global: *; };")
            sources = [str(generated), *([str(FOLDER / "hip.c")] if hip else [])]
            flags = ["-shared", "-fPIC", "-O1", "-w", f"-Wl,-soname,{library}", f"-Wl,--version-script,{script}"]
            wheels.run_command([os.environ.get("CC", "cc"), *flags, "-o", str(libraries / library), *sources, "-ldl"])


def _hand_written() -> set[str]:
    return set(re.findall(r"^\S.*?\b(\w+)\([^;]*\) \{", (FOLDER / "hip.c").read_text(), re.MULTILINE))


@cache
def load_driver() -> None:
    """Have this process know a HIP driver, with what sdort's library itself asks for.

    The file has another name than the library says to be: what looks for HIP's runtime among the files of the process
    finds none, so that the rest of the process goes on without HIP.
    """
    wanted = set(re.findall(r'"(hip[A-Z]\w+)"', (native.SOURCE / "driver" / "gpu.cpp").read_text()))
    generated = "".join(_function(name) for name in sorted(wanted - _hand_written()))
    name, file = "libamdhip64.so.5", "driver.so"

    def make(folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "generated.c").write_text(generated)
        flags = ["-shared", "-fPIC", "-O1", "-w", f"-Wl,-soname,{name}", "-o", str(folder / file)]
        sources = [str(folder / "generated.c"), str(FOLDER / "hip.c")]
        wheels.run_command([os.environ.get("CC", "cc"), *flags, *sources, "-ldl"])

    sources = {f"{name} in {file}": b"", "hip.c": (FOLDER / "hip.c").read_bytes(), "generated.c": generated.encode()}
    ctypes.CDLL(str(native.built(sources, make) / file))


def _undefined(library: Path) -> dict[str, str]:
    """The functions of AMD's libraries that ``library`` needs, with their symbol versions ("" for none)."""
    text = wheels.run_command(["nm", "-D", "--undefined-only", str(library)])
    names = [line.split()[-1] for line in text.splitlines()]
    start = re.compile("|".join(LIBRARIES.values()))
    return {name: version.lstrip("@") for name, _, version in (n.partition("@") for n in names) if start.match(name)}


def _function(name: str) -> str:
    if _CREATES.match(name):
        return f"static char object_{name}[64]; int {name}(void** made) {{ *made = object_{name}; return 0; }}\n"
    if name in _SIZES:
        arguments = ", ".join(f"unsigned long* a{i}" for i in range(1, _SIZES[name] + 1))
        return f"int {name}({arguments}) {{ *a{_SIZES[name]} = 0; return 0; }}\n"
    if name == "rocblas_get_version_string":
        return f"int {name}(char* text) {{ text[0] = 53; text[1] = 0; return 0; }}\n"
    return f"int {name}(void) {{ return 0; }}\n"


def _versions(names: dict[str, str]) -> str:
    groups = defaultdict(list)
    for name, version in names.items():
        if version:
            groups[version].append(name)
    return "".join(
        f"{version} {{ global: {'; '.join(sorted(group))}; }};\n" for version, group in sorted(groups.items())
    )
