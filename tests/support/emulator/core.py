"""The emulator's native part (core/*.h, core/run.cpp): built when first used, and called."""

from __future__ import annotations

import ctypes
import platform
import re
import subprocess
from functools import cache
from importlib.metadata import version
from pathlib import Path

from support import native
from support.emulator import translate

SOURCE = Path(__file__).parent / "core"
FLAGS = ("-std=c++20", "-O2", "-fPIC", "-shared", "-ffp-contract=off", "-fwrapv", "-Wall", "-Wextra")


class Range(ctypes.Structure):
    """Memory that a kernel may touch."""

    _fields_ = (("begin", ctypes.c_uint64), ("end", ctypes.c_uint64), ("writable", ctypes.c_uint64))


class Launch(ctypes.Structure):
    """core/machine.h's ``Launch``."""

    _fields_ = (
        *((name, ctypes.c_uint64) for name in ("kernarg", "seed")),
        ("ranges", ctypes.POINTER(Range)),
        ("range_count", ctypes.c_uint32),
        ("grid", ctypes.c_uint32 * 2),
        *(
            (name, ctypes.c_uint32)
            for name in (
                *("threads", "wave", "family", "registers", "accumulation_offset", "lds", "kernarg_register"),
                *("user_registers", "workgroup_ids", "ieee", "flushes_products", "resident", "first", "blocks"),
            )
        ),
    )


class Access(ctypes.Structure):
    """core/count.h's ``Access``."""

    _fields_ = (
        *((name, ctypes.c_uint8) for name in ("kind", "write", "bytes", "addresses")),
        ("step", ctypes.c_uint16),
    )


class Count(ctypes.Structure):
    """core/count.h's ``Count``."""

    _fields_ = tuple(
        (name, ctypes.c_uint64)
        for name in ("executed", "lanes", "bytes", "lines", "least_lines", "cycles", "least_cycles")
    )


class Counting(ctypes.Structure):
    """core/count.h's ``Counting``."""

    _fields_ = (
        ("accesses", ctypes.POINTER(Access)),
        ("counts", ctypes.POINTER(Count)),
        ("lines", ctypes.POINTER(ctypes.c_uint64)),
        ("phases", ctypes.c_char_p),
        ("line", ctypes.c_uint32),
        ("banks", ctypes.c_uint32),
    )


class Report(ctypes.Structure):
    """core/machine.h's ``Report``."""

    _fields_ = (
        ("kind", ctypes.c_char * 64),
        ("text", ctypes.c_char * 1024),
        ("address", ctypes.c_uint64),
        ("instructions", ctypes.c_uint64),
        ("index", ctypes.c_uint32),
        ("offset", ctypes.c_uint32),
        ("lane", ctypes.c_int32),
        ("block", ctypes.c_uint32 * 2),
        ("wave", ctypes.c_uint32),
    )


def _machine_flags() -> tuple[str, ...]:
    """AVX2 where the processor has it: half the time."""
    cpu = Path("/proc/cpuinfo")
    features = set(cpu.read_text().split()) if cpu.exists() else set()
    return ("-march=x86-64-v3",) if platform.machine() == "x86_64" and {"avx2", "fma", "bmi2"} <= features else ()


def _build(folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    own = (SOURCE / "table.h").read_text()
    by_hand = set(re.findall(r'"([A-Z]\w+)"', own)) | set(re.findall(r"EMULATOR_OWN_\w+\((\w+)\)", own))
    (folder / "translated.h").write_text(translate.header(skip=by_hand))
    files = f"-I{SOURCE}", f"-I{folder}", str(SOURCE / "run.cpp"), "-o", str(folder / "emulator.so")
    command = ["c++", *FLAGS, *_machine_flags(), *files]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr[-4000:]}")


@cache
def library() -> ctypes.CDLL:
    """The native part, from the folder that native.py keeps for such builds."""
    sources = {p.name: p.read_bytes() for p in sorted([*SOURCE.iterdir(), Path(translate.__file__)])}
    sources["tinygrad"] = version("tinygrad").encode()
    sources["flags"] = " ".join((*FLAGS, *_machine_flags())).encode()
    core = ctypes.CDLL(str(native.built(sources, _build) / "emulator.so"))
    core.emulator_operation.restype = ctypes.c_char_p
    core.emulate.argtypes = (ctypes.POINTER(Launch), ctypes.c_char_p, ctypes.c_uint32)
    core.emulate.argtypes += (ctypes.POINTER(Report), ctypes.POINTER(Counting))
    return core


@cache
def operations(family: str) -> dict[str, int]:
    """Name -> number, of all operations that this instruction set has here."""
    bit, number = 1 << translate.FAMILIES.index(family), 1
    families = ctypes.c_uint32()
    found: dict[str, int] = {}
    while name := library().emulator_operation(number, ctypes.byref(families)):
        if families.value & bit:
            found.setdefault(name.decode(), number)
        number += 1
    return found
