"""Single files as what torch compares with: the weights of the diffusers folder that they were made of, to the bit."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner, Result
from diffusers import AutoencoderKL
from safetensors.torch import load_file, save_file
from support.adapter_files import make_lora
from support.adapters import build_unet
from support.ldm_files import write_ldm
from support.tiny_pipeline import Tiny

from sdort.checkpoints.configs import write_json
from sdort.cli import cli
from sdort.engines import checkpoint_folder as checkpoint_module
from sdort.engines.checkpoint_folder import checkpoint_folder
from sdort.engines.original import as_exported, checkpoint_of, holds_onnx, original_of
from sdort.engines.torch import TorchEngine
from sdort.errors import BadModelError, UsageError
from sdort.exporter.replacements import MadeWith, Replacements
from sdort.families.component_names import DECODER
from sdort.files.file_digest import file_digest
from sdort.machine import optional_packages
from sdort.pipelines.manifest import write_listed_files
from sdort.pipelines.origin import origin_mark
from sdort.providers import CPU
from sdort.workload.cases import WHOLE_PIPELINE

PARTS = ("unet", "vae", "text_encoder")
State = Mapping[str, torch.Tensor]


@pytest.fixture
def file(tiny: Tiny, tmp_path: Path) -> Path:
    """The tiny pipeline as one file in the original layout, in a folder of its own."""
    (tmp_path / "models").mkdir()
    path = tmp_path / "models" / "mine.safetensors"
    write_ldm(path, tiny.diffusers, "sd1", layers=tiny.pipeline.unet.config.layers_per_block)
    return path


def made(tiny: Tiny, **replaced: Any) -> dict[str, Any]:
    """The manifest of an export with the tiny pipeline's configs: its tokenizer is not CLIP's."""
    return {"made_with": MadeWith(Replacements(config=tiny.diffusers, **replaced)).record()}


@pytest.fixture
def model(tiny: Tiny, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An export of the file, in the current folder."""
    folder = Path(shutil.copytree(tiny.onnx, tmp_path / "work" / "model"))
    recorded = {"source": file.name, "path": os.path.relpath(file, folder), "origin": origin_mark(file), **made(tiny)}
    write_listed_files(folder, recorded, {})
    monkeypatch.chdir(folder.parent)
    return folder


def states(folder: Path, *parts: str) -> dict[str, State]:
    engine = TorchEngine(folder, CPU, "float32")
    pipeline = engine.pipeline(WHOLE_PIPELINE)
    return {part: getattr(pipeline, part).state_dict() for part in parts or PARTS}


def assert_equal(found: Mapping[str, State], expected: Mapping[str, State]) -> None:
    for part, state in expected.items():
        assert found[part].keys() == state.keys()
        for name, tensor in state.items():
            assert torch.equal(found[part][name], tensor), f"{part}: {name}"


@contextmanager
def folder_of(path: Path, manifest: Mapping[str, Any], *places: Path) -> Iterator[Path]:
    with checkpoint_folder(path, manifest, places) as folder:
        assert folder.name == path.name
        yield folder


@pytest.mark.parametrize("kind", ["safetensors", "half", "ckpt", "bare ckpt"])
def test_a_file_is_the_folder_that_it_was_made_of(kind: str, tiny: Tiny, file: Path) -> None:
    expected: Any = {part: getattr(tiny.pipeline, part).state_dict() for part in PARTS}
    path, state = file, load_file(file)
    if kind == "half":
        rounded = {name: each.half() if each.is_floating_point() else each for name, each in state.items()}
        save_file(rounded, path)
        expected = {part: {name: each.half().float() for name, each in of.items()} for part, of in expected.items()}
    elif "ckpt" in kind:
        path = file.with_suffix(".ckpt")
        torch.save(state if "bare" in kind else {"state_dict": state, "global_step": 7, "lr": [0.1, None]}, path)
        file.unlink()
    with folder_of(path, made(tiny)) as folder:
        stored = load_file(folder / "unet" / "diffusion_pytorch_model.safetensors")
        assert {each.dtype for each in stored.values()} == {torch.float16 if kind == "half" else torch.float32}
        assert_equal(states(folder), expected)
    assert not folder.exists()


def test_a_pickle_that_runs_code_is_refused(tiny: Tiny, tmp_path: Path) -> None:
    class Runs:
        def __reduce__(self) -> Any:
            return (print, ("it ran",))

    torch.save({"state_dict": {"a": torch.zeros(2)}, "hook": Runs()}, tmp_path / "a.ckpt")
    with pytest.raises(BadModelError, match="cannot read tensors"), folder_of(tmp_path / "a.ckpt", made(tiny)):
        pass


@pytest.mark.parametrize("single", [True, False])
def test_what_the_export_added_is_in_it(single: bool, tiny: Tiny, file: Path, tmp_path: Path) -> None:
    """An adapter and another VAE, whose files have moved beside the pipeline since."""
    lora = make_lora(tiny.diffusers, tmp_path / "style.safetensors", 1)
    vae = load_file(tiny.diffusers / "vae" / "diffusion_pytorch_model.safetensors")
    other = Path(shutil.copytree(tiny.diffusers / "vae", tmp_path / "other"))
    save_file({name: each + 1 for name, each in vae.items()}, other / "diffusion_pytorch_model.safetensors")
    adapter = {"name": "style", "scale": 0.5, "path": str(lora), "sha256": file_digest(lora)}
    manifest = {**made(tiny, vae=other), "adapters": [{**adapter, "bytes": lora.stat().st_size}]}
    beside = tmp_path / "moved"
    beside.mkdir()
    for path in (lora, other):
        shutil.move(path, beside)
    with folder_of(file if single else tiny.diffusers, manifest, beside) as folder:
        found = states(folder)
    assert all(torch.equal(found["vae"][name], each + 1) for name, each in vae.items())
    plain = {part: getattr(tiny.pipeline, part).state_dict() for part in PARTS}
    changed = [name for name, each in found["unet"].items() if not torch.equal(each, plain["unet"][name])]
    assert 0 < len(changed) < len(plain["unet"])
    shutil.rmtree(beside / "other")
    with pytest.raises(UsageError, match=r"made with --vae .*other, which is not there"):
        MadeWith.of_manifest(manifest, [beside])


def test_a_vae_or_a_unet_alone_is_compared_in_what_it_has(tmp_path: Path) -> None:
    blocks = {"down_block_types": ("DownEncoderBlock2D",) * 2, "up_block_types": ("UpDecoderBlock2D",) * 2}
    vae = AutoencoderKL(block_out_channels=(32, 32), latent_channels=4, **blocks)
    vae.save_pretrained(tmp_path / "vae")
    save_file(vae.state_dict(), tmp_path / "vae.safetensors")
    unet = build_unet()
    save_file(unet.state_dict(), tmp_path / "unet.safetensors")
    alone = (("vae", vae, DECODER), ("vae.safetensors", vae, DECODER), ("unet.safetensors", unet, "unet"))
    for name, module, component in alone:
        with checkpoint_of(tmp_path / name) as folder:
            engine = TorchEngine(folder, CPU, "float32")
            assert component in engine.components()
            assert WHOLE_PIPELINE not in engine.components()
            part = "unet" if module is unet else "vae"
            found = getattr(engine.pipeline(component), part).state_dict()
            assert_equal({part: found}, {part: module.state_dict()})


def verify(*args: object) -> Result:
    few = ("--inputs", "random", "--no-images", "--component", "text_encoder", "--provider", "cpu")
    return CliRunner().invoke(cli, ["verify", *map(str, args), *few])


def said(result: Result) -> str:
    return " ".join(result.output.split())


def test_an_export_of_a_file_is_verified_against_it(model: Path, file: Path, tmp_path: Path) -> None:
    result = verify("model")
    assert result.exit_code == 0, result.output
    assert "model against mine.safetensors (torch in fp32)" in said(result)
    moved = Path(shutil.move(file, model.parent / file.name))
    assert verify("model").exit_code == 0
    save_file({name: each + 0.5 for name, each in load_file(moved).items()}, moved)
    result = verify("model")
    assert result.exit_code == UsageError.exit_code
    assert "is another model than the one that model was made from" in said(result)
    wrong = verify("model", "--checkpoint", moved)
    assert wrong.exit_code == 5, wrong.output
    moved.unlink()
    result = verify("model")
    assert result.exit_code == UsageError.exit_code
    assert "mine.safetensors, which is neither where it was, nor here, nor beside model" in said(result)


def test_a_named_file_takes_the_place_of_the_recorded_one(model: Path, file: Path) -> None:
    pickled = file.with_suffix(".ckpt")
    torch.save({"state_dict": load_file(file)}, pickled)
    file.unlink()
    for option in ("--checkpoint", "--against"):
        result = verify("model", option, pickled)
        assert result.exit_code == 0, result.output
        assert "mine.ckpt (torch in fp32)" in said(result)


@pytest.mark.parametrize("change", ["size", "a sixth", "nothing"])
def test_a_file_is_known_by_its_size_and_samples(change: str, tmp_path: Path) -> None:
    content = np.random.default_rng(0).bytes(1 << 18)
    path = tmp_path / "a.safetensors"
    path.write_bytes(content)
    write_json(tmp_path / "sdort.json", {"source": path.name, "origin": origin_mark(path)})
    (tmp_path / "model").mkdir()
    shutil.move(tmp_path / "sdort.json", tmp_path / "model")
    for place in range(6):
        sixth = len(content) // 6
        changed = bytes(each ^ 1 for each in content[place * sixth : (place + 1) * sixth])
        start, end = content[: place * sixth], content[(place + 1) * sixth :]
        path.write_bytes({"size": content + b"x", "a sixth": start + changed + end, "nothing": content}[change])
        known = json.loads((tmp_path / "model/sdort.json").read_text())["origin"] == origin_mark(path)
        assert known is (change == "nothing")
        if not known:
            with pytest.raises(UsageError, match="another model"), original_of(tmp_path / "model", ""):
                pass


@pytest.mark.parametrize("name", ["a.safetensors", "a.CKPT", "a.pt", "a.pth", "a.bin"])
def test_a_single_file_is_no_onnx(name: str, tmp_path: Path) -> None:
    (tmp_path / name).touch()
    assert not holds_onnx(tmp_path / name)
    with pytest.raises(BadModelError, match="not a model that sdort exports"), as_exported(tmp_path, tmp_path / name):
        pass


def test_nothing_is_unpacked_for_a_torch_that_is_not_there(
    model: Path, tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    fast = Path(shutil.copytree(tiny.onnx, model.with_name("fast")))
    recorded = {"from": str(model), "origin": origin_mark(model), "provider": "cpu", "precision": "fp32"}
    write_listed_files(fast, {"optimized": recorded}, {})
    monkeypatch.setattr(optional_packages, "is_installed", lambda name: name != "torch")
    monkeypatch.setattr(checkpoint_module, "open_source", lambda *_, **__: pytest.fail("it was unpacked"))
    arguments = ["--component", "unet", "--inputs", "random", "--provider", "cpu"]

    def verified(folder: Path, *more: str) -> Result:
        return CliRunner().invoke(cli, ["verify", str(folder), *arguments, *more])

    lacks = "running a checkpoint in torch needs torch, which is not installed"
    named = str(tiny.diffusers)
    for folder, more in ((model, []), (model, ["--checkpoint", named]), (fast, ["--against", named])):
        done = verified(folder, *more)
        assert (done.exit_code, lacks in done.stderr) == (9, True), done.output
    done = verified(model, "--no-torch")
    assert (done.exit_code, "a checkpoint, which only torch runs, and --no-torch" in done.stderr) == (2, True)
    done = verified(fast)
    assert done.exit_code == 0, done.output
    assert f"not compared with torch: {lacks}" in " ".join(done.stdout.split())
    assert "for torch:" not in done.stderr
    bench = ["bench", str(model), "--engine", "torch", "--component", "unet", "--provider", "cpu"]
    done = CliRunner().invoke(cli, bench)
    assert (done.exit_code, lacks in done.stderr) == (9, True), done.output


def test_weights_of_a_variant_alone_are_compared_with(tiny: Tiny, tmp_path: Path) -> None:
    """As where a pipeline was made of such a folder on first use, or it is named."""
    folder = Path(shutil.copytree(tiny.diffusers, tmp_path / "halves"))
    path = next((folder / "unet").glob("*.safetensors"))
    halves = {name: tensor.half() for name, tensor in load_file(path).items()}
    save_file(halves, path.with_name(f"{path.stem}.fp16.safetensors"))
    path.unlink()
    with checkpoint_of(folder) as checkpoint, as_exported(tiny.onnx, folder) as reference:
        assert checkpoint != folder != reference
        for each in (checkpoint, reference):
            assert_equal(states(each, "unet"), {"unet": {name: half.float() for name, half in halves.items()}})
