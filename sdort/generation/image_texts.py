"""The texts inside of a PNG, JPEG or WebP file, of which a stranger may be the author: no pixel is read.

PNG keeps texts by keywords (https://www.w3.org/TR/png-3/, sections 5 and 11.3.3). In the others Exif keeps them: A1111
and model sites write ``parameters`` as its user comment, ComfyUI ``prompt:`` and ``workflow:`` as the camera's model
and maker.
"""

from __future__ import annotations

import io
import warnings
import zlib
from pathlib import Path

from sdort.errors import BadModelError
from sdort.errors.plain_text import library_reason
from sdort.machine.input_file import read_input

MAX_FILE = 1 << 28
"""Bytes of an image; 8192 x 8192 pixels that do not compress have 200 MB."""
MAX_TEXT = 1 << 21
"""Bytes of a text: two prompts of the longest that sdort takes, each quoted, are a fifth."""
_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_JPEG = b"\xff\xd8\xff"
_EXIF, _USER_COMMENT, _MAKER, _MODEL = 0x8769, 0x9286, 0x010F, 0x0110
"""Numbers of Exif's tags."""


def read_texts(path: Path) -> dict[str, str]:
    """Keyword -> text; of several with one keyword the first.

    Raises:
        BadModelError: it cannot be read, is none of these files, or a text is damaged or too long.
    """
    content = read_input(path, "the image", limit=MAX_FILE)
    if content.startswith(_SIGNATURE):
        return _png_texts(content, path)
    if content.startswith(_JPEG) or (content[:4], content[8:12]) == (b"RIFF", b"WEBP"):
        return _exif_texts(content, path)
    raise BadModelError(
        f"{path} is no PNG, JPEG or WebP file",
        hint="The parameters are in the file that was written; editors and chat programs remove them.",
    )


def _exif_texts(content: bytes, path: Path) -> dict[str, str]:
    from PIL import Image

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of other damaged tags
            exif = Image.open(io.BytesIO(content), formats=("JPEG", "WEBP")).getexif()
            comment = exif.get_ifd(_EXIF).get(_USER_COMMENT)
        texts = {}
        for value in (exif.get(_MODEL), exif.get(_MAKER)):
            keyword, colon, text = str(value or "").rstrip("\0").partition(":")
            if colon and keyword in ("prompt", "workflow"):
                texts[keyword] = text
        if comment:
            texts["parameters"] = _comment(comment if isinstance(comment, bytes) else str(comment).encode())
    except Exception as error:  # decoders of broken files end in any error
        raise BadModelError(f"{path} has Exif data that cannot be read: {library_reason(error)}") from error
    return texts


def _comment(comment: bytes) -> str:
    """A user comment: eight bytes say its code. Which byte of UTF-16 comes first nobody says; most texts are ASCII.

    https://www.cipa.jp/std/documents/e/DC-008-2012_E.pdf, section 4.6.5
    """
    code, text = comment[:8], _bounded(comment[8:])
    if code == b"UNICODE\0":
        first = text[0::2].count(0) > text[1::2].count(0)
        return text.decode("utf-16-be" if first else "utf-16-le").lstrip("\ufeff").rstrip("\0")
    known = code in (b"ASCII\0\0\0", bytes(8))
    return (text if known else _bounded(comment)).decode("utf-8").rstrip("\0")


def _png_texts(content: bytes, path: Path) -> dict[str, str]:
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
