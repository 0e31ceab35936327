"""Mutations of images by their pieces, and of texts by their words: what random bytes do not find behind a checksum."""

from __future__ import annotations

import random
import re
import struct
import zlib
from collections.abc import Sequence

from support.fuzzing.documents import mutate_json
from support.fuzzing.messages import Mutate

PNG = b"\x89PNG\r\n\x1a\n"
_TIMES = (2, 3, 40, 150)
_KINDS = (b"tEXt", b"zTXt", b"iTXt", b"eXIf", b"iCCP", b"acTL", b"fcTL", b"fdAT", b"IDAT", b"tRNS", b"PLTE", b"IEND")
_SEGMENTS = (
    b"\xff\xda\0\x08\x01\x01\0\x01\x3f\0", b"\xff\xe1\0\x0aExif\0\0II", b"\xff\xfe\0\x03a", b"\xff\xd0", b"\xff\xd9",
    b"\xff\xd8", b"\xff\xc2\0\x0b\x08\xff\xff\xff\xff\x01\x01\x11\0", b"\xff\xdd\0\x04\0\x01",
)  # fmt: skip
_BLOCKS = (b"\x21\xfe\x01a\0", b"\x21\xff\x0bNETSCAPE2.0\x03\x01\0\0\0", b"\x21\xf9\x04\x01\0\0\0\0",
           b"\x2c" + bytes(8) + b"\0\x02\x01\0\0", b"\x3b")  # fmt: skip

PROMPT_WORDS = (
    *(
        "(",
        ")",
        "[",
        "]",
        "|",
        ":",
        "\\",
        " ",
        ",",
        "1",
        ".",
        "-",
        "a",
        "(a:1.2)",
        "[a:b:2]",
        "[a|b]",
        "BREAK",
        " AND ",
    ),
    *("<lora:a:1>", "embedding:a", ":0.5]", ":1.3)", "\n", "e9", "\u3000", "1" * 400, " " * 400, "((((", "))))"),
)
PARAMETER_WORDS = (
    *(
        "\n",
        "Negative prompt:",
        "Steps: 2,",
        "Sampler: Euler,",
        "Seed: 5,",
        "Size: 64x64,",
        "CFG scale: ",
        "Eta: 0,",
        "{",
        "[",
    ),
    *('"', "\\", ",", ":", "1" * 400, " " * 400, '{"a": [1]}', "Hires upscale: 2,", "Denoising strength: ", "Model: "),
    *("a: {,", "Schedule type: Karras,", "Clip skip: 2,", "Mask blur: 4,", "NaN", "1e999"),
)


def mutate_picture(data: bytes, most: int, seed: int, mutate: Mutate) -> bytes:
    """An image whose pieces are repeated, exchanged, dropped or changed, under true lengths and checksums."""
    rng = random.Random(seed)
    pieces = pieces_of(data)
    if len(pieces) < 2 or rng.random() < 0.1:
        return mutate(data, most)
    for _ in range(rng.choice([1, 1, 2, 4])):
        _change_piece(pieces, rng, mutate)
    changed = _joined(data, pieces)
    return changed if len(changed) <= most else mutate(data, most)


def mutate_drawn(data: bytes, most: int, seed: int, mutate: Mutate) -> bytes:
    """An image, a graph as JSON, or parameters as words."""
    if data.startswith((PNG, b"\xff\xd8", b"RIFF")):
        return mutate_picture(data, most, seed, mutate)
    if data.startswith(b"{"):
        return mutate_json(b"\0" + data, most, seed, mutate)[1:] or b"{"
    return mutate_words(data, most, seed, mutate, PARAMETER_WORDS)


def mutate_prompt(data: bytes, most: int, seed: int, mutate: Mutate) -> bytes:
    """The first byte chooses a reading; the rest is a prompt."""
    return data[:1] + mutate_words(data[1:], most - 1, seed, mutate, PROMPT_WORDS)


def mutate_words(data: bytes, most: int, seed: int, mutate: Mutate, words: Sequence[str]) -> bytes:
    """A text in which words of its language are put in, repeated, exchanged or dropped."""
    rng = random.Random(seed)
    if rng.random() < 0.2:
        return mutate(data, most)
    parts = re.findall(rb"\w+|\s+|.", data, re.DOTALL) or [b""]
    for _ in range(rng.choice([1, 1, 2, 5])):
        place = rng.randrange(len(parts))
        match rng.choice(["insert", "insert", "replace", "repeat", "drop", "span"]):
            case "insert":
                parts.insert(place, rng.choice(words).encode())
            case "replace":
                parts[place] = rng.choice(words).encode()
            case "repeat":
                parts[place] *= rng.choice(_TIMES)
            case "drop" if len(parts) > 1:
                del parts[place]
            case "span":
                parts[place : place + 3] = parts[place : place + 3] * rng.choice(_TIMES)
    changed = b"".join(parts)
    return changed if len(changed) <= most else mutate(data, most)


def pieces_of(data: bytes) -> list[bytes]:
    """Chunks of PNG (kind and data) and WebP, segments of JPEG with what follows them, blocks of GIF."""
    if data.startswith(PNG):
        return _chunks(data, len(PNG), ">", 4)
    if data.startswith(b"RIFF"):
        return _chunks(data, 12, "<", 0)
    if data.startswith(b"\xff\xd8"):
        return re.findall(rb"\xff[\x01-\xfe](?:[^\xff]|\xff\0)*", data, re.DOTALL)
    if data.startswith(b"GIF8"):
        return re.findall(rb"[\x21\x2c\x3b][^\x21\x2c\x3b]*", data[13:], re.DOTALL)
    return []


def _chunks(data: bytes, place: int, order: str, checksum: int) -> list[bytes]:
    found = []
    while place + 8 <= len(data):
        words = data[place : place + 4], data[place + 4 : place + 8]
        size, kind = words if order == ">" else (words[1], words[0])
        (length,) = struct.unpack(f"{order}I", size)
        found.append(kind + data[place + 8 : place + 8 + length])
        place += 8 + length + (checksum or length % 2)
    return found


def _joined(data: bytes, pieces: list[bytes]) -> bytes:
    if data.startswith(PNG):
        lengths = [struct.pack(">I", len(piece) - 4) for piece in pieces]
        sums = [struct.pack(">I", zlib.crc32(piece)) for piece in pieces]
        return PNG + b"".join(b"".join(each) for each in zip(lengths, pieces, sums, strict=True))
    if data.startswith(b"RIFF"):
        body = b"".join(
            piece[:4] + struct.pack("<I", len(piece) - 4) + piece[4:] + b"\0" * (len(piece) % 2) for piece in pieces
        )
        return b"RIFF" + struct.pack("<I", len(body) + 4) + b"WEBP" + body
    return (data[:13] if data.startswith(b"GIF8") else b"") + b"".join(pieces)


def _change_piece(pieces: list[bytes], rng: random.Random, mutate: Mutate) -> None:
    place = rng.randrange(len(pieces))
    piece = pieces[place]
    match rng.choice(["repeat", "drop", "swap", "content", "new", "pack"]):
        case "repeat":
            pieces[place : place + 1] = [piece] * rng.choice(_TIMES)
        case "drop" if len(pieces) > 2:
            del pieces[place]
        case "swap":
            other = rng.randrange(len(pieces))
            pieces[place], pieces[other] = pieces[other], piece
        case "content":
            pieces[place] = piece[:4] + mutate(piece[4:], len(piece) + 32)
        case "new":
            kind = {b"\xff": _SEGMENTS, b"\x21": _BLOCKS, b"\x2c": _BLOCKS}.get(piece[:1])
            pieces.insert(place, rng.choice(kind) if kind else rng.choice(_KINDS) + piece[4:])
        case "pack":
            packed = zlib.compress(b"A" * rng.choice([10, 1 << 21, (1 << 21) + 1]), 9)
            pieces.insert(place, rng.choice([b"zTXtk\0\0", b"iTXtparameters\0\1\0\0\0", b"iCCPa\0\0"]) + packed)
