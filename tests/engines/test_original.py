"""What a pipeline was made from is read only where it is known again by its mark."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result
from safetensors.numpy import load_file, save_file
from support.tiny_pipeline import Tiny, edit_weights

from sdort.checkpoints.configs import write_json
from sdort.cli import cli
from sdort.engines.original import original_of
from sdort.errors import UsageError
from sdort.optimizer.command import optimize
from sdort.pipelines.manifest import write_listed_files
from sdort.pipelines.origin import has_mark, origin_mark


@pytest.fixture
def place(tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """``checkpoint``, ``model`` made of it, as ``sdort export`` lists it, and ``fast`` of that."""
    shutil.copytree(tiny.diffusers, tmp_path / "checkpoint")
    model = Path(shutil.copytree(tiny.onnx, tmp_path / "model"))
    write_listed_files(model, {"source": "checkpoint", "origin": origin_mark(tmp_path / "checkpoint")}, {})
    optimize(model, tmp_path / "fast", provider="cpu", components=("text_encoder",))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def fine_tuned(checkpoint: Path) -> None:
    """Change a sixth of the UNet's weights, and no size: the projections of its attentions."""
    path = checkpoint / "unet" / "diffusion_pytorch_model.safetensors"
    tensors = load_file(path)
    save_file({name: each + 0.5 if "attn" in name else each for name, each in tensors.items()}, path)


def exported_anew(model: Path) -> None:
    edit_weights(model / "text_encoder" / "model.onnx", lambda array, _: array + 1, "final_layer_norm")
    write_listed_files(model, json.loads((model / "sdort.json").read_text()), {})


def with_other_index(checkpoint: Path) -> None:
    (checkpoint / "model_index.json").write_text('{"_class_name": "StableDiffusionPipeline"}')


CHANGES: tuple[tuple[str, str, Callable[[Path], None]], ...] = (
    ("model", "fast", exported_anew),
    ("checkpoint", "model", fine_tuned),
    ("checkpoint", "model", with_other_index),
)


def verify(*args: object) -> Result:
    few = ("--inputs", "random", "--no-images", "--component", "text_encoder", "--provider", "cpu")
    return CliRunner().invoke(cli, ["verify", *map(str, args), *few])


@pytest.mark.parametrize(("original", "made", "change"), CHANGES)
def test_another_model_in_the_originals_place_is_told(
    original: str, made: str, change: Callable[[Path], None], place: Path
) -> None:
    with original_of(place / made, "") as found:
        assert found is not None
        assert found.resolve() == place / original
    change(place / original)
    with pytest.raises(UsageError, match="is another model than the one"), original_of(place / made, ""):
        pass


@pytest.mark.parametrize("name", ["checkpoint", "model"])
def test_a_copy_elsewhere_is_the_same_model(name: str, place: Path) -> None:
    mark = origin_mark(place / name)
    (place / name / "README.md").touch()
    (place / name / ".cache").mkdir()
    assert has_mark(Path(shutil.move(place / name, place / "moved")), mark)


def test_every_piece_of_weights_counts(tmp_path: Path) -> None:
    """A change of a sixth of the bytes is found wherever it is; so is one of a file that is smaller than a sample."""
    content = np.random.default_rng(0).bytes(1 << 20)
    (tmp_path / "model.onnx").write_bytes(content)
    (tmp_path / "small.onnx").write_bytes(b"ab")
    mark = origin_mark(tmp_path)
    for place in range(6):
        changed = np.frombuffer(content, np.uint8).copy()
        sixth = len(changed) // 6
        changed[place * sixth : (place + 1) * sixth] ^= 1
        (tmp_path / "model.onnx").write_bytes(changed.tobytes())
        assert not has_mark(tmp_path, mark)
    (tmp_path / "model.onnx").write_bytes(content)
    assert has_mark(tmp_path, mark)
    (tmp_path / "small.onnx").write_bytes(b"ac")
    assert not has_mark(tmp_path, mark)


def test_a_manifest_without_a_mark_is_not_followed(place: Path) -> None:
    path = place / "fast" / "sdort.json"
    manifest = json.loads(path.read_text())
    del manifest["optimized"]["origin"]
    write_json(path, manifest)
    for command in (verify("fast"), CliRunner().invoke(cli, ["bench", "fast", "--provider", "cpu"])):
        assert command.exit_code == UsageError.exit_code
        assert "no mark by which to know it" in " ".join(command.output.split())
    assert "--against ORIGINAL" in verify("fast").output
    assert verify("fast", "--against", "model", "--no-torch").exit_code == 0


def test_verify_names_the_model_that_took_its_place(place: Path) -> None:
    assert verify("fast").exit_code == 0
    exported_anew(place / "model")
    result = verify("fast")
    assert result.exit_code == UsageError.exit_code
    assert "another model than the one that" in " ".join(result.output.split())
    named = verify("fast", "--checkpoint", "checkpoint")
    assert named.exit_code == 0, named.output
    assert "not compared with the ONNX original" in " ".join(named.output.split())


def test_a_checkpoint_that_was_replaced_is_not_compared_with(place: Path) -> None:
    fine_tuned(place / "checkpoint")
    result = verify("fast")
    assert result.exit_code == 0, result.output
    assert "not compared with torch: checkpoint is another model" in " ".join(result.output.split())


def test_a_source_that_no_file_system_takes_is_nowhere(tmp_path: Path) -> None:
    """As one in a folder that only another account may enter."""
    write_json(tmp_path / "sdort.json", {"source": "a" * 300})
    with original_of(tmp_path, "") as found:
        assert found is None
