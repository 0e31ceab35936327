"""Texts in images, in every form that programs write them, and the programs that are told by them."""

from __future__ import annotations

import json
import random
import zlib
from pathlib import Path
from typing import Any

import pytest
from PIL import ExifTags, Image

from sdort.errors import UsageError
from sdort.generation.files.from_image import read_image_options
from sdort.generation.files.image_texts import read_texts
from sdort.generation.files.infotext import _NAMED, _OTHERS, _TOLD, read_infotext

SIGNATURE = b"\x89PNG\r\n\x1a\n"
PARAMETERS = "Steps: 3, Sampler: Euler, Seed: 5"
ALPHABETS = {
    "ascii": "abc (:1.2), ",
    "latin": "éàüßñ£ abc",
    "wide": "星空の下で猫 абв ",
    "beyond": "😀🐈🎨 abc",
}


def chunk(kind: bytes, data: bytes) -> bytes:
    return len(data).to_bytes(4, "big") + kind + data + zlib.crc32(kind + data).to_bytes(4, "big")


def png(path: Path, *chunks: bytes) -> Path:
    path.write_bytes(SIGNATURE + b"".join(chunks))
    return path


def words(alphabet: str, seed: int) -> str:
    letters = random.Random(seed).choices(ALPHABETS[alphabet], k=30)
    return "".join(letters).strip() + f"\n{PARAMETERS}"


IN_PNG = {
    "tEXt": lambda data: chunk(b"tEXt", b"parameters\0" + data),
    "zTXt": lambda data: chunk(b"zTXt", b"parameters\0\0" + zlib.compress(data)),
    "iTXt": lambda data: chunk(b"iTXt", b"parameters\0\0\0\0\0" + data),
    "iTXt compressed": lambda data: chunk(b"iTXt", b"parameters\0\1\0en\0\0" + zlib.compress(data)),
}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"], ids=["plain", "mark"])
@pytest.mark.parametrize("alphabet", ALPHABETS)
@pytest.mark.parametrize("kind", IN_PNG)
def test_utf8_is_read_in_every_chunk_of_a_png(kind: str, alphabet: str, mark: bytes, seed: int, tmp_path: Path) -> None:
    text = words(alphabet, seed)
    image = png(tmp_path / "a.png", IN_PNG[kind](mark + text.encode()))
    assert read_texts(image) == {"parameters": text}


@pytest.mark.parametrize("kind", ["tEXt", "zTXt"])
def test_what_is_no_utf8_is_latin_1_as_the_standard_says(kind: str, tmp_path: Path) -> None:
    text = words("latin", 1)
    assert read_texts(png(tmp_path / "a.png", IN_PNG[kind](text.encode("latin-1")))) == {"parameters": text}


COMMENTS = {
    "undefined": lambda text, order: bytes(8) + text.encode(),
    "ascii": lambda text, order: b"ASCII\0\0\0" + text.encode(),
    "unicode be": lambda text, order: b"UNICODE\0" + text.encode("utf-16-be"),
    "unicode le": lambda text, order: b"UNICODE\0" + text.encode("utf-16-le"),
    "unicode be, mark": lambda text, order: b"UNICODE\0\xfe\xff" + text.encode("utf-16-be"),
    "unicode le, mark": lambda text, order: b"UNICODE\0\xff\xfe" + text.encode("utf-16-le"),
    "unicode, in truth utf-8": lambda text, order: b"UNICODE\0" + text.encode(),
    "no code at all": lambda text, order: text.encode(),
}


def with_comment(path: Path, comment: bytes) -> Path:
    exif = Image.Exif()
    exif.get_ifd(ExifTags.IFD.Exif)[ExifTags.Base.UserComment] = comment
    Image.new("RGB", (8, 8)).save(path, exif=exif)
    return path


@pytest.mark.parametrize("suffix", ["jpg", "webp"])
@pytest.mark.parametrize("alphabet", ALPHABETS)
@pytest.mark.parametrize("code", COMMENTS)
def test_a_user_comment_is_read_whatever_its_code(code: str, alphabet: str, suffix: str, tmp_path: Path) -> None:
    text = words(alphabet, 7)
    image = with_comment(tmp_path / f"a.{suffix}", COMMENTS[code](text, "be"))
    assert read_texts(image) == {"parameters": text}


def test_a_user_comment_without_any_ascii_is_read_by_its_mark(tmp_path: Path) -> None:
    for order, mark in (("be", b"\xfe\xff"), ("le", b"\xff\xfe")):
        image = with_comment(tmp_path / f"{order}.jpg", b"UNICODE\0" + mark + "星空の下".encode(f"utf-16-{order}"))
        assert read_texts(image) == {"parameters": "星空の下"}


def test_japanese_codes_and_latin_ones_are_read(tmp_path: Path) -> None:
    text = f"猫\n{PARAMETERS}"
    japanese = with_comment(tmp_path / "a.jpg", b"JIS\0\0\0\0\0" + text.encode("iso2022_jp"))
    assert read_texts(japanese) == {"parameters": text}
    latin = with_comment(tmp_path / "b.jpg", b"ASCII\0\0\0" + f"é\n{PARAMETERS}".encode("latin-1"))
    assert read_texts(latin) == {"parameters": f"é\n{PARAMETERS}"}


def test_a_graph_in_utf8_stands_in_any_tag_of_the_camera(tmp_path: Path) -> None:
    """As ComfyUI writes it into WebP, where Exif's type is text."""
    for tag in (0x0110, 0x010F, 0x010E):
        exif = Image.Exif()
        exif[tag] = 'prompt:{"text": "étoile 星"}'.encode()
        Image.new("RGB", (8, 8)).save(tmp_path / "a.webp", exif=exif)
        assert read_texts(tmp_path / "a.webp") == {"prompt": '{"text": "étoile 星"}'}


# Programs

NOVELAI = {"prompt": "a star", "steps": 28, "scale": 5.0, "uc": "fog", "sampler": "k_euler", "seed": 7}
FORMS: list[tuple[str, dict[str, str]]] = [
    ("NovelAI", {"Software": "NovelAI", "Description": "a star", "Comment": json.dumps(NOVELAI)}),
    ("NovelAI", {"Title": "NovelAI generated image", "Comment": json.dumps(NOVELAI)}),
    ("NovelAI", {"Source": "NovelAI Diffusion V4 37442FCA", "Comment": json.dumps({"v4_prompt": {}})}),
    ("NovelAI", {"Comment": json.dumps(NOVELAI)}),
    ("NovelAI", {"parameters": json.dumps({"Software": "NovelAI", "Comment": json.dumps(NOVELAI)})}),
    ("InvokeAI", {"invokeai_metadata": "{}", "invokeai_graph": "{}"}),
    ("InvokeAI", {"sd-metadata": "{}"}),
    ("InvokeAI", {"Dream": '"a star" -s 30'}),
    ("Fooocus", {"parameters": json.dumps({"prompt": "a", "version": "Fooocus v2.5.5"})}),
    ("Fooocus", {"parameters": '{"prompt": "a"}', "fooocus_scheme": "fooocus"}),
    ("RuinedFooocus", {"parameters": json.dumps({"Prompt": "a", "software": "RuinedFooocus"})}),
    ("SwarmUI", {"parameters": '{"sui_image_params": {"prompt": "a", "seed": 1}}'}),
    ("Draw Things", {"XML:com.adobe.xmp": "<x><xmp:CreatorTool>Draw Things</xmp:CreatorTool></x>"}),
    ("Draw Things", {"parameters": json.dumps({"c": "a", "uc": "fog", "seed": 5, "steps": 8})}),
    (
        "Easy Diffusion",
        {"prompt": "a star", "seed": "5", "use_stable_diffusion_model": "x", "num_inference_steps": "9"},
    ),
    ("Easy Diffusion", {"parameters": json.dumps({"prompt": "a", "num_inference_steps": 9})}),
    ("Midjourney", {"Description": "a star --ar 1:1 Job ID: 6ba7b810-9dad"}),
    ("ComfyUI", {"workflow": '{"nodes": []}'}),
    ("ComfyUI", {"parameters": '{"3": {"class_type": "KSampler", "inputs": {}}, "extraMetadata": "{}"}'}),
    ("another program", {"parameters": '{"prompt": "a"}'}),
]


@pytest.mark.parametrize(("program", "texts"), FORMS)
def test_an_image_is_refused_by_the_name_of_its_program(program: str, texts: dict[str, str], tmp_path: Path) -> None:
    image = png(tmp_path / "a.png", *(chunk(b"tEXt", key.encode() + b"\0" + text.encode())
                                      for key, text in texts.items()))  # fmt: skip
    with pytest.raises(UsageError, match=f"was drawn by {program}, whose notes in it sdort does not read"):
        read_image_options(image, {})


def test_a_note_in_a_photograph_is_no_prompt(tmp_path: Path) -> None:
    for comment in ("Our holidays in Nice, 2019", "   "):
        with pytest.raises(UsageError, match="says nothing of how it was drawn"):
            read_image_options(with_comment(tmp_path / "a.jpg", b"ASCII\0\0\0" + comment.encode()), {})


# A1111's parameters

FOREIGN = {
    "ENSD": "31337", "Rescale CFG": "0.7", "CFG rescale": "0.5", "RNG noise": "CPU", "Token merging ratio": "0.5",
    "Discard penultimate sigma": "True", "SGM noise multiplier": "True", "FreeU Stages": "[{}]", "Emphasis": "No norm",
    "Hires sampler": "Euler", "Hires resize": "8x8", "Distilled CFG Scale": "3.5", "Guidance": "3.5", "VAE": "ft.pt",
    "Tiling": "True", "Face restoration": "CodeFormer", "NGMS": "1", "Pad conds": "True", "Dynamic thresholding": "x",
    "First pass size": "0x0", "Conditional mask weight": "0.5", "AddNet Enabled": "True", "Skip Early CFG": "0.1",
    "Style Selector": "on", "Size": "large", "Prompt weighting": "my own", "VAE hash": "1234", "Refiner": "xl [12]",
}  # fmt: skip
"""Names that A1111, Forge, reForge, SD.Next and stable-diffusion.cpp write and that change an image."""


@pytest.mark.parametrize("seed", range(20))
def test_what_other_programs_say_of_an_image_is_taken_or_told(seed: int) -> None:
    chooser = random.Random(seed)
    foreign = chooser.sample(sorted(FOREIGN), 5)
    own = ["Steps: 20", "Sampler: Euler a", "Seed: 5", *(f"{name}: {FOREIGN[name]}" for name in foreign)]
    chooser.shuffle(own)
    info = read_infotext("a cat\n" + ", ".join(own))
    said = "; ".join(info.left)
    for name in foreign:
        # The hash of a VAE is told where its name is not; names of one extension are told together.
        assert name in said or (name == "VAE hash" and "VAE: " in said), (name, said)
    assert {name: info.options[name] for name in ("steps", "scheduler", "seed")} == {
        "steps": 20, "scheduler": "Euler a", "seed": 5,
    }  # fmt: skip


def test_every_name_that_is_known_changes_an_option_or_is_told() -> None:
    """By the tables themselves: what is neither told nor taken has to be in the one list of what changes nothing."""
    for name in {*_NAMED, *_OTHERS} - {"Sampler"}:
        text = "a\nSteps: 20, Seed: 5, Model: x, Sampler: DDIM"
        info, plain = (read_infotext(f"{text}{more}") for more in (f", {name}: 0.41x", ""))
        assert (info.options, info.left) != (plain.options, plain.left), name
    assert not _TOLD & {"VAE", "Civitai resources"}


def drawn(tmp_path: Path, parameters: str, **given: Any) -> dict[str, Any]:
    image = png(tmp_path / "a.png", chunk(b"tEXt", b"parameters\0" + parameters.encode()))
    return read_image_options(image, given).options


@pytest.mark.parametrize(
    ("sampler", "eta", "taken"),
    [("euler", "Eta: 0.000000", None), ("Euler a", "Eta: 0.67", None), ("DDIM", "Eta: 0.5", 0.5),
     ("DDIM", "Eta DDIM: 0.25", 0.25), ("Euler a", "Eta DDIM: 0.25", None), ("Default", "Eta: 0.5", None),
     ("euler_a discrete", "Eta: 0", None)],
)  # fmt: skip
def test_eta_is_for_the_samplers_that_take_it(
    sampler: str, eta: str, taken: float | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = drawn(tmp_path, f"a\nSteps: 3, Seed: 5, Sampler: {sampler}, {eta}, Size: 64x64")
    assert options.get("eta") == taken
    assert ("--eta" in capsys.readouterr().err) is (taken is None)
    assert "scheduler" in options or sampler == "Default"


def test_what_does_not_go_with_what_is_given_is_left_and_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nobody is refused an option that is the image's and not theirs: of sdort's own images too."""
    second = "a\nSteps: 3, Seed: 5, Sampler: DDIM, Eta: 0.5, Hires upscale: 2, Denoising strength: 0.5, Hires steps: 4"
    options = drawn(tmp_path, second, init_image="i.png", scheduler="euler")
    assert options == {"prompt": "a", "negative_prompt": "", "steps": 3, "seed": 5}
    told = " ".join(capsys.readouterr().err.split())
    assert "--eta 0.5 (EulerDiscreteScheduler takes none)" in told
    assert "--hires 2.0 (does not go with --init-image)" in told
    record = json.dumps({"prompt": "a", "scheduler": "DDIMScheduler", "eta": 0.5, "timestep_spacing": "trailing"})
    image = png(tmp_path / "own.png", chunk(b"tEXt", b"sdort\0" + record.encode()))
    assert read_image_options(image, {}).options["eta"] == 0.5
    assert "eta" not in read_image_options(image, {"scheduler": "euler"}).options
    assert "--eta 0.5" in capsys.readouterr().err
    assert "timestep_spacing" not in read_image_options(image, {"scheduler": "dpm++-sde"}).options
