"""Problems in memory, and their launches run as machine code in the emulator (tests/support/emulator).

A run is a function of the kernels' bytes, the launches, the tensors and the seed, so its results are kept in the
temporary folder under a hash of all of them and of the emulator's sources. Kernels that are the same in two objects of
one family run once; of a changed object, what has changed runs again.
"""

from __future__ import annotations

import hashlib
import os
import struct
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any

import kernel_report
import numpy as np
import numpy.typing as npt
from support import emulator
from support.kernel_cases import Launch
from support.machine_code import kernels, machine_of, objects

Array = npt.NDArray[Any]

CACHE = Path(tempfile.gettempdir()) / f"sdort-ops-{os.getuid()}" / "emulated"


@dataclass(frozen=True, eq=False)
class Target:
    """A code object for one architecture, as built or with a fault planted in it."""

    architecture: str
    data: bytes = field(repr=False)
    kept: bool = True
    """Whether results are kept."""

    @property
    def machine(self) -> str:
        return machine_of(self.architecture)

    @property
    def wave(self) -> int:
        return 64 if self.machine == "mfma" else 32

    @cached_property
    def object(self) -> emulator.CodeObject:
        return emulator.CodeObject(self.data)

    @cached_property
    def code(self) -> dict[str, bytes]:
        """Kernel -> its instructions and descriptor, which are all that a run depends on."""
        symbols = {name: (at, size) for name, at, size in symbols_of(self.data)}
        found = {}
        for name, (at, size) in symbols.items():
            if name + ".kd" in symbols:
                start = symbols[name + ".kd"][0]
                # Bytes 16 to 23 of a descriptor say where the instructions lie.
                found[name] = self.data[at : at + size] + self.data[start : start + 16] + self.data[start + 24 :][:40]
        return found


@cache
def targets() -> tuple[Target, ...]:
    """Every AMD object of the build."""
    return tuple(Target(path.stem, path.read_bytes()) for path in objects("*.hsaco"))


@cache
def shared_bytes(architecture: str) -> dict[str, int]:
    """Kernel -> bytes of shared memory of a block."""
    [path] = objects(f"{architecture}.hsaco")
    return {name: kernel.shared for name, kernel in kernels(path).items()}


def symbols_of(data: bytes) -> Iterator[tuple[str, int, int]]:
    """Name, position in the file, and size of each symbol of an ELF64 file that has a section."""
    start, count = struct.unpack_from("<Q", data, 40)[0], struct.unpack_from("<H", data, 60)[0]
    headers = [struct.unpack_from("<IIQQQQ", data, start + 64 * i) for i in range(count)]
    sections = kernel_report.sections_of(data)
    names = sections[".strtab"]
    for name, _, _, section, value, size in struct.iter_unpack("<IBBHQQ", sections[".symtab"]):
        if 0 < section < count:
            _, _, _, address, offset, _ = headers[section]
            yield names[name : names.index(b"\0", name)].decode(), value - address + offset, size


@dataclass
class Bound:
    """A problem in memory, and what one target's geometry makes of it."""

    inputs: Sequence[Array]
    outputs: Sequence[Array]
    variants: Callable[[], Iterator[list[Launch]]]
    error: Callable[[], float]
    """The largest one of what lies in the outputs, see :func:`largest`."""
    workspace: Sequence[Array] = ()
    """Zero before the first launch; later ones find what the one before has left."""

    @property
    def written(self) -> list[Array]:
        return [*self.outputs, *self.workspace]

    def ranges(self) -> list[tuple[int, int, bool]]:
        """Begin and end address of each tensor, and whether a kernel may write to it."""
        marked = [(array, False) for array in self.inputs] + [(array, True) for array in self.written]
        return [(a.ctypes.data, a.ctypes.data + a.nbytes, writable) for a, writable in marked]

    def run(self, target: Target, launches: Sequence[Launch], seed: int, resident: int | None = None) -> bytes:
        """The outputs' bytes, which were NaN before.

        Raises:
            EmulationError: the machine code does what no GPU allows, or never ends.
        """
        for output in self.outputs:
            output[...] = np.nan
        file = CACHE / self._key(target, launches, seed, resident)
        if target.kept and file.exists():
            self._restore(file.read_bytes())
        else:
            for launch in launches:
                target.object.run(*launch, memory=self.ranges(), seed=seed, resident=resident)
            if target.kept:
                _keep(file, b"".join(array.tobytes() for array in self.written))
        return b"".join(output.tobytes() for output in self.outputs)

    def _key(self, target: Target, launches: Sequence[Launch], seed: int, resident: int | None) -> str:
        family = target.architecture if target.machine == "mfma" else target.machine
        digest = hashlib.sha256(repr((_emulator(), family, seed, resident)).encode())
        for launch in launches:
            digest.update(repr((launch.grid, launch.threads, self._relative(launch.args))).encode())
            digest.update(target.code[launch.kernel])
        for array in (*self.inputs, *self.written):
            # Where it lies makes no difference but for what is misaligned; no access is wider than 16 bytes.
            digest.update(repr(("tensor", array.nbytes, array.ctypes.data % 16)).encode() + array.tobytes())
        return digest.hexdigest()

    def _relative(self, args: bytes) -> list[tuple[int, int]]:
        """The words of a launch's arguments; addresses as a tensor's number and a place in it."""
        ranges = self.ranges()
        words = []
        for (word,) in struct.iter_unpack("<Q", args.ljust(-(-len(args) // 8) * 8, b"\0")):
            inside = [(i + 1, word - begin) for i, (begin, end, _) in enumerate(ranges) if begin <= word < end]
            words += inside or [(0, word)]
        return words

    def _restore(self, content: bytes) -> None:
        at = 0
        for array in self.written:
            array[...] = np.frombuffer(content[at : at + array.nbytes], array.dtype).reshape(array.shape)
            at += array.nbytes
        assert at == len(content)


def largest(error: Array, allowed: Array) -> float:
    """The largest error in units of what is allowed there: 1 and less is right; infinity where there is no number."""
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(error == 0, 0.0, error / allowed)
    return float(np.nan_to_num(ratio, nan=np.inf, posinf=np.inf).max())


@cache
def _emulator() -> str:
    """What the emulator is made of."""
    digest = hashlib.sha256(version("tinygrad").encode())
    folder = Path(emulator.__file__).parent
    for path in sorted(p for p in folder.rglob("*") if p.is_file() and p.suffix != ".pyc"):
        digest.update(str(path.relative_to(folder)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def _keep(file: Path, content: bytes) -> None:
    """Whole or not at all, whoever else writes it."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=CACHE, delete=False) as part:
        part.write(content)
    os.replace(part.name, file)
