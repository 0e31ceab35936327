"""Every bound of a file's structure on both of its sides, and every part that a walk over a file skips or counts."""

from __future__ import annotations

import struct
import zlib

import pytest

from sdort.generation.pictures import image_structure
from sdort.generation.pictures.image_structure import _Layout, check_directories, count_pictures, png_chunks

APP0, EXIF, COMMENT, SCAN, END = 0xE0, 0xE1, 0xFE, 0xDA, b"\xff\xd9"
MARK = b"Exif\0\0"


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bounds that a test reaches."""
    for name, number in {
        "MAX_PIECES": 6, "MAX_SCANS": 3, "MAX_EXIF_SEGMENTS": 2, "MAX_VALUES": 20, "MAX_PLAIN": 100, "_SHARED": 0,
        "_MAX_PICTURES": 3, "_MAX_TAGS": 40,
    }.items():  # fmt: skip
        monkeypatch.setattr(image_structure, name, number)


def segment(code: int, data: bytes = b"") -> bytes:
    return bytes([0xFF, code]) + struct.pack(">H", len(data) + 2) + data


def tags(*entries: tuple[int, int, int, int], order: str = "<", following: int = 0, behind: bytes = b"") -> bytes:
    """A TIFF of one directory at 8: entries are tag, type, number and value."""
    head = (b"II" if order == "<" else b"MM") + struct.pack(f"{order}HIH", 42, 8, len(entries))
    return (
        head
        + b"".join(struct.pack(f"{order}HHII", *entry) for entry in entries)
        + struct.pack(f"{order}I", following)
        + behind
    )


SHARING = tags((1, 7, 100, 8), (2, 7, 100, 8), behind=bytes(100))
"""200 bytes of tags in 138."""
HONEST = tags((1, 7, 100, 38), behind=bytes(100))
SCANS = segment(SCAN) * 4

JPEGS = {
    "segments": (segment(APP0) * 6, None),
    "more segments": (segment(APP0) * 7, "more than 6 segments"),
    "comments are segments": (segment(COMMENT) * 7, "more than 6 segments"),
    "scans": (segment(SCAN) * 3, None),
    "more scans": (SCANS, "more than 3 scans"),
    "scans behind the end": (END + SCANS, None),
    "scans in a segment": (segment(APP0, SCANS), None),
    "a second beginning has no length": (b"\xff\xd8" + SCANS, "more than 3 scans"),
    "a temporary marker has no length": (b"\xff\x01" + SCANS, "more than 3 scans"),
    "restarts are data": (segment(SCAN) + b"\xff\xd0\xff\xd3\xff\xd7\xff\0" * 4, None),
    "Exif": (segment(EXIF, MARK) * 2, None),
    "more Exif": (segment(EXIF, MARK) * 3, "more than 2 segments of Exif"),
    "XMP is no Exif": (segment(EXIF, b"http:") * 3, None),
    "Exif of another segment": (segment(APP0, MARK) * 3, None),
    "tags": (segment(EXIF, MARK + HONEST), None),
    "tags that share": (segment(EXIF, MARK + SHARING), "its tags have 200 bytes, and all of it 138"),
    "tags that share, much behind": (segment(EXIF, MARK + SHARING) + segment(APP0, bytes(500)), "all of it 138"),
    "tags in two parts": (segment(EXIF, MARK + SHARING[:20]) + segment(EXIF, MARK + SHARING[20:]), "all of it 138"),
}


@pytest.mark.parametrize("kind", JPEGS)
def test_segments_of_a_jpeg(kind: str) -> None:
    content, refused = JPEGS[kind]
    for end in (END, b""):
        judge(b"\xff\xd8" + content + end, "1", refused)


def judge(content: bytes, pictures: str, refused: str | None) -> None:
    if refused is None:
        assert count_pictures(content) == pictures
        return
    with pytest.raises(ValueError, match=refused):
        count_pictures(content)


def colours(flags: int) -> bytes:
    return bytes(3 * 2 ** ((flags & 7) + 1)) if flags & 0x80 else b""


def picture(blocks: int = 1, flags: int = 0) -> bytes:
    data = b"".join(bytes([size]) + b"\x2c" * size for size in range(1, blocks + 1))
    return b"\x2c" + bytes(8) + bytes([flags]) + colours(flags) + b"\x08" + data + b"\0"


def extension(blocks: int = 0) -> bytes:
    return b"\x21\xfe" + b"\x03\x2c\x2c\x2c" * blocks + b"\0"


GIFS = {
    "none": (b"", "1", None),
    "one": (picture(), "1", None),
    "three": (picture() * 3, "3", None),
    "four": (picture(0) * 4, "more than 3", None),
    "extensions are no pictures": (extension(1) + picture() + extension(), "1", None),
    "behind the end": (picture() + b"\x3b" + picture(), "1", None),
    "six blocks": (picture(6), "1", None),
    "seven blocks": (picture(7), "1", "more than 6 blocks"),
    "pictures are blocks too": (extension() * 7 + picture(), "1", "more than 6 blocks"),
    "many blocks behind pictures": (picture(2) * 2 + picture(2), "more than 2", None),
}


@pytest.mark.parametrize("flags", [0, 7, 0x80, 0x83, 0x87])
@pytest.mark.parametrize("kind", GIFS)
def test_blocks_of_a_gif(kind: str, flags: int) -> None:
    """With and without a table of colours, of 2 to 256."""
    content, pictures, refused = GIFS[kind]
    for name in (b"GIF87a", b"GIF89a"):
        judge(name + bytes(4) + bytes([flags]) + bytes(2) + colours(flags) + content, pictures, refused)


@pytest.mark.parametrize("flags", [0, 5, 0x80, 0x82, 0x87])
def test_a_picture_of_a_gif_may_have_its_own_colours(flags: int) -> None:
    assert count_pictures(b"GIF89a" + bytes(7) + picture(1, flags) * 2 + extension()) == "2"


def riff(*chunks: tuple[bytes, bytes]) -> bytes:
    parts = (kind + struct.pack("<I", len(data)) + data + bytes(len(data) % 2) for kind, data in chunks)
    return b"RIFF\0\0\0\0WEBP" + b"".join(parts)


@pytest.mark.parametrize(
    ("chunks", "pictures", "refused"),
    [
        ([(b"VP8 ", b"abc")] * 6, "1", None),
        ([(b"VP8 ", b"abc")] * 7, "1", "more than 6 chunks"),
        ([(b"VP8 ", b"")] * 7, "1", "more than 6 chunks"),
        ([(b"ANMF", b"")] * 2, "2", None),
        ([(b"ANMF", b"abc")] * 4, "more than 3", None),
        ([(b"VP8 ", b"a"), (b"EXIF", SHARING), (b"XMP ", bytes(500))], "1", "all of it 138"),
        ([(b"VP8 ", b"a"), (b"XMP ", SHARING), (b"EXIF", HONEST)], "1", None),
    ],
    ids=["six", "seven", "seven empty", "two frames", "four frames", "tags that share", "tags"],
)
def test_chunks_of_a_webp(chunks: list[tuple[bytes, bytes]], pictures: str, refused: str | None) -> None:
    judge(riff(*chunks), pictures, refused)


def chunk(kind: bytes, data: bytes) -> bytes:
    return len(data).to_bytes(4, "big") + kind + data + zlib.crc32(kind + data).to_bytes(4, "big")


@pytest.mark.parametrize(
    ("chunks", "pictures", "refused"),
    [
        ([(b"IDAT", b"abc")] * 6, "1", None),
        ([(b"IDAT", b"")] * 7, "1", "more than 6 chunks"),
        ([(b"acTL", struct.pack(">II", 2, 7))], "2", None),
        ([(b"acTL", struct.pack(">II", 4, 0))], "more than 3", None),
        ([(b"fcTL", struct.pack(">II", 2, 7))], "1", None),
        ([(b"IDAT", b"a"), (b"eXIf", SHARING), (b"IDAT", bytes(500))], "1", "all of it 138"),
        ([(b"IDAT", SHARING), (b"eXIf", HONEST)], "1", None),
    ],
    ids=["six", "seven", "two frames", "four frames", "another chunk", "tags that share", "tags"],
)
def test_chunks_of_a_png(chunks: list[tuple[bytes, bytes]], pictures: str, refused: str | None) -> None:
    judge(b"\x89PNG\r\n\x1a\n" + b"".join(chunk(*each) for each in chunks), pictures, refused)


def test_where_the_chunks_of_a_png_are() -> None:
    """An empty one at the very end too; of one that is cut off, the end that it says; nothing of less than a head."""
    whole = b"\x89PNG\r\n\x1a\n" + chunk(b"AAAA", b"abc") + chunk(b"BBBB", b"") + chunk(b"CCCC", b"")
    assert [*png_chunks(whole)] == [(b"AAAA", 16, 19), (b"BBBB", 31, 31), (b"CCCC", 43, 43)]
    assert [kind for kind, _, _ in png_chunks(whole[:-1])] == [b"AAAA", b"BBBB"]
    assert [*png_chunks(b"\x89PNG\r\n\x1a\n" + chunk(b"AAAA", bytes(300))[:12])] == [(b"AAAA", 16, 316)]


@pytest.mark.parametrize(
    ("head", "is_slow"),
    [
        *((name, name in (b"P1", b"P2", b"P3")) for name in (b"P1", b"P2", b"P3", b"P4", b"P5", b"P6")),
        *((b"BM" + bytes(28) + struct.pack("<I", kind), kind in (1, 2)) for kind in range(4)),
    ],
    ids=["P1", "P2", "P3", "P4", "P5", "P6", "BMP 0", "BMP 1", "BMP 2", "BMP 3"],
)
def test_what_is_decoded_byte_by_byte_is_bounded(head: bytes, is_slow: bool) -> None:
    judge(head.ljust(100, b"\0"), "1", None)
    judge(head.ljust(101, b"\0"), "1", "has more than 100 bytes" if is_slow else None)


# https://www.itu.int/itudoc/itu-t/com16/tiff-fx/docs/tiff6.pdf (2), and BigTIFF's 16 to 18
SIZES = dict(zip(range(1, 14), (1, 1, 2, 4, 8, 1, 1, 2, 4, 8, 4, 8, 4), strict=True)) | {16: 8, 17: 8, 18: 8}


@pytest.mark.parametrize("order", ["little", "big"])
@pytest.mark.parametrize("kind", [*SIZES, 14, 19])
@pytest.mark.parametrize("is_big", [False, True])
def test_the_bytes_of_a_tag(kind: int, order: str, is_big: bool) -> None:
    """Those that fit into its own entry are not outside of it, nor are those behind the end of the file."""
    mark, width = "<" if order == "little" else ">", 8 if is_big else 4
    for number in (1, 2, 4, 5, 8, 9, 20):
        entry = struct.pack(f"{mark}HHQQ" if is_big else f"{mark}HHII", 5, kind, number, 50)
        data = struct.pack(f"{mark}Q" if is_big else f"{mark}H", 1) + entry + (77).to_bytes(width, order) + bytes(90)  # type: ignore[arg-type]
        length = number * SIZES.get(kind, 0)
        total, folders, following = _Layout(data, order, is_big).directory(0)  # type: ignore[arg-type]
        assert (total, folders, following) == (length if width < length <= len(data) else 0, [], 77)


@pytest.mark.parametrize("kind", SIZES)
def test_only_texts_and_bytes_have_many_values(kind: int) -> None:
    for number in (20, 21):
        data = tags((5, kind, number, 60), behind=bytes(200))
        if number == 21 and kind not in (1, 2, 6, 7):
            with pytest.raises(ValueError, match="its tag 5 has more than 20 values"):
                check_directories(data)
        else:
            assert check_directories(data) == 1


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize(("tag", "is_followed"), [(0x8769, True), (0x8825, True), (0xA005, True), (0x014A, False)])
def test_directories_that_tags_lead_to_count_and_are_no_pages(tag: int, is_followed: bool, order: str) -> None:
    inner = struct.pack(f"{order}H", 2) + b"".join(struct.pack(f"{order}HHII", each, 7, 90, 0) for each in (1, 2))
    data = tags((tag, 4, 1, 26), order=order, behind=inner + struct.pack(f"{order}I", 8) + bytes(60))
    if not is_followed:
        assert check_directories(data) == 1
        return
    with pytest.raises(ValueError, match="its tags have 180 bytes"):
        check_directories(data)
    assert check_directories(data + bytes(100)) == 1  # what is behind a folder is no page


def test_pages_are_counted_once_each_and_no_further_than_needed() -> None:
    def pages(*following: int) -> bytes:
        data = b"MM" + struct.pack(">HI", 42, 8)
        return data + b"".join(struct.pack(">HI", 0, place) for place in following)

    for following, count in (((0,), 1), ((14, 20, 0), 3), ((14, 8), 2), ((14, 20, 26, 32, 38, 0), 4), ((999,), 1)):
        assert check_directories(pages(*following)) == count
    assert count_pictures(pages(14, 20, 0)) == "3"
    assert count_pictures(tags(following=14, behind=bytes(6))) == "2"
    assert count_pictures(pages(14, 20, 26, 0)) == "more than 3"


def test_a_directory_has_a_bounded_number_of_tags() -> None:
    assert check_directories(tags(*[(5, 3, 1, 0)] * 40)) == 1
    with pytest.raises(ValueError, match="its directory has more than 40 tags"):
        check_directories(tags(*[(5, 3, 1, 0)] * 41))
