"""Images of strangers and of other programs, at the functions that read them: every form, and every bound twice."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image

from sdort.errors import BadModelError, UsageError
from sdort.generation.files import image_texts, infotext
from sdort.generation.files.from_image import _fitting, _images, _object, _of_scheduler, _taken_over
from sdort.generation.files.image_texts import _comment, _unicode, read_texts
from sdort.generation.files.infotext import (
    Infotext,
    _divided,
    _pairs,
    _resources,
    _take_emphasis,
    _take_options,
    _take_scheduler,
    _take_task,
    _tell_files,
    _unknown,
    _unquoted,
)
from sdort.generation.pictures import input_image
from sdort.generation.pictures.input_image import (
    _check_pixels,
    _check_tiles,
    _eight_bits,
    _from_array,
    _is_drawn,
    _other_format,
    _told,
    on_white,
    read_image,
    selected_by,
)
from sdort.samplers.scheduler_names import SAMPLERS, WITH_ETA, WITHOUT_SPACING, find_scheduler

# Texts in Exif


def exif(entries: dict[int, bytes], order: str = "<") -> bytes:
    """Exif data of text tags, which lie behind the directory."""
    place, behind, listed = 8 + 2 + 12 * len(entries) + 4, b"", b""
    for tag, text in sorted(entries.items()):
        text += b"\0" * max(5 - len(text), 1)
        listed += struct.pack(f"{order}HHII", tag, 2, len(text), place + len(behind))
        behind += text
    head = (b"II" if order == "<" else b"MM") + struct.pack(f"{order}HIH", 42, 8, len(entries))
    return b"Exif\0\0" + head + listed + bytes(4) + behind


def comment(text: bytes, order: str) -> bytes:
    """Exif data of a user comment."""
    mark = b"II" if order == "<" else b"MM"
    first = mark + struct.pack(f"{order}HIHHHIII", 42, 8, 1, 0x8769, 4, 1, 26, 0)
    return b"Exif\0\0" + first + struct.pack(f"{order}HHHIII", 1, 0x9286, 7, len(text), 44, 0) + text


def jpeg(path: Path, data: bytes) -> Path:
    Image.new("RGB", (8, 8)).save(path, "JPEG", exif=data)
    return path


@pytest.mark.parametrize("order", ["<", ">"])
def test_graphs_stand_in_any_of_the_cameras_tags(order: str, tmp_path: Path) -> None:
    for tag in range(0x0101, 0x0111):
        found = read_texts(jpeg(tmp_path / "a.jpg", exif({tag: b"prompt:{a: 1}", 0x0131: b"Program 1"}, order)))
        assert found == {"prompt": "{a: 1}", "Software": "Program 1"}, tag
    both = {0x0110: b"prompt:a", 0x010F: b"workflow:b:c", 0x010E: b"other:d", 0x010D: b"prompt", 0x0112: b"workflow:e"}
    assert read_texts(jpeg(tmp_path / "a.jpg", exif(both, order))) == {"prompt": "a", "workflow": "b:c"}


@pytest.mark.parametrize("order", ["<", ">"])
def test_a_comment_without_a_mark_has_the_files_order(order: str, tmp_path: Path) -> None:
    text = b"UNICODE\0" + "東京".encode("utf-16-le" if order == "<" else "utf-16-be")
    assert read_texts(jpeg(tmp_path / "a.jpg", comment(text, order))) == {"parameters": "東京"}


def test_xmp_is_one_of_the_texts(tmp_path: Path) -> None:
    Image.new("RGB", (8, 8)).save(tmp_path / "a.webp", xmp=b"<x>\xc3\xa9</x>")
    assert read_texts(tmp_path / "a.webp") == {"XML:com.adobe.xmp": "<x>é</x>"}


@pytest.mark.parametrize(
    ("data", "order", "text"),
    [
        ("東京".encode("utf-16-be"), "be", "東京"),
        ("東京".encode("utf-16-le"), "le", "東京"),
        ("a東京".encode("utf-16-be"), "le", "a東京"),
        ("a東京".encode("utf-16-le"), "be", "a東京"),
        (b"\xfe\xff" + "東京".encode("utf-16-be"), "le", "東京"),
        (b"\xff\xfe" + "東京".encode("utf-16-le"), "be", "東京"),
        (b"\xff\xfe" + "ab\0".encode("utf-16-le"), "be", "ab"),
        ("ab\0\0".encode("utf-16-be"), "le", "ab"),
        ("é b\0\0".encode(), "le", "é b"),
        (b"ab\0", "be", "ab"),
        (b"", "be", ""),
    ],
    ids=["be", "le", "be by ascii", "le by ascii", "mark be", "mark le", "mark, zero", "zeros", "utf-8",
         "ascii", "none"],
)  # fmt: skip
def test_the_order_of_bytes_in_unicode(data: bytes, order: str, text: str) -> None:
    assert _unicode(data, order) == text


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"UNICODE\0" + "aé".encode("utf-16-be"), "aé"),
        (b"Unicode\0" + "aé".encode("utf-16-be"), "aé"),
        (b"UNICODE " + "aé".encode("utf-16-be"), "aé"),
        (b"ASCII\0\0\0" + b"a\xe9\0", "aé"),
        (b"ASCII\0\0\0" + "é\0".encode(), "é"),
        (b"JIS\0\0\0\0\0" + "猫".encode("iso2022_jp") + b"\0", "猫"),
        (bytes(8) + b"\xef\xbb\xbf" + "é\0".encode(), "é"),
        (b" " * 8 + "é".encode(), "é"),
        ("no code: é\0".encode(), "no code: é"),
        (bytes(8) + b"\xe9", None),
        (b"no code \xe9", None),
    ],
    ids=["unicode", "letters", "space", "latin", "ascii", "jis", "mark", "spaces", "none",
         "no utf-8", "none, no utf-8"],
)  # fmt: skip
def test_the_code_of_a_comment(data: bytes, text: str | None) -> None:
    if text is None:
        with pytest.raises(UnicodeDecodeError):
            _comment(data, "be")
        return
    assert _comment(data, "be") == text


@pytest.mark.parametrize("code", [b"UNICODE\0", b"ASCII\0\0\0", bytes(8), b"JIS\0\0\0\0\0", b""])
def test_a_comment_is_bounded_whatever_its_code(code: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_texts, "MAX_TEXT", 20)
    assert _comment(code + b"x" * 20, "be")
    with pytest.raises(ValueError, match="more than 20 bytes"):
        _comment(code + b"x" * 21, "be")


def chunk(kind: bytes, data: bytes, damage: int = 0) -> bytes:
    return (
        len(data).to_bytes(4, "big")
        + kind
        + data
        + ((zlib.crc32(kind + data) + damage) & 0xFFFFFFFF).to_bytes(4, "big")
    )


PNG = b"\x89PNG\r\n\x1a\n"


@pytest.mark.parametrize(
    ("chunks", "texts"),
    [
        (chunk(b"tEXt", b"a\0one") + chunk(b"iTXt", b"a\0\0\0\0\0two") + chunk(b"zTXt", b"b\0\0" + zlib.compress(b"c")),
         {"a": "one", "b": "c"}),
        (chunk(b"tEXt", b"a\0one", damage=1), "has a damaged text"),
        (chunk(b"IDAT", b"a\0one", damage=1) + chunk(b"tEXt", b"a\0b"), {"a": "b"}),
        (chunk(b"tEXt", b"no end of the keyword"), {}),
        (chunk(b"tEXt", b"a\0b")[:-1], "ends within a chunk"),
        (chunk(b"IDAT", b"abc")[:-1], "ends within a chunk"),
        (chunk(b"iTXt", b"a\0\0\0en\0only one"), "has a text that cannot be read: it has no end of its language"),
        (chunk(b"iTXt", b"a\0\1\0en\0translated\0" + zlib.compress("é".encode())), {"a": "é"}),
        (chunk(b"iTXt", b"a\0\0\0en\0translated\0b\0c"), {"a": "b\0c"}),
        (chunk(b"iTXt", b"a\0\0\0\0\0\xe9"), "has a text that cannot be read"),
        (chunk(b"zTXt", b"a\0\0no zlib"), "has a text that cannot be read"),
        (chunk(b"tEXt", b"a\0" + b"x" * 20) + chunk(b"zTXt", b"b\0\0" + zlib.compress(b"y" * 20)),
         {"a": "x" * 20, "b": "y" * 20}),
        (chunk(b"tEXt", b"a\0" + b"x" * 21), "more than 20 bytes"),
        (chunk(b"zTXt", b"a\0\0" + zlib.compress(b"x" * 21)), "more than 20 bytes"),
        (chunk(b"iTXt", b"a\0\0\0\0\0" + b"x" * 21), "more than 20 bytes"),
        (chunk(b"iTXt", b"a\0\1\0\0\0" + zlib.compress(b"x" * 21)), "more than 20 bytes"),
    ],
    ids=["first of a keyword", "damaged", "damaged, no text", "no end", "cut off", "cut off, no text", "language",
         "translated", "zero", "no utf-8", "no zlib", "20", "21", "21 compressed", "21 plain", "21 packed"],
)  # fmt: skip
def test_texts_of_a_png(
    chunks: bytes, texts: dict[str, str] | str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(image_texts, "MAX_TEXT", 20)
    path = tmp_path / "a.png"
    path.write_bytes(PNG + chunks)
    if isinstance(texts, dict):
        assert read_texts(path) == texts
        return
    with pytest.raises(BadModelError, match=texts):
        read_texts(path)


@pytest.mark.parametrize(("text", "found"), [('{"a": 1}', {"a": 1}), ("[1]", {}), ("{", {}), ("", {})])
def test_an_object_of_a_program_or_none(text: str, found: dict[str, Any]) -> None:
    assert _object(text) == found


# Parameters


@pytest.mark.parametrize(
    ("line", "pairs"),
    [
        ("Steps: 3, sampler: Euler a, CFG SCALE: 7", {"Steps": "3", "Sampler": "Euler a", "CFG scale": "7"}),
        ("words, Steps: 3,, more, Seed: 5", {"Steps": "3", "Seed": "5"}),
        (r'A: "x, y: \"z\"", B: 2', {"A": 'x, y: "z"', "B": "2"}),
        ('A: "x" y, B: 2', {"A": '"x" y', "B": "2"}),
        ('A: {"b": 1, "C": [2, 3]}, D: 4', {"A": '{"b": 1, "C": [2, 3]}', "D": "4"}),
        ('A: [1, 2] more, D: 4', {"A": "[1, 2] more", "D": "4"}),
        ("A: [x, D: 4", {"A": "[x", "D": "4"}),
        ("Lora-a/b.c+d 2: x", {"Lora-a/b.c+d 2": "x"}),
        ("A:  b  , C: d ", {"A": "b", "C": "d"}),
        ("A: , C: d", {"A": "", "C": "d"}),
        ("", {}),
        ("no names, at all", {}),
    ],
)  # fmt: skip
def test_names_and_values_of_a_line(line: str, pairs: dict[str, str]) -> None:
    assert _pairs(line) == pairs


def test_json_is_tried_only_so_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(infotext, "_MOST_BROKEN", 2)
    good = 'C: {"d": 1, "e": 2}'
    assert _pairs(f"A: [x, {good}")["C"] == '{"d": 1, "e": 2}'
    assert _pairs(f"A: [x, {good}, B: {{y, F: [1, 2]")["C"] == '{"d": 1, "e": 2}'
    assert _pairs(f"A: [x, B: {{y, {good}")["C"] == '{"d": 1'


def test_the_line_of_parameters() -> None:
    line, found = "Steps: 3, Seed: 5, Size: 8x8", {"Steps": "3", "Seed": "5", "Size": "8x8"}
    assert _divided(["a", "b", line]) == (["a", "b"], found, [])
    assert _divided([line, "behind", "too"]) == ([], found, ["behind", "too"])
    assert _divided(["Steps: 1, a", line, "behind"]) == (["Steps: 1, a"], found, ["behind"])
    # The last line is taken before another that looks the same.
    assert _divided([line, "A: 1, B: 2, C: 3"]) == ([line], {"A": "1", "B": "2", "C": "3"}, [])
    for lines in (["a", "Steps: 3, Seed: 5"], ["a"], [line.replace("Steps", "Paces"), "behind"]):
        assert _divided(lines) == (lines, {}, [])


def test_unknown_names_of_one_extension_are_told_together() -> None:
    three = {f"Net {name}": name * 50 for name in "abc"}
    assert _unknown({**three, "Steps": "3", "Model": "x", "Odd": "1\n2"}) == [
        *(f"Net {name}: {name * 37}..." for name in "abc"), "Odd: 1\\n2",
    ]  # fmt: skip
    assert _unknown({**three, "Net d": "e", "Odd": "1"}) == ["Net (4 settings)", "Odd: 1"]


@pytest.mark.parametrize(
    ("pairs", "options", "left"),
    [
        ({"Steps": "3", "CFG scale": "7.5", "Seed": "5", "Clip skip": "2", "Eta": "0.5"},
         {"steps": 3, "guidance_scale": 7.5, "seed": 5, "clip_skip": 2, "eta": 0.5}, []),
        ({"Eta DDIM": "0.25", "Mask blur": "3", "Masked area padding": "9"},
         {"eta": 0.25, "mask_blur": 3, "mask_padding": 9}, []),
        ({"Variation seed": "4", "Variation seed strength": "0.5", "Refiner switch at": "0.75"},
         {"variation_seed": 4, "variation_strength": 0.5, "refiner_start": 0.75}, []),
        ({"Hires upscale": "2", "Hires steps": "4", "Denoising strength": "0.5"},
         {"hires": 2, "hires_steps": 4, "hires_strength": 0.5}, []),
        ({"Denoising strength": "0.5"}, {"strength": 0.5}, []),
        ({"Size": "512x768"}, {"width": 512, "height": 768}, []),
        ({"Size": "512 * 768"}, {"width": 512, "height": 768}, []),
        ({"Size": "512x0"}, {"width": 512}, ["Size: 0"]),
        ({"Size": "512"}, {}, ["Size: 512"]),
        ({"Size": "512x768x3"}, {}, ["Size: 512x768x3"]),
        ({"Steps": "0", "Seed": "x", "CFG scale": "nan", "Clip skip": "2.5"}, {},
         ["Steps: 0", "Seed: x", "CFG scale: nan", "Clip skip: 2.5"]),
    ],
)  # fmt: skip
def test_numbers_of_parameters(pairs: dict[str, str], options: dict[str, Any], left: list[str]) -> None:
    info = Infotext()
    _take_options(info, pairs)
    assert (info.options, info.left) == (options, left)


@pytest.mark.parametrize(
    ("take", "pairs", "options", "left"),
    [
        (_take_emphasis, {"Emphasis": "Original"}, {"prompt_weighting": "a1111"}, []),
        (_take_emphasis, {"Emphasis": "None"}, {"prompt_weighting": "none"}, []),
        (_take_emphasis, {"Emphasis": "No norm"}, {}, ["Emphasis: No norm"]),
        (_take_options, {"Prompt weighting": "comfyui"}, {"prompt_weighting": "comfyui"}, []),
        (_take_options, {"Prompt weighting": "Original"}, {}, ["Prompt weighting: Original"]),
        (_take_emphasis, {}, {}, []),
        (_tell_files, {"VAE": "None", "VAE hash": "12"}, {}, []),
        (_tell_files, {"VAE": "Automatic"}, {}, []),
        (_tell_files, {"VAE": "a.pt", "VAE hash": "12"}, {}, ["VAE: a.pt"]),
        (_tell_files, {"VAE hash": "12"}, {}, ["VAE: 12"]),
        (_tell_files, {"Civitai resources": '[{"type": "lora", "weight": 0.5}]'}, {}, ["Civitai resource: lora 0.5"]),
        (_take_scheduler, {"Sampler": "Default", "Schedule type": "Karras"}, {}, ["Schedule type: Karras"]),
        (_take_scheduler, {"Schedule type": "Automatic"}, {}, []),
        (_take_scheduler, {}, {}, []),
        (_take_scheduler, {"Sampler": "Euler a"}, {"scheduler": "Euler a"}, []),
        (_take_scheduler, {"Sampler": "Euler", "Schedule type": "Karras"}, {"scheduler": "Euler Karras"}, []),
        (_take_scheduler, {"Sampler": "Euler", "Schedule type": "None such"}, {"scheduler": "Euler"},
         ["Sampler: Euler None such"]),
        (_take_scheduler, {"Sampler": "euler_a gits"}, {"scheduler": "euler_a"}, ["Sampler: euler_a gits"]),
        (_take_scheduler, {"Sampler": "None such"}, {}, ["Sampler: None such", "Sampler: None"]),
        (_take_scheduler, {"Sampler": "DPM2", "Schedule type": "Automatic"}, {"scheduler": "DPM2 Karras"}, []),
        (_take_task, {"Inpaint area": "Only masked"}, {"only_masked": True}, []),
        (_take_task, {"Inpaint area": "Whole picture"}, {}, []),
        (_take_task, {"Inpaint area": "Half"}, {}, ["Inpaint area: Half"]),
        (_take_task, {"Hires upscaler": "Latent"}, {"hires_upscale": "latent"}, []),
        (_take_task, {"Hires upscaler": "Lanczos"}, {"hires_upscale": "image"}, []),
        (_take_task, {"Hires upscaler": "ESRGAN"}, {}, ["Hires upscaler: ESRGAN"]),
        (_take_task, {}, {}, []),
    ],
)  # fmt: skip
def test_words_of_parameters(take: Any, pairs: dict[str, str], options: dict[str, Any], left: list[str]) -> None:
    info = Infotext()
    take(info, pairs)
    assert (info.options, info.left) == (options, left)


@pytest.mark.parametrize(
    ("upscaler", "taken"), [("ESRGAN", "image"), ("Latent (nearest)", None), ("Lanczos", "image"), ("Latent", "latent")]
)
def test_an_upscaler_is_like_an_image_or_told(upscaler: str, taken: str | None) -> None:
    info = Infotext({"hires": 2.0})
    _take_task(info, {"Hires upscaler": upscaler})
    assert info.options.get("hires_upscale") == taken
    assert info.left == ([] if upscaler in ("Latent", "Lanczos") else [f"Hires upscaler: {upscaler}"])


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            '[{"weight": 0.5, "modelVersionId": 7, "modelName": "fine", "type": "lora", "other": 1}]',
            ["lora fine 7 0.5"],
        ),
        ('[{"type": "checkpoint", "modelName": "base"}, {"modelName": "b"}, "text"]', ["b", "text"]),
        ('["checkpoint"]', []),
        ('{"type": "lora"}', ['{"type": "lora"}']),
        ("[no json", ["[no json"]),
        ("[" * 9999, ["[" * 9999]),
        ("[]", []),
    ],
    ids=["fields", "several", "checkpoint", "object", "no json", "deep", "none"],
)
def test_resources_of_civitai(text: str, told: list[str]) -> None:
    assert _resources(text) == told


@pytest.mark.parametrize(
    ("text", "plain"),
    [(r'"a\nb"', "a\nb"), ('"a', '"a'), ('a"', 'a"'), ('"', '"'), ('""', ""), ('"a" b "c"', '"a" b "c"'), ("ab", "ab")],
)
def test_quoted_texts(text: str, plain: str) -> None:
    assert _unquoted(text) == plain


# Options of an image


@pytest.mark.parametrize("name", [*SAMPLERS, None, 7])
def test_options_that_a_scheduler_has_not(name: Any) -> None:
    class_name = find_scheduler(name)[0] if isinstance(name, str) else None
    found = _of_scheduler(name)
    assert ("eta" in found) is (class_name not in WITH_ETA)
    assert ("timestep_spacing" in found) is (class_name in WITHOUT_SPACING)
    if "eta" in found:
        assert found["eta"] == f"{class_name or 'the scheduler, which it does not say,'} takes none"
    if "timestep_spacing" in found:
        assert found["timestep_spacing"] == f"{class_name} has none"


def test_a_scheduler_that_there_is_not_is_refused_elsewhere() -> None:
    assert _of_scheduler("none such") == {}


@pytest.mark.parametrize(
    ("options", "given", "kept", "left"),
    [
        ({"steps": 3, "mask_blur": 4}, {}, ["steps"], ["--mask-blur 4 (needs --mask)"]),
        ({"steps": 3, "mask_blur": 4}, {"mask": "m", "init_image": "i"}, ["steps", "mask_blur"], []),
        ({"hires": 2.0, "hires_steps": 4, "hires_strength": 0.5}, {}, ["hires", "hires_steps", "hires_strength"], []),
        ({"hires": 2.0, "hires_steps": 4, "seed": 1}, {"init_image": "i"}, ["seed"],
         ["--hires 2.0 (does not go with --init-image)", "--hires-steps 4 (does not go with --init-image)"]),
        ({"hires": 2.0, "seed": 1}, {"refiner": "r"}, ["seed"], ["--hires 2.0 (does not go with --refiner)"]),
        ({"hires": 2.0}, {"init_image": None, "refiner": ""}, ["hires"], []),
        ({"hires_steps": 4}, {}, [], ["--hires-steps 4 (needs --hires)"]),
        ({"hires_steps": 4}, {"hires": 2.0}, ["hires_steps"], []),
        ({"eta": 0.5, "scheduler": "ddim"}, {}, ["eta", "scheduler"], []),
        ({"eta": 0.5, "scheduler": "ddim"}, {"scheduler": "euler"}, ["scheduler"],
         ["--eta 0.5 (EulerDiscreteScheduler takes none)"]),
        ({"eta": 0.5}, {"scheduler": "ddim"}, ["eta"], []),
        ({"eta": 0.5}, {}, [], ["--eta 0.5 (the scheduler, which it does not say, takes none)"]),
        ({"strength": 0.5}, {}, [], ["--strength 0.5 (needs --init-image)"]),
        ({"only_masked": True}, {}, [], ["--only-masked True (needs --mask)"]),
        ({"only_masked": False, "mask_blur": 0}, {}, [], ["--mask-blur 0 (needs --mask)"]),
    ],
)  # fmt: skip
def test_options_of_an_image_that_fit(
    options: dict[str, Any], given: dict[str, Any], kept: list[str], left: list[str]
) -> None:
    assert _fitting(options, given) == ({name: options[name] for name in kept}, left)


def test_what_is_given_is_not_taken_from_an_image(capsys: pytest.CaptureFixture[str]) -> None:
    info = Infotext({"steps": 3, "seed": 5, "eta": 0.5, "scheduler": "euler"}, "model", ["ENSD: 1"])
    found = _taken_over(Path("a.png"), info, {"seed": 7})
    assert found.options == {"steps": 3, "scheduler": "euler"}
    assert (found.model, found.model_hash) == ("model", None)
    told = " ".join(capsys.readouterr().err.split())
    assert "ENSD: 1" in told
    assert "--eta 0.5" in told


def test_images_that_an_image_was_drawn_with() -> None:
    both = {"init_image": "i", "init_image_hash": "1", "mask": "m", "mask_hash": "2"}
    assert _images(both) == {"init_image": ("i", "1"), "mask": ("m", "2")}
    assert _images({**both, "mask_hash": None}) == {"init_image": ("i", "1")}
    assert _images({**both, "init_image": 7}) == {"mask": ("m", "2")}
    assert _images({"mask_hash": "2"}) == {}


# Pictures


@pytest.mark.parametrize(
    ("error", "message", "hint"),
    [
        (UsageError("as it is", hint="so"), "as it is", "so"),
        (BadModelError("cannot read a.png", hint="look"), "--mask: cannot read a.png", "look"),
        (BadModelError("cannot read a.png"), "--mask: cannot read a.png", "Give a picture's file."),
        (ValueError("odd"), "--mask a.png is no image that can be read: odd", "Save it as PNG or JPEG; PNG, JPEG, "
         "WEBP, BMP, GIF, TIFF, PPM are read."),
    ],
    ids=["usage", "file", "file without advice", "decoder"],
)  # fmt: skip
def test_whatever_ends_the_reading_of_a_picture_is_a_sentence(error: Exception, message: str, hint: str) -> None:
    def read() -> None:
        with _told("--mask a.png"):
            raise error

    with pytest.raises(UsageError) as found:
        read()
    assert (found.value.message, found.value.hint) == (message, hint)


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"", "the file is empty"),
        (b"\0\0\0\x18ftypavif", "it is AVIF"),
        (b"\0\0\0\x18ftypavis", "it is AVIF"),
        (b"\0\0\0\x18ftypmp42", "it is HEIC or a video (mp42)"),
        (b"ftypavif", "it has none of the formats that are read"),
        (b"x", "it has none of the formats that are read"),
    ],
)
def test_formats_that_are_not_read(content: bytes, what: str) -> None:
    assert _other_format(content) == what


def test_pictures_are_bounded_in_pixels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(input_image, "MAX_PIXELS", 12)
    _check_pixels(Image.new("L", (4, 3)), "it")
    for size, shown in (((13, 1), "13x1"), ((2, 7), "2x7")):
        with pytest.raises(UsageError, match=f"it has {shown} pixels, at most 12"):
            _check_pixels(Image.new("L", size), "it")
    with pytest.raises(UsageError, match="it has 2x7 pixels"):
        _from_array(np.zeros((7, 2), np.uint8), "it")
    with pytest.raises(UsageError, match="it has 2x7 pixels"):
        _eight_bits(Image.new("RGBA", (2, 7)), "it")


def test_tiles_lie_beside_each_other() -> None:
    """Each pixel may be covered 8 times; of small pictures 2^16 pixels are."""

    def picture(width: int, height: int, *sides: tuple[int, int, int, int] | None) -> Any:
        return SimpleNamespace(width=width, height=height, tile=[("raw", each, 0, None) for each in sides])

    whole = (0, 0, 1000, 100)
    _check_tiles(picture(1000, 100, *[whole] * 8, None))
    _check_tiles(picture(10, 10, (0, 0, 1 << 16, 8)))
    _check_tiles(SimpleNamespace(width=4, height=4))  # type: ignore[arg-type]
    for wrong in (
        picture(1000, 100, *[whole] * 8, (999, 99, 1000, 100)),
        picture(10, 10, (5, 5, 5 + (1 << 16), 13), (0, 0, 1, 1)),
    ):  # fmt: skip
        with pytest.raises(ValueError, match="lie over each other"):
            _check_tiles(wrong)


@pytest.mark.parametrize("number", [1, 3], ids=["honest", "shared"])
def test_exif_in_hexadecimal_is_bounded_too(number: int, tmp_path: Path) -> None:
    """As ImageMagick writes it: a line of its kind, one of its length, and lines of digits."""
    entries = b"".join(struct.pack("<HHII", 1000 + tag, 7, 90_000, 8) for tag in range(number))
    data = b"II" + struct.pack("<HIH", 42, 8, number) + entries + bytes(4) + bytes(90_000)
    digits = data.hex()
    lines = "\n".join(digits[first : first + 72] for first in range(0, len(digits), 72))
    text = f"\nexif\n{len(data):8}\n{lines}\n".encode()
    Image.new("RGB", (3, 2)).save(tmp_path / "a.png")
    plain = (tmp_path / "a.png").read_bytes()
    profile = chunk(b"zTXt", b"Raw profile type exif\0\0" + zlib.compress(text))
    (tmp_path / "a.png").write_bytes(plain[:33] + profile + plain[33:])
    if number == 1:
        assert read_image(tmp_path / "a.png", "--init-image").size == (2, 3)
        return
    with pytest.raises(UsageError, match="is no image that can be read: its tags have"):
        read_image(tmp_path / "a.png", "--init-image")


@pytest.mark.parametrize("form", [*input_image.FORMATS, "PCX", "ICO", "SGI", "TGA", "DDS"])
def test_only_usual_formats_are_read_and_without_a_word(
    form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever Pillow would read beside them, and whatever the file's name says."""
    Image.new("RGB", (16, 24), (9, 200, 40)).save(tmp_path / "a.png", form)
    if form in input_image.FORMATS:
        assert read_image(tmp_path / "a.png", "--init-image").size == (24, 16)
        assert capsys.readouterr().err == ""
        return
    with pytest.raises(UsageError, match="it has none of the formats that are read"):
        read_image(tmp_path / "a.png", "--init-image")


@pytest.mark.parametrize("check", ["_check_tiles", "_check_pixels", "count_pictures"])
def test_a_file_is_checked_before_it_is_decoded(check: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*given: Any) -> None:
        raise ValueError(f"refused by {check}")

    Image.new("RGB", (2, 2)).save(tmp_path / "a.png")
    monkeypatch.setattr(input_image, check, refuse)
    monkeypatch.setattr(Image.Image, "load", lambda *given: pytest.fail("it was decoded"))
    with pytest.raises(UsageError, match=f"refused by {check}"):
        read_image(tmp_path / "a.png", "--init-image")


def test_every_mode_is_grey_colour_or_with_transparency() -> None:
    values = np.array([[0, 128, 300], [257, 65535, 65406]], np.int32)
    for made in (Image.fromarray(values), Image.fromarray(values.astype(np.uint16))):
        grey = _eight_bits(made, "it")
        assert grey.mode == "L"
        np.testing.assert_array_equal(np.asarray(grey), [[0, 0, 1], [1, 255, 254]])
        made.info["transparency"] = 300
        clear = np.asarray(_eight_bits(made, "it"))
        np.testing.assert_array_equal(clear[:, :, 0], [[0, 0, 1], [1, 255, 254]])
        np.testing.assert_array_equal(clear[:, :, 3], [[255, 255, 0], [255, 255, 255]])
    for wrong in (-1, 65536):
        with pytest.raises(UsageError, match="it has 32 bits"):
            _eight_bits(Image.fromarray(np.full((1, 1), wrong, np.int32)), "it")
    with pytest.raises(UsageError, match="floating-point"):
        _eight_bits(Image.new("F", (1, 1)), "it")
    modes = {"1": "L", "L": "L", "RGB": "RGB", "RGBA": "RGBA", "LA": "RGBA", "P": "RGB", "CMYK": "RGB", "YCbCr": "RGB"}
    for mode, wanted in modes.items():
        assert _eight_bits(Image.new(mode, (2, 3)), "it").mode == wanted, mode
    keyed = Image.new("RGB", (1, 1), (1, 2, 3))
    keyed.info["transparency"] = (1, 2, 3)
    assert np.asarray(_eight_bits(keyed, "it")).tolist() == [[[1, 2, 3, 0]]]


@pytest.mark.parametrize(
    ("shape", "mode"),
    [((2, 3), "L"), ((2, 3, 1), "L"), ((2, 3, 3), "RGB"), ((2, 3, 4), "RGBA"), ((2, 3, 2), None), ((2,), None),
     ((1, 2, 3, 3), None), ((0, 3), ""), ((2, 0, 3), ""), ((3, 2, 5), None)],
    ids=str,
)  # fmt: skip
def test_arrays_that_are_pictures(shape: tuple[int, ...], mode: str | None) -> None:
    values = np.arange(int(np.prod(shape)), dtype=np.uint8).reshape(shape)
    if mode:
        picture = _from_array(values, "it")
        assert (picture.mode, picture.size) == (mode, (shape[1], shape[0]))
        np.testing.assert_array_equal(np.asarray(picture).reshape(shape), values)
        with pytest.raises(UsageError, match="is an array int8"):
            _from_array(values.astype(np.int8), "it")
        return
    with pytest.raises(UsageError, match="not uint8" if mode is None else "without pixels"):
        _from_array(values, "it")


def test_what_is_transparent_becomes_white() -> None:
    values = np.random.default_rng(0).integers(0, 256, (5, 7, 4), np.uint8)
    made = on_white(Image.fromarray(values)).convert("RGB")
    share = values[:, :, 3:] / 255
    np.testing.assert_allclose(np.asarray(made), values[:, :, :3] * share + 255 * (1 - share), atol=1)
    plain = Image.new("RGB", (2, 2))
    assert on_white(plain) is plain


# Masks


def colours(**shares: int) -> Any:
    """100 pixels of greys by their level: ``g255=98``."""
    levels = [int(name[1:]) for name, count in shares.items() for _ in range(count)]
    return np.repeat(np.array(levels, np.uint8)[:, None], 3, axis=1)


@pytest.mark.parametrize(
    ("opaque", "drawn"),
    [
        (colours(g255=50, g0=50), True),
        (colours(g223=50, g32=50), True),
        (colours(g222=50, g0=50), False),
        (colours(g255=50, g33=50), False),
        (colours(g0=100), False),
        (colours(g255=100), True),
        (colours(g255=1, g0=97, g128=2), True),
        (colours(g255=1, g0=96, g128=3), False),
        (colours(g100=100), None),
        (colours(g100=50, g131=50), None),
        (colours(g100=50, g132=50), False),
        (np.zeros((0, 3), np.uint8), False),
        (np.array([[255, 255, 0], [0, 0, 0]], np.uint8), False),
        (np.array([[255, 0, 0], [255, 0, 0]], np.uint8), None),
        (np.array([[255, 0, 0], [255, 0, 60]], np.uint8), False),
    ],
    ids=["both", "near", "no white", "no black", "black", "white", "98", "97", "one", "flat", "not flat", "none",
         "yellow", "red", "two reds"],
)  # fmt: skip
def test_colours_of_a_drawn_mask(opaque: Any, drawn: bool | None) -> None:
    if drawn is None:
        with pytest.raises(UsageError, match="it is one colour on a transparent ground"):
            _is_drawn(opaque, "it")
        return
    assert _is_drawn(opaque, "it") is drawn


@pytest.mark.parametrize(
    ("levels", "told"),
    [
        ({"g128": 100}, "selects the whole image"),
        ({"g128": 99, "g127": 1}, "is not black and white"),
        ({"g0": 75, "g128": 25}, ""),
        ({"g0": 74, "g128": 26}, "is not black and white"),
        ({"g0": 74, "g32": 26}, ""),
        ({"g0": 74, "g33": 26}, "is not black and white"),
        ({"g0": 74, "g223": 26}, ""),
        ({"g0": 74, "g222": 26}, "is not black and white"),
    ],
    ids=lambda value: "".join(value) if isinstance(value, dict) else "",
)
def test_what_is_told_of_a_mask(levels: dict[str, int], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    values = colours(**levels).reshape(10, 10, 3)
    for picture in (Image.fromarray(values), Image.fromarray(values[:, :, 0].copy())):
        np.testing.assert_array_equal(np.asarray(selected_by(picture, "it")), values[:, :, 0])
        said = capsys.readouterr().err
        assert told in said
        assert bool(told) == bool(said)


@pytest.mark.parametrize(("alpha", "drawn"), [(127, True), (128, False)])
def test_colours_that_are_nearly_transparent_mean_nothing(
    alpha: int, drawn: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """White lies on black where a mask is drawn, and else what is transparent is selected."""
    values = np.zeros((6, 10, 4), np.uint8)
    values[:3, :, :3], values[:, :, 3] = 255, 255
    values[2:4, :, 3] = alpha
    values[3, :, :3] = np.arange(10)[:, None] * 20
    mask = np.asarray(selected_by(Image.fromarray(values), "it"))
    expected = values[:, :, 0] * (values[:, :, 3] / 255) if drawn else 255 - values[:, :, 3]
    np.testing.assert_allclose(mask, expected, atol=1)
    told = capsys.readouterr().err
    assert ("is drawn on a transparent ground" in told) is drawn
    assert "is not black and white" not in told  # its greys are soft edges


def test_one_transparent_pixel_is_a_hole() -> None:
    values = np.random.default_rng(0).integers(0, 256, (5, 4, 4), np.uint8)
    values[:, :, 3] = 255
    opaque = Image.fromarray(values)
    np.testing.assert_array_equal(np.asarray(selected_by(opaque, "it")), np.asarray(opaque.convert("L")))
    values[4, 1, 3] = 254
    np.testing.assert_array_equal(np.asarray(selected_by(Image.fromarray(values), "it")), 255 - values[:, :, 3])
