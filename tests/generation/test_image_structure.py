"""What a file repeats is counted before it is decoded; what programs write is accepted."""

from __future__ import annotations

import io
import json
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from sdort.errors import BadModelError, UsageError
from sdort.generation.files import image_texts, prompts_file
from sdort.generation.files.image_texts import read_texts
from sdort.generation.files.prompts_file import read_lines
from sdort.generation.job import plan_jobs
from sdort.generation.pictures import image_structure
from sdort.generation.pictures.image_structure import MAX_EXIF_SEGMENTS, MAX_SCANS, check_directories, count_pictures
from sdort.generation.pictures.input_image import read_image

NOISE = np.random.default_rng(0).integers(0, 256, (40, 56, 3), np.uint8)
EXIF = Image.Exif()
EXIF[0x010F], EXIF[0x0112] = "maker " * 50, 6
EXIF.get_ifd(0x8769)[0x9286] = b"ASCII\0\0\0" + b"words " * 500
FRAMES = [Image.fromarray(np.roll(NOISE, 5 * index, 0)) for index in range(1, 4)]
WRITTEN: dict[str, tuple[str, dict[str, Any], str]] = {
    "PNG": ("PNG", {}, "1"),
    "PNG with Exif": ("PNG", {"exif": EXIF}, "1"),
    "APNG": ("PNG", {"save_all": True, "append_images": FRAMES}, "4"),
    "JPEG": ("JPEG", {"exif": EXIF}, "1"),
    "progressive JPEG": ("JPEG", {"progressive": True, "exif": EXIF, "icc_profile": bytes(200_000)}, "1"),
    "JPEG that restarts": ("JPEG", {"restart_marker_blocks": 1}, "1"),
    "GIF": ("GIF", {"comment": b"words" * 100}, "1"),
    "GIF of frames": ("GIF", {"save_all": True, "append_images": FRAMES}, "4"),
    "WebP": ("WEBP", {"exif": EXIF}, "1"),
    "WebP of frames": ("WEBP", {"save_all": True, "append_images": FRAMES, "exif": EXIF}, "4"),
    "TIFF": ("TIFF", {"exif": EXIF}, "1"),
    "TIFF of pages": ("TIFF", {"save_all": True, "append_images": FRAMES, "compression": "tiff_lzw"}, "4"),
    "BigTIFF": ("TIFF", {"big_tiff": True}, "1"),
    "BMP": ("BMP", {}, "1"),
    "PPM": ("PPM", {}, "1"),
}


def written(kind: str) -> bytes:
    form, settings, _ = WRITTEN[kind]
    Image.fromarray(NOISE).save(file := io.BytesIO(), form, **settings)
    return file.getvalue()


def chunk(kind: bytes, data: bytes) -> bytes:
    return len(data).to_bytes(4, "big") + kind + data + zlib.crc32(kind + data).to_bytes(4, "big")


def jpeg_with(segments: bytes, scans: int = 0) -> bytes:
    whole = written("progressive JPEG")
    empty_scan = b"\xff\xda" + struct.pack(">HBBBBBB", 8, 1, 1, 0, 1, 63, 0) + b"\x00"
    return whole[:2] + segments + whole[2:-2] + empty_scan * scans + b"\xff\xd9"


def directory(tags: int, length: int, order: str = "<", kind: int = 7) -> bytes:
    """A TIFF whose tags all have the same bytes."""
    head = (b"II" if order == "<" else b"MM") + struct.pack(f"{order}HIH", 42, 8, tags)
    entries = b"".join(struct.pack(f"{order}HHII", 1000 + tag, kind, length, 8) for tag in range(tags))
    return head + entries + bytes(4) + bytes(length)


@pytest.mark.parametrize("kind", WRITTEN)
def test_what_programs_write_is_accepted_and_counted(kind: str, tmp_path: Path) -> None:
    content = written(kind)
    assert count_pictures(content) == WRITTEN[kind][2]
    (tmp_path / "a").write_bytes(content)
    read_image(tmp_path / "a", "--init-image")


@pytest.mark.parametrize("kind", WRITTEN)
def test_a_file_that_is_cut_off_anywhere_is_counted_or_refused(kind: str) -> None:
    content = written(kind)
    for end in [*range(80), *range(80, len(content), 997)]:
        try:
            count_pictures(content[:end])
        except ValueError as error:
            raise AssertionError(f"{kind} of {end} bytes: {error}") from error


REPEATED = {
    "scans": (jpeg_with(b"", MAX_SCANS + 1), "more than 100 scans"),
    "segments of Exif": (
        jpeg_with((b"\xff\xe1\x00\x0aExif\0\0II") * (MAX_EXIF_SEGMENTS + 1)),
        "more than 64 segments of Exif",
    ),
    "tags of a JPEG": (
        jpeg_with(b"\xff\xe1" + struct.pack(">H", 60_008) + b"Exif\0\0" + directory(1000, 47_978)),
        "its tags have",
    ),
    "tags of a PNG": (written("PNG")[:33] + chunk(b"eXIf", directory(1000, 100_000)) + written("PNG")[33:], "its tags"),
    "tags of a TIFF": (directory(1000, 100_000, ">"), "its tags have"),
    "values of a TIFF": (directory(1, (1 << 20) + 1, kind=4), "more than 1,048,576 values"),
}


@pytest.mark.parametrize("what", REPEATED)
def test_what_a_file_repeats_is_refused_before_it_is_decoded(what: str, tmp_path: Path) -> None:
    content, words = REPEATED[what]
    (tmp_path / "a").write_bytes(content)
    with pytest.raises(UsageError, match=words):
        read_image(tmp_path / "a", "--init-image")


@pytest.mark.parametrize("marks", range(4))
@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WebP"])
def test_marks_before_exif_hide_nothing(kind: str, marks: int) -> None:
    """Decoders leave out one, two or all of them."""
    exif, whole = b"Exif\0\0" * marks + directory(1000, 40_000), written(kind)
    content = {
        "PNG": lambda: whole[:33] + chunk(b"eXIf", exif) + whole[33:],
        "JPEG": lambda: whole[:2] + b"\xff\xe1" + struct.pack(">H", len(exif) + 8) + b"Exif\0\0" + exif + whole[2:],
        "WebP": lambda: whole + b"EXIF" + struct.pack("<I", len(exif)) + exif,
    }[kind]()
    with pytest.raises(ValueError, match=r"its tags have|begins more than 2 times"):
        count_pictures(content)


@pytest.mark.parametrize("size", range(4))
def test_what_is_behind_a_webp_chunk_of_any_size_is_counted(size: int) -> None:
    """A chunk of an odd size has a byte behind it that does not count (RIFF)."""
    pieces = [(b"ABCD", size), *[(b"ANMF", size)] * 3]
    chunks = b"".join(kind + struct.pack("<I", size) + bytes(size + size % 2) for kind, size in pieces)
    assert count_pictures(b"RIFF" + struct.pack("<I", 4 + len(chunks)) + b"WEBP" + chunks) == "3"


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "WebP of frames"])
def test_pieces_are_counted(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_structure, "MAX_PIECES", 2)
    with pytest.raises(ValueError, match=r"it has more than 2 (chunks|segments|blocks)"):
        count_pictures(written(kind))


def test_exif_within_its_bytes_is_read_in_both_orders() -> None:
    for order in "<>":
        assert check_directories(directory(3, 100, order)) == 1


@pytest.mark.parametrize("kind", [b"tEXt", b"zTXt", b"iTXt"])
@pytest.mark.parametrize("each", [0, 1000])
def test_the_texts_of_an_image_are_bounded_together(
    kind: bytes, each: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(image_texts, "MAX_TEXTS", 20_000)
    head = {b"tEXt": b"", b"zTXt": b"\0", b"iTXt": b"\0\0\0\0"}[kind]
    text = head + (zlib.compress(b"a" * each) if kind == b"zTXt" else b"a" * each)
    path = tmp_path / "a.png"
    for count, fits in ((10, True), (300, False)):
        chunks = [chunk(kind, b"k%d\0" % number + text) for number in range(count)]
        path.write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(chunks))
        if fits:
            assert len(read_texts(path)) == count
        else:
            with pytest.raises(BadModelError, match="has texts of more than 20,000 bytes"):
                read_texts(path)


def test_more_prompts_than_images_of_a_run_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "prompts.txt"
    path.write_text("# a comment\n\n" + "a\n" * 10_000)
    assert len(read_lines(path)[0].prompts) == 10_000
    path.write_text("a\n" * 10_001)
    with pytest.raises(UsageError, match="has more than 10,000 prompts"):
        read_lines(path)


def test_images_of_all_lines_are_counted_together(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "a", "num_images": 6000}\n{"prompt": "b", "num_images": 4000, "steps": 2}\n')
    assert sum(job.images for job in plan_jobs([], {"prompts": path})) == 10_000
    path.write_text('{"prompt": "a", "num_images": 6000}\n{"prompt": "b", "num_images": 4001, "steps": 2}\n')
    with pytest.raises(UsageError, match="the run has more than 10,000 images"):
        plan_jobs([], {"prompts": path})
    with pytest.raises(UsageError, match="the run has more than 10,000 images"):
        plan_jobs(["a", "b"], {"num_images": 5001})


def test_lines_are_bounded_in_number_and_length(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompts_file, "MAX_LINES", 100)
    monkeypatch.setattr(prompts_file, "MAX_LINE", 1000)
    path = tmp_path / "prompts.txt"
    for content, words in ((b"\n" * 101, "more than 100 lines"), (b"ab\n" + b"a" * 1001, "1,000 bytes at byte 4")):
        path.write_bytes(content)
        with pytest.raises(UsageError, match=words):
            read_lines(path)


def test_texts_of_json_hold_any_separator_but_ends_of_lines(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    texts = ["a\u2028b", "a\u2029b", "a\x85b", "a\nb", "c"]
    for end in ("\n", "\r\n", "\r"):
        path.write_bytes(end.join(json.dumps({"prompt": text}, ensure_ascii=False) for text in texts).encode())
        (lines,) = read_lines(path)
        assert (lines.prompts, lines.numbers) == (texts, [1, 2, 3, 4, 5])


def test_lines_are_divided_as_python_divides_texts(tmp_path: Path) -> None:
    path = tmp_path / "prompts.txt"
    text = "a\r\nb\rc\u2028d\n\n\x0bé\x85 f \n#g\ng"
    for mark in ("", "\ufeff"):
        path.write_bytes((mark + text).encode())
        expected = [(number, line.strip()) for number, line in enumerate(text.splitlines(), 1) if line.strip(" \n\x0b")]
        (lines,) = read_lines(path)
        assert [*zip(lines.numbers, lines.prompts, strict=True)] == [each for each in expected if each[1] != "#g"]
