"""``sdort run``: a stage that overflows in fp16 is done again in fp32, told, and never a black image."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result
from PIL import Image
from support import fragile, native, tiny_pipeline
from support.alive_sessions import in_turn
from support.fragile import Fragile
from support.relisted import relist

from sdort import load
from sdort.cli import cli
from sdort.errors import ParityError
from sdort.generation.denoising.guard import dead
from sdort.generation.pipeline import load_pipeline
from sdort.generation.requests.request import Request
from sdort.providers.runtime_options import RuntimeOptions
from sdort.verification.limits import PSNR
from sdort.verification.metrics import psnr

# diffusers' schedulers hand tensors to numpy in a way that numpy 2.4 deprecates.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

PROMPT = "a lighthouse at dusk"
REQUEST = Request(PROMPT, steps=2, seed=7)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Fragile:
    return fragile.build(tmp_path_factory.mktemp("fragile"))


@pytest.fixture(scope="module")
def gpu_like() -> RuntimeOptions:
    """The CPU with sdort's own operators, which store fp16 as a GPU does."""
    return RuntimeOptions("cpu", custom_ops=str(native.library()))


@pytest.fixture
def sdort(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Calls ``sdort run PIPELINE ...`` with :data:`REQUEST` on the CPU, in an empty folder."""
    (tmp_path / "cwd").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")

    def call(pipeline: Path, *args: str) -> Result:
        given = ["--prompt", PROMPT, "--steps", "2", "--seed", "7", "--provider", "cpu", "-o", "out.png"]
        return CliRunner().invoke(cli, ["run", str(pipeline), *given, *args])

    return call


def drawn(folder: Path, options: RuntimeOptions, request: Request = REQUEST) -> list[Any]:
    return [image.pixels for image in load_pipeline(folder, options).generate(request)]


def alike(path: Path, wanted: Any) -> float:
    with Image.open(path) as image:
        return psnr(np.asarray(image), wanted)


@pytest.fixture(scope="module")
def wanted(models: Fragile) -> Any:
    """What fp32 draws."""
    return drawn(models.onnx, RuntimeOptions("cpu", custom_ops="off"))[0]


def test_a_black_image_is_decoded_again_in_fp32(
    models: Fragile, gpu_like: RuntimeOptions, wanted: Any, sdort: Callable[..., Result]
) -> None:
    folder, _ = models.optimized("rocm", auto=False)
    (unguarded,) = load_pipeline(folder, gpu_like).generate(REQUEST)
    assert unguarded.problem == "it has NaN or infinite pixels"
    result = sdort(folder, "--custom-ops", gpu_like.custom_ops, "--json")
    assert result.exit_code == 0, result.output
    assert "vae_decoder: the image of seed 7 shows nothing: it has NaN or infinite pixels" in result.stderr
    assert "done again with all of it in fp32" in result.stderr
    assert json.loads(result.stdout)["widened"] == {"vae_decoder": "all of it"}
    # The quiet weights of conv_in have lost most of their bits in fp16 for good.
    assert alike(Path("out.png"), wanted) > 30
    with Image.open("out.png") as image:
        assert json.loads(image.text["sdort"])["widened"] == {"vae_decoder": "all of it"}  # type: ignore[attr-defined]


def test_what_auto_made_needs_no_second_try(
    models: Fragile, gpu_like: RuntimeOptions, wanted: Any, sdort: Callable[..., Result]
) -> None:
    folder, _ = models.optimized("rocm", auto=True)
    result = sdort(folder, "--custom-ops", gpu_like.custom_ops, "--json")
    assert result.exit_code == 0, result.output
    assert "again" not in result.stderr
    assert json.loads(result.stdout)["widened"] == {}
    assert alike(Path("out.png"), wanted) > PSNR["float16"]


def test_every_image_of_a_batch_is_decoded_again(
    models: Fragile, gpu_like: RuntimeOptions, sdort: Callable[..., Result]
) -> None:
    folder, _ = models.optimized("rocm", auto=False)
    result = sdort(folder, "--custom-ops", gpu_like.custom_ops, "--num-images", "3", "--guidance-scale", "1")
    assert result.exit_code == 0, result.output
    assert result.stderr.count("done again") == 1
    originals = drawn(
        models.onnx,
        RuntimeOptions("cpu", custom_ops="off"),
        Request(PROMPT, steps=2, seed=7, num_images=3, guidance_scale=1),
    )
    for index, each in enumerate(originals, 1):
        assert alike(Path(f"out-{index}.png"), each) > 30


def test_attention_alone_is_enough_where_its_scores_overflow(
    models: Fragile, tmp_path: Path, wanted: Any, sdort: Callable[..., Result]
) -> None:
    folder = Path(shutil.copytree(models.optimized("cpu", auto=False)[0], tmp_path / "old"))
    assert fragile.unfuse_attention(folder / "unet" / "model.onnx") == 8
    relist(folder)
    with pytest.raises(ParityError, match="NaN or infinite values at step 1 of 2"):
        drawn(folder, RuntimeOptions("cpu", custom_ops="off"))
    result = sdort(folder, "--custom-ops", "off", "--json")
    assert result.exit_code == 0, result.output
    assert "done again with its attention in fp32" in result.stderr
    assert json.loads(result.stdout)["widened"] == {"unet": "its attention"}
    assert alike(Path("out.png"), wanted) > 30


def test_what_overflows_is_done_again_on_every_device(models: Fragile, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(models.optimized("cpu", auto=False)[0], tmp_path / "old"))
    fragile.unfuse_attention(folder / "unet" / "model.onnx")
    relist(folder)
    results = [
        load(folder, provider="cpu", custom_ops="off", devices=devices).generate(PROMPT, steps=2, seed=7)
        for devices in (None, "0,1")
    ]
    assert [result.widened for result in results] == [{"unet": "its attention"}] * 2
    np.testing.assert_array_equal(results[0].images[0].pixels, results[1].images[0].pixels)


def test_what_is_in_fp32_is_loaded_so_again_where_models_are_loaded_in_turn(
    models: Fragile, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = Path(shutil.copytree(models.optimized("cpu", auto=False)[0], tmp_path / "old"))
    assert fragile.unfuse_attention(folder / "unet" / "model.onnx") == 8
    relist(folder)
    options: Any = {"steps": 2, "seed": 7, "num_images": 2, "images_at_once": 1}
    runtime: Any = {"provider": "cpu", "custom_ops": "off"}
    with load(folder, **runtime) as normal, load(folder, **runtime, memory="low") as low:
        for _ in range(2):
            assert in_turn(normal, low, PROMPT, **options) == {"text_encoder": 1, "unet": 1, "vae_decoder": 1}
        assert low._models.guard is not None
        assert low._models.guard.widened == {"unet": "its attention"}
    assert capsys.readouterr().err.count("done again") == 2  # once by each


@pytest.fixture(scope="module")
def loud(tmp_path_factory: pytest.TempPathFactory) -> Fragile:
    """A UNet that overflows elsewhere than in its attention."""
    folder = tmp_path_factory.mktemp("loud")
    pipeline = tiny_pipeline.build_diffusers(folder / "diffusers")
    fragile.loud_unet(pipeline.unet)
    tiny_pipeline.export_onnx(pipeline, folder / "onnx")
    return Fragile(folder / "onnx", pipeline)


def test_where_attention_is_not_enough_all_of_the_unet_is_fp32(
    loud: Fragile, gpu_like: RuntimeOptions, sdort: Callable[..., Result]
) -> None:
    folder, _ = loud.optimized("rocm", auto=False)
    result = sdort(folder, "--custom-ops", gpu_like.custom_ops, "--json")
    assert result.exit_code == 0, result.output
    lines = [line for line in result.stderr.splitlines() if "done again" in line]
    assert ["its attention" in lines[0], "all of it" in lines[1], len(lines)] == [True, True, 2]
    assert json.loads(result.stdout)["widened"] == {"unet": "all of it"}
    (original,) = drawn(loud.onnx, RuntimeOptions("cpu", custom_ops="off"))
    assert alike(Path("out.png"), original) > PSNR["float16"]


def test_what_is_broken_in_every_precision_is_an_error(
    models: Fragile, tmp_path: Path, sdort: Callable[..., Result]
) -> None:
    folder = Path(shutil.copytree(models.optimized("cpu", auto=False)[0], tmp_path / "broken"))
    tiny_pipeline.edit_weights(folder / "unet" / "model.onnx", lambda array, _: array * np.nan, "conv_out.bias")
    result = sdort(folder, "--custom-ops", "off")
    assert result.exit_code == ParityError.exit_code, result.output
    assert result.stderr.count("done again") == 2
    assert "NaN or infinite values at step 1 of 2" in result.stderr.splitlines()[-2]
    assert list(Path().iterdir()) == []


def test_a_model_in_fp32_has_nothing_safer(models: Fragile, tmp_path: Path, sdort: Callable[..., Result]) -> None:
    folder = Path(shutil.copytree(models.onnx, tmp_path / "broken"))
    tiny_pipeline.edit_weights(folder / "vae_decoder" / "model.onnx", lambda array, _: array * np.nan, "conv_out.bias")
    result = sdort(folder, "--custom-ops", "off")
    assert result.exit_code == ParityError.exit_code, result.output
    assert "again" not in result.stderr
    assert "--fp16 auto" in result.stderr
    assert list(Path().iterdir()) == []


def test_a_text_encoder_that_says_nothing_is_done_again(
    models: Fragile, tmp_path: Path, sdort: Callable[..., Result]
) -> None:
    folder = Path(shutil.copytree(models.optimized("cpu", auto=False)[0], tmp_path / "mute"))
    tiny_pipeline.edit_weights(folder / "text_encoder" / "model.onnx", lambda array, _: array * 0, "final_layer_norm")
    result = sdort(folder, "--custom-ops", "off")
    assert result.exit_code == ParityError.exit_code, result.output
    assert "text_encoder: it gave the same value everywhere. It is done again with all of it in fp32" in result.stderr
    assert list(Path().iterdir()) == []


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ([1.0, np.nan], "it gave NaN or infinite values"),
        ([1.0, np.inf], "it gave NaN or infinite values"),
        ([0.0, 0.0], "it gave the same value everywhere"),
        ([0.0, 1.0], None),
    ],
)
def test_dead_values(values: list[float], problem: str | None) -> None:
    assert dead(np.array(values, np.float32)) == problem
