"""AMD code objects: the ELF file's kernels with their code and descriptors (LLVM, "User Guide for AMDGPU Backend")."""

from __future__ import annotations

import struct
from dataclasses import dataclass


@dataclass(frozen=True)
class Kernel:
    """What a kernel's descriptor asks for ("Kernel Descriptor"), and its code."""

    code: bytes
    lds: int
    scratch: int
    kernarg_bytes: int
    rsrc1: int
    rsrc2: int
    rsrc3: int
    properties: int
    preload: int

    def bits(self, register: int, low: int, high: int) -> int:
        return register >> low & ((1 << (high - low + 1)) - 1)

    @property
    def registers(self) -> int:
        """Vector registers of a lane, as given in eights (gfx90a, gfx942, and waves of 32)."""
        return (self.bits(self.rsrc1, 0, 5) + 1) * 8

    @property
    def user_registers(self) -> int:
        return self.bits(self.rsrc2, 1, 5)

    @property
    def workgroup_ids(self) -> int:
        """Bits for x, y and z."""
        return self.bits(self.rsrc2, 7, 9)

    @property
    def kernarg_register(self) -> int:
        """The first of the two scalar registers with the arguments' address."""
        sizes = (4, 2, 2)  # private segment buffer, dispatch pointer, queue pointer come before
        return sum(size for bit, size in enumerate(sizes) if self.properties >> bit & 1)

    def unsupported(self, cdna: bool) -> str:
        """What this kernel needs that is not emulated; empty: nothing."""
        asks = {
            "scratch memory": self.scratch or self.rsrc2 & 1,
            "preloaded arguments": self.preload,
            "no address of its arguments": not self.properties & 8,
            "dispatch or queue pointer": self.properties & 6,
            "rounding other than to nearest": self.bits(self.rsrc1, 12, 15),
            "flushed subnormals": self.bits(self.rsrc1, 16, 19) != 15,
            "waves of 64 on RDNA": not cdna and not self.properties >> 10 & 1,
            "more than one dimension of a block": self.bits(self.rsrc2, 11, 12),
            "FP16_OVFL": self.bits(self.rsrc1, 26, 26),
        }
        return ", ".join(what for what, asked in asks.items() if asked)


def kernels(data: bytes) -> dict[str, Kernel]:
    """By name."""
    sections = _sections(data)
    symbols = _symbols(data, sections)
    return {
        name.removesuffix(".kd"): _kernel(data, sections, symbols, name) for name in symbols if name.endswith(".kd")
    }


def _sections(data: bytes) -> list[tuple[int, ...]]:
    """Of each: name, type, flags, address, offset, size, link, info, alignment, entry size."""
    start, count = struct.unpack_from("<Q", data, 40)[0], struct.unpack_from("<H", data, 60)[0]
    return [struct.unpack_from("<IIQQQQIIQQ", data, start + 64 * i) for i in range(count)]


def _symbols(data: bytes, sections: list[tuple[int, ...]]) -> dict[str, tuple[int, int]]:
    """Name -> address and size."""
    found = {}
    for section in sections:
        if section[1] != 2:  # SHT_SYMTAB
            continue
        names = sections[section[6]][4]
        for at in range(section[4], section[4] + section[5], 24):
            name, _, _, _, address, size = struct.unpack_from("<IBBHQQ", data, at)
            start = names + name
            found[data[start : data.index(b"\0", start)].decode()] = address, size
    return found


def _at(data: bytes, sections: list[tuple[int, ...]], address: int, size: int) -> bytes:
    for section in sections:
        _, kind, flags, begin, offset, length, *_ = section
        if kind == 1 and flags & 2 and begin <= address < begin + length:  # SHT_PROGBITS, SHF_ALLOC
            start = offset + address - begin
            return data[start : start + size]
    raise ValueError(f"nothing at {address:#x}")


def _kernel(
    data: bytes, sections: list[tuple[int, ...]], symbols: dict[str, tuple[int, int]], descriptor: str
) -> Kernel:
    address = symbols[descriptor][0]
    raw = _at(data, sections, address, 64)
    lds, scratch, kernarg, _, entry = struct.unpack_from("<IIIIq", raw)
    rsrc3, rsrc1, rsrc2, properties, preload = struct.unpack_from("<IIIHH", raw, 44)
    start, size = symbols[descriptor.removesuffix(".kd")]
    if start != address + entry:
        raise ValueError(f"{descriptor} does not begin at its symbol")
    code = _at(data, sections, start, size)
    return Kernel(code, lds, scratch, kernarg, rsrc1, rsrc2, rsrc3, properties, preload)
