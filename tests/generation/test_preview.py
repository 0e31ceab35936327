"""Previews: the image that a step predicts, and how it comes to a terminal or into a file."""

from __future__ import annotations

import base64
import io
import os
import re
import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from PIL import Image
from support.tiny_pipeline import SCHEDULER, Tiny

import sdort
from sdort.console import NORMAL, set_verbosity
from sdort.errors import UsageError
from sdort.families.data.sdxl import FAMILY as SDXL
from sdort.generation import preview_display
from sdort.generation.latents.preview import PREVIEW_VAE, BatchPreviews, Preview, Previewer, make_decode
from sdort.generation.pictures.terminal_picture import draw
from sdort.generation.schedules.diffusers_sampler import DiffusersSampler
from sdort.machine import terminal
from sdort.machine.os_calls import os_calls
from sdort.machine.posix_calls import _read_answer
from sdort.machine.terminal import Graphics, graphics_of, terminal_graphics
from sdort.pipelines.folder import PipelineFolder, open_folder
from sdort.providers import CPU
from sdort.providers.runtime_options import RuntimeOptions
from sdort.verification.metrics import psnr

Array = np.ndarray[Any, Any]

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

# What a step predicts


@pytest.mark.parametrize(
    ("name", "prediction"),
    [
        ("DDIMScheduler", "epsilon"),
        ("DDIMScheduler", "v_prediction"),
        ("DDIMScheduler", "sample"),
        ("EulerDiscreteScheduler", "epsilon"),
        ("EulerDiscreteScheduler", "v_prediction"),
    ],
)
def test_the_predicted_image_is_what_diffusers_schedulers_say(name: str, prediction: str) -> None:
    import diffusers
    import torch

    scheduler = getattr(diffusers, name).from_config({**SCHEDULER, "prediction_type": prediction})
    scheduler.set_timesteps(7)
    latents, outputs = torch.randn(2, 4, 3, 5), torch.randn(2, 2, 4, 3, 5)
    time = scheduler.timesteps[0]
    sample = scheduler.scale_model_input(latents * scheduler.init_noise_sigma, time)
    guided = -1.0 * outputs[0] + 2.0 * outputs[1]
    expected = scheduler.step(guided, time, latents * scheduler.init_noise_sigma).pred_original_sample
    seen: list[Array] = []

    def decode(latents: Array) -> Array:
        seen.append(latents)
        return latents[:, :3]

    previews = BatchPreviews(
        Previewer(1, decode, lambda _: None), DiffusersSampler(scheduler), scheduler.timesteps, [-1.0, 2.0], [1, 2]
    )
    previews.show(0, torch.cat([sample, sample]).numpy(), outputs.flatten(0, 1).numpy())
    np.testing.assert_allclose(seen[0], expected.numpy(), rtol=0, atol=2e-4 * float(expected.std()))


@pytest.mark.parametrize("scheduler", ["euler", "ddim"])
def test_every_few_steps_there_is_a_preview_that_becomes_the_image(tiny: Tiny, scheduler: str) -> None:
    pipeline = sdort.load(tiny.onnx, provider="cpu")
    plain = pipeline.generate("a cat", steps=8, seed=3, num_images=2, scheduler=scheduler)
    got: list[Preview] = []
    result = pipeline.generate(
        "a cat", steps=8, seed=3, num_images=2, scheduler=scheduler, on_preview=got.append, preview_every=3,
        preview_vae=tiny.onnx,
    )  # fmt: skip
    assert [(each.step, each.steps, each.seeds) for each in got] == [(3, 8, [3, 4]), (6, 8, [3, 4])]
    assert {image.shape for each in got for image in each.images} == {(64, 64, 3)}
    for ours, theirs in zip(result.images, plain.images, strict=True):
        np.testing.assert_array_equal(ours.pixels, theirs.pixels)


def test_through_the_host_previews_are_the_same(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    from sdort.generation.denoising.device_loop import Loop

    pipeline = sdort.load(tiny.onnx, provider="cpu")
    shown: list[Preview] = []
    pipeline.generate("a cat", steps=4, seed=3, on_preview=shown.append, preview_every=2)
    monkeypatch.setattr(Loop, "fits", lambda *_: False)
    pipeline.generate("a cat", steps=4, seed=3, on_preview=shown.append, preview_every=2)
    on_device, on_host = shown
    assert on_device.images[0].shape == (16, 16, 3)
    assert on_device.images[0].std() > 5
    assert psnr(on_device.images[0], on_host.images[0]) > 60


def test_latents_are_decoded_by_sums_or_by_a_vae(tiny: Tiny, tmp_path: Path) -> None:
    options, plain = RuntimeOptions("cpu"), open_folder(tiny.onnx)
    latents = np.random.default_rng(0).normal(size=(2, 4, 3, 5)).astype(np.float32)
    xl = PipelineFolder(plain.path, {**plain.models, "text_encoder_2": plain.models["text_encoder"]})
    expected = latents[1, :, 2, 4] @ np.asarray(SDXL.latents.preview_factors) + SDXL.latents.preview_bias
    np.testing.assert_allclose(make_decode(xl, 4, None, CPU, options)(latents)[1, :, 2, 4], expected, rtol=1e-5)
    with pytest.raises(UsageError, match="there are no previews of latents with 16 channels"):
        make_decode(plain, 16, None, CPU, options)
    with pytest.raises(UsageError, match="decodes latents of 4 channels, the UNet has 16"):
        make_decode(plain, 16, tiny.onnx, CPU, options)
    decoder = onnxruntime.InferenceSession(plain.models["vae_decoder"])
    (decoded,) = decoder.run(None, {"latent_sample": latents / np.float32(plain.vae["scaling_factor"])})
    own = Path(shutil.copytree(tiny.onnx, tmp_path / "model"))
    shutil.copytree(tiny.onnx / "vae_decoder", own / PREVIEW_VAE / "vae_decoder")
    for decode in (
        make_decode(plain, 4, tiny.onnx, CPU, options),
        make_decode(PipelineFolder(own, plain.models), 4, None, CPU, options),
    ):
        np.testing.assert_allclose(decode(latents), decoded, atol=1e-5)


def test_options_of_previews_are_checked(tiny: Tiny) -> None:
    with pytest.raises(UsageError, match="--preview-vae needs --preview"):
        sdort.run(tiny.onnx, "a cat", preview_vae=tiny.onnx)
    with pytest.raises(UsageError, match="--preview-every 0 is not a whole number from 1"):
        sdort.run(tiny.onnx, "a cat", preview=True, preview_every=0)


# Where it is shown


def test_without_a_terminal_nothing_is_asked_or_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    set_verbosity(NORMAL)
    with preview_display.preview_display(tmp_path / "cat.png", graphics=pytest.fail) as show:
        assert show is None
    assert capsys.readouterr().err == "no previews: there is no terminal to show them\n"


def test_a_terminal_without_pictures_gets_a_file_that_goes_in_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preview_display, "has_bars", lambda: True)
    (tmp_path / "cat-preview.png").write_bytes(b"the user's own")
    red, blue = (np.full((4, 6, 3), colour, np.uint8) for colour in ((255, 0, 0), (0, 0, 255)))
    with preview_display.preview_display(tmp_path / "cat.png", graphics=lambda: None) as show:
        assert show
        show(Preview(5, 20, [1, 2], [red, blue]))
        [file] = set(tmp_path.iterdir()) - {tmp_path / "cat-preview.png"}
        with Image.open(file) as image:
            np.testing.assert_array_equal(np.asarray(image), np.concatenate([red, blue], axis=1))
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"the user's own"]


@pytest.mark.parametrize(
    ("answer", "graphics"),
    [
        (b"\x1b_Gi=31;OK\x1b\\\x1b[?62;4c", Graphics.KITTY),
        (b"\x1b[?62;4;22c", Graphics.SIXEL),
        (b"\x1b[?62;14;44c", None),
        (b"\x1b_Gi=31;ENOTSUPPORTED\x1b\\\x1b[?6c", None),
        (b"", None),
    ],
)
def test_a_terminals_answer(answer: bytes, graphics: Graphics | None) -> None:
    assert graphics_of(answer) is graphics


def test_the_environment_says_iterm_and_nothing_is_asked_of_a_dumb_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os_calls, "ask_terminal", lambda *_: pytest.fail("asked"))
    assert terminal_graphics({"TERM": "xterm-256color", "LC_TERMINAL": "iTerm2"}) is Graphics.ITERM
    assert terminal_graphics({"TERM": "dumb", "LC_TERMINAL": "iTerm2"}) is None
    assert terminal_graphics({}) is None


def test_an_answer_is_read_to_its_end_and_no_further() -> None:
    ours, theirs = os.pipe()
    os.write(theirs, b"\x1b_Gi=31;OK\x1b\\\x1b[?62c")
    assert graphics_of(_read_answer(ours, terminal._ANSWER, time.monotonic() + 10)) is Graphics.KITTY
    assert _read_answer(ours, terminal._ANSWER, time.monotonic()) == b""


# Escape sequences


def picture_of() -> Array:
    rows, columns = np.mgrid[0:40, 0:60]
    return np.stack([rows * 6, columns * 4, 255 - rows * 6], axis=-1).astype(np.uint8)


def sixels(sequence: str) -> Array:
    """The pixels that a terminal draws: uint8 [height, width, 3]."""
    match = re.fullmatch(r'\x1bP0;1q"1;1;(\d+);(\d+)(.*)\x1b\\', sequence, re.DOTALL)
    assert match
    width, height = int(match[1]), int(match[2])
    pixels = np.full((height + 5, width, 3), -1.0)
    colours: dict[int, list[float]] = {}
    colour = column = top = 0
    for token in re.finditer(r"#(\d+)(?:;2;(\d+);(\d+);(\d+))?|!(\d+)(.)|([?-~])|([$-])", match[3]):
        index, *parts, count, repeated, letter, move = token.groups()
        if index:
            colour = int(index)
            if parts[0]:
                colours[colour] = [int(part) * 2.55 for part in parts]
        elif move:
            column, top = 0, top + 6 * (move == "-")
        else:
            wide = int(count or 1)
            for bit in range(6):
                if (ord(repeated or letter) - 63) >> bit & 1:
                    pixels[top + bit, column : column + wide] = colours[colour]
            column += wide
    assert (pixels[height:] == -1).all()
    assert (pixels[:height] >= 0).all(), "a pixel has no colour"
    return pixels[:height].round().astype(np.uint8)


def test_sixels_are_the_picture() -> None:
    picture = draw(picture_of(), Graphics.SIXEL, columns=30, rows=10, cell=(10, 20))
    drawn = sixels(picture.sequence)
    assert drawn.shape == (200, 300, 3)
    assert picture.rows == 10
    wanted = Image.fromarray(picture_of()).resize((300, 200), Image.Resampling.BICUBIC)
    assert psnr(drawn, np.asarray(wanted)) > 28  # 128 colours
    # Those are told in percent: half of one is 1.3 of 255.
    assert np.abs(drawn.astype(int) - np.asarray(wanted.quantize(128).convert("RGB"))).max() <= 2


def test_kitty_and_iterm_get_the_picture_as_png() -> None:
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8)
    kitty = draw(noise, Graphics.KITTY, columns=20, rows=40)
    parts = re.findall(r"\x1b_G([^;]*);([^\x1b]*)\x1b\\", kitty.sequence)
    assert "".join(f"\x1b_G{control};{part}\x1b\\" for control, part in parts) == kitty.sequence
    assert len(parts) > 1
    assert [control[-3:] for control, _ in parts] == ["m=1"] * (len(parts) - 1) + ["m=0"]
    assert all(len(part) <= 4096 for _, part in parts)
    assert "c=20,r=10" in parts[0][0]
    assert kitty.rows == 10
    iterm = re.fullmatch(r"\x1b]1337;File=([^:]*):(.*)\x07", draw(noise, Graphics.ITERM, 20, 40).sequence)
    assert iterm
    assert "width=20;height=10" in iterm[1]
    for content in ("".join(part for _, part in parts), iterm[2]):
        with Image.open(io.BytesIO(base64.b64decode(content))) as image:
            np.testing.assert_array_equal(np.asarray(image), noise)


@pytest.mark.parametrize(("columns", "rows"), [(8, 16), (1, 1), (200, 3)])
def test_a_picture_fits_any_terminal(columns: int, rows: int) -> None:
    for graphics in Graphics:
        picture = draw(picture_of(), graphics, columns, rows)
        assert 1 <= picture.rows <= rows
        size = re.search(r'"1;1;(\d+);(\d+)', picture.sequence)
        across = re.search(r"(?:width|c)=(\d+)", picture.sequence)
        assert int(size[1]) <= columns * 10 if size else across and int(across[1]) <= columns
