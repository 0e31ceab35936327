"""The machine as its files and tools tell, under a root that tests point at a folder of their own."""

from __future__ import annotations

import os
import shutil
import sysconfig
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from subprocess import TimeoutExpired

from sdort.machine.nvml import Management, opened_nvml
from sdort.machine.subprocesses import run_child

_BINARIES = ("usr/local/sbin", "usr/local/bin", "usr/sbin", "usr/bin", "sbin", "bin", "opt/rocm/bin")
# Where the dynamic linker looks without being told, and where vendors install without telling it.
_LIBRARIES = ("lib", "usr/lib", "lib64", "usr/lib64", "lib/x86_64-linux-gnu", "usr/lib/x86_64-linux-gnu")
_UNTOLD = ("opt/rocm/lib", "opt/rocm-*/lib", "usr/local/cuda/lib64", "usr/local/cuda-*/lib64")
_TIMEOUT = 20
"""Seconds for a vendor's tool; one that hangs (a lost device) must not hang us."""
_TICKS = 100
"""Ticks per second of the times in ``/proc/PID/stat``: USER_HZ of Linux."""


@cache
def _site_packages() -> Path:
    return Path(sysconfig.get_path("purelib"))


@dataclass(frozen=True)
class System:
    """Read access to a machine.

    Attributes:
        root: where the file system begins.
        environ: environment variables.
        packages: the folder of installed Python packages, some of which bring shared libraries.
        access: as :func:`os.access`, which knows about access control lists.
        management: of NVIDIA's GPUs; None for this machine's where ``root`` is its own, else for none.
    """

    root: Path = Path("/")
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    packages: Path = field(default_factory=_site_packages)
    access: Callable[[Path, int], bool] = os.access
    management: Management | None = None

    def path(self, name: str) -> Path:
        """A file by its path from the root, such as ``dev/kfd``."""
        return self.root / name.lstrip("/")

    def text(self, name: str) -> str | None:
        """A file's text without space around it; None where it is absent or cannot be read."""
        try:
            return self.path(name).read_text(encoding="utf-8", errors="replace").strip()
        except OSError:
            return None

    def glob(self, pattern: str) -> list[Path]:
        """The files that a pattern from the root matches, sorted."""
        return sorted(self.root.glob(pattern.lstrip("/")))

    def texts(self, pattern: str) -> list[str]:
        """The texts of those that can be read."""
        texts = (self.text(self.name(path)) for path in self.glob(pattern))
        return [text for text in texts if text is not None]

    def name(self, path: Path) -> str:
        """The reverse of :meth:`path`, with a slash before it."""
        return f"/{path.relative_to(self.root)}"

    def tool(self, *command: str) -> list[str] | None:
        """The lines that a vendor's tool prints, None when it is not there or fails."""
        folders = os.pathsep.join(str(self.path(folder)) for folder in _BINARIES)
        inherited = self.environ.get("PATH", "") if self.root == Path("/") else ""
        program = shutil.which(command[0], path=os.pathsep.join(filter(None, (inherited, folders))))
        if program is None:
            return None
        try:
            done = run_child([program, *command[1:]], timeout=_TIMEOUT)
        except (OSError, TimeoutExpired):
            return None
        return None if done.returncode else done.stdout.splitlines()

    def nvml(self) -> Management | None:
        """NVIDIA's management library; None where there is none."""
        return self.management or (opened_nvml() if self.root == Path("/") else None)

    def library_folders(self) -> list[Path]:
        """Folders that the dynamic linker searches: ``LD_LIBRARY_PATH``, ``/etc/ld.so.conf``, its own."""
        inherited = [part for part in self.environ.get("LD_LIBRARY_PATH", "").split(":") if part]
        names = (*inherited, *self._configured("etc/ld.so.conf"), *_LIBRARIES)
        return [*dict.fromkeys(map(self.path, names))]

    def _configured(self, file: str) -> Iterator[str]:
        for line in (self.text(file) or "").splitlines():
            line = line.partition("#")[0].strip()
            if line.startswith("include "):
                # Relative to the file that includes them.
                pattern = line.split(None, 1)[1]
                pattern = pattern if pattern.startswith("/") else f"{os.path.dirname(file)}/{pattern}"
                for included in self.glob(pattern):
                    yield from self._configured(self.name(included))
            elif line:
                yield line

    def find_library(self, pattern: str) -> Path | None:
        """The first shared library of a name (``libamdhip64.so.*``) that the dynamic linker would find."""
        return _first(self.library_folders(), pattern)

    def find_untold(self, pattern: str) -> Path | None:
        """One where vendors install and the linker does not look."""
        return _first([folder for place in _UNTOLD for folder in self.glob(place)], pattern)

    def find_packaged(self, pattern: str) -> Path | None:
        """One that a Python package of NVIDIA's brings; ONNX Runtime loads those by itself."""
        return _first(sorted(self.packages.glob("nvidia/*/lib")), pattern)


def _first(folders: list[Path], pattern: str) -> Path | None:
    return next((path for folder in folders for path in sorted(folder.glob(pattern))), None)


def process_age(system: System | None = None) -> float | None:
    """Seconds since this process began; None where the kernel does not tell.

    Field 22 of ``/proc/PID/stat`` is the start in clock ticks since boot; the second field is a name in brackets, which
    may have spaces (proc(5)).
    """
    machine = system or System()
    stat, uptime = machine.text("/proc/self/stat"), machine.text("/proc/uptime")
    if not stat or not uptime:
        return None
    ticks = stat.rpartition(")")[2].split()[22 - 3]
    age = float(uptime.split()[0]) - int(ticks) / _TICKS
    return age if age >= 0 else None  # a container's uptime may be another clock
