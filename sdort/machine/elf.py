"""Dependencies of a shared library, read from its file without loading it.

Source: System V ABI, chapters 4 (object files) and 5 (dynamic linking); 64-bit little-endian files only, as all are
that ONNX Runtime's Linux packages hold.
"""

from __future__ import annotations

import mmap
import re
import struct
from pathlib import Path

_DYNAMIC, _LOAD = 2, 1  # p_type
_NEEDED, _STRTAB = 1, 5  # d_tag
_CODE_OBJECT = re.compile(rb"amdgcn-amd-amdhsa--(gfx[0-9a-f]+)")


def needed(path: Path) -> list[str]:
    """The shared libraries that the dynamic linker loads with this one (``DT_NEEDED``).

    Raises:
        ValueError: it is no 64-bit little-endian ELF file.
        OSError: it cannot be read.
    """
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        if data[:6] != b"\x7fELF\x02\x01":
            raise ValueError(f"{path} is no 64-bit little-endian ELF file")
        try:
            return _needed(data)
        except struct.error as error:
            raise ValueError(f"{path} is cut off") from error


def _needed(data: mmap.mmap) -> list[str]:
    (offset,) = struct.unpack_from("<Q", data, 0x20)
    size, count = struct.unpack_from("<HH", data, 0x36)
    # p_type, p_flags, p_offset, p_vaddr, p_paddr, p_filesz
    headers = [struct.unpack_from("<IIQQQQ", data, offset + i * size) for i in range(count)]
    entries: list[tuple[int, int]] = []
    for kind, _, start, _, _, length in headers:
        if kind == _DYNAMIC:
            entries += [struct.unpack_from("<QQ", data, start + i) for i in range(0, length, 16)]
    address = next((value for tag, value in entries if tag == _STRTAB), None)
    if address is None:
        return []
    strings = next((s + address - v for k, _, s, v, _, n in headers if k == _LOAD and v <= address < v + n), address)
    return [_string(data, strings + value) for tag, value in entries if tag == _NEEDED]


def _string(data: mmap.mmap, start: int) -> str:
    return data[start : data.find(b"\0", start)].decode(errors="replace")


def code_objects(path: Path) -> set[str]:
    """The GPU architectures (``gfx1100``) that a library has AMD machine code for.

    Raises:
        OSError: it cannot be read.
    """
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        return {match[1].decode() for match in _CODE_OBJECT.finditer(data)}
