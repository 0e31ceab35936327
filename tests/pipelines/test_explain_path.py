"""Paths that are no pipeline are told what they are, and what to give instead."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file
from support.tiny_pipeline import Tiny

from sdort.errors import BadModelError, SdortError, UsageError
from sdort.exporter.command import export
from sdort.inspection.description import inspect_path
from sdort.optimizer.command import optimize
from sdort.pipelines.explain_path import expect_onnx, not_there
from sdort.pipelines.folder import open_folder

INDEX = '{"unet": ["diffusers", "UNet2DConditionModel"]}'
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"


def refusal(call: Callable[..., object], *args: object, **options: object) -> SdortError:
    with pytest.raises(SdortError) as caught:
        call(*args, **options)
    return caught.value


@pytest.fixture
def pipeline(tmp_path: Path) -> Path:
    """A diffusers folder in a folder of its own."""
    folder = tmp_path / "outer" / "sd"
    (folder / "unet").mkdir(parents=True)
    (folder / "model_index.json").write_text(INDEX)
    return folder


def test_the_folder_above_and_the_folder_below(pipeline: Path, tmp_path: Path) -> None:
    for path in (pipeline / "unet", pipeline.parent, tmp_path):
        for error in (refusal(export, path, tmp_path / "out"), refusal(expect_onnx, path)):
            assert str(error.hint).endswith(f":\n    sdort export {pipeline} OUT")
            assert error.exit_code == 3
    assert not (tmp_path / "out").exists()


def test_a_folder_far_below_a_pipeline_is_no_part_of_it(pipeline: Path) -> None:
    far = pipeline / "notes" / "old" / "mine"
    far.mkdir(parents=True)
    assert refusal(export, far, "out").message == f"{far} is empty"


def test_a_pipeline_that_is_not_exported(pipeline: Path, tmp_path: Path) -> None:
    calls: list[Callable[[], object]] = [
        lambda: optimize(pipeline, tmp_path / "out"),
        lambda: open_folder(pipeline),
        lambda: inspect_path(pipeline),
    ]
    for call in calls:
        error = refusal(call)
        assert "is a diffusers pipeline, which is not exported yet" in error.message
        assert error.hint == f"Export it first:\n    sdort export {pipeline} OUT"


def test_the_hubs_cache(pipeline: Path, tmp_path: Path) -> None:
    repository = tmp_path / "hub" / "models--owner--name"
    for commit in ("0" * 40, "1" * 40):
        shutil.copytree(pipeline, repository / "snapshots" / commit)
    assert "several pipelines" in refusal(export, repository, "out").message
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("1" * 40)
    error = refusal(export, repository, "out")
    assert error.hint == f"Give the snapshot:\n    sdort export {repository}/snapshots/{'1' * 40} OUT"
    assert "owner/name" in refusal(export, tmp_path / "hub", "out").message


def test_a_lone_file_in_a_folder(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    assert "holds model.gguf, a GGUF file" in refusal(export, tmp_path, "out").message
    assert "holds model.gguf, a GGUF file" in refusal(expect_onnx, tmp_path).message
    assert "is a GGUF file, not a model that sdort exports" in refusal(export, tmp_path / "model.gguf", "out").message
    assert "is a GGUF file, not an ONNX model" in refusal(expect_onnx, tmp_path / "model.gguf").message
    (tmp_path / "other.gguf").write_bytes(b"GGUF")
    assert "it has no model_index.json" in refusal(export, tmp_path, "out").message  # which one is meant is not known


def test_a_folder_of_graphs_and_an_empty_one(tmp_path: Path) -> None:
    assert "is empty" in refusal(export, tmp_path, "out").message
    (tmp_path / "unet").mkdir()
    (tmp_path / "unet" / "model.onnx").write_bytes(b"")
    error = refusal(export, tmp_path, "out")
    assert error.hint == f"The next step:\n    sdort optimize {tmp_path} OUT"


def test_pointers_of_git_lfs(pipeline: Path, tmp_path: Path) -> None:
    from sdort.exporter.checkpoint import read_checkpoint

    weights = pipeline / "unet" / "diffusion_pytorch_model.safetensors"
    weights.write_bytes(POINTER)
    error = refusal(read_checkpoint, weights.parent, "unet", None, False)
    assert error.hint == f"Fetch the files themselves:\n    git -C {weights.parent} lfs pull"
    for name in ("model.onnx.data", "model.onnx"):
        (tmp_path / "onnx" / "unet").mkdir(parents=True, exist_ok=True)
        (tmp_path / "onnx" / "unet" / "model.onnx").touch()
        (tmp_path / "onnx" / "unet" / name).write_bytes(POINTER)
        assert f"{name} is a git-lfs pointer" in refusal(expect_onnx, tmp_path / "onnx").message


def test_a_path_that_is_no_folder_is_told_by_what_it_is(tmp_path: Path) -> None:
    assert refusal(open_folder, tmp_path / "gone").message == f"{tmp_path}/gone does not exist"
    (tmp_path / "junk.onnx").write_bytes(b"junk")
    assert refusal(open_folder, tmp_path / "junk.onnx").message == f"{tmp_path}/junk.onnx is not an ONNX model"
    save_file({"lora_unet_mid_block_x.lora_up.weight": np.zeros((4, 2), np.float32)}, tmp_path / "a.safetensors")
    assert "not an ONNX model" in refusal(open_folder, tmp_path / "a.safetensors").message


def test_a_component_of_an_exported_pipeline_cannot_be_run(tiny: Tiny, tmp_path: Path) -> None:
    shutil.copytree(tiny.onnx, tmp_path / "sd")
    (tmp_path / "sd" / "model_index.json").write_text(INDEX)
    error = refusal(open_folder, tmp_path / "sd" / "unet")
    assert error.hint == f"Give the whole pipeline:\n    {tmp_path}/sd"
    assert refusal(open_folder, tmp_path).hint == f"Give that:\n    {tmp_path}/sd"
    assert open_folder(tmp_path / "sd").models.keys() == {"text_encoder", "unet", "vae_decoder"}
    expect_onnx(tmp_path, nested=True)


def test_names_that_do_not_exist(pipeline: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert (
        not_there("outer/ds", ("demo",)).hint == "MODEL is a diffusers directory, a hub id such as owner/name, or demo."
    )
    assert not_there("outre").hint == "Is it outer?"
    assert not_there("Demo", ("demo",)).hint == "Is it demo?"
    assert "sdort export a/b-c OUT" in str(not_there("https://huggingface.co/a/b-c/tree/main").hint)
    # The first folder is there, so that it is no hub id: nothing is downloaded.
    assert isinstance(refusal(export, "outer/other", tmp_path / "out"), UsageError)
    assert "sdort export owner/name OUT" in str(refusal(expect_onnx, Path("owner/name")).hint)


def test_nothing_is_written_for_a_wrong_file(tmp_path: Path) -> None:
    (tmp_path / "a.safetensors").write_bytes(b"")
    with pytest.raises(BadModelError, match="is an empty file"):
        optimize(tmp_path / "a.safetensors", tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["a.safetensors"]


def test_pipes_and_links_to_nothing(tmp_path: Path) -> None:
    """A named pipe is not opened: that would wait for ever."""
    for name in ("pipe", "pipe.onnx", "pipe.safetensors"):
        os.mkfifo(tmp_path / name)
        for call in (export, optimize):
            error = refusal(call, tmp_path / name, tmp_path / "out")
            assert error.exit_code == 3
            assert "file" in error.message
    (tmp_path / "dangling").symlink_to("gone")
    assert "is a link to gone, which does not exist" in not_there(str(tmp_path / "dangling")).message
    (tmp_path / "circle").symlink_to("circle")
    for call in (export, optimize):
        assert "is a link to circle" in refusal(call, tmp_path / "circle", tmp_path / "out").message
