"""The custom operators, the caches, the disk they are on, and memory."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from sdort.doctor.cache_entries import folder_bytes
from sdort.doctor.finding import OK, PROBLEM, WARNING, Finding
from sdort.errors import SdortError
from sdort.files.disk import existing, free_bytes
from sdort.files.ownership import why_foreign
from sdort.files.user_folders import cache_folder
from sdort.machine.system import System
from sdort.operator_library.library import Description
from sdort.tables import size_text

_GIB = 1 << 30
_BUILD = "Build them:\n    "
_SMALL_DISK, _FULL_DISK = 10 * _GIB, _GIB // 4
"""An SDXL pipeline in fp16 takes 7 GB, what MIGraphX compiles of it about as much again."""
_SMALL_MEMORY = 8 * _GIB
"""The text encoders, UNet and VAE of SDXL in fp16 pass through host memory as they load."""


def operator_findings(
    library: Path | None, description: Description | SdortError | None, architectures: Mapping[str, Sequence[str]]
) -> Iterator[Finding]:
    """Is the library of custom operators built, may it be loaded, and has it machine code for the GPUs that there are.

    Args:
        description: what the library says of itself, or why it is not loaded.
    """
    section, check = "sdort", "custom operators"
    if isinstance(description, SdortError):
        yield Finding(
            section, check, WARNING, description.message, description.hint or f"{_BUILD}sdort ops build --force"
        )
        return
    if library is None or description is None:
        yield Finding(
            section, check, WARNING, "not built: graphs run on ONNX Runtime's own", f"{_BUILD}sdort ops build"
        )
        return
    has: dict[str, list[str]] = {}
    for code in description.code_objects:
        has.setdefault(code.vendor, []).append(code.architecture)
    for vendor, present in architectures.items():
        for missing in sorted(set(present) - {name.partition(":")[0] for name in has.get(vendor, [])}):
            message = f"{library} has no machine code for {missing}"
            option = f" --arch {missing}" if vendor == "amd" else ""
            yield Finding(section, check, WARNING, message, f"{_BUILD}sdort ops build --force{option}")
            return
    names = ", ".join(name for vendor in sorted(has) for name in sorted(has[vendor])) or "no GPU"
    yield Finding(section, check, OK, f"{library}, for the CPU and {names}")


def cache_findings(system: System) -> Iterator[Finding]:
    """Findings about the caches: their size, whether they can be written, and how much room there is."""
    folder = cache_folder(system.environ)
    for part in _folders(folder):
        yield Finding("caches", part.name, OK, f"{size_text(folder_bytes(part))} in {part}")
    home = folder.parent.parent
    for place in (*_folders(home / ".cache", "miopen"), *_folders(home / ".config", "miopen")):
        yield Finding("caches", "MIOpen", OK, f"{size_text(folder_bytes(place))} in {place}")
    place = existing(folder)
    if not system.access(place, os.W_OK | os.X_OK):
        step = "Make it yours, or set XDG_CACHE_HOME to a folder that is."
        yield Finding("caches", "permission", PROBLEM, f"{place} cannot be written", step)
    elif reason := why_foreign(place):
        step = "Take the right away with chmod go-w, or set XDG_CACHE_HOME to a folder that is yours alone."
        yield Finding("caches", "permission", WARNING, f"{place} is not yours alone: {reason}", step)
    yield _disk(place, free_bytes(place))


def _folders(folder: Path, name: str = "") -> list[Path]:
    """The folders in a folder, or the one of a name; none where it may not be read."""
    try:
        return sorted(entry for entry in folder.iterdir() if entry.is_dir() and name in ("", entry.name))
    except OSError:
        return []


def _disk(place: Path, free: int) -> Finding:
    message = f"{size_text(free)} free at {place}"
    if free >= _SMALL_DISK:
        return Finding("caches", "disk", OK, message)
    step = "Make room, or set XDG_CACHE_HOME to a folder on another disk."
    return Finding("caches", "disk", PROBLEM if free < _FULL_DISK else WARNING, message, step)


def memory_finding(system: System) -> Finding:
    """Main memory, or as much of it as this container may use."""
    fields = dict(re.findall(r"^(\w+):\s+(\d+) kB$", system.text("proc/meminfo") or "", re.MULTILINE))
    total, available = (int(fields.get(name, 0)) * 1024 for name in ("MemTotal", "MemAvailable"))
    limit = system.text("sys/fs/cgroup/memory.max") or ""
    if limit.isdecimal() and int(limit) < total:
        total, available = int(limit), min(available, int(limit))
    if not total:
        return Finding("memory", "RAM", WARNING, "/proc/meminfo does not tell", "Check it with free -h.")
    message = f"{size_text(total)}, {size_text(available)} of it free"
    if total >= _SMALL_MEMORY:
        return Finding("memory", "RAM", OK, message)
    return Finding("memory", "RAM", WARNING, message, "Large models may not load: use fp16 ones, or add swap.")
