"""Models that are no component of a pipeline: named and refused, or taken with ``--component`` and ``--any-graph``."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from click.testing import CliRunner, Result
from support.small_graphs import Array, feeds_for, parse, run

from sdort.cli import cli
from sdort.demo.tokenizer import write_tokenizer
from sdort.errors import BadModelError
from sdort.onnx_io.components import find_components, survey
from sdort.optimizer.command import optimize

RNG = np.random.default_rng(3)
WEIGHTS: dict[str, Array] = {
    "table": RNG.standard_normal((20, 8)).astype(np.float32),
    "width": RNG.standard_normal((8, 8)).astype(np.float32) / 3,
    "gamma": RNG.standard_normal(8).astype(np.float32),
    "beta": RNG.standard_normal(8).astype(np.float32),
    "filters": RNG.standard_normal((8, 3, 3, 3)).astype(np.float32) / 5,
    "second": RNG.standard_normal((4, 8, 1, 1)).astype(np.float32) / 3,
}
CONSTANTS = "<float one = {1.0}, float half = {0.5}, float root = {1.4142135}>"
GELU = "d = Div (h, root)  r = Erf (d)  a = Add (r, one)  c = Mul (h, a)  k = Mul (c, half)"
ENCODER = f"""g (int64[batch, sequence] input_ids) => (float[batch, sequence, 8] last_hidden_state) {CONSTANTS} {{
    e = Gather (table, input_ids)  h = MatMul (e, width)  {GELU}
    last_hidden_state = LayerNormalization <axis = -1> (k, gamma, beta) }}"""
BLOCK = f"""g (float[batch, sequence, 8] hidden, float[batch, sequence, 8] skip) => (float[batch, sequence, 8] y)
    {CONSTANTS} {{
    h = MatMul (hidden, width)  {GELU}  s = Add (k, skip)  y = LayerNormalization <axis = -1> (s, gamma, beta) }}"""
"""Cut out of a transformer."""
CNN = """g (float[batch, 3, rows, columns] image) => (float[batch, 4, up, across] boxes, float[batch, 4] scores) {
    a = Conv <pads = [1, 1, 1, 1], strides = [2, 2]> (image, filters)  b = Sigmoid (a)  boxes = Conv (b, second)
    m = GlobalAveragePool (boxes)  scores = Flatten (m) }"""
MISSED = BLOCK.replace("c = Mul (h, a)  k = Mul (c, half)", "k = Mul (h, a)")
"""Gelu without its half: it begins like one."""
PROVIDERS = ("rocm", "migraphx", "cuda", "cpu")


def write(path: Path, text: str = BLOCK) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(parse(text, {name: values for name, values in WEIGHTS.items() if name in text}, 18), path)
    return path


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A pipeline folder with one component."""
    folder = tmp_path / "in"
    write(folder / "text_encoder" / "model.onnx", ENCODER)
    (folder / "model_index.json").write_text("{}")
    write_tokenizer(folder / "tokenizer")
    return folder


@pytest.fixture
def call(source: Path, tmp_path: Path) -> Callable[..., Result]:
    """Calls ``sdort optimize IN OUT --provider cpu ...``."""

    def invoke(*options: object, given: Path = source) -> Result:
        arguments = ["optimize", given, tmp_path / "out", "--provider", "cpu", *options]
        return CliRunner().invoke(cli, [str(argument) for argument in arguments])

    return invoke


def models(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*.onnx")}


def report(result: Result) -> dict[str, Any]:
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


# ---- what is there is named ----


@pytest.mark.parametrize(
    "place",
    [
        "prior/model.onnx",
        "text_encoder_4/model.onnx",
        "projection/model.onnx",
        "image_projection/model_fp16.onnx",
        "vae/model.onnx",
        "extra.onnx",
        "text_encoder/more/model.onnx",
        "a/b/c/d.onnx",
    ],
)
def test_a_model_that_is_no_component_is_an_error(
    place: str, call: Callable[..., Result], source: Path, tmp_path: Path
) -> None:
    write(source / place)
    result = call()
    assert result.exit_code == 3
    assert f"{place}: it maps hidden: float[batch, sequence, 8], skip" in result.stderr
    assert "--any-graph" in result.stderr
    assert "--component text_encoder" in result.stderr
    assert not (tmp_path / "out").exists()


def test_of_many_the_first_are_told_and_counted(call: Callable[..., Result], source: Path) -> None:
    for index in range(8):
        write(source / f"part{index}" / "model.onnx")
    result = call()
    assert result.exit_code == 3
    assert "part4/model.onnx: it maps" in result.stderr
    assert "part5" not in result.stderr
    assert "and 3 more" in result.stderr


def test_a_folder_with_nothing_else(call: Callable[..., Result], tmp_path: Path) -> None:
    path = write(tmp_path / "only" / "prior" / "model.onnx")
    result = call(given=tmp_path / "only")
    assert result.exit_code == 3
    assert f"{path} is no diffusion component: it maps hidden" in result.stderr
    assert "--any-graph" in result.stderr


def test_several_models_of_which_none_is_the_folders(call: Callable[..., Result], source: Path, tmp_path: Path) -> None:
    for name in ("first", "second"):
        write(source / "prior" / f"{name}.onnx")
    result = call()
    assert result.exit_code == 3
    assert "several models (first.onnx, second.onnx) and no model.onnx" in result.stderr
    assert "--any-graph" in result.stderr
    assert call("--any-graph").exit_code == 0
    assert models(tmp_path / "out") == {
        "text_encoder/model.onnx", "prior/first.onnx", "prior/second.onnx"
    }  # fmt: skip


def test_what_is_left_out_is_told(call: Callable[..., Result], source: Path, tmp_path: Path) -> None:
    write(source / "safety_checker" / "model.onnx", CNN)
    write(source / "text_encoder" / "model_fp16.onnx", ENCODER)
    result = call("--json")
    assert report(result)["left_out"] == {
        "safety_checker": "it has no part in the generation",
        "text_encoder/model_fp16": "text_encoder/model.onnx is beside it",
    }
    assert (
        "left out: safety_checker, as it has no part in the generation (--component safety_checker takes it)"
        in result.stderr
    )
    assert "left out: text_encoder/model_fp16, as text_encoder/model.onnx is beside it" in result.stderr
    assert models(tmp_path / "out") == {"text_encoder/model.onnx"}


def test_files_that_are_not_copied_are_told(call: Callable[..., Result], source: Path, tmp_path: Path) -> None:
    (source / "image_encoder").mkdir()
    (source / "image_encoder" / "model.safetensors").write_bytes(b"weights")
    (source / "text_encoder" / "model.onnx_data").write_bytes(b"data of a model")
    (source / "linked.json").symlink_to(source / "model_index.json")
    result = call()
    assert result.exit_code == 0
    (line,) = [line for line in result.stderr.splitlines() if line.startswith("not copied")]
    assert line.endswith(": image_encoder/model.safetensors")
    copied = [folder / "tokenizer" / "merges.txt" for folder in (source, tmp_path / "out")]
    assert copied[0].read_bytes() == copied[1].read_bytes()
    assert (tmp_path / "out" / "linked.json").read_text() == "{}"


def test_a_folder_that_cannot_be_read_is_told(
    call: Callable[..., Result], source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (source / "prior").mkdir()
    real = os.scandir

    def scan(place: Any) -> Any:
        if os.fspath(place).endswith("prior"):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), place)
        return real(place)

    monkeypatch.setattr(os, "scandir", scan)  # root may read everything
    result = call()
    assert result.exit_code == 3
    assert f"cannot read {source / 'prior'}: Permission denied" in result.stderr


# ---- asked for ----


def test_a_component_is_chosen_by_its_name(call: Callable[..., Result], source: Path, tmp_path: Path) -> None:
    write(source / "projection" / "model.onnx")
    assert call("--component", "text_encoder").exit_code == 0
    assert models(tmp_path / "out") == {"text_encoder/model.onnx"}
    assert call("--component", "projection", "--overwrite").exit_code == 0
    assert models(tmp_path / "out") == {"projection/model.onnx"}
    result = call("--component", "adapter", "--overwrite")
    assert result.exit_code == 2
    assert "The model has text_encoder, projection." in result.stderr


def test_all_models_of_a_folder(call: Callable[..., Result], source: Path, tmp_path: Path) -> None:
    for place in ("projection/model.onnx", "cut.onnx", "safety_checker/model.onnx", "unet/model.onnx"):
        write(source / place)
    assert "is no unet" in call().stderr
    found = report(call("--any-graph", "--json"))
    assert list(found["components"]) == ["text_encoder", "safety_checker", "unet", "cut", "projection"]
    assert found["left_out"] == {}
    assert models(tmp_path / "out") == {
        "text_encoder/model.onnx", "projection/model.onnx", "cut.onnx", "safety_checker/model.onnx", "unet/model.onnx"
    }  # fmt: skip
    assert (tmp_path / "out" / "tokenizer" / "vocab.json").is_file()
    manifest = json.loads((tmp_path / "out" / "sdort.json").read_text())
    assert set(manifest["optimized"]["components"]) == set(found["components"])


def test_only_what_is_recognised_is_held_against_its_config(
    call: Callable[..., Result], source: Path, tmp_path: Path
) -> None:
    config = json.dumps({"num_hidden_layers": 2, "hidden_act": "gelu"})
    (source / "text_encoder" / "config.json").write_text(config)
    result = call("--any-graph")
    assert result.exit_code == 4  # in a pipeline it is what its folder says
    assert "attention: expected 2 Attention" in result.stderr
    assert call("--any-graph", given=source / "text_encoder" / "model.onnx").exit_code == 0
    assert call("--any-graph", "--overwrite", given=source / "text_encoder").exit_code == 0


@pytest.mark.parametrize(
    ("place", "name"),
    [("cut.onnx", "cut"), ("mid_block/model.onnx", "mid_block"), ("a b/1.onnx", "1"), ("unet.onnx", "unet")],
)
def test_a_file_is_named_after_itself(place: str, name: str, call: Callable[..., Result], tmp_path: Path) -> None:
    path = write(tmp_path / "in" / place)
    result = call(given=path)
    assert result.exit_code == 3
    assert "is no diffusion component" in result.stderr
    assert "--any-graph" in result.stderr
    assert list(report(call("--any-graph", "--json", given=path))["components"]) == [name]
    assert models(tmp_path / "out") == {"model.onnx"}


@pytest.mark.parametrize("fp16", [False, True], ids=["fp32", "fp16"])
@pytest.mark.parametrize("text", [BLOCK, CNN], ids=["transformer", "CNN"])
@pytest.mark.parametrize("provider", PROVIDERS)
def test_any_graph_computes_the_same(
    provider: str, text: str, fp16: bool, call: Callable[..., Result], tmp_path: Path
) -> None:
    path = write(tmp_path / "cut.onnx", text)
    options = ["--any-graph", "--provider", provider, *(["--fp16"] if fp16 else [])]
    result = call(*options, "--json", given=path)
    operators = report(result)["components"]["cut"]["operators"]
    assert "Erf" not in operators or provider == "migraphx"  # which finds Gelu itself
    before, after = onnx.load(path), onnx.load(tmp_path / "out" / "model.onnx")
    feeds = feeds_for(before, {"batch": 2, "sequence": 5, "rows": 12, "columns": 10})
    # fp16 has 11 bits; the values are near 1 and pass a few operators.
    np.testing.assert_allclose(run(after, feeds)[0], run(before, feeds)[0], rtol=0, atol=3e-2 if fp16 else 1e-5)


def test_what_should_have_fused_is_a_miss_in_any_graph_too(call: Callable[..., Result], tmp_path: Path) -> None:
    path = write(tmp_path / "cut.onnx", MISSED)
    result = call("--any-graph", "--report", tmp_path / "report.json", given=path)
    assert result.exit_code == 4
    assert "cut: gelu_erf left 1 of 1 Erf, 'Erf.2'" in result.stderr
    assert not (tmp_path / "out").exists()
    assert len(json.loads((tmp_path / "report.json").read_text())["misses"]) == 1
    result = call("--any-graph", "--allow-misses", "--explain", given=path)
    assert result.exit_code == 0
    (line,) = (
        line for line in result.stdout.splitlines() if line.split()[:6] == ["cut", "1", "of", "1", "Erf", "gelu_erf"]
    )
    assert "expected Mul" in line


def test_a_fusion_can_be_left_out(call: Callable[..., Result], tmp_path: Path) -> None:
    path = write(tmp_path / "cut.onnx")
    found = report(call("--any-graph", "--disable", "gelu_erf", "--expect", "cut:Erf=1", "--json", given=path))
    assert found["components"]["cut"]["operators"]["Erf"] == 1


def test_fp16_is_measured_on_random_inputs(call: Callable[..., Result], tmp_path: Path) -> None:
    found = report(call("--any-graph", "--fp16", "auto", "--json", given=write(tmp_path / "cut.onnx")))
    assert found["components"]["cut"]["precision"]["measured"] == "random"


def test_from_python(tmp_path: Path) -> None:
    path = write(tmp_path / "cut.onnx")
    with pytest.raises(BadModelError, match="is no diffusion component"):
        optimize(path, tmp_path / "out")
    assert list(optimize(path, tmp_path / "out", any_graph=True).components) == ["cut"]


# ---- other commands ----


def test_inspect_shows_any_graph(source: Path, tmp_path: Path) -> None:
    path = write(tmp_path / "cut.onnx")
    (found,) = report(CliRunner().invoke(cli, ["inspect", str(path), "--json"]))["components"]
    assert (found["component"], found["operators"]["Erf"]) == ("cut", 1)
    write(source / "projection" / "model.onnx")
    listed = report(CliRunner().invoke(cli, ["inspect", str(source), "--json"]))["components"]
    assert [each["component"] for each in listed] == ["text_encoder", "projection"]
    placed = CliRunner().invoke(cli, ["inspect", str(path), "--placement", "--provider", "cpu", "--json"])
    assert report(placed)["placement"][0]["component"] == "cut"


def test_a_pipeline_runs_beside_other_models_and_says_so(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(source / "projection" / "model.onnx")
    write(source / "text_encoder" / "model_fp16.onnx", ENCODER)
    assert list(find_components(source)) == ["text_encoder"]
    said = capsys.readouterr().err
    assert said.strip().endswith("as no component of a pipeline that sdort knows: projection, text_encoder/model_fp16")


def test_a_component_of_which_there_are_several_is_none_to_run(source: Path) -> None:
    for name in ("fp16", "fp32"):
        write(source / "unet" / f"{name}.onnx")
    with pytest.raises(BadModelError, match=r"unet holds several models \(fp16.onnx, fp32.onnx\) and no model.onnx"):
        find_components(source)


def test_names_are_told_apart(tmp_path: Path) -> None:
    for place in ("a.onnx", "a/model.onnx", "a/b.onnx", "a/b/model.onnx", "c/x.onnx", ".git/model.onnx"):
        write(tmp_path / place)
    found = survey(tmp_path)
    assert {name: path.relative_to(tmp_path).as_posix() for name, path in found.models.items()} == {
        "a": "a.onnx",
        "a/model": "a/model.onnx",
        "a/b": "a/b.onnx",
        "a/b/model": "a/b/model.onnx",
        "c": "c/x.onnx",
    }
    assert set(found.spare) == {"a/b"}


def test_folders_behind_links_are_looked_into_once(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    write(folder / ".kept" / "encoder" / "model.onnx", ENCODER)
    (folder / "text_encoder").symlink_to(".kept/encoder")
    (folder / "round").symlink_to(folder)
    (folder / ".kept" / "encoder" / "back").symlink_to("../..")
    assert survey(folder).models == {"text_encoder": folder / "text_encoder" / "model.onnx"}


@pytest.mark.parametrize(
    ("channels", "body"),
    [
        (1, "y = Conv (x, w)"),  # depth, masks, the text maps of an OCR detector
        (2, "y = Conv (x, w)"),
        (8, "p = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (x)  y = Conv (p, w)"),  # a backbone
        (8, 'c = Conv (x, w)  y = Resize <mode = "nearest"> (c, , scales)'),  # a segmentation
    ],
)
def test_what_makes_images_of_images_is_not_always_an_autoencoder(tmp_path: Path, channels: int, body: str) -> None:
    weights = {"w": np.zeros((channels, 3, 1, 1), np.float32), "scales": np.array([1, 1, 2, 2], np.float32)}
    text = f"g (float[N, 3, H, W] x) => (float[N, {channels}, I, J] y) {{ {body} }}"
    onnx.save(parse(text, {name: value for name, value in weights.items() if name in body}), tmp_path / "m.onnx")
    assert survey(tmp_path / "m.onnx").components == {}
