"""What a run says at its end and writes into its files: sums over several generations, last lines, A1111's names."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image as Pictures
from support.infotext import read_infotext, record

from sdort.errors import OutputError, UsageError
from sdort.errors.plain_text import one_line
from sdort.generation.files import image_files
from sdort.generation.files.image_files import free_for_output, free_path, output_paths, save_image
from sdort.generation.files.infotext import parameters_text, task_parameters
from sdort.generation.pictures.images import Generated, constant_problem, to_image
from sdort.generation.requests.record import AdapterRecord, StageSeconds
from sdort.generation.result import Generation, Image, PeakMemory, joined
from sdort.generation.run_summary import summarize


def seconds(first: float) -> StageSeconds:
    """Six numbers, each of another size."""
    return StageSeconds(first, first * 2, first * 3, first * 5, first * 7, first * 11)


def image(seed: int, size: tuple[int, int] = (16, 24), steps: int = 5, path: str | None = "a.png") -> Image:
    pixels = np.random.default_rng(seed).integers(0, 256, (*size, 3)).astype(np.uint8)
    own = record(steps=steps, height=size[0], width=size[1], prompt=f"p{seed}")
    return Image(Path(path) if path else None, seed, None, f"p{seed}", "", pixels, own)


def generation(*images: Image, host: int | None = None, device: int | None = None, **values: Any) -> Generation:
    base = vars(record(provider="cpu", refiner=None, seconds=seconds(1.0)))
    rest: dict[str, Any] = {"iterations_per_second": 2.0, "peak_memory": PeakMemory(host, device)}
    return Generation(**{**base, "images": list(images), **rest, **values})


def test_several_generations_are_one() -> None:
    first = generation(image(1), prompt="p1", seconds=seconds(1.0), iterations_per_second=4.0, host=5, decoded=1,
                       widened={"unet": "a"}, fallback="x")  # fmt: skip
    second = generation(image(2), image(3), prompt="p2", seconds=seconds(100.0), iterations_per_second=1.0, host=7,
                        decoded=2, widened={"unet": "b"}, fallback="y")  # fmt: skip
    both = joined([first, second])
    assert [each.seed for each in both.images] == [1, 2, 3]
    assert both.seconds == StageSeconds(1.0, 202.0, 303.0, 505.0, 7.0, 1111.0)
    # 5 s of 4 calls a second, and 500 s of one.
    assert both.iterations_per_second == round(520 / 505, 4)
    assert (both.prompt, both.decoded, both.widened, both.fallback) == ("p1", 2, {"unet": "b"}, "y")  # type: ignore[comparison-overlap]
    assert both.peak_memory == PeakMemory(7, None)
    still = replace(first, seconds=replace(first.seconds, denoise=0.0))
    assert joined([still, still]).iterations_per_second == 4.0


@pytest.mark.parametrize(
    ("seeds", "words"),
    [
        ([7], "seed 7"),
        ([7, 7], "seed 7"),
        ([7, 8], "seeds 7 to 8"),
        ([7, 8, 9, 7, 8, 9], "seeds 7 to 9"),
        ([9, 8, 7], "seeds 7 to 9"),
        ([9, 7, 7], "seeds 7, 9"),
        ([1, 5], "seeds 1, 5"),
        ([5, 1, 3], "seeds 1, 3, 5"),
        ([1, 3, 5, 7, 9], "seeds 1, 3, 5, 7, 9"),
        ([1, 3, 5, 7, 9, 11], "6 seeds"),
        ([1, 3, 5, 7, 9, 11, 11], "6 seeds"),
    ],
)
def test_the_last_lines_say_which_seeds(seeds: list[int], words: str) -> None:
    assert f": {words}, 24x16, " in summarize(generation(*(image(seed) for seed in seeds)))


SHOWN = one_line("a\nb")


def test_the_last_lines_say_files_sizes_steps_and_memory() -> None:
    one = summarize(generation(image(7), host=3_400_000_000, device=1_200_000))
    assert one == (
        "a.png: seed 7, 24x16, 5 steps of DDIM on cpu, peak memory 3.4 GB and 1.2 MB on the GPU\n"
        "load 1.00 s, text encoder 2.00 s, denoise 5.00 s (2.00 it/s), decode 11.0 s"
    )
    assert "5 steps of DDIM on cpu\n" in summarize(generation(image(7)))
    assert summarize(generation(image(7), device=2000)).splitlines()[0].endswith("peak memory 2.0 kB on the GPU")
    assert summarize(generation(image(7), host=0)).splitlines()[0].endswith("peak memory 0 B")
    refined = summarize(generation(image(7), refiner="a\nb", host=1))
    assert refined.count("\n") == 1
    assert f"5 steps of DDIM on cpu, refined by {SHOWN}, peak memory 1 B" in refined
    sizes = [(8, 16), (16, 8), (8, 16), (8, 24), (8, 32), (8, 40)]
    made = [image(7, size, steps, f"{steps}.png") for steps, size in enumerate(sizes, 1)]
    many = summarize(generation(*made)).splitlines()[0]
    assert many == (
        "6 images, 1.png to 6.png: seed 7, 16x8 (2), 8x16 (1), 24x8 (1), ... and 40x8 (1), "
        "1 (1), 2 (1), 3 (1), ... and 6 (1) steps of DDIM on cpu"
    )
    four = summarize(generation(*made[:5]))
    assert "16x8 (2), 8x16 (1), 24x8 (1) and 32x8 (1), " in four
    assert "2 images, 1.png to 3.png" in summarize(generation(made[0], replace(made[1], path=None), made[2]))


def test_the_last_lines_say_what_an_earlier_run_and_a_second_attempt_did() -> None:
    before = [Path("1.png"), Path("2.png")]
    some = summarize(replace(generation(image(7)), done_before=before, widened={"unet": "all of it"}))
    assert some.startswith("a.png (2 more of an earlier run): seed 7")
    assert "5 steps of DDIM on cpu, in fp32 at the second attempt: unet\n" in some
    none = summarize(replace(generation(), done_before=before))
    assert none == "nothing to draw: 2 images, 1.png to 2.png of an earlier run"


def test_seconds_of_all_begin_with_the_process() -> None:
    """Load, text encoder, denoise and decode are 19 s, and 3 s of the VAE encoder are no part of the line."""
    result = replace(generation(image(7)), elapsed=30.0)
    line = summarize(result, 42.5).splitlines()[1]
    assert line == (
        "42.5 s: start 12.5 s, load 1.00 s, text encoder 2.00 s, denoise 5.00 s (2.00 it/s), decode 11.0 s, rest 8.00 s"
    )
    assert summarize(result).splitlines()[1].startswith("load 1.00 s")
    assert summarize(result, 29.0).splitlines()[1].startswith("load 1.00 s")  # another clock


def test_each_image_is_saved_with_its_own_seed_and_prompt(tmp_path: Path) -> None:
    result = generation(image(7), image(9), seed=7)
    paths = result.save(tmp_path / "x.png")
    assert [path.name for path in paths] == ["x-1.png", "x-2.png"]
    for path, own in zip(paths, result.images, strict=True):
        with Pictures.open(path) as picture:
            np.testing.assert_array_equal(np.asarray(picture), own.pixels)
            kept = json.loads(picture.info["sdort"])
            assert (kept["seed"], kept["prompt"]) == (own.seed, own.prompt)
            assert f"Seed: {own.seed}, Size: 24x16" in picture.info["parameters"]
    for save in (result.save, result.images[0].save):
        path = tmp_path / ("x.png" if save == result.save else "x-1.png")
        with pytest.raises(OutputError, match="exist"):
            save(path)
        assert save(path, overwrite=True)
    with pytest.raises(UsageError, match=r"x\.gif is no \.png, \.jpg, \.jpeg or \.webp file"):
        result.images[0].save(tmp_path / "x.gif")


def test_names_by_default_are_those_of_the_first_seed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert generation(image(7), image(8), seed=7).save() == [Path("sdort-7-1.png"), Path("sdort-7-2.png")]
    # The name of all is another one where any of them is taken.
    for number in (1, 2):
        Path(f"sdort-7-{number}.png").unlink()
        assert output_paths(None, 7, 2, overwrite=False) == [Path("sdort-7-run2-1.png"), Path("sdort-7-run2-2.png")]
        Path(f"sdort-7-{number}.png").touch()
    assert output_paths(None, 7, 1, overwrite=False) == [Path("sdort-7.png")]
    Path("sdort-7.png").symlink_to("nowhere")  # a name that is taken, though nothing is there
    Path("sdort-7-run2.png").touch()
    assert free_path(Path("sdort-7.png")) == Path("sdort-7-run3.png")


@pytest.mark.parametrize("output", [None, "a.png", "new/a.png", "there/a.png"])
def test_a_folder_that_cannot_be_written_is_told_before_anything_is_computed(
    output: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether the file is named or not, in the nearest folder that there is."""
    asked: list[Path] = []

    def refuse(path: Path) -> None:
        asked.append(path.resolve().parent)
        raise OutputError("a read-only file system")

    monkeypatch.chdir(tmp_path)
    (tmp_path / "there").mkdir()
    monkeypatch.setattr(image_files, "check_writable", refuse)
    for overwrite in (False, True):
        with pytest.raises(OutputError, match="read-only"):
            output_paths(Path(output) if output else None, 7, 2, overwrite)
    assert asked == [tmp_path / ("there" if output == "there/a.png" else "")] * 2


def test_what_exists_is_told_with_how_many_more(tmp_path: Path) -> None:
    paths = [tmp_path / f"{number}.png" for number in range(3)]
    assert free_for_output(paths, overwrite=False) == paths
    paths[1].touch()
    with pytest.raises(OutputError, match=r"1\.png exists\n"):
        free_for_output(paths, overwrite=False)
    paths[2].symlink_to("nowhere")
    with pytest.raises(OutputError, match=r"1\.png and 1 more exist\n"):
        free_for_output(paths, overwrite=False)
    paths[2].unlink()
    assert free_for_output(paths, overwrite=True) == paths
    with pytest.raises(UsageError, match=r"b\.gif is no \.png, "):
        free_for_output([tmp_path / "a.PNG", tmp_path / "b.gif"], overwrite=True)
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match="file is no folder"):
        free_for_output([tmp_path / "a.png", tmp_path / "file" / "a.png"], overwrite=False)


def test_a_file_of_the_same_name_is_replaced_where_that_is_asked_for(tmp_path: Path) -> None:
    own = record(fallback=None)
    first, second = image(1), image(2)
    place = tmp_path / "new" / "folder" / "a.png"
    assert save_image(place, first.pixels, own, 1) == place
    assert save_image(place, second.pixels, own, 2, overwrite=True) == place
    with Pictures.open(place) as picture:
        np.testing.assert_array_equal(np.asarray(picture), second.pixels)
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match="cannot make"):
        save_image(tmp_path / "file" / "in" / "a.png", first.pixels, own, 1)


# A1111's names

TASKS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {}),
    (
        {"refiner": "ref", "refiner_hash": "0123456789abcdef", "refiner_start": 0.6},
        {"Refiner": "ref [0123456789]", "Refiner switch at": 0.6},
    ),
    ({"refiner": "ref", "refiner_hash": None, "refiner_start": 0.6}, {"Refiner": "ref", "Refiner switch at": 0.6}),
    (
        {"hires": 1.5, "hires_strength": 0.3, "hires_steps": 9, "hires_upscale": "image"},
        {"Denoising strength": 0.3, "Hires upscale": 1.5, "Hires steps": 9, "Hires upscaler": "Lanczos"},
    ),
    (
        {"hires": 2.0, "hires_strength": 0.3, "hires_steps": 9, "hires_upscale": "latent"},
        {"Denoising strength": 0.3, "Hires upscale": 2.0, "Hires steps": 9, "Hires upscaler": "Latent"},
    ),
    ({"init_image": "a.png", "strength": 0.0}, {"Denoising strength": 0.0}),
    (
        {"init_image": "a.png", "strength": 0.6, "mask": "m.png", "mask_blur": 0, "mask_padding": 5},
        {"Denoising strength": 0.6, "Mask blur": 0},
    ),
    (
        {"only_masked": True, "mask_padding": 0, "mask_blur": 3},
        {"Inpaint area": "Only masked", "Masked area padding": 0},
    ),
    (
        {"variation_strength": 0.1, "variation_seed": 0},
        {"Variation seed": 0, "Variation seed strength": 0.1},
    ),
    ({"variation_strength": 0.0, "variation_seed": 9}, {}),
]


@pytest.mark.parametrize(("values", "named"), TASKS)
def test_tasks_have_a1111s_names(values: dict[str, Any], named: dict[str, Any]) -> None:
    made = record(**values)
    assert task_parameters(made) == named
    told = read_infotext(parameters_text(made, 3))
    assert {name: told[name] for name in named} == {name: str(value) for name, value in named.items()}


def test_parameters_say_what_is_not_usual() -> None:
    plain = read_infotext(parameters_text(record(scheduler_name=None), 3))
    assert plain.keys().isdisjoint({"Clip skip", "Eta", "Prompt weighting", "Lora hashes"})
    assert (plain["Sampler"], plain["CFG scale"], plain["Version"], plain["Size"]) == (
        "DDIM",
        "7.5",
        "sdort 0",
        "32x64",
    )
    lora = [AdapterRecord(f"dir/{name}.safetensors", 1.0, "ff" * 32, name * 40) for name in ("a", "b")]
    other = record(clip_skip=2, eta=0.0, prompt_weighting="none", lora=lora, scheduler_name=None)
    told = read_infotext(parameters_text(other, 3))
    assert (told["Clip skip"], told["Eta"], told["Prompt weighting"]) == ("2", "0.0", "none")
    assert told["Lora hashes"] == f"a: {'a' * 12}, b: {'b' * 12}"


# Pixels


def test_a_decoded_image_keeps_its_axes_and_channels() -> None:
    decoded = np.stack([np.full((4, 6), level, np.float32) for level in (-1.0, 0.0, 1.0)])
    decoded[0, 3, :] = 1.0
    made = to_image(decoded, 5)
    assert (made.seed, made.pixels.shape, made.pixels[0, 5].tolist()) == (5, (4, 6, 3), [0, 128, 255])
    assert made.pixels[3, 0].tolist() == [255, 128, 255]
    for bad in (np.nan, np.inf, -np.inf):
        decoded[2, 0, 0] = bad
        found = to_image(decoded, 5)
        assert found.problem == "it has NaN or infinite pixels"
        assert (found.pixels.shape, found.pixels.max()) == ((4, 6, 3), 0)


@pytest.mark.parametrize(
    ("channels", "problem"),
    [
        ((0, 0, 0), "it is all black"),
        ((2, 2, 2), "it is all black"),
        ((3, 0, 0), "every pixel has nearly the same value (3, 0, 0; standard deviation 0.00)"),
        ((0, 0, 3), "every pixel has nearly the same value (0, 0, 3; standard deviation 0.00)"),
    ],
)
def test_one_colour_shows_nothing_whichever_it_is(channels: tuple[int, ...], problem: str) -> None:
    pixels = np.tile(np.array(channels, np.uint8), (4, 6, 1))
    assert constant_problem(pixels) == problem
    for channel in range(3):  # one channel that shows something is enough
        shown = pixels.copy()
        shown[:2, :, channel] += 2  # half of it, two levels apart: a deviation of 1
        assert constant_problem(shown) is None


def test_a_generated_image_is_no_variation_by_itself() -> None:
    assert Generated(1, np.zeros((1, 1, 3), np.uint8), None).variation_seed is None
