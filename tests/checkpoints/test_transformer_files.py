"""Transformers as single files: every tensor is that of the diffusers folder, bit by bit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support import authors_layouts
from support.ldm_files import with_prefix
from support.transformer_files import Made, build, write

from sdort.checkpoints.file_kind import recognise_file
from sdort.checkpoints.single_file import SingleFile, read_single_file
from sdort.checkpoints.weight_names import Kind
from sdort.console import quiet_libraries
from sdort.errors import BadModelError
from sdort.exporter.bind import bind
from sdort.exporter.component_configs import class_defaults, normalise
from sdort.families.known_families import FAMILIES

PREFIXES = ("model.diffusion_model.", "diffusion_model.", "")


def check(file: SingleFile, made: Made, components: Mapping[str, Any]) -> None:
    assert file.tensors.keys() == components.keys()
    for component, model in components.items():
        state = {name: each.numpy() for name, each in model.state_dict().items()}
        if component.startswith("text_encoder"):
            state.pop("shared.weight", None)  # T5's table of words has two names
        bound = bind(file.tensors[component], {name: each.shape for name, each in state.items()}, component)
        assert bound.keys() == state.keys()
        for name, values in state.items():
            np.testing.assert_array_equal(bound[name].load(), values, err_msg=f"{component} {name}")
        kind = type(model).__name__
        saved = model.config.to_diff_dict() if component.startswith("text_encoder") else dict(model.config)
        ours, theirs = (plain(normalise(kind, config, class_defaults(kind)))
                        for config in (file.configs[component], saved))  # fmt: skip
        assert ours == theirs


def plain(config: Mapping[str, Any]) -> dict[str, Any]:
    """As JSON has it; transformers 5 keeps the base of Qwen3's angles elsewhere than the published config."""
    found: dict[str, Any] = {name: list(value) if isinstance(value, tuple) else value for name, value in config.items()}
    if angles := found.pop("rope_parameters", None):
        found["rope_theta"] = angles["rope_theta"]
    return {name: value for name, value in found.items() if name not in ("layer_types", "use_cache")}


@pytest.mark.parametrize("prefix", PREFIXES)
@pytest.mark.parametrize("family", ["SD 3", "Flux.1", "Chroma", "Z-Image"])
def test_every_tensor_of_a_whole_file_is_that_of_the_folder(family: str, prefix: str, tmp_path: Path) -> None:
    made = build(family)
    path = write(tmp_path / "a.safetensors", with_prefix(prefix, made.transformer) | made.rest)
    assert recognise_file(path).kind is Kind.CHECKPOINT
    file = read_single_file(path)
    assert file.family is FAMILIES[family]
    check(file, made, made.parts)
    assert file.unread == ()
    assert file.configs["vae"]["shift_factor"] == FAMILIES[family].latents.shift


@pytest.mark.parametrize("prefix", [*PREFIXES, "transformer."])
@pytest.mark.parametrize("family", ["SD 3", "Flux.1", "Chroma", "Z-Image"])
def test_a_transformer_alone_is_read_in_both_layouts(family: str, prefix: str, tmp_path: Path) -> None:
    made = build(family)
    alone = {"transformer": made.parts["transformer"]}
    for tensors in (made.transformer, made.parts["transformer"].state_dict()):
        path = write(tmp_path / "a.safetensors", with_prefix(prefix, tensors))
        assert recognise_file(path).kind is Kind.DENOISER
        check(read_single_file(path), made, alone)


def test_schnell_has_another_schedule_and_no_guidance(tmp_path: Path) -> None:
    tensors = {name: each for name, each in build("Flux.1").transformer.items() if not name.startswith("guidance")}
    schnell = read_single_file(write(tmp_path / "a.safetensors", tensors))
    assert not schnell.configs["transformer"]["guidance_embeds"]
    assert (schnell.scheduler["shift"], schnell.scheduler["use_dynamic_shifting"]) == (1.0, False)
    dev = read_single_file(write(tmp_path / "b.safetensors", build("Flux.1").transformer))
    assert dev.scheduler["use_dynamic_shifting"]


@pytest.mark.parametrize("end", ["scale_weight", "weight_scale", ""])
@pytest.mark.parametrize("kind", [torch.float8_e4m3fn, torch.float8_e5m2], ids=["e4m3", "e5m2"])
@pytest.mark.parametrize("family", ["SD 3", "Flux.1", "Chroma", "Z-Image"])
def test_weights_of_8_bits_are_what_they_stand_for(family: str, kind: Any, end: str, tmp_path: Path) -> None:
    made = build(family)
    stored: dict[str, Any] = {}
    for number, (name, tensor) in enumerate((with_prefix("diffusion_model.", made.transformer) | made.rest).items()):
        if tensor.dim() != 2 or not name.endswith(".weight") or name.startswith("first_stage_model"):
            stored[name] = tensor
            continue
        layer = name.removesuffix(".weight")
        # Of some layers, one for each row.
        scale = (
            torch.rand(tensor.shape[0], 1) + 0.5 if number % 3 == 1 and end == "weight_scale" else torch.rand(()) + 0.5
        )
        stored[name] = (tensor / scale if end else tensor).to(kind)
        if end:
            stored[f"{layer}.{end}"] = scale
            stored[f"{layer}.{'input_scale' if number % 2 else 'scale_input'}"] = torch.ones(())
            stored[f"{layer}.comfy_quant"] = torch.tensor(list(b'{"format": "float8_e4m3fn"}'), dtype=torch.uint8)
    wanted = {
        name: tensor.float() * stored.get(f"{name.removesuffix('.weight')}.{end}", 1)
        if tensor.dtype is kind
        else tensor
        for name, tensor in stored.items()
        if not name.endswith(("scale_weight", "weight_scale", "input_scale", "scale_input", "comfy_quant"))
    }
    stored["diffusion_model.scaled_fp8"] = torch.zeros(2).to(kind)
    ours = read_single_file(write(tmp_path / "a.safetensors", stored))
    theirs = read_single_file(write(tmp_path / "b.safetensors", wanted))
    assert ours.configs == theirs.configs
    for component, tensors in theirs.tensors.items():
        assert ours.tensors[component].keys() == tensors.keys()
        for name, tensor in tensors.items():
            np.testing.assert_array_equal(ours.tensors[component][name].load(), tensor.load(), err_msg=name)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"a.weight_scale": torch.ones(())}, "'a.weight_scale' is a scale without a weight"),
        ({"final_layer.linear.weight_scale": torch.ones(())}, "has a scale beside it, and is stored as float32"),
        ({"final_layer.linear.weight": torch.ones(64, 32).to(torch.float8_e4m3fn),
          "final_layer.linear.weight_scale": torch.ones(64, 2)}, r"has a scale of shape \[64, 2\]"),
        ({"final_layer.linear.weight_scale_2": torch.ones(())}, "'final_layer.linear.weight_scale_2'"),
        ({"final_layer.linear.SCB": torch.ones(64)}, "bitsandbytes, int8"),
    ],
)  # fmt: skip
def test_other_quantized_formats_are_refused(change: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(BadModelError, match=words):
        read_single_file(write(tmp_path / "a.safetensors", {**build("SD 3").transformer, **change}))


Change = Callable[[dict[str, Any]], Any]


@pytest.mark.parametrize(
    ("family", "change", "words"),
    [
        ("SD 3", lambda t: t.update({"joint_blocks.1.x_block.attn.qkv.weight": torch.ones(20, 32)}),
         r"tensor 'joint_blocks\.1\.x_block\.attn\.qkv\.weight' has the shape \[20, 32\]"),
        ("SD 3", lambda t: t.update({"joint_blocks.1.x_block.attn.qkv.bias": torch.ones(95)}),
         r"tensor 'joint_blocks\.1\.x_block\.attn\.qkv\.bias' has the shape \[95\]"),
        ("Flux.1", lambda t: t.update({"single_blocks.0.linear1.weight": torch.ones(64)}),
         r"tensor 'single_blocks\.0\.linear1\.weight'"),
        ("Flux.1", lambda t: t.update({"img_in.weight": torch.ones(64, 384)}), "takes 384 numbers a token"),
        ("Flux.1", lambda t: t.update({"double_blocks.0.img_attn.norm.query_norm.scale": torch.ones(33)}),
         "64 wide, which are no heads of 33"),
        ("SD 3", lambda t: t.pop("y_embedder.mlp.0.weight"), r"text_embedder\.linear_1\.weight' is missing"),
        ("Z-Image", lambda t: t.update({"layers.0.attention.to_q.weight": torch.ones(32, 32)}),
         r"'layers\.0\.attention\.to_q\.weight' twice"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused_with_the_name_of_the_tensor(
    family: str, change: Change, words: str, tmp_path: Path
) -> None:
    tensors = dict(build(family).transformer)
    change(tensors)
    with pytest.raises(BadModelError, match=words):
        read_single_file(write(tmp_path / "a.safetensors", tensors))


def test_controlnets_and_kin_are_no_transformer_that_is_exported(tmp_path: Path) -> None:
    own = build("SD 3").parts["transformer"].state_dict()
    control = {name: each for name, each in own.items() if not name.startswith(("norm_out", "proj_out"))}
    chroma = {name: each for name, each in build("Flux.1").transformer.items() if not name.startswith("vector_in")}
    lumina = {name: each for name, each in build("Z-Image").transformer.items() if name != "cap_pad_token"}
    for tensors in (control, chroma, lumina):
        assert recognise_file(write(tmp_path / "a.safetensors", tensors)).kind is Kind.TRANSFORMER


@pytest.mark.parametrize("family", ["sd3", "z_image", "flux", "chroma"])
def test_diffusers_reads_the_layouts_of_these_tests_as_its_own(family: str) -> None:
    from diffusers import ChromaTransformer2DModel, FluxTransformer2DModel
    from diffusers.loaders import single_file_utils

    if family in ("flux", "chroma"):  # it reads the one width that is published: numbers of rows, in one column
        with torch.device("meta"), quiet_libraries():
            model = (
                FluxTransformer2DModel(num_layers=1, num_single_layers=1, guidance_embeds=True)
                if family == "flux"
                else ChromaTransformer2DModel(num_layers=1, num_single_layers=1)
            )
        wanted = {
            name: torch.arange(each.shape[0]).reshape(-1, *[1] * (each.dim() - 1)) + 100_000 * number
            for number, (name, each) in enumerate(model.state_dict().items())
        }
    else:
        wanted = build({"sd3": "SD 3", "z_image": "Z-Image"}[family]).parts["transformer"].state_dict()
    convert = getattr(single_file_utils, f"convert_{family}_transformer_checkpoint_to_diffusers")
    found = convert(with_prefix("model.diffusion_model.", getattr(authors_layouts, family)(wanted)))
    assert found.keys() == wanted.keys()
    assert all(torch.equal(found[name], each) for name, each in wanted.items())
