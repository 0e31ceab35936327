"""Encoding in tiles and with static models: every pixel in its place, and the next smaller form where memory ends."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.tiny_pipeline import Tiny, with_encoder

import sdort
from sdort.errors import MemoryShortageError
from sdort.generation.latents.decode import Plan
from sdort.generation.latents.encode import Encoder
from sdort.generation.latents.graph_memory import GraphMemory
from sdort.graph.signature import TensorSpec

# diffusers' schedulers hand tensors to numpy in a way that numpy 2.4 deprecates.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

Array = np.ndarray[Any, Any]
FACTOR = 4
CONFIG = {"block_out_channels": [8, 8]}


def means(pixels: Array) -> Array:
    """Every latent is the mean of its own pixels alone; two channels."""
    images, _, height, width = pixels.shape
    parts = pixels[:, :2].reshape(images, 2, height // FACTOR, FACTOR, width // FACTOR, FACTOR)
    return np.asarray(parts.mean(axis=(3, 5)))


class Means:
    """A session of :func:`means`, which runs out of memory above ``most`` pixels.

    Args:
        shape: images, height and width of its input; names where they are free.
    """

    def __init__(self, *shape: Any, most: int = 1 << 30) -> None:
        batch, height, width = shape
        self.batch, self.most, self.sizes = batch, most, list[tuple[int, ...]]()
        latents = [side // FACTOR if isinstance(side, int) else side for side in (height, width)]
        self.inputs = {"sample": TensorSpec("sample", np.dtype("float32"), (batch, 3, height, width))}
        self.outputs = [TensorSpec("latent", np.dtype("float32"), (batch, 2, *latents))]

    def run(self, feeds: dict[str, Array]) -> dict[str, Array]:
        pixels = feeds["sample"]
        self.sizes.append(pixels.shape)
        if pixels[0, 0].size > self.most:
            raise MemoryShortageError("out of memory", component="vae_encoder")
        return {"latent": means(pixels)}


def encoder(session: Any) -> Encoder:
    return Encoder(session, CONFIG, FACTOR, GraphMemory(4), 1)


def image(height: int, width: int) -> Array:
    """Two images, float32 [2, 3, height, width]."""
    return np.random.default_rng(0).uniform(-1, 1, (2, 3, height, width)).astype(np.float32)


@pytest.mark.parametrize(("height", "width"), [(128, 256), (132, 128), (300, 400)])
def test_tiles_make_the_whole(height: int, width: int) -> None:
    session, pixels = Means("n", "h", "w"), image(height, width)
    made = encoder(session).encode(pixels, Plan(True, 32))
    np.testing.assert_allclose(made.parameters, means(pixels), atol=1e-6)
    assert {size[2:] for size in session.sizes} == {(128, 128)}
    assert {size[0] for size in session.sizes} == {1}


def test_a_static_encoder_has_tiles_of_its_own_size_and_its_batch_filled() -> None:
    session, pixels = Means(3, 128, 128), image(128, 180)
    found = encoder(session)
    plan = found.plan((1, 32, 45), True, True, None)
    made = found.encode(pixels, plan)
    assert plan == Plan(True, 32)
    np.testing.assert_allclose(made.parameters, means(pixels), atol=1e-6)
    assert set(session.sizes) == {(3, 3, 128, 128)}
    whole = found.encode(pixels[:, :, :, :128], found.plan((1, 32, 32), None, True, 1 << 40))
    np.testing.assert_allclose(whole.parameters, means(pixels[:, :, :, :128]), atol=1e-6)


def test_running_out_of_memory_goes_on_in_tiles(capsys: pytest.CaptureFixture[str]) -> None:
    session, pixels = Means("n", "h", "w", most=128 * 128), image(300, 140)
    made = encoder(session).encode(pixels, Plan(True))
    np.testing.assert_allclose(made.parameters, means(pixels), atol=1e-6)
    assert "the encoder ran out of memory; it goes on" in capsys.readouterr().err
    assert session.sizes[-1][2:] == (128, 128)
    with pytest.raises(MemoryShortageError):
        encoder(Means("n", "h", "w", most=9)).encode(pixels, Plan(True))


# --- in a pipeline ---


def test_a_dead_encoder_is_done_again_in_fp32(tiny: Tiny, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    photo = np.full((32, 32, 3), 250, np.uint8)
    photo[8:24, 8:24] = 3
    options: dict[str, Any] = {"steps": 4, "strength": 0.25, "seed": 3, "provider": "cpu", "check": False}

    def drawn(dtype: str) -> sdort.Generation:
        folder = with_encoder(tiny, tmp_path / dtype, dtype)
        return sdort.run(folder, "a cat", init_image=photo, output=tmp_path / f"{dtype}.png", **options)

    wanted = drawn("float")
    assert "vae_encoder" not in capsys.readouterr().err
    made = drawn("float16")
    told = " ".join(capsys.readouterr().err.split())
    assert "vae_encoder: it gave NaN or infinite values. It is done again with all of it in fp32" in told
    assert made.widened == {"vae_encoder": "all of it"}
    difference = made.images[0].pixels.astype(int) - wanted.images[0].pixels
    assert np.abs(difference).max() == 0
    assert wanted.images[0].pixels.std() > 5
