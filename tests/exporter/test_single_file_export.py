"""``sdort export FILE``: the same bytes as of the diffusers folder with the same weights; what is missing is told."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import AutoencoderTiny
from safetensors.torch import load_file, save_file
from support.ldm_files import averaged, ldm_control, ldm_unet, load_part, open_clip, save, with_prefix, write_ldm
from support.pipelines import Exported, export_family, locked, run_onnx, trace_folder
from support.tiny_control import build_controlnet

from sdort.errors import BadModelError, UsageError
from sdort.exporter.command import export, plan_export
from sdort.exporter.open_source import open_source
from sdort.exporter.replacements import Replacements
from sdort.exporter.source import select_components
from sdort.exporter.trace_cache import TraceCache

UNET = "model.diffusion_model."
FAMILIES = {"sd1": "sd1", "sd2_inpainting": "sd2", "sdxl": "sdxl"}


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Callable[[str], Exported]:
    made: dict[str, Exported] = {}

    def get(family: str) -> Exported:
        if family not in made:
            folder = tmp_path_factory.mktemp(family)
            made[family] = export_family(family, folder, trace_folder(request.config))
            write_ldm(folder / "file.safetensors", made[family].checkpoint, FAMILIES[family])
        return made[family]

    return get


@pytest.fixture
def traces(request: pytest.FixtureRequest) -> Path:
    return trace_folder(request.config)


def the_file(exported: Exported) -> Path:
    return exported.checkpoint.with_name("file.safetensors")


def changed(exported: Exported, path: Path, change: Callable[[dict[str, Any]], Any], **notes: str) -> Path:
    """A copy of the family's file, with other tensors."""
    state = load_file(the_file(exported))
    change(state)
    save_file(state, path, notes or None)
    return path


def export_file(exported: Exported, path: Path, out: Path, **options: Any) -> Path:
    with locked(exported.traces):
        export(path, out, cache_dir=exported.traces, **options)
    return out


def assert_same(one: Path, two: Path, *names: str) -> None:
    """Graphs and weights are equal to the byte."""
    files = [path.relative_to(two) for path in two.rglob("model.onnx*") if not names or path.parent.name in names]
    assert files
    for file in files:
        assert (one / file).read_bytes() == (two / file).read_bytes(), file


@pytest.mark.parametrize("family", FAMILIES)
def test_both_layouts_give_the_same_bytes(exported: Callable[[str], Exported], family: str, tmp_path: Path) -> None:
    made = exported(family)
    parts = [folder.name for folder in made.out.iterdir() if (folder / "model.onnx").exists()]
    options: dict[str, Any] = {"config": made.checkpoint, "components": parts}
    assert_same(export_file(made, the_file(made), tmp_path / "out", **options), made.out)
    for copied in ("scheduler", "tokenizer"):
        for file in (made.out / copied).glob("*"):
            assert (tmp_path / "out" / copied / file.name).read_bytes() == file.read_bytes()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_halves_are_widened_exactly(exported: Callable[[str], Exported], dtype: Any, tmp_path: Path) -> None:
    made = exported("sd1")
    path = changed(made, tmp_path / "half.safetensors", lambda state: state.update(halved(state, dtype)))
    wide = changed(made, tmp_path / "wide.safetensors", lambda state: state.update(halved(state, dtype, torch.float32)))
    one, two = (
        export_file(
            made, file, tmp_path / file.stem, config=made.checkpoint, components=["text_encoder", "vae_decoder"]
        )
        for file in (path, wide)
    )
    assert_same(one, two)


def halved(state: Mapping[str, Any], *dtypes: Any) -> dict[str, Any]:
    found = {name: tensor for name, tensor in state.items() if tensor.is_floating_point()}
    for dtype in dtypes:
        found = {name: tensor.to(dtype) for name, tensor in found.items()}
    return found


def told(capsys: pytest.CaptureFixture[str]) -> str:
    return " ".join(capsys.readouterr().err.split())


def test_a_unet_alone_exports_its_unet(
    exported: Callable[[str], Exported], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = exported("sdxl")
    layouts = {
        "prefixed": with_prefix(UNET, ldm_unet(load_part(made.checkpoint / "unet"), 1)),
        "bare": ldm_unet(load_part(made.checkpoint / "unet"), 1),
        "diffusers": load_part(made.checkpoint / "unet"),
    }
    for name, state in layouts.items():
        path = tmp_path / f"{name}.safetensors"
        save_file(state, path)
        (small := tmp_path / f"{name}-configs").mkdir()
        for part in ("model_index.json", "unet/config.json", "scheduler/scheduler_config.json"):
            (small / part).parent.mkdir(exist_ok=True)
            (small / part).write_bytes((made.checkpoint / part).read_bytes())
        out = export_file(made, path, tmp_path / name, config=small)
        assert [file.parent.name for file in out.rglob("model.onnx")] == ["unet"]
        assert_same(out, made.out, "unet")
        said = told(capsys)
        assert f"{path.name} has no VAE" in said
        assert f"{path.name} has no text_encoder and no text_encoder_2" in said


def test_what_a_file_lacks_comes_from_config_and_vae(exported: Callable[[str], Exported], tmp_path: Path) -> None:
    made = exported("sd1")
    path = tmp_path / "unet.safetensors"
    save_file(with_prefix(UNET, ldm_unet(load_part(made.checkpoint / "unet"), 1)), path)
    assert_same(export_file(made, path, tmp_path / "whole", config=made.checkpoint), made.out)
    out = tmp_path / "vae"
    for vae in (the_file(made), made.checkpoint, made.checkpoint / "vae"):
        options = {"config": made.checkpoint, "vae": vae, "overwrite": True}
        assert_same(export_file(made, path, out, components=["vae_decoder"], **options), made.out, "vae_decoder")


def test_averaged_weights_are_read_where_they_are_asked_for(
    exported: Callable[[str], Exported], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = exported("sd1")
    unet = ldm_unet(load_part(made.checkpoint / "unet"), 1)
    other = {f"{UNET}{name}": tensor + 1 for name, tensor in unet.items()}
    path = changed(made, tmp_path / "ema.safetensors", lambda state: state.update({**other, **averaged(unet)}))
    options = {"config": made.checkpoint, "components": ["unet"]}
    assert_same(export_file(made, path, tmp_path / "ema", ema=True, **options), made.out, "unet")
    out = export_file(made, path, tmp_path / "usual", **options)
    assert "not read (sdort export --ema reads them)" in told(capsys)
    assert (out / "unet/model.onnx.data").read_bytes() != (made.out / "unet/model.onnx.data").read_bytes()
    with pytest.raises(BadModelError, match="no averaged weights"):
        export_file(made, the_file(made), tmp_path / "none", ema=True, **options)


def of_sd2(deviation: float) -> dict[str, torch.Tensor]:
    """The tensors of a file of SD 2.x that tell its family, and nothing else."""
    width = 64
    state = {"input_blocks.0.0.weight": torch.zeros(width, 4, 3, 3), "out.2.weight": torch.zeros(4, width, 3, 3)}
    for level in range(4):
        for layer in range(2):
            number = 1 + 3 * level + layer
            state[f"input_blocks.{number}.0.in_layers.2.weight"] = torch.zeros(width, width, 3, 3)
        if level < 3:
            state[f"input_blocks.{3 * level + 3}.0.op.weight"] = torch.zeros(width, width, 3, 3)
    for number in range(12):
        state[f"output_blocks.{number}.0.in_layers.2.weight"] = torch.zeros(width, width, 3, 3)
    block = "output_blocks.11.1.transformer_blocks.0"
    state[f"{block}.norm1.bias"] = torch.tensor([deviation, -deviation] * (width // 2))
    state[f"{block}.attn2.to_k.weight"] = torch.zeros(width, 1024)
    state["output_blocks.11.1.proj_in.weight"] = torch.zeros(width, width)
    return with_prefix(UNET, state)


@pytest.mark.parametrize(
    ("deviation", "notes", "asked", "expected"),
    [
        (0.1, {}, None, "v_prediction"),
        (0.08, {}, None, "epsilon"),
        (0.1, {"modelspec.prediction_type": "epsilon"}, None, "epsilon"),
        (0.08, {}, "v_prediction", "v_prediction"),
    ],
)
def test_what_sd2_predicts(
    deviation: float, notes: dict[str, str], asked: str | None, expected: str, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    path = tmp_path / "sd2.safetensors"
    save_file(of_sd2(deviation), path, notes or None)
    replaced = Replacements(prediction_type=asked)
    with open_source(str(path), replaced=replaced) as source:
        scheduler = json.loads((source.part("scheduler") / "scheduler_config.json").read_text())
        size = json.loads((source.part("unet") / "config.json").read_text())["sample_size"]
    assert scheduler["prediction_type"] == expected
    assert size == {"v_prediction": 96, "epsilon": 64}[expected]
    assert ("--prediction-type" in told(capsys)) == (not notes and not asked)


@pytest.mark.parametrize(
    ("text", "asked", "expected"),
    [
        ('model:\n  params:\n    parameterization: "v"\n', None, "v_prediction"),
        ("model:\n  params:\n    beta_schedule: linear\n", None, "epsilon"),
        ("parameterization: v", "epsilon", "epsilon"),
    ],
)
def test_the_config_beside_a_file_says_what_it_predicts(
    text: str, asked: str | None, expected: str, tmp_path: Path
) -> None:
    save_file(of_sd2(0.08 if expected != "epsilon" else 0.1), tmp_path / "sd2.safetensors")
    (tmp_path / "sd2.yaml").write_text(text)
    with open_source(str(tmp_path / "sd2.safetensors"), replaced=Replacements(prediction_type=asked)) as source:
        scheduler = json.loads((source.part("scheduler") / "scheduler_config.json").read_text())
    assert scheduler["prediction_type"] == expected


def test_averaged_weights_alone_are_no_unet(tmp_path: Path) -> None:
    names = ("model_ema.diffusion_modelout2weight", "first_stage_model.decoder.conv_in.weight")
    save_file({name: torch.zeros(4, 4, 3, 3) for name in names}, tmp_path / "ema.safetensors")
    with pytest.raises(BadModelError, match=r"averaged weights \(model_ema.\) alone"):
        export(tmp_path / "ema.safetensors", tmp_path / "out")


@pytest.mark.parametrize("layout", ["original", "without a prefix", "diffusers"])
def test_a_controlnet_is_read_in_every_layout(layout: str, tmp_path: Path, traces: Path) -> None:
    sizes: dict[str, Any] = {"block_out_channels": (32, 64), "norm_num_groups": 32}  # as in all published models
    state = dict(build_controlnet(tmp_path / "folder", **sizes).state_dict())
    original = ldm_control(state, 1)
    of_layout = {"original": with_prefix("control_model.", original), "without a prefix": original, "diffusers": state}
    path = tmp_path / "canny.safetensors"
    save(of_layout[layout], path)
    with open_source(str(path)) as source:
        [component] = select_components(source, (), TraceCache(traces, keeps=False))
        assert (component.name, component.class_name) == ("controlnet", "ControlNetModel")
        found = source.read_tensors("controlnet", "controlnet", None, False)
        assert found.keys() == state.keys()
        for name, tensor in state.items():
            assert np.array_equal(found[name].load(), tensor.numpy()), name
        config = json.loads((source.part("controlnet") / "config.json").read_text())
    own = json.loads((tmp_path / "folder" / "config.json").read_text())
    keys = config.keys() & own.keys() - {"attention_head_dim"}  # the tiny one's heads are no published model's
    assert {key: config[key] for key in keys} == {key: own[key] for key in keys}
    with pytest.raises(UsageError, match="--ema is for single files with a UNet"):
        export(path, tmp_path / "out", ema=True)


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("difference", "the difference of a ControlNet"),
        ("lora_controlnet", "a Control-LoRA"),
        ("task_embedding", r"several kinds of images \(union\)"),
        ("control_model.other", "'controlnet_cond_embedding.conv_in.weight' is missing"),
    ],
)
def test_another_kind_of_controlnet_is_refused(name: str, what: str, tmp_path: Path) -> None:
    tensors = {name: torch.zeros(1), "control_model.time_embed.0.weight": torch.zeros(8, 8)}
    save_file(tensors, tmp_path / "file.safetensors")
    with pytest.raises(BadModelError, match=what):
        export(tmp_path / "file.safetensors", tmp_path / "out")


def test_another_scheduler_takes_the_place_of_a_folders(exported: Callable[[str], Exported], tmp_path: Path) -> None:
    made = exported("sd1")
    replaced = Replacements(scheduler="dpm++-2m-karras", prediction_type="v_prediction")
    with open_source(str(made.checkpoint), replaced=replaced) as source:
        config = json.loads((source.part("scheduler") / "scheduler_config.json").read_text())
        assert source.index["scheduler"] == ["diffusers", "DPMSolverMultistepScheduler"]
    own = json.loads((made.checkpoint / "scheduler" / "scheduler_config.json").read_text())
    assert config["use_karras_sigmas"]
    assert config["prediction_type"] == "v_prediction"
    assert config["beta_start"] == own["beta_start"]


def test_a_tiny_vae_is_exported_alone_and_in_the_place_of_another(
    exported: Callable[[str], Exported], tmp_path: Path
) -> None:
    made = exported("sd1")
    torch.manual_seed(0)
    vae = AutoencoderTiny(encoder_block_out_channels=(8,) * 4, decoder_block_out_channels=(8,) * 4).eval()
    vae.save_pretrained(tmp_path / "taesd")
    out = export_file(made, tmp_path / "taesd", tmp_path / "alone")
    assert {file.parent.name for file in out.rglob("model.onnx")} == {"vae_encoder", "vae_decoder"}
    latent, image = torch.randn(2, 4, 9, 7) * 4, torch.rand(1, 3, 72, 40) * 2 - 1
    with torch.no_grad():
        decoded, encoded = vae.decode(latent).sample.numpy(), vae.encode(image).latents.numpy()
    results = (
        (run_onnx(out / "vae_decoder/model.onnx", latent_sample=latent)["sample"], decoded),
        (run_onnx(out / "vae_encoder/model.onnx", sample=image)["latent_sample"], encoded),
    )
    for actual, expected in results:
        assert actual.shape == expected.shape
        assert np.abs(actual - expected).max() / expected.std() < 1e-4  # float32, summed in another order
    whole = export_file(made, made.checkpoint, tmp_path / "whole", vae=tmp_path / "taesd")
    assert_same(whole, out, "vae_decoder")
    assert json.loads((whole / "vae_decoder" / "config.json").read_text())["scaling_factor"] == 1.0


def drop(*patterns: str) -> Callable[[dict[str, Any]], None]:
    def change(state: dict[str, Any]) -> None:
        for name in [name for name in state if any(re.search(pattern, name) for pattern in patterns)]:
            del state[name]

    return change


def to_fp8(state: dict[str, Any]) -> None:
    state.update({name: tensor.to(torch.float8_e4m3fn) for name, tensor in halved(state).items()})


BROKEN: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "a tensor of the UNet": (drop(r"middle_block\.0\.in_layers\.2\.weight"), "lacks 1 of the parameters"),
    "the first convolution": (drop(r"input_blocks\.0\.0\.weight"), "'conv_in.weight' is missing"),
    "fp8": (to_fp8, "a quantized format"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_file_is_refused(exported: Callable[[str], Exported], case: str, tmp_path: Path) -> None:
    change, message = BROKEN[case]
    made = exported("sd1")
    path = changed(made, tmp_path / "broken.safetensors", change)
    with pytest.raises(BadModelError, match=re.escape(message)):
        export_file(made, path, tmp_path / "out", config=made.checkpoint)
    assert not (tmp_path / "out").exists()


def test_options_of_single_files_are_for_them(exported: Callable[[str], Exported], tmp_path: Path) -> None:
    made = exported("sd1")
    with pytest.raises(UsageError, match="--ema is for single files"):
        export_file(made, made.checkpoint, tmp_path / "out", ema=True)
    with pytest.raises(BadModelError, match="embeddings for"):
        export_file(made, the_file(made), tmp_path / "out")
    with pytest.raises(UsageError, match=r"none\.safetensors does not exist"):
        export_file(made, tmp_path / "none.safetensors", tmp_path / "out", config=made.checkpoint)
    with pytest.raises(UsageError, match="does not exist"):
        export_file(made, made.checkpoint, tmp_path / "out", vae=tmp_path / "nothing")


def test_a_plan_of_a_single_file_writes_nothing(exported: Callable[[str], Exported], tmp_path: Path) -> None:
    made = exported("sd1")
    options: dict[str, Any] = {"cache_dir": made.traces, "config": made.checkpoint}
    plan, usual = (
        plan_export(the_file(made), tmp_path / "out", **options),
        plan_export(made.checkpoint, tmp_path / "out", cache_dir=made.traces),
    )
    assert [write.bytes for write in plan.writes] == [write.bytes for write in usual.writes]
    assert not (tmp_path / "out").exists()


def test_a_layer_that_sd2_does_not_use_is_left_out(tmp_path: Path) -> None:
    from sdort.checkpoints.single_file import read_single_file

    state = of_sd2(0.0)
    text = {
        f"encoder.layers.{layer}.{name}": torch.zeros(shape) for layer in range(23) for name, shape in BLOCK.items()
    }
    text |= {"embeddings.token_embedding.weight": torch.zeros(49408, 64), **LAST}
    state |= with_prefix("cond_stage_model.model.", open_clip(text, more_layers=1))
    state["cond_stage_model.model.text_projection"] = torch.zeros(64, 64)
    save_file({name: tensor.half().clone() for name, tensor in state.items()}, tmp_path / "sd2.safetensors")
    file = read_single_file(tmp_path / "sd2.safetensors")
    assert file.configs["text_encoder"]["num_hidden_layers"] == 23
    assert file.tensors["text_encoder"].keys() == text.keys()
    assert not file.unread


BLOCK = {
    **{f"self_attn.{part}_proj.weight": (64, 64) for part in ("q", "k", "v", "out")},
    **{f"self_attn.{part}_proj.bias": (64,) for part in ("q", "k", "v", "out")},
    **{f"layer_norm{number}.{kind}": (64,) for number in (1, 2) for kind in ("weight", "bias")},
    "mlp.fc1.weight": (128, 64),
    "mlp.fc1.bias": (128,),
    "mlp.fc2.weight": (64, 128),
    "mlp.fc2.bias": (64,),
}
LAST = {
    "embeddings.position_embedding.weight": torch.zeros(77, 64),
    "final_layer_norm.weight": torch.zeros(64),
    "final_layer_norm.bias": torch.zeros(64),
}
