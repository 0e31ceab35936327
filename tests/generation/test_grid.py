"""``--grid``: which image stands where, what is told, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from support.tiny_pipeline import Tiny

import sdort
from sdort.errors import OutputError, UsageError
from sdort.generation import command
from sdort.generation.files.image_texts import read_texts
from sdort.generation.grid import check_grid, columns_of, grid_path, grid_pixels
from sdort.generation.job import plan_jobs, plan_paths
from sdort.providers.runtime_options import RuntimeOptions

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")


@pytest.mark.parametrize(
    ("prompts", "columns"),
    [("a", 1), ("aa", 2), ("aaa", 2), ("aaaaa", 3), ("ab", 2), ("aabb", 2), ("aaabbb", 3), ("aabbcc", 2), ("abab", 2),
     ("aab", 2), ("abcdefghij", 4)],
)  # fmt: skip
def test_a_row_is_a_prompts_or_the_grid_is_near_to_a_square(prompts: str, columns: int) -> None:
    assert columns_of(list(prompts)) == columns


@pytest.mark.parametrize("seed", range(12))
def test_every_image_is_in_its_cell_pixel_for_pixel(seed: int) -> None:
    random = np.random.default_rng(seed)
    count, columns = int(random.integers(2, 9)), int(random.integers(1, 5))
    sizes = [tuple(int(side) * 8 for side in random.integers(2, 9, 2)) for _ in range(count if seed % 2 else 1)]
    images = [random.integers(0, 255, (*sizes[number % len(sizes)], 3)).astype(np.uint8) for number in range(count)]
    height, width = (max(image.shape[axis] for image in images) for axis in (0, 1))
    found = grid_pixels(images, [f"seed {number}" for number in range(count)], columns)
    rows = -(-count // columns)
    assert found.shape[0] % rows == 0
    below = found.shape[0] // rows - height
    assert found.shape[1] == columns * (width + 4) - 4
    for number, image in enumerate(images):
        top = number // columns * (height + below) + (height - image.shape[0]) // 2
        left = number % columns * (width + 4) + (width - image.shape[1]) // 2
        np.testing.assert_array_equal(found[top : top + image.shape[0], left : left + image.shape[1]], image)
        label = found[number // columns * (height + below) + height :][:below, left : left + width]
        assert label.min() < 128, "the label is there"


def test_names_of_grids(tmp_path: Path) -> None:
    assert grid_path(Path("x/cat-3.webp"), template=False) == Path("x/cat-grid.webp")
    assert grid_path(Path("x/007-cat.png"), template=True) == Path("x/grid.png")
    (tmp_path / "a-grid.png").touch()
    jobs = plan_jobs("a", {"output": tmp_path / "a.png", "num_images": 2, "grid": True})
    with pytest.raises(OutputError, match=r"a-grid\.png exists"):
        plan_paths(jobs)
    plan_paths(plan_jobs("a", {"output": tmp_path / "a.png", "grid": True}))


def test_a_grid_has_bounds() -> None:
    check_grid(Path("a.png"), (512, 512), 100)
    with pytest.raises(UsageError, match="the grid of 4000 images would have"):
        check_grid(Path("a.png"), (512, 512), 4000)
    with pytest.raises(UsageError, match="a side of WEBP 16,383"):
        check_grid(Path("a.webp"), (1024, 1024), 400)


def test_a_run_writes_its_grid_beside_the_images(
    tiny: Tiny, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with sdort.load(tiny.onnx, provider="cpu") as pipeline:
        made = pipeline.generate(["a", "b"], steps=1, seed=3, num_images=2, output=tmp_path / "x.png", grid=True)
        assert made.grid == tmp_path / "x-grid.png"
        assert sorted(path.name for path in tmp_path.iterdir()) == [*(f"x-{n}.png" for n in range(1, 5)), "x-grid.png"]
        with Image.open(made.grid) as picture:
            pixels = np.asarray(picture)
        np.testing.assert_array_equal(pixels[:64, :64], made.images[0].pixels)
        texts = read_texts(made.grid)
        assert json.loads(texts["sdort"])["grid"] == {"columns": 2, "seeds": [3, 4, 3, 4], "prompts": ["a", "b"]}
        assert "Seed: 3" in texts["parameters"]
        capsys.readouterr()
        again = pipeline.generate(from_image=made.grid)
        np.testing.assert_array_equal(again.images[0].pixels, made.images[0].pixels)
        assert "is a grid of 4 images: the first is drawn again" in " ".join(capsys.readouterr().err.split())
        one = pipeline.generate("a", steps=1, seed=3, output=tmp_path / "y.png", grid=True)
        assert one.grid is None
        assert "one image needs no grid" in capsys.readouterr().err


@pytest.mark.parametrize("upscaled", [False, True])
def test_a_grid_that_its_format_does_not_hold_is_refused_before_anything_is_loaded(
    upscaled: bool, tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 40 prompts with two images each: two columns, 40 rows; and of images as an upscaler leaves them."""
    monkeypatch.setattr(command, "written_size", lambda request, last: [64 * (16 if upscaled else 1)] * 2)
    prompts = [f"p{number}" for number in range(40)]
    jobs = plan_jobs(prompts, {"output": tmp_path / "a.webp", "num_images": 2, "grid": True})
    paths, options = plan_paths(jobs), RuntimeOptions("cpu")
    if upscaled:
        with pytest.raises(UsageError, match="would have 2056x43040 pixels"):
            command.prepare_run(tiny.onnx, jobs, paths, options)
    else:
        command.prepare_run(tiny.onnx, jobs, paths, options)
