"""Compiling the library with CMake, into the cache."""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from sdort.console import detail, progress, say
from sdort.errors import OutputError, SdortError, UsageError
from sdort.files.disk import existing
from sdort.files.input_file import read_input
from sdort.files.ownership import why_foreign
from sdort.files.staging import held, scratch_folder
from sdort.machine.os_calls import os_calls
from sdort.machine.subprocesses import run_child
from sdort.operator_library.library import (
    LIBRARY_FILE,
    MAX_RECORD,
    RECORD,
    built_library,
    check_library,
    describe_library,
    libraries_folder,
    source_folder,
)

_INCLUDES = ("/usr/local/include", "/usr/include")
"""Where CMake's find_path looks for headers by itself."""
_TAIL = 30
"""Lines of a failed compiler that are shown."""


@dataclass(frozen=True)
class BuildOptions:
    """Targets and compilers of a build. ``hip`` and ``cuda`` are None for "where a compiler is found"."""

    architectures: tuple[str, ...] = ()
    """AMD architectures (``gfx1100``); empty for all that the compiler knows."""
    hip: bool | None = None
    """Kernels for AMD GPUs; None for where a compiler is found."""
    cuda: bool | None = None
    """Kernels for NVIDIA GPUs; None for where nvcc is found."""
    compiler: str | None = None
    """clang++ for AMD GPUs; None to look for one."""
    ort_include: str | None = None
    """Folder of onnxruntime_c_api.h; None to look for it."""


@dataclass(frozen=True)
class Build:
    """A library in the cache."""

    path: Path
    """The library."""
    code: tuple[str, ...]
    """Architectures that it has machine code for."""
    left_out: tuple[str, ...]
    """Architectures that were asked for and no compiler here builds."""
    headers: str
    """Where ONNX Runtime's headers came from."""
    seconds: float
    """Seconds of the build."""
    date: str
    """When it was built."""
    options: BuildOptions = field(default_factory=BuildOptions)
    """The options that were asked for."""
    sha256: str = ""
    """SHA-256 of the library, with which it is compared whenever it is loaded."""


def build(options: BuildOptions, *, force: bool = False) -> tuple[Build, bool]:
    """Compile the library unless these sources were already built so.

    Returns:
        The build, and whether it was made now.

    Raises:
        UsageError: CMake is missing, an architecture is not one, or others could change what is compiled.
        SdortError: the compiler failed; its last lines.
    """
    _check(options)
    target = built_library().parent
    previous = None if force else last_build()
    if previous and previous.options == options:
        return previous, False
    place = existing(target)
    if foreign := why_foreign(place):
        raise UsageError(
            f"the library is not built in {place}, as {foreign}: its code would run as you",
            hint="Set XDG_CACHE_HOME to a folder that, with those above it, is yours alone.",
        )
    return _build_into(options, target), True


def _build_into(options: BuildOptions, target: Path) -> Build:
    """Build beside ``target``, then move what came out into it; a failure or an interruption leaves it as it was."""
    try:
        target.mkdir(parents=True, exist_ok=True)
        if not (target / RECORD).exists():  # marks the folder as sdort's, from a build that is killed too
            (target / RECORD).write_text("{}", encoding="utf-8")
        with held(target), scratch_folder(target, ".build-") as folder:
            made = replace(_compile(options, folder), path=target / LIBRARY_FILE)
            target.chmod(0o755)  # whatever the umask
            _install(made, folder, target)
    except OSError as error:
        raise OutputError(f"cannot write to {target}: {error.strerror or error}") from error
    return made


def _install(made: Build, stage: Path, target: Path) -> None:
    """Put the library from ``stage`` in its place.

    First comes the record, which has the hashes of the library that is there and of the one to come: whoever loads
    either of them meanwhile finds its hash.
    """
    record = asdict(made) | {"path": LIBRARY_FILE, "previous": _current_hash()}
    (stage / RECORD).write_text(json.dumps(record, indent=1), encoding="utf-8")
    os_calls.replace(stage / RECORD, target / RECORD)
    os_calls.replace(stage / LIBRARY_FILE, target / LIBRARY_FILE)


def _current_hash() -> str:
    """SHA-256 of the library that is there, if its record has it: as the one before, where a build's end was killed."""
    try:
        return check_library(built_library())
    except (SdortError, OSError):
        return ""


def last_build() -> Build | None:
    """The build of these sources in the cache; None if there is none, or it is not what was built."""
    path = built_library()
    if not os.path.isfile(path):
        return None
    try:
        stored = json.loads(read_input(path.with_name(RECORD), limit=MAX_RECORD))
        stored.pop("previous", None)
        stored["options"] = BuildOptions(**_tuples(stored["options"]))
        build = Build(**_tuples(stored) | {"path": path})
        is_built = check_library(path) == build.sha256
    except (SdortError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        detail(f"{path}: {error}")
        return None
    return build if is_built else None


def _tuples(fields: dict[str, Any]) -> dict[str, Any]:
    return {key: tuple(value) if isinstance(value, list) else value for key, value in fields.items()}


def _check(options: BuildOptions) -> None:
    for name in options.architectures:
        if not re.fullmatch(r"gfx[0-9a-f]{3,5}", name):
            raise UsageError(f"--arch {name}: an AMD architecture looks like gfx1100", hint="rocminfo tells yours.")
    if not shutil.which("cmake"):
        raise UsageError("cmake is not here", hint="Install it:\n    apt-get install cmake g++")
    if not any(shutil.which(name) for name in ("c++", "g++", "clang++", os.environ.get("CXX", "c++"))):
        raise UsageError("there is no C++ compiler here", hint="Install one:\n    apt-get install g++")


def _tell_download(options: BuildOptions) -> None:
    """Say that ONNX Runtime's headers are downloaded, where CMake will find none (custom_ops/cmake/headers.cmake)."""
    places = [Path(place, name) for place in _INCLUDES for name in ("", "onnxruntime", "onnxruntime/core/session")]
    if options.ort_include or any((place / "onnxruntime_c_api.h").is_file() for place in places):
        return
    say(
        "ONNX Runtime's C headers are not on this machine. apt-get downloads them now, from the mirror of its own "
        "settings: Debian's package list (10 MB) and libonnxruntime-dev (0.1 MB); nothing is installed. To do without, "
        "install that package, or give --ort-include FOLDER"
    )


def _compile(options: BuildOptions, staging: Path) -> Build:
    start = time.perf_counter()
    _tell_download(options)
    work = staging / "work"
    with progress("building the custom operators") as advance:
        configured = _run(["cmake", "-S", str(source_folder()), "-B", str(work), *_definitions(options)])
        advance(1)
        _run(["cmake", "--build", str(work), "--parallel", str(os.cpu_count() or 1)])
        advance(1)
    os.replace(work / LIBRARY_FILE, staging / LIBRARY_FILE)
    library = staging / LIBRARY_FILE
    library.chmod(0o755)  # whatever the umask
    code = tuple(code.architecture for code in describe_library(library).code_objects)
    return Build(
        path=library,
        code=code,
        left_out=_stated(configured, "left out"),
        headers=" ".join(_stated(configured, "ONNX Runtime headers")),
        seconds=round(time.perf_counter() - start, 1),
        date=time.strftime("%Y-%m-%d %H:%M:%S"),
        options=options,
        sha256=check_library(library),
    )


def _definitions(options: BuildOptions) -> list[str]:
    switch = {None: "AUTO", True: "ON", False: "OFF"}
    definitions = [f"-DSDORT_HIP={switch[options.hip]}", f"-DSDORT_CUDA={switch[options.cuda]}"]
    if options.architectures:
        definitions.append(f"-DSDORT_HIP_ARCHS={';'.join(options.architectures)}")
    if options.compiler:
        definitions.append(f"-DSDORT_HIP_COMPILER={options.compiler}")
    if options.ort_include:
        definitions.append(f"-DSDORT_ORT_INCLUDE={options.ort_include}")
    return definitions + (["-G", "Ninja"] if shutil.which("ninja") else [])


def _run(command: Sequence[str]) -> str:
    detail(" ".join(command))
    done = run_child(command, merge=True)
    if done.returncode:
        tail = "\n".join(done.stdout.strip().splitlines()[-_TAIL:])
        raise SdortError(
            f"building the custom operators failed:\n{tail}", hint="The whole command: " + " ".join(command)
        )
    return done.stdout


def _stated(text: str, what: str) -> tuple[str, ...]:
    """The items of the line ``-- what: a;b`` that CMake printed."""
    line = re.search(rf"^-- {what}: (.*)$", text, re.MULTILINE)
    return tuple(item for item in line[1].split(";") if item) if line else ()


def cache_bytes() -> int:
    """Size in bytes of all libraries in the cache, those of other versions of sdort too."""
    folder = libraries_folder()
    files = folder.rglob("*") if os.path.isdir(folder) else ()
    return sum(file.stat().st_size for file in files if os.path.isfile(file))
