"""Structure of an image's file, which a stranger may have made, before anything decodes it.

Decoders bound the pixels of an image. What they do not bound is what a file repeats: progressive JPEG's scans, each
over all pixels; chunks, segments and blocks of a few bytes; tags of Exif and TIFF that share their bytes; pictures
behind the first one. All of it is counted here in one walk, and what no camera or program writes is refused.

https://www.w3.org/TR/png-3/ (5), https://www.w3.org/Graphics/JPEG/itu-t81.pdf (annex B),
https://www.w3.org/Graphics/GIF/spec-gif89a.txt, https://developers.google.com/speed/webp/docs/riff_container,
https://www.itu.int/itudoc/itu-t/com16/tiff-fx/docs/tiff6.pdf (2)
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

MAX_SCANS = 100
"""Scans of a JPEG. Programs write 1 to 20, each of which costs a decoder a walk over all pixels."""
MAX_PIECES = 1 << 18
"""Chunks, segments and blocks of a file; 200 MB in pieces of 1 KB, which is the least that programs write."""
MAX_EXIF_SEGMENTS = 64
"""Exif's segments of a JPEG, of 64 KB each; decoders put them together."""
MAX_VALUES = 1 << 20
"""Numbers of a tag; the most are the places of an image's strips."""
MAX_PLAIN = 1 << 24
"""Bytes of PPM written in digits, and of BMP in runs, which are decoded byte by byte."""
_MAX_TAGS = 1 << 16
_SHARED = 1 << 16
"""Bytes that tags may share with others: both resolutions are often one number."""
_MAX_PICTURES = 1000
"""Pictures behind the first one that are counted."""
_MARKER = re.compile(rb"\xff[\x01-\xcf\xd8-\xfe]")
"""JPEG: the next marker behind data, in which FF 00 is a byte and FF D0 to D7 restart."""
_BYTES_OF_TYPE = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 1, 7: 1, 8: 2, 9: 4, 10: 8, 11: 4, 12: 8, 13: 4, 16: 8, 17: 8, 18: 8}
_TEXT_TYPES = (1, 2, 6, 7)
_EXIF = b"Exif\0\0"
_MOST_MARKS = 2
"""Marks before Exif data: a file may have one, and decoders put one before it or leave out all that are there."""
_FOLDERS = (0x8769, 0x8825, 0xA005)
"""Tags that lead to other directories: Exif, GPS, interoperability."""


def count_pictures(content: bytes) -> str:
    """The number of pictures in a file, for a sentence: ``1``, ``3``, ``more than 1,000``.

    Raises:
        ValueError: why decoding it could take without end, to be put behind its name.
    """
    if content.startswith(b"\x89PNG\r\n\x1a\n"):
        return _check_png(content)
    if content.startswith(b"\xff\xd8"):
        return _check_jpeg(content)
    if content.startswith((b"GIF87a", b"GIF89a")):
        return _check_gif(content)
    if (content[:4], content[8:12]) == (b"RIFF", b"WEBP"):
        return _check_webp(content)
    if content[:2] in (b"II", b"MM"):
        return _shown(check_directories(content))
    if len(content) > MAX_PLAIN and (content[:2] in (b"P1", b"P2", b"P3") or _is_in_runs(content)):
        raise ValueError(f"it is written in digits or runs, and has more than {MAX_PLAIN:,} bytes")
    return "1"


def _shown(pictures: int) -> str:
    return f"more than {_MAX_PICTURES:,}" if pictures > _MAX_PICTURES else str(pictures)


def _is_in_runs(content: bytes) -> bool:
    return content.startswith(b"BM") and content[30:34] in (b"\1\0\0\0", b"\2\0\0\0")


def png_chunks(content: bytes) -> Iterator[tuple[bytes, int, int]]:
    """The chunks of a PNG: kind, and where its data begins and ends; the last one may end behind the file.

    Raises:
        ValueError: there are more than :data:`MAX_PIECES`.
    """
    place, count = 8, 0
    while place + 12 <= len(content):
        count += 1
        if count > MAX_PIECES:
            raise ValueError(f"it has more than {MAX_PIECES:,} chunks")
        size = int.from_bytes(content[place : place + 4], "big")
        yield content[place + 4 : place + 8], place + 8, place + 8 + size
        place += 12 + size


def _check_png(content: bytes) -> str:
    pictures = 1
    for kind, begin, end in png_chunks(content):
        if kind == b"eXIf":
            check_directories(content[begin:end])
        elif kind == b"acTL":
            pictures = int.from_bytes(content[begin : begin + 4], "big")
    return _shown(pictures)


def _check_jpeg(content: bytes) -> str:
    place, scans, segments, exif = 2, 0, 0, list[bytes]()
    while found := _MARKER.search(content, place):
        code, place = content[found.start() + 1], found.end()
        segments += 1
        if code == 0xD9:
            break
        if code == 0xD8 or code == 0x01:
            continue
        scans += code == 0xDA
        size = int.from_bytes(content[place : place + 2], "big")
        if code == 0xE1 and content.startswith(_EXIF, place + 2):
            exif.append(content[place + 8 : place + size])
        for number, most, what in (
            *((segments, MAX_PIECES, "segments"), (scans, MAX_SCANS, "scans")),
            (len(exif), MAX_EXIF_SEGMENTS, "segments of Exif"),
        ):
            if number > most:
                raise ValueError(f"it has more than {most:,} {what}")
        place += max(size, 2)
    check_directories(b"".join(exif))
    return "1"


def _check_gif(content: bytes) -> str:
    """A walk up to the end, or up to as many blocks as are counted: nothing behind the first picture is decoded."""
    place, pictures, blocks = 13 + _colours(content, 10), 0, 0
    while place < len(content) and content[place] in (0x21, 0x2C) and pictures <= _MAX_PICTURES:
        is_picture = content[place] == 0x2C
        place += 11 + _colours(content, place + 9) if is_picture else 2
        while (size := content[place] if place < len(content) else 0) and blocks <= MAX_PIECES:
            place, blocks = place + size + 1, blocks + 1
        place += 1
        if blocks > MAX_PIECES:
            if pictures == 0:
                raise ValueError(f"it has more than {MAX_PIECES:,} blocks")
            return f"more than {pictures:,}"
        blocks += 1
        pictures += is_picture
    return _shown(max(pictures, 1))


def _colours(content: bytes, place: int) -> int:
    """Bytes of the table of colours that a GIF's flags announce."""
    flags = content[place] if place < len(content) else 0
    return 3 << (flags & 7) + 1 if flags & 0x80 else 0


def _check_webp(content: bytes) -> str:
    place, count, pictures = 12, 0, 0
    while place + 8 <= len(content):
        kind, size = content[place : place + 4], int.from_bytes(content[place + 4 : place + 8], "little")
        count += 1
        if count > MAX_PIECES:
            raise ValueError(f"it has more than {MAX_PIECES:,} chunks")
        if kind == b"EXIF":
            check_directories(content[place + 8 : place + 8 + size])
        pictures += kind == b"ANMF"
        place += 8 + size + size % 2
    return _shown(max(pictures, 1))


def check_directories(data: bytes) -> int:
    """The number of directories in a row of a TIFF or of Exif data, which is laid out as one; 0 where it is neither.

    Raises:
        ValueError: its tags have more bytes than it, or too many values; or its mark is repeated.
    """
    for _ in range(_MOST_MARKS):
        data = data.removeprefix(_EXIF)
    if data.startswith(_EXIF):
        raise ValueError(f"its Exif begins more than {_MOST_MARKS} times")
    order: Literal["little", "big"] | None = {b"II": "little", b"MM": "big"}.get(data[:2])  # type: ignore[assignment]
    if order is None:
        return 0
    layout = _Layout(data, order, is_big=data[2:4] in (b"\x2b\0", b"\0\x2b"))
    total, pages, seen = 0, 0, set[int]()
    waiting = [(layout.first, True)]
    while waiting and pages <= _MAX_PICTURES:
        place, is_page = waiting.pop()
        if place in seen or not 0 < place < len(data):
            continue
        seen.add(place)
        pages += is_page
        length, folders, following = layout.directory(place)
        total += length
        if total > len(data) + _SHARED:
            raise ValueError(f"its tags have {total:,} bytes, and all of it {len(data):,}")
        waiting += [*((folder, False) for folder in folders), *([(following, True)] if is_page else [])]
    return pages


@dataclass(frozen=True)
class _Layout:
    """TIFF's directories: of the first version, and of BigTIFF with 8 bytes for a number where that has 4."""

    data: bytes
    order: Literal["little", "big"]
    is_big: bool

    @property
    def first(self) -> int:
        """Where the first directory is."""
        return self._number(8, 8) if self.is_big else self._number(4, 4)

    def directory(self, begin: int) -> tuple[int, list[int], int]:
        """Bytes of a directory's tags outside of it, the directories that tags lead to, and the one behind it.

        Raises:
            ValueError: it has too many tags, or a tag too many values.
        """
        width, entry = (8, "HHQQ") if self.is_big else (4, "HHII")
        entry = ("<" if self.order == "little" else ">") + entry
        count, size = self._number(begin, 8 if self.is_big else 2), struct.calcsize(entry)
        begin += 8 if self.is_big else 2
        if count > _MAX_TAGS:
            raise ValueError(f"its directory has more than {_MAX_TAGS:,} tags")
        total, folders = 0, []
        whole = min(count, max(len(self.data) - begin, 0) // size)
        for tag, kind, number, value in struct.iter_unpack(entry, self.data[begin : begin + whole * size]):
            if kind not in _TEXT_TYPES and number > MAX_VALUES:
                raise ValueError(f"its tag {tag} has more than {MAX_VALUES:,} values")
            length = number * _BYTES_OF_TYPE.get(kind, 0)
            total += length if width < length <= len(self.data) else 0  # behind the end nothing is read
            folders += [value] if tag in _FOLDERS else []
        return total, folders, self._number(begin + count * size, width)

    def _number(self, place: int, width: int) -> int:
        return int.from_bytes(self.data[place : place + width], self.order)
