"""An emulator of AMD machine code: it runs the kernels of a code object as a GPU would, on the CPU.

How it works
    :mod:`emulator.code_object` reads the kernels' code and descriptors from the ELF file. :mod:`emulator.decode`
    turns a kernel's words into records when it first runs, with the tables of formats that tinygrad makes of AMD's
    machine-readable ISA. What arithmetic instructions do is translated from the pseudo-code of AMD's manuals
    (:mod:`emulator.translate`); ``core/*.h`` has by hand what touches memory, other lanes, matrices and control flow,
    and where the pseudo-code lacks or errs. :mod:`emulator.core` compiles both to a shared library, kept by its
    sources' hash (15 seconds when they change).

    CDNA 2 to 4 (gfx90a, gfx942, gfx950), RDNA 3 (gfx11) and RDNA 4 (gfx12) are emulated, of each what compilers make of
    our kernels and more; an instruction, operand or mode beyond that is an error, never a guess.

What it checks
    Vector and scalar registers and LDS begin as random bits. A kernel that touches memory that it was not given, by a
    byte, registers or LDS beyond its own, an address that is not aligned (to the smaller of 4 bytes and the access,
    LDS: to the access), or a barrier that not all waves of a block reach, is stopped. So is one that cannot go on: if
    all waves wait at barriers or have slept (s_sleep) three times while nobody changed memory, or if 100 million
    instructions changed none.

    Blocks start in order, at most ``resident`` at a time. Which wave runs next and for how long, 1 to 4096
    instructions, is drawn from ``seed``: a missing barrier gives wrong results with some seeds.

What it cannot see
    - Memory is sequentially consistent: every access is complete before the next instruction. Missing waits
      (s_waitcnt), fences and cache invalidations, and hazards that need s_nop, go unnoticed; those instructions do
      nothing.
    - Time: throughput, occupancy beyond ``resident``, clocks. :mod:`emulator.counts` counts what time is made of.
      Waves never change places within an
      instruction.
    - The order and width of the matrix instructions' sums: they are a chain of fused multiplications and additions in
      float32, in the order of k. CDNA 2 flushes subnormal operands and results of them, as that hardware does.
    - The last bit of v_exp_f32, v_log_f32, v_rcp_f32, v_rsq_f32, v_sqrt_f32: here correctly rounded, on hardware
      within 1 ulp or so. They flush subnormals.
    - What an inactive lane's bit of a carry or comparison becomes: here 0.
    - Kernels with scratch memory, rounding or subnormal modes other than the default, or blocks of two dimensions are
      refused.

:mod:`test_emulator` checks single instructions against independent computations.
"""

from __future__ import annotations

import ctypes
import importlib
from collections.abc import Sequence

import kernel_report
from support.emulator import code_object, core, counts, decode, translate

__all__ = ["CodeObject", "EmulationError"]


class EmulationError(Exception):
    """A kernel did what no kernel may do, or what the emulator cannot.

    Attributes:
        kind: of fault, as in "read outside memory".
        kernel, architecture: whose code it is.
        offset: of the instruction, in bytes from the kernel's entry.
        instruction: its name and operands; empty for what concerns the whole launch.
        lane, address: -1 and 0 where none in particular.
    """

    def __init__(self, kind: str, kernel: str, architecture: str, detail: str, **place: int | str) -> None:
        self.kind, self.kernel, self.architecture = kind, kernel, architecture
        self.offset, self.lane = int(place.get("offset", 0)), int(place.get("lane", -1))
        self.address, self.instruction = int(place.get("address", 0)), str(place.get("instruction", ""))
        where = f"{architecture} {kernel}"
        if self.instruction:
            where += f" +{self.offset:#x} {self.instruction}, block {place['block']} wave {place['wave']}"
        if self.lane >= 0:
            where += f" lane {self.lane}"
        if self.address:
            where += f", address {self.address:#x}"
        super().__init__(f"{kind}: {where}{': ' if detail else ''}{detail}")


class CodeObject:
    """A code object's kernels, to be run.

    Attributes:
        architecture: "gfx1100".
        family: of instruction sets, as tinygrad names them: "cdna", "rdna3", "rdna4".
        kernels: their names.
        instructions: how many of them all waves have executed in all runs.
    """

    def __init__(self, data: bytes) -> None:
        """Reads an .hsaco file.

        Raises:
            ValueError: it is for a GPU that is not emulated.
        """
        self.architecture = kernel_report.amd_target(data)
        self._kernels = code_object.kernels(data)
        self.kernels = sorted(self._kernels)
        self.instructions = 0
        families = {"gfx90a": "cdna", "gfx942": "cdna", "gfx950": "cdna", "gfx11": "rdna3", "gfx12": "rdna4"}
        found = [family for start, family in families.items() if self.architecture.startswith(start)]
        if not found:
            raise ValueError(f"{self.architecture} is not emulated")
        self.family = found[0]
        self._programs: dict[str, tuple[bytes, list[str]]] = {}

    def run(
        self,
        kernel: str,
        grid: tuple[int, int],
        threads: int,
        args: bytes,
        *,
        memory: Sequence[tuple[int, int, bool]],
        seed: int,
        resident: int | None = None,
        blocks: range | None = None,
        counter: counts.Counter | None = None,
    ) -> None:
        """Runs a kernel to its end.

        Args:
            grid: blocks in x and y.
            threads: of a block.
            args: the packed argument struct; addresses in it are host addresses.
            memory: (begin address, end address, writable) of what the kernel may touch, to the byte.
            seed: of the interleaving of waves and of the poison in registers and LDS.
            resident: blocks on the device at a time, started in order as others end; None: all.
            blocks: which of the grid's, numbered row after row, run at all; None: all.
            counter: counts what they do.

        Raises:
            EmulationError: the kernel does what no kernel may do, or needs what is not emulated.
        """
        taken = self._checked(kernel, threads, args)
        records, names = self._program(kernel)
        kernarg = (ctypes.c_uint64 * (taken.kernarg_bytes // 8 + 1))()
        ctypes.memmove(kernarg, args, len(args))
        begin = ctypes.addressof(kernarg)
        every = [*memory, (begin, begin + taken.kernarg_bytes, False)]
        launch = self._launch(taken, grid, threads, every)
        launch.kernarg, launch.seed, launch.resident = begin, seed & (1 << 64) - 1, resident or 0xFFFFFFFF
        chosen = range(grid[0] * grid[1]) if blocks is None else blocks
        launch.first, launch.blocks = chosen.start, len(chosen)
        report = core.Report()
        counting = ctypes.byref(counter.begin(self.family, names, len(every))) if counter else None
        failed = core.library().emulate(ctypes.byref(launch), records, len(names), ctypes.byref(report), counting)
        self.instructions += report.instructions
        if failed:
            raise self._error(kernel, names, report)
        if counter:
            counter.end(self.family, names, records)

    def _checked(self, kernel: str, threads: int, args: bytes) -> code_object.Kernel:
        if kernel not in self._kernels:
            raise EmulationError("no such kernel", kernel, self.architecture, "")
        taken = self._kernels[kernel]
        if missing := taken.unsupported(self.family == "cdna"):
            raise EmulationError("kernel not emulated", kernel, self.architecture, missing)
        if len(args) > taken.kernarg_bytes or not 0 < threads <= 1024:
            detail = f"{len(args)} bytes of arguments for {taken.kernarg_bytes}, {threads} threads"
            raise EmulationError("impossible launch", kernel, self.architecture, detail)
        return taken

    def _program(self, name: str) -> tuple[bytes, list[str]]:
        """The kernel's records, and the names of its instructions."""
        if name not in self._programs:
            numbers = core.operations(self.family)
            code = self._kernels[name].code
            self._programs[name] = decode.listing(self.family, code, lambda operation: numbers.get(operation, 0))
        return self._programs[name]

    def _launch(
        self,
        kernel: code_object.Kernel,
        grid: tuple[int, int],
        threads: int,
        memory: Sequence[tuple[int, int, bool]],
    ) -> core.Launch:
        cdna = self.family == "cdna"
        return core.Launch(
            ranges=(core.Range * len(memory))(*(core.Range(begin, end, int(may)) for begin, end, may in memory)),
            range_count=len(memory),
            grid=(ctypes.c_uint32 * 2)(*grid),
            threads=threads,
            wave=64 if cdna else 32,
            family=translate.FAMILIES.index(self.family),
            registers=kernel.registers,
            accumulation_offset=(kernel.bits(kernel.rsrc3, 0, 5) + 1) * 4 if cdna else 0,
            lds=kernel.lds,
            kernarg_register=kernel.kernarg_register,
            user_registers=kernel.user_registers,
            workgroup_ids=kernel.workgroup_ids,
            ieee=kernel.bits(kernel.rsrc1, 23, 23) if self.family != "rdna4" else 0,
            flushes_products=self.architecture == "gfx90a",
        )

    def _error(self, kernel: str, names: list[str], report: core.Report) -> EmulationError:
        return EmulationError(
            report.kind.decode(),
            kernel,
            self.architecture,
            report.text.decode(),
            offset=report.offset,
            lane=report.lane,
            address=report.address,
            instruction=self._instruction(kernel, names[report.index], report.offset),
            block=f"{report.block[0]},{report.block[1]}",
            wave=report.wave,
        )

    def _instruction(self, kernel: str, name: str, offset: int) -> str:
        """As tinygrad writes it; what that does not know by our name or its word."""
        code = self._kernels[kernel].code[offset : offset + 16]
        try:
            return repr(importlib.import_module("tinygrad.renderer.amd").decode_inst(code, self.family))
        except Exception:  # of any kind: this is about the text of another error
            return name or f"unknown encoding {code[:4][::-1].hex()}"
