"""An emulator of AMD GPUs' machine code."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

from emulator import code_object, core, decode, translate

__all__ = ["CodeObject", "EmulationError"]


class EmulationError(Exception):
    """A kernel did what no kernel may do, or what the emulator cannot.

    Attributes:
        kind: of fault, as in "read outside memory".
        kernel, architecture: whose code it is.
        offset: of the instruction, in bytes from the kernel's entry.
        instruction: its name.
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
        kernels: their names.
    """

    def __init__(self, data: bytes) -> None:
        self.architecture = code_object.architecture(data)
        self._kernels = code_object.kernels(data)
        self.kernels = sorted(self._kernels)
        families = {"gfx90a": "cdna", "gfx94": "cdna", "gfx95": "cdna", "gfx11": "rdna3", "gfx12": "rdna4"}
        found = [family for start, family in families.items() if self.architecture.startswith(start)]
        if not found:
            raise ValueError(f"{self.architecture} is not emulated")
        self._family = found[0]
        self._programs: dict[str, tuple[bytes, list[str]]] = {}
        self.instructions = 0

    def _program(self, name: str) -> tuple[bytes, list[str]]:
        if name not in self._programs:
            numbers = core.operations(self._family)
            code = self._kernels[name].code
            self._programs[name] = decode.listing(self._family, code, lambda operation: numbers.get(operation, 0))
        return self._programs[name]

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
    ) -> None:
        """Runs a kernel to its end.

        Args:
            grid: blocks in x and y.
            threads: of a block.
            args: the packed argument struct; addresses in it are host addresses.
            memory: (begin address, end address, writable) of what the kernel may touch, to the byte.
            seed: of the interleaving of waves and of the poison in registers and LDS.
            resident: blocks on the device at a time, started in order as others end; None: all.

        Raises:
            EmulationError: the kernel does what no kernel may do, or needs what is not emulated.
        """
        if kernel not in self._kernels:
            raise EmulationError("no such kernel", kernel, self.architecture, "")
        taken = self._kernels[kernel]
        if missing := taken.unsupported(self._family == "cdna", self._family != "rdna4"):
            raise EmulationError("kernel not emulated", kernel, self.architecture, missing)
        if len(args) > taken.kernarg_bytes or not 0 < threads <= 1024:
            raise EmulationError("launch", kernel, self.architecture, f"{len(args)} bytes of arguments, {threads} threads")
        records, names = self._program(kernel)
        kernarg = (ctypes.c_uint64 * (-(-taken.kernarg_bytes // 8) or 1))()
        ctypes.memmove(kernarg, args, len(args))
        ranges = self._ranges(memory, ctypes.addressof(kernarg), taken.kernarg_bytes)
        launch = self._launch(taken, grid, threads, seed, resident, ranges)
        launch.kernarg, launch.kernarg_bytes = ctypes.addressof(kernarg), taken.kernarg_bytes
        report = core.Report()
        failed = core.library().emulate(ctypes.byref(launch), records, len(names), ctypes.byref(report))
        self.instructions += report.instructions
        if failed:
            raise self._error(kernel, records, names, report)

    def _ranges(self, memory: Sequence[tuple[int, int, bool]], kernarg: int, size: int) -> ctypes.Array[core.Range]:
        every = [*memory, (kernarg, kernarg + size, False)]
        return (core.Range * len(every))(*((begin, end, int(writable), 0) for begin, end, writable in every))

    def _launch(
        self,
        kernel: code_object.Kernel,
        grid: tuple[int, int],
        threads: int,
        seed: int,
        resident: int | None,
        ranges: ctypes.Array[core.Range],
    ) -> core.Launch:
        cdna = self._family == "cdna"
        return core.Launch(
            seed=seed & (1 << 64) - 1,
            ranges=ranges,
            range_count=len(ranges),
            grid=(ctypes.c_uint32 * 2)(*grid),
            threads=threads,
            wave=64 if cdna else 32,
            family=translate.FAMILIES.index(self._family),
            registers=kernel.registers,
            accumulation_offset=(kernel.bits(kernel.rsrc3, 0, 5) + 1) * 4 if cdna else 0,
            lds=kernel.lds,
            kernarg_register=kernel.kernarg_register,
            user_registers=kernel.user_registers,
            workgroup_ids=kernel.workgroup_ids,
            ieee=kernel.bits(kernel.rsrc1, 23, 23) if self._family != "rdna4" else 0,
            flushes_products=self.architecture == "gfx90a",
            resident=resident or 0xFFFFFFFF,
        )

    def _error(self, kernel: str, records: bytes, names: list[str], report: core.Report) -> EmulationError:
        offset = index = 0
        size = decode.RECORD.size
        while offset < report.offset:
            offset += int.from_bytes(records[index * size + 2 : index * size + 4], "little")
            index += 1
        return EmulationError(
            report.kind.decode(),
            kernel,
            self.architecture,
            report.text.decode(),
            offset=report.offset,
            lane=report.lane,
            address=report.address,
            instruction=names[index] or "unknown encoding",
            block=f"{report.block[0]},{report.block[1]}",
            wave=report.wave,
        )
