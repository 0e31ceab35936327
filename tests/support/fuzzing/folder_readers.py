"""Targets of fuzzing that write, replace or look into folders: PNG files, pipelines, tokenizers, tuning bundles."""

from __future__ import annotations

import io
import json
import os
import re
import sqlite3
import stat
import tempfile
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import numpy as np
from PIL import ExifTags, Image
from PIL.PngImagePlugin import PngInfo
from support.fuzzing.documents import mutate_json
from support.fuzzing.messages import Mutate
from support.infotext import read_infotext, record

from sdort.checkpoints.configs import MANIFEST, check_processor
from sdort.checkpoints.tokenizer_files import check_tokenizer
from sdort.errors import MOST_CHARACTERS, BadModelError, SdortError
from sdort.errors.plain_text import encodable
from sdort.files.staging import staged_directory
from sdort.generation.files.image_files import save_image
from sdort.generation.files.image_texts import MAX_TEXTS, read_texts
from sdort.generation.job import plan_jobs
from sdort.generation.pictures import input_image
from sdort.generation.prompts.prompt_schedule import Clock, read_parts, read_schedule
from sdort.generation.prompts.prompt_syntax import WEIGHTINGS, read_prompt
from sdort.onnx_io.hashing import hash_bytes, hash_file
from sdort.operator_library.tuning_table import read_table
from sdort.pipelines.content_check import checked
from sdort.pipelines.explain_path import expect_onnx, no_diffusers_pipeline, not_there
from sdort.pipelines.manifest import why_foreign
from sdort.tuning.session_hooks import SessionTuning
from sdort.tuning.working_folder import merge as merge_files
from sdort.tuning.working_folder import write_table

# ------------------------------------------------------------------------------------------------------- parameters

_PARTS = ("prompt", "negative_prompt", "model", "scheduler")
PARAMETERS = [
    b"a cat\xfffog\xfffast\xffOtherScheduler",
    'Zürich, "quoted"\nSteps: 1, Seed: 2\xffNegative prompt: x\xffa: b\xff\x1b]0;a\x07'.encode("latin-1"),
]


def parameters(folder: Path, data: bytes) -> None:
    """Prompts and names are read back as they were, and are no parameter of their own."""
    texts = [part.decode("utf-8", "surrogateescape") for part in data.split(b"\xff", 3)]
    given = dict(zip(_PARTS, [*texts, "", "", "", ""], strict=False))
    save_image(folder / "a.png", np.zeros((1, 1, 3), np.uint8), record(**given), 7)
    with Image.open(folder / "a.png") as image:
        found = dict(image.text)  # type: ignore[attr-defined]
    told, kept = read_infotext(found["parameters"]), json.loads(found["sdort"])
    names = ("prompt", "negative", "Model", "Sampler")
    assert [told[name] for name in names] == [given[name] for name in _PARTS], found["parameters"]
    assert told.keys() - {*names} == {"Steps", "CFG scale", "Seed", "Size", "Model hash", "Version"}
    assert (told["Steps"], told["Seed"], told["Model hash"]) == ("20", "7", "0123")
    assert [kept[name] for name in _PARTS] == [encodable(given[name]) for name in _PARTS]


# ------------------------------------------------------------------------------------------- prompts, drawn images

PROMPTS = [
    b"\0a (red:1.3) [cat] BREAK \\(x\\) <lora:a:1> embedding:b, ((c))",
    b"\1((a:1.2) b) \\( (:2)",
    b"\2plain [a|b]",
    b"\0[a:(b:1.2):0.5] [c|[d::2]|] AND e:0.5",
]


def prompt(_: Path, data: bytes) -> None:
    """A prompt is read in every way, or refused; no text is lost but brackets, escapes, weights and names of files."""
    text = data[1:].decode("utf-8", "replace")
    weighting = WEIGHTINGS[data[0] % len(WEIGHTINGS)] if data else WEIGHTINGS[0]
    read = read_prompt(text, weighting)
    texts = read_schedule(text, weighting).texts(Clock(3), 4)
    assert len(texts) == 4
    assert all(len(each) <= len(text) for each in texts)
    assert 1 <= len(read_parts(text, weighting)) <= 16
    kept = "".join(segment.text for part in read.parts for segment in part)
    assert all(abs(segment.weight) <= 100 for part in read.parts for segment in part)
    assert len(kept) <= len(text)
    if weighting == "none" or not (set(text) & set("()[]\\:<") or "BREAK" in text):
        assert kept == text


DRAWN = [
    b"a cat\nNegative prompt: fog\nSteps: 20, Sampler: Euler a, CFG scale: 7, Seed: 5, Size: 512x768, Clip skip: 2",
    b'{"prompt": "a", "steps": 3, "seed": 1, "lora": [{"name": "a", "scale": 0.5}], "model_hash": "00"}',
    b'a\nSteps: 2, Sampler: Euler, Seed: 5, Hashes: {"vae": "73", "model": "6c"}, Lora hashes: "a: 12, b: 34"',
    b"\0" * 8 + b"a\nSteps: 2, Sampler: Euler, Seed: 5",
    b"UNICODE\0" + "a\nSteps: 2, Sampler: Euler, Seed: 5".encode("utf-16-be"),
    json.dumps({"1": {"class_type": "KSampler", "inputs": {
        "seed": 1, "steps": 2, "cfg": 3, "sampler_name": "euler", "scheduler": "normal", "denoise": 1,
        "model": ["4", 0], "positive": ["2", 0], "negative": ["2", 0], "latent_image": ["3", 0]}},
        "2": {"class_type": "CLIPTextEncode", "inputs": {"text": "a", "clip": ["4", 1]}},
        "3": {"class_type": "EmptyLatentImage", "inputs": {"width": 8, "height": 8}},
        "4": {"class_type": "CheckpointLoaderSimple", "inputs": {"ckpt_name": "a"}}}).encode(),
]  # fmt: skip


def drawn_image(folder: Path, data: bytes) -> None:
    """An image of a stranger gives options that are taken or refused; the file, or a text of it, is the input."""
    path = folder / "a.png"
    if data.startswith((b"\x89PNG", b"\xff\xd8\xff", b"RIFF")):
        path.write_bytes(data)
    elif data.startswith((b"\0", b"UNICODE")):
        exif, path = Image.Exif(), folder / "a.jpg"
        exif.get_ifd(ExifTags.IFD.Exif)[ExifTags.Base.UserComment] = data[:60000]
        Image.new("RGB", (1, 1)).save(path, exif=exif)
    else:
        texts = PngInfo()
        keyword = "prompt" if b"class_type" in data else "sdort" if data.startswith(b"{") else "parameters"
        texts.add_text(keyword, data.decode("utf-8", "replace"))
        Image.new("RGB", (1, 1)).save(path, pnginfo=texts)
    plan_jobs((), {"from_image": path})


def picture_seeds() -> list[bytes]:
    """A small image in each format, with Exif, several pictures and a profile where it has these."""
    first, *more = (Image.new("RGB", (9, 7), colour) for colour in ("red", "blue", "white"))
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation], exif[ExifTags.Base.Make] = 6, "maker"
    texts = PngInfo()
    texts.add_text("parameters", "a\nSteps: 2, Sampler: Euler, Seed: 5", zip=True)
    several: dict[str, Any] = {"save_all": True, "append_images": more}
    seeds = []
    for form, settings in (
        ("PNG", {"pnginfo": texts, "exif": exif, "icc_profile": b"profile"}), ("PNG", several), ("GIF", several),
        ("JPEG", {"exif": exif, "progressive": True, "icc_profile": b"profile"}), ("WEBP", {**several, "exif": exif}),
        ("TIFF", {**several, "exif": exif}), ("TIFF", {"big_tiff": True, "compression": "tiff_lzw"}), ("BMP", {}),
        ("PPM", {}),
    ):  # fmt: skip
        first.save(file := io.BytesIO(), form, **settings)
        seeds.append(file.getvalue())
    return seeds


def picture(folder: Path, data: bytes) -> None:
    """An image of a stranger is decoded in bounded time and memory, or refused; so are its texts."""
    path = folder / "a"
    path.write_bytes(data)
    most, input_image.MAX_PIXELS = input_image.MAX_PIXELS, 1 << 18
    try:
        read = input_image.read_image(path, "--init-image")
    finally:
        input_image.MAX_PIXELS = most
        with suppress(BadModelError):
            texts = read_texts(path)
            assert sum(map(len, texts.values())) <= MAX_TEXTS
    assert read.picture.mode == "RGB"
    assert read.size[0] * read.size[1] <= 1 << 18


# -------------------------------------------------------------------------------------------------- sdort.json, places


def own_files(folder: Path, data: bytes) -> None:
    """``--overwrite`` replaces what the list names and nothing else; who reads finds what the list says, or an error.

    The first byte chooses what else lies in the folder.
    """
    place = folder / "place"
    out = _listed_folder(place, data[:1])
    (out / MANIFEST).write_bytes(data[1:])
    os.environ["XDG_CACHE_HOME"] = str(folder / "cache")
    before = _snapshot(place)
    try:
        with checked(out) as content:
            content.reads([out / "unet" / "model.onnx"])
    except SdortError:
        pass
    else:
        files = json.loads(data[1:]).get("files")
        own = files and files.get("unet/model.onnx")
        assert not files or own["xxh128"] == hash_file(out / "unet" / "model.onnx")
    assert _snapshot(place) == before, "a folder that is only read was changed"
    refused = None
    try:
        with staged_directory(out, True, why_foreign=why_foreign) as stage:
            (stage / "new").write_text("new")
    except SdortError as error:
        refused = error
    after = _snapshot(place)
    if refused:
        assert after == before, "a folder that was not replaced was changed"
        raise refused
    inside = {name for name in before if name.startswith("out/")}
    assert after == {name: what for name, what in before.items() if name not in inside} | {"out/new": b"new"}
    listed = {f"out/{name}" for name in json.loads(data[1:])["files"]} | {f"out/{MANIFEST}"}
    folders = {name for name in inside if before[name] == "folder"}
    assert inside - folders <= listed, f"{inside - folders - listed} went, which no list names"
    entries = json.loads(data[1:])["files"]
    for name in inside - folders - {f"out/{MANIFEST}", "out/model.sig"}:
        assert hash_bytes(before[name]) == entries[name.removeprefix("out/")]["xxh128"], f"{name} went"


def _listed_folder(place: Path, choice: bytes) -> Path:
    (place / "precious").mkdir(parents=True)
    (place / "precious" / "thesis.txt").write_text("thesis")
    out = place / "out"
    (out / "unet").mkdir(parents=True)
    (out / "unet" / "model.onnx").write_bytes(b"model")
    if choice > b"\xe0":
        (out / "unet" / "link").symlink_to("../../precious/thesis.txt")
    elif choice > b"\xc0":
        (out / "notes").symlink_to("../precious")
    elif choice > b"\xa0":
        os.mkfifo(out / "pipe")
    elif choice > b"\x80":
        (out / "notes.txt").write_text("notes")
    return out


def _snapshot(folder: Path) -> dict[str, Any]:
    """What lies in a folder: the content of files, the targets of links, the kinds of others."""
    kinds: dict[int, Callable[[Path], Any]] = {
        stat.S_IFREG: Path.read_bytes, stat.S_IFLNK: Path.readlink, stat.S_IFDIR: lambda path: "folder"
    }  # fmt: skip
    found: dict[str, Any] = {}
    for path in folder.rglob("*"):
        kind = stat.S_IFMT(path.lstat().st_mode)
        found[path.relative_to(folder).as_posix()] = kinds[kind](path) if kind in kinds else "other"
    return found


def own_files_seeds() -> list[bytes]:
    with tempfile.TemporaryDirectory() as folder:
        (model := Path(folder) / "model.onnx").write_bytes(b"model")
        entry = {"bytes": 5, "xxh128": hash_file(model)}
    files = {"unet/model.onnx": entry}
    more = {**files, "notes.txt": entry, "unet/link": entry, "notes/thesis.txt": entry, "../precious/thesis.txt": entry}
    seeds = [b"\0" + json.dumps({"versions": {"sdort": "1"}, "files": files}).encode()]
    return [*seeds, *(choice + json.dumps({"files": more}).encode() for choice in (b"\x90", b"\xb0", b"\xd0", b"\xf0"))]


# -------------------------------------------------------------------------------------------------------- tokenizers

_MERGES = ["a b", "ab c</w>", "b c"]
_VOCABULARY = ["a", "b", "c", "c</w>", "ab", "abc</w>", "bc", "<|startoftext|>", "<|endoftext|>"]
_TOKENS = {token: number for number, token in enumerate(_VOCABULARY)}
_TOKENIZER: Mapping[str, Any] = {
    "vocab.json": _TOKENS,
    "merges.txt": "\n".join(["#version: 0.2", *_MERGES, ""]),
    "tokenizer.json": {"model": {"vocab": _TOKENS, "merges": _MERGES}},
    "tokenizer_config.json": {"model_max_length": 77, "bos_token": {"content": "<|startoftext|>"}},
    "special_tokens_map.json": {"bos_token": "<|startoftext|>", "additional_special_tokens": ["x"]},
    "added_tokens.json": {"<pad>": 9},
}


def tokenizer(folder: Path, data: bytes) -> None:
    """Of a tokenizer one file is the input; what is accepted has for every token the merge that makes it."""
    name = list(_TOKENIZER)[data[0] % len(_TOKENIZER)] if data else "vocab.json"
    for other, content in _TOKENIZER.items():
        (folder / other).write_text(content if isinstance(content, str) else json.dumps(content))
    (folder / name).write_bytes(data[1:])
    check_processor(folder)
    check_tokenizer(folder)
    vocabulary = json.loads((folder / "vocab.json").read_text())
    lines = (folder / "merges.txt").read_text().replace("\r", "").rstrip("\n").split("\n")[1:]
    made = {line.replace(" ", "") for line in lines}
    known = {*vocabulary} - {"a", "b", "c", "c</w>", "<|startoftext|>", "<|endoftext|>"}
    assert made <= {*vocabulary}
    if name == "merges.txt":
        assert known <= made, f"{known - made} came of no merge"
    whole = json.loads((folder / "tokenizer.json").read_text())["model"]
    assert whole["vocab"] == vocabulary
    pairs = [pair if isinstance(pair, str) else " ".join(pair) for pair in whole["merges"] or ()]
    assert pairs == lines


def tokenizer_seeds() -> list[bytes]:
    texts = [content if isinstance(content, str) else json.dumps(content) for content in _TOKENIZER.values()]
    paired = {"model": {"vocab": _TOKENS, "merges": [line.split(" ") for line in _MERGES]}}
    return [*(bytes([index]) + text.encode() for index, text in enumerate(texts)), b"\2" + json.dumps(paired).encode()]


# --------------------------------------------------------------------------------------------------- tuning bundles


def _kernels(path: Path, name: str) -> None:
    """A small database as MIOpen's, with pages of 512 bytes."""
    with closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA page_size = 512")
        database.execute("CREATE TABLE kern_db (id INTEGER PRIMARY KEY ASC, kernel_name TEXT NOT NULL)")
        database.execute("CREATE UNIQUE INDEX idx_kern_db ON kern_db (kernel_name)")
        database.execute("INSERT INTO kern_db (kernel_name) VALUES (?)", (name,))
        database.commit()


def miopen(folder: Path, data: bytes) -> None:
    """MIOpen's files of a bundle: merged into others, or refused; those of the bundle stay as they are."""
    name = "a.txt" if data[:1] < b"\x40" else "a.kdb"
    (bundle := folder / "bundle").mkdir()
    (bundle / name).write_bytes(data[1:])
    before = _snapshot(bundle)
    (folder / "first").mkdir()
    (folder / "first" / "a.txt").write_text("problem=first\n")
    _kernels(folder / "first" / "a.kdb", "first")
    sides = [(bundle, folder / "first"), (folder / "first", folder / "second"), (bundle, folder / "second")]
    for source, target in sides if data[:1] < b"\xa0" else [(bundle, folder / "second"), (folder / "first", bundle)]:
        with suppress(sqlite3.Error, OSError):  # told by who merges, and the model runs without
            merge_files(source / name, target / name)
    if data[:1] < b"\xa0":
        assert _snapshot(bundle) == before


def miopen_seeds() -> list[bytes]:
    with tempfile.TemporaryDirectory() as folder:
        _kernels(Path(folder) / "a", "ours")
        database = (Path(folder) / "a").read_bytes()
    return [b"\0problem=ours\nother=ours\n", b"\x50" + database, b"\xb0" + database]


class _Session:
    """Takes TunableOp's results as ONNX Runtime's binding does: types are checked before."""

    def get_tuning_results(self) -> list[dict[str, Any]]:
        return [{"ep": "ROCMExecutionProvider", "validators": {"GPU": "a", "ORT": "1"}, "results": {}}]

    def set_tuning_results(self, results: Any, error_on_invalid: bool) -> None:
        for result in results:
            assert isinstance(result["ep"], str)
            assert all(isinstance(v, str) for pair in result["validators"].items() for v in pair)
            for kernels in result["results"].values():
                assert all(isinstance(key, str) and type(number) is int for key, number in kernels.items())


def tunable(folder: Path, data: bytes) -> None:
    """TunableOp's results and the table of sdort's kernels: used, or told and not used."""
    if data[:1] < b"\x80":
        SessionTuning(None, {"unet-0": data[1:]}).apply(_Session())  # type: ignore[arg-type]
        return
    (folder / "ops.tsv").write_bytes(data[1:])
    entries = read_table(folder / "ops.tsv")
    write_table(folder / "again.tsv", entries)
    assert repr(sorted(map(repr, read_table(folder / "again.tsv")))) == repr(sorted(map(repr, entries)))


def tunable_seeds() -> list[bytes]:
    validators = {"GPU": "a", "ORT": "1"}
    results = [{"ep": "ROCMExecutionProvider", "validators": validators, "results": {"Gemm": {"1_2": 3}}}]
    return [b"\0" + json.dumps(results).encode(), b"\xff# a\tb\ngfx1100\tGemm f16 2 3\tv1\t1.5\n"]


def mutate_results(data: bytes, most: int, seed: int, mutate: Mutate) -> bytes:
    return mutate_json(data, most, seed, mutate) if data[:1] < b"\x80" else mutate(data, most)


# -------------------------------------------------------------------------------------------- what is no pipeline


def mistaken(folder: Path, data: bytes) -> None:
    """The probes of a folder of the hub's cache and of a mistyped name; advice stays in the folder that was given."""
    (above := folder / "home").mkdir()
    given = above / "models--owner--name"
    for place in (above / "other", given / "snapshots" / ("0" * 40), given / "snapshots" / ("1" * 40)):
        place.mkdir(parents=True)
        (place / "model_index.json").write_text("{}")
    (given / "refs").mkdir()
    revision, _, name = data[1:].partition(b"\xff")
    (given / "refs" / "main").write_bytes(revision)
    probes: list[Callable[[], Any]] = [
        lambda: no_diffusers_pipeline(given),
        lambda: expect_onnx(given),
        lambda: not_there(name.decode("utf-8", "surrogateescape"), ("demo",)),
    ]
    error = probes[data[0] % len(probes) if data else 0]()
    assert "other" not in (error.hint or ""), error.hint
    found = re.findall(r"snapshots/(\S+)", error.hint or "")
    assert set(found) <= {"0" * 40, "1" * 40}
    assert error.message
    assert len(str(error)) < 3 * MOST_CHARACTERS


def mistaken_seeds() -> list[bytes]:
    return [
        b"\0" + b"1" * 40, b"\1" + b"0" * 40, b"\0../../other", b"\2\xffdmeo", b"\2\xffhttps://huggingface.co/a/b",
        b"\2\xffowner/name", b"\2\xff~/x",
    ]  # fmt: skip
