"""``sdort optimize --weights``: what is written, read, judged and refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from support.tiny_pipeline import Tiny

import sdort
from sdort.cli import cli
from sdort.errors import BadModelError, UsageError
from sdort.onnx_io.component_file import read_component
from sdort.onnx_io.precision_mark import coarsest_dtype, integers_of


def invoke(*words: object, code: int = 0) -> Result:
    result = CliRunner().invoke(cli, [str(word) for word in words])
    assert result.exit_code == code, result.output
    return result


@pytest.fixture(scope="module", params=["int8", "int4"])
def made(request: pytest.FixtureRequest, tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """A pipeline with integers for the CPU, whose activations are in fp16."""
    out = tmp_path_factory.mktemp(request.param) / "out"
    sdort.optimize(tiny.onnx, out, provider="cpu", fp16=True, weights=request.param, group=16)
    return request.param, out


def test_a_pipeline_with_integers_is_one_like_others(made: tuple[str, Path], tiny: Tiny) -> None:
    """Its report, its marks, its images, its verdict and its row of a benchmark."""
    weights, out = made
    manifest = json.loads((out / "sdort.json").read_text())["optimized"]
    assert (manifest["weights"], manifest["group"], manifest["precision"]) == (weights, 16, "fp16")
    unet, decoder = (read_component(out / name / "model.onnx") for name in ("unet", "vae_decoder"))
    assert (integers_of(unet.metadata), integers_of(decoder.metadata)) == (weights, None)
    assert [coarsest_dtype(each.graph) for each in (unet, decoder)] == [weights, "float16"]
    verified = sdort.verify(out, against=tiny.onnx, provider="cpu", components=["unet", "text_encoder"], images=False)
    assert verified.passed, verified.failed
    assert {each.precision for each in verified.comparisons} == {weights}
    assert max(each.largest_share or 0 for each in verified.comparisons) > 1e-3  # they are rounded indeed
    report = sdort.bench(out, provider="cpu", components=["unet"], repeat=2, warmup=1, sizes=[(64, 64)])
    assert {row.dtype for row in report.rows} == {weights}


def test_what_became_integers_is_said(tiny: Tiny, tmp_path: Path) -> None:
    words = (
        "optimize",
        tiny.onnx,
        tmp_path / "out",
        "--provider",
        "cuda",
        "--fp16",
        "--weights",
        "int4",
        "--group",
        "16",
    )
    planned = invoke(*words, "--dry-run").output
    assert "fp32 to fp16, linear layers in int4" in planned
    said = invoke(*words).output
    assert "linear layers in int4, groups of 16: " in said
    assert "as they are: 10 (computed of no sample and no prompt's tokens)" in said
    assert "optimized for cuda in fp16 with weights in int4: " in said
    report = json.loads(invoke(*words, "--overwrite", "--json").output)
    unet = report["components"]["unet"]["weights"]
    assert unet["layers"] > 10
    assert unet["bytes_after"] < 0.45 * unet["bytes_before"]
    assert report["components"]["vae_decoder"]["weights"] is None
    assert "Attention" not in report["components"]["text_encoder"]["operators"]


def test_the_plan_holds(tiny: Tiny, tmp_path: Path) -> None:
    options: Any = {"provider": "cpu", "fp16": True, "weights": "int8"}
    plan = sdort.plan_optimize(tiny.onnx, tmp_path / "out", **options)
    plain = sdort.plan_optimize(tiny.onnx, tmp_path / "out", provider="cpu", fp16=True)
    report = sdort.optimize(tiny.onnx, tmp_path / "out", **options)
    for planned, without in zip(plan.writes, plain.writes, strict=True):
        if planned.name == "unet":
            assert planned.bytes < without.bytes
        if planned.name in report.components:
            assert 0.8 * report.components[planned.name].bytes < planned.bytes


def test_adapters_are_refused_in_words(made: tuple[str, Path], tmp_path: Path) -> None:
    weights, out = made
    (tmp_path / "some.safetensors").write_bytes(b"never read")
    with pytest.raises(BadModelError, match=f"in {weights}, which no adapter changes") as caught:
        sdort.run(out, "a cat", output=tmp_path / "x.png", provider="cpu", lora=[str(tmp_path / "some.safetensors")])
    assert "sdort export MODEL OUT --lora FILE" in str(caught.value.hint)
    assert not (tmp_path / "x.png").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--weights int8 --provider migraphx", "MIGraphX reads MatMulNBits of 4 bits alone"),
        ("--weights int4 --provider cpu --group 48", "--group 48 is no power of two"),
        ("--weights int4 --provider cpu --group 512", "--group"),
        ("--weights int3 --provider cpu", "int3"),
        ("--group 32 --provider cpu", "--group needs --weights"),
    ],
)
def test_what_cannot_be_is_refused(words: str, said: str, tiny: Tiny, tmp_path: Path) -> None:
    assert said in invoke("optimize", tiny.onnx, tmp_path / "out", *words.split(), code=2).output
    assert not (tmp_path / "out").exists()


def test_migraphx_takes_four_bits(tiny: Tiny, tmp_path: Path) -> None:
    report = sdort.optimize(tiny.onnx, tmp_path / "out", provider="migraphx", components=["unet"], weights="int4")
    assert report.components["unet"].operators["com.microsoft.MatMulNBits"] > 10
    with pytest.raises(UsageError, match="4 bits alone"):
        sdort.optimize(tiny.onnx, tmp_path / "other", provider="migraphx", weights="int8")
