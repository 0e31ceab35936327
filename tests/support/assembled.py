"""Kernels of a few instructions, assembled and run in the emulator."""

from __future__ import annotations

import struct
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import kernel_report
import numpy as np
import numpy.typing as npt
from support.emulator import CodeObject
from support.emulator.counts import Counter

CDNA, RDNA = ("gfx90a", "gfx942"), ("gfx1100", "gfx1200")
ALL = (*CDNA, *RDNA)


def wave_of(arch: str) -> int:
    return 64 if arch in CDNA else 32


SOURCE = """
.amdgcn_target "amdgcn-amd-amdhsa--{arch}"
.text
.globl probe
.p2align 8
.type probe,@function
probe:
  s_load_dwordx4 s[4:7], s[0:1], 0
{body}
{end}
.Lend:
.size probe, .Lend-probe
.rodata
.p2align 6
.amdhsa_kernel probe
  .amdhsa_next_free_vgpr 64
  .amdhsa_next_free_sgpr 48
  .amdhsa_user_sgpr_kernarg_segment_ptr 1
  .amdhsa_user_sgpr_count 2
  .amdhsa_kernarg_size 16
  .amdhsa_group_segment_fixed_size {lds}
  .amdhsa_float_denorm_mode_32 3
{extra}
.end_amdhsa_kernel
.amdgpu_metadata
amdhsa.version: [1, 2]
amdhsa.target: amdgcn-amd-amdhsa--{arch}
amdhsa.kernels: []
.end_amdgpu_metadata
"""
"""A kernel of two arguments, where to read and where to write, in s[4:5] and s[6:7]."""


def assemble(arch: str, body: str, end: str = "  s_endpgm", extra: str = "", lds: int = 1024) -> CodeObject:
    """The code object of a kernel ``probe`` with this body."""
    extra += "  .amdhsa_accum_offset 64\n" if arch in CDNA else ""
    return build(arch, SOURCE.format(arch=arch, body=body, end=end, extra=extra, lds=lds))


@cache
def build(arch: str, source: str) -> CodeObject:
    """Of a whole source, as :data:`SOURCE` with its fields filled in."""
    command = [_clang(), "-x", "assembler", "--target=amdgcn-amd-amdhsa", f"-mcpu={arch}", "-mcode-object-version=5"]
    command += ["-nostdlib", "-", "-o", "-"]
    done = subprocess.run(command, input=source.encode(), capture_output=True)
    assert done.returncode == 0, done.stderr.decode()
    return CodeObject(done.stdout)


def _clang() -> str:
    return str(Path(kernel_report.llvm("llvm-readelf")).resolve().parent / "clang")


def span(array: npt.NDArray[np.generic], writable: bool = False) -> tuple[int, int, bool]:
    return array.ctypes.data, array.ctypes.data + array.nbytes, writable


def launch(
    program: CodeObject,
    source: npt.NDArray[np.generic],
    result: npt.NDArray[np.generic],
    *,
    blocks: int = 1,
    threads: int | None = None,
    seed: int = 1,
    resident: int | None = None,
    chosen: range | None = None,
    counter: Counter | None = None,
) -> None:
    """Of ``blocks`` blocks all run, or those that are ``chosen``."""
    args = struct.pack("<QQ", source.ctypes.data, result.ctypes.data)
    threads = threads or wave_of(program.architecture)
    memory = [span(source), span(result, True)]
    options: dict[str, Any] = {"seed": seed, "resident": resident, "blocks": chosen, "counter": counter}
    program.run("probe", (blocks, 1), threads, args, memory=memory, **options)
