#!/usr/bin/env python3
"""The kernels of DirectML's execution provider, out of a wheel of onnxruntime-directml: no Windows is needed.

    python scripts/directml_kernels.py onnxruntime_directml-1.24.4-cp311-cp311-win_amd64.whl

pip downloads such a wheel anywhere, where it is told a platform (win_amd64) and that no source will do.

Prints a line for each operator: its domain, its name and the opsets from which it has a kernel. They are the rows of
the table in OperatorRegistration.cpp (microsoft/onnxruntime), which lies in the library as constants. What is
registered beside it (DFT, GridSample, STFT) is not among them.
"""

from __future__ import annotations

import argparse
import re
import struct
import zipfile
from collections.abc import Iterator

LIBRARY = "onnxruntime/capi/onnxruntime_pybind11_state.pyd"
LANDMARK = "BiasSplitGelu"
"""An operator that is named once, in the table."""
_DOMAINS = ("", "com.microsoft", "com.microsoft.dml")
_LARGEST_ROW, _LARGEST_OPSET = 512, 50
"""Bounds of a row's bytes and of an opset, beyond which nothing is a row."""


class Image:
    """A library for Windows (PE32+): its bytes by their addresses."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        header = struct.unpack_from("<I", data, 0x3C)[0]
        sections, optional = struct.unpack_from("<H12xH", data, header + 6)
        self.base: int = struct.unpack_from("<Q", data, header + 48)[0]
        first = header + 24 + optional
        self._sections: list[tuple[int, int, int]] = [
            struct.unpack_from("<III", data, first + 40 * index + 12) for index in range(sections)
        ]

    def offset(self, address: int) -> int | None:
        """Where in the file an address is; None if it is in none of its sections."""
        place = address - self.base
        found = (
            start + place - virtual for virtual, size, start in self._sections if virtual <= place < virtual + size
        )
        return next(found, None)

    def address(self, offset: int) -> int:
        return next(
            self.base + virtual + offset - start
            for virtual, size, start in self._sections
            if start <= offset < start + size
        )

    def text(self, address: int) -> str | None:
        """The text at an address; None if there is no short one."""
        offset = self.offset(address)
        match = re.compile(rb"[\w.]{0,80}\0").match(self.data, offset) if offset is not None else None
        return match[0][:-1].decode() if match else None

    def row(self, offset: int) -> tuple[str, str, int] | None:
        """Domain, operator and opset of a row of the table; None if there is no row."""
        if not 0 <= offset <= len(self.data) - 24:
            return None
        name, opset, domain = struct.unpack_from("<QI4xQ", self.data, offset)
        words = self.text(name), self.text(domain)
        if not words[0] or words[1] not in _DOMAINS or not 0 < opset < _LARGEST_OPSET:
            return None
        return words[1], words[0], opset


def kernels(data: bytes) -> dict[tuple[str, str], list[int]]:
    """Domain and operator -> the opsets from which the library has a kernel of it.

    Raises:
        ValueError: there is no such table.
    """
    image = Image(data)
    found: dict[tuple[str, str], list[int]] = {}
    for domain, name, opset in _rows(image):
        found.setdefault((domain, name), []).append(opset)
    return found


def _rows(image: Image) -> Iterator[tuple[str, str, int]]:
    word = image.data.find(b"\0" + LANDMARK.encode() + b"\0") + 1
    middle = image.data.find(struct.pack("<Q", image.address(word))) if word else -1
    around = range(-3, 4)
    sizes = (s for s in range(24, _LARGEST_ROW, 8) if all(image.row(middle + s * step) for step in around))
    size = next(sizes, None) if middle >= 0 else None
    if size is None:
        raise ValueError(f"the library has no table of kernels around {LANDMARK}")
    start = middle
    while image.row(start - size):
        start -= size
    while row := image.row(start):
        yield row
        start += size


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheel", help="onnxruntime_directml-*-win_amd64.whl")
    with zipfile.ZipFile(parser.parse_args().wheel) as wheel:
        found = kernels(wheel.read(LIBRARY))
    for (domain, name), opsets in sorted(found.items()):
        print(domain or "ai.onnx", name, *sorted(opsets))


if __name__ == "__main__":
    main()
