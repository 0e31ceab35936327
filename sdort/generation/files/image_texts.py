"""The texts inside of a PNG, JPEG or WebP file, of which a stranger may be the author: no pixel is read.

PNG keeps texts by keywords (https://www.w3.org/TR/png-3/, sections 5 and 11.3.3). In the others Exif keeps them: A1111
and model sites write ``parameters`` as its user comment, sdort its record as the maker note, ComfyUI ``prompt:`` and
``workflow:`` as the camera's model and maker and the tags before them.

Which characters the bytes of a text are, many programs say wrongly: PNG's ``tEXt`` is Latin-1, and stable-diffusion.cpp
writes UTF-8 there. What is valid UTF-8 is read as such, since Latin-1 that people write hardly ever is.
"""

from __future__ import annotations

import io
import warnings
import zlib
from pathlib import Path

from sdort.errors import BadModelError
from sdort.errors.plain_text import library_reason
from sdort.files.input_file import read_input
from sdort.generation.files.image_files import EXIF, MAKER, MAKER_NOTE, USER_COMMENT
from sdort.generation.pictures.image_structure import count_pictures, png_chunks

MAX_FILE = 1 << 28
"""Bytes of an image; 8192 x 8192 pixels that do not compress have 200 MB."""
MAX_TEXT = 1 << 21
"""Bytes of a text: two prompts of the longest that sdort takes, each quoted, are a fifth."""
MAX_TEXTS = 1 << 23
"""Bytes of all texts of a file, keywords among them."""
_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_JPEG = b"\xff\xd8\xff"
_SOFTWARE = 0x0131
_NAMED = range(0x0110, 0x0100, -1)
"""Numbers of Exif's tags; ComfyUI writes from the camera's model on downwards."""
_TEXT_ITSELF = 100
"""Bytes that a text and its keyword take beside their characters."""
XMP = "XML:com.adobe.xmp"
"""PNG's keyword of XMP."""


def read_texts(path: Path) -> dict[str, str]:
    """Keyword -> text; of several with one keyword the first.

    Raises:
        BadModelError: it cannot be read, is none of these files, or a text is damaged or too long.
    """
    return texts_in(read_input(path, "the image", limit=MAX_FILE), path)


def texts_in(content: bytes, path: Path) -> dict[str, str]:
    """:func:`read_texts` of a file's content.

    Args:
        path: its name, for messages.
    """
    try:
        count_pictures(content)
    except ValueError as error:
        raise BadModelError(f"{path} is not read: {error}", hint="Give the file that was written.") from error
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
            picture = Image.open(io.BytesIO(content), formats=("JPEG", "WEBP"))
            exif = picture.getexif()
            directory = exif.get_ifd(EXIF)
            comment, note = directory.get(USER_COMMENT), directory.get(MAKER_NOTE)
        texts = {}
        if isinstance(note, bytes) and note.startswith(MAKER):
            texts["sdort"] = _bounded(note.removeprefix(MAKER)).decode()
        for value in filter(None, map(exif.get, _NAMED)):
            keyword, colon, text = _decoded(_bounded(_bytes(value))).rstrip("\0").partition(":")
            if colon and keyword in ("prompt", "workflow"):
                texts[keyword] = text
        if exif.get(_SOFTWARE):
            texts["Software"] = _decoded(_bytes(exif[_SOFTWARE])).rstrip("\0")
        if comment:
            texts["parameters"] = _comment(_bytes(comment), "be" if exif.endian == ">" else "le")
        if picture.info.get("xmp"):
            texts[XMP] = _decoded(_bounded(_bytes(picture.info["xmp"])))
    except Exception as error:  # decoders of broken files end in any error
        raise BadModelError(f"{path} has Exif data that cannot be read: {library_reason(error)}") from error
    return texts


def _bytes(value: object) -> bytes:
    """The bytes of a tag, which Pillow gives as Latin-1 where the tag's type is text."""
    return value if isinstance(value, bytes) else str(value).encode("latin-1", "replace")


def _comment(comment: bytes, order: str) -> str:
    """A user comment: eight bytes say its code.

    https://www.cipa.jp/std/documents/e/DC-008-2012_E.pdf, section 4.6.5

    Args:
        order: ``be`` or ``le``, the file's order of bytes.
    """
    code, text = comment[:8].rstrip(b"\0 ").upper(), _bounded(comment[8:])
    if code == b"UNICODE":
        return _unicode(text, order)
    if code == b"JIS":
        return text.rstrip(b"\0").decode("iso2022_jp")
    if code == b"ASCII":
        return _decoded(text).rstrip("\0")
    return (_bounded(comment) if code else text).decode("utf-8-sig").rstrip("\0")


def _unicode(text: bytes, order: str) -> str:
    """UTF-16, whose mark says which byte comes first, or else most texts' ASCII, or else the file; without any zero in
    it UTF-8 that names itself so."""
    if text[:2] not in (b"\xff\xfe", b"\xfe\xff"):
        if 0 not in text.rstrip(b"\0") and _is_utf8(text):
            return _decoded(text).rstrip("\0")
        high, low = text[0::2].count(0), text[1::2].count(0)
        order = order if high == low else "be" if high > low else "le"
    elif text[:2] == b"\xff\xfe":
        order = "le"
    else:
        order = "be"
    return text.decode(f"utf-16-{order}").lstrip("\ufeff").rstrip("\0")


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _decoded(data: bytes) -> str:
    """Text in UTF-8, with or without a mark, and what is none in Latin-1."""
    return data.decode("utf-8-sig" if _is_utf8(data) else "latin-1")


def _png_texts(content: bytes, path: Path) -> dict[str, str]:
    texts: dict[str, str] = {}
    left = MAX_TEXTS
    for kind, begin, end in png_chunks(content):
        if end + 4 > len(content):
            raise BadModelError(f"{path} ends within a chunk", hint="Copy or download it again.")
        if kind in _READERS:
            chunk = content[begin:end]
            if zlib.crc32(kind + chunk) != int.from_bytes(content[end : end + 4], "big"):
                raise BadModelError(f"{path} has a damaged text", hint="Copy or download it again.")
            left -= _keep(texts, kind, chunk, path) + _TEXT_ITSELF
            if left < 0:
                raise BadModelError(
                    f"{path} has texts of more than {MAX_TEXTS:,} bytes",
                    hint="Images have a few short texts: this one was made to fill the memory.",
                )
    return texts


def _keep(texts: dict[str, str], kind: bytes, chunk: bytes, path: Path) -> int:
    """Enter the text of a chunk; the number of its characters, with the keyword's."""
    keyword, end, rest = chunk.partition(b"\0")
    if not end:
        return len(chunk)
    try:
        text = _READERS[kind](rest)
    except (ValueError, zlib.error) as error:
        raise BadModelError(f"{path} has a text that cannot be read: {error}") from error
    texts.setdefault(keyword.decode("latin-1"), text)
    return len(keyword) + len(text)


def _plain(rest: bytes) -> str:
    return _decoded(_bounded(rest))


def _compressed(rest: bytes) -> str:
    return _decoded(_inflated(rest[1:]))


def _international(rest: bytes) -> str:
    packed, text = rest[:1] == b"\1", rest[2:].split(b"\0", 2)
    if len(text) < 3:
        raise ValueError("it has no end of its language")
    return (_inflated(text[2]) if packed else _bounded(text[2])).decode("utf-8-sig")


def _inflated(data: bytes) -> bytes:
    return _bounded(zlib.decompressobj().decompress(data, MAX_TEXT + 1))


def _bounded(data: bytes) -> bytes:
    if len(data) > MAX_TEXT:
        raise ValueError(f"it has more than {MAX_TEXT:,} bytes")
    return data


_READERS = {b"tEXt": _plain, b"zTXt": _compressed, b"iTXt": _international}
