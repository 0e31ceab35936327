"""The texts inside of a PNG file, of which a stranger may be the author: nothing else of it is read.

https://www.w3.org/TR/png-3/, sections 5 and 11.3.3
"""

from __future__ import annotations

import zlib
from pathlib import Path

from sdort.errors import BadModelError
from sdort.machine.input_file import read_input

MAX_FILE = 1 << 28
"""Bytes of an image; 8192 x 8192 pixels that do not compress have 200 MB."""
MAX_TEXT = 1 << 21
"""Bytes of a text: two prompts of the longest that sdort takes, each quoted, are a fifth."""
_SIGNATURE = b"\x89PNG\r\n\x1a\n"


def read_texts(path: Path) -> dict[str, str]:
    """Keyword -> text; of several with one keyword the first.

    Raises:
        BadModelError: it cannot be read, is no PNG, or a text is damaged or too long.
    """
    content = read_input(path, "the image", limit=MAX_FILE)
    if not content.startswith(_SIGNATURE):
        raise BadModelError(
            f"{path} is no PNG file", hint="The parameters are in the PNG that was written; other formats lose them."
        )
    texts: dict[str, str] = {}
    position = len(_SIGNATURE)
    while position + 12 <= len(content):
        size = int.from_bytes(content[position : position + 4], "big")
        kind, begin = content[position + 4 : position + 8], position + 8
        if begin + size + 4 > len(content):
            raise BadModelError(f"{path} ends within a chunk", hint="Copy or download it again.")
        if kind in _READERS:
            chunk = content[begin : begin + size]
            if zlib.crc32(kind + chunk) != int.from_bytes(content[begin + size : begin + size + 4], "big"):
                raise BadModelError(f"{path} has a damaged text", hint="Copy or download it again.")
            _keep(texts, kind, chunk, path)
        position = begin + size + 4
    return texts


def _keep(texts: dict[str, str], kind: bytes, chunk: bytes, path: Path) -> None:
    keyword, end, rest = chunk.partition(b"\0")
    if not end:
        return
    try:
        text = _READERS[kind](rest)
    except (ValueError, zlib.error) as error:
        raise BadModelError(f"{path} has a text that cannot be read: {error}") from error
    texts.setdefault(keyword.decode("latin-1"), text)


def _plain(rest: bytes) -> str:
    return _bounded(rest).decode("latin-1")


def _compressed(rest: bytes) -> str:
    return _inflated(rest[1:]).decode("latin-1")


def _international(rest: bytes) -> str:
    packed, text = rest[:1] == b"\1", rest[2:].split(b"\0", 2)
    if len(text) < 3:
        raise ValueError("it has no end of its language")
    return (_inflated(text[2]) if packed else _bounded(text[2])).decode()


def _inflated(data: bytes) -> bytes:
    return _bounded(zlib.decompressobj().decompress(data, MAX_TEXT + 1))


def _bounded(data: bytes) -> bytes:
    if len(data) > MAX_TEXT:
        raise ValueError(f"it has more than {MAX_TEXT:,} bytes")
    return data


_READERS = {b"tEXt": _plain, b"zTXt": _compressed, b"iTXt": _international}
