"""Signatures of graphs by configs alone, against sizes computed from images that are not square."""

from __future__ import annotations

import math
from typing import Any

import pytest
from support import published_configs as published

from sdort.errors import BadModelError, UsageError
from sdort.exporter.component_configs import normalise
from sdort.exporter.export_options import DEFAULT_OPSET, StaticSize
from sdort.exporter.export_request import check_options
from sdort.exporter.signatures import FOLDERS, LIBRARIES, ComponentSpec, at_size, describe_component
from sdort.families.graph_tensor import GraphTensor

UNET = published.SD1
SIZES = {"batch_size": 2, "sequence_length": 77, "height": 13, "width": 22}


def dims(tensors: tuple[GraphTensor, ...]) -> dict[str, tuple[int | str, ...]]:
    return {tensor.name: tensor.dims for tensor in tensors}


def unet(config: dict[str, Any] | None = None, **options: Any) -> ComponentSpec:
    return at_size(describe_component("unet", "UNet2DConditionModel", {**UNET, **(config or {})}, **options), SIZES)


def test_a_unet_takes_latents_a_time_and_a_text() -> None:
    found = unet({"in_channels": 9, "out_channels": 4, "cross_attention_dim": 48})
    assert dims(found.inputs) == {"sample": (2, 9, 13, 22), "timestep": (), "encoder_hidden_states": (2, 77, 48)}
    assert dims(found.outputs) == {"out_sample": (2, 4, 13, 22)}
    assert {tensor.dtype for tensor in (*found.inputs, *found.outputs)} == {"float32"}
    assert dims(unet({"time_cond_proj_dim": 96}).inputs)["timestep_cond"] == (2, 96)
    assert dims(unet({"cross_attention_dim": [48, 48]}).inputs)["encoder_hidden_states"] == (2, 77, 48)


def test_dims_that_are_not_known_stay() -> None:
    found = describe_component("unet", "UNet2DConditionModel", UNET)
    part = at_size(found, {"height": 13})
    assert dims(part.inputs)["sample"] == ("batch_size", 4, 13, "width")
    assert at_size(found, {}) == found
    controlled = dims(describe_component("unet", "UNet2DConditionModel", UNET, control=True).inputs)
    assert controlled["down_block_additional_residuals.0"] == ("batch_size", 320, "height", "width")
    assert controlled["down_block_additional_residuals.3"][2:] == ("(height + 1)//2", "(width + 1)//2")


@pytest.mark.parametrize(
    ("total", "pooled", "count"), [(2816, None, 6), (2816, 1280, 6), (2560, 1280, 5), (176, 16, 10)]
)
def test_sdxls_numbers_and_pooled_text(total: int, pooled: int | None, count: int) -> None:
    width = 256 if total > 1000 else 16
    config = {"addition_embed_type": "text_time", "addition_time_embed_dim": width}
    found = dims(unet({**config, "projection_class_embeddings_input_dim": total}, text_embeds=pooled).inputs)
    assert (found["text_embeds"], found["time_ids"]) == ((2, total - count * width), (2, count))


def test_ip_adapters_have_tokens_and_a_scale_of_each_image() -> None:
    found = dims(unet(image_tokens=[4, 16]).inputs)
    assert list(found.items())[3:] == [
        ("image_tokens.0", (2, 4, 768)),
        ("image_scale.0", (2, 1)),
        ("image_tokens.1", (2, 16, 768)),
        ("image_scale.1", (2, 1)),
    ]


def halved(side: int, times: int) -> int:
    """A convolution of stride 2 rounds up, each time."""
    for _ in range(times):
        side = math.ceil(side / 2)
    return side


def residuals(channels: list[int], layers: list[int]) -> list[tuple[int, ...]]:
    """What a UNet keeps on its way down, walked through step by step."""
    height, width = SIZES["height"], SIZES["width"]
    found = [(2, channels[0], height, width)]
    for level, (wide, count) in enumerate(zip(channels, layers, strict=True)):
        found += [(2, wide, height, width)] * count
        if level + 1 < len(channels):
            height, width = halved(height, 1), halved(width, 1)
            found.append((2, wide, height, width))
    return [*found, (2, channels[-1], height, width)]


@pytest.mark.parametrize(
    ("channels", "layers", "types"),
    [
        ([320, 640, 1280, 1280], 2, ["CrossAttnDownBlock2D"] * 3 + ["DownBlock2D"]),
        ([32, 64, 96], 2, ["DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"]),
        ([32, 64, 96, 128], [1, 3, 2, 1], ["DownBlock2D", "CrossAttnDownBlock2D", "DownBlock2D", "DownBlock2D"]),
        ([32, 64], 1, ["CrossAttnDownBlock2D", "DownBlock2D"]),
        ([16] * 5, 1, ["CrossAttnDownBlock2D"] * 5),
    ],
)
def test_controls_reach_a_unet_where_its_skips_are(channels: list[int], layers: Any, types: list[str]) -> None:
    config = {"block_out_channels": channels, "layers_per_block": layers, "down_block_types": types}
    counts = layers if isinstance(layers, list) else [layers] * len(channels)
    expected = residuals(channels, counts)
    plain, controlled = dims(unet(config).inputs), dims(unet(config, control=True).inputs)
    added = {name: shape for name, shape in controlled.items() if name not in plain}
    names = [f"down_block_additional_residuals.{number}" for number in range(len(expected) - 1)]
    names.append("mid_block_additional_residual")
    assert [added.pop(name) for name in names] == expected
    # A block with attention takes a feature before it halves the image, another one behind that.
    features = []
    for level, (wide, kind) in enumerate(zip(channels, types, strict=True)):
        times = level if kind == "CrossAttnDownBlock2D" else min(level + 1, len(channels) - 1)
        features.append((2, wide, halved(13, times), halved(22, times)))
    if len(channels) < 4:
        features.append((2, channels[-1], halved(13, len(channels) - 1), halved(22, len(channels) - 1)))
    assert list(added.values()) == features
    assert list(added) == [f"down_intrablock_additional_residuals.{number}" for number in range(len(features))]

    net = {**UNET, **config, "conditioning_channels": 3, "conditioning_embedding_out_channels": [16, 32, 96]}
    control = at_size(describe_component("controlnet", "ControlNetModel", net), SIZES)
    assert list(dims(control.outputs).values()) == expected
    assert [tensor.name for tensor in control.outputs][-2:] == [
        f"down_block_res_samples.{len(expected) - 2}", "mid_block_res_sample",
    ]  # fmt: skip
    inputs = dims(control.inputs)
    assert inputs["controlnet_cond"] == (2, 3, 13 * 4, 22 * 4)
    assert inputs["conditioning_scale"] == (len(expected),)
    assert inputs["sample"] == (2, 4, 13, 22)


@pytest.mark.parametrize(("kind", "channels"), [
    ("full_adapter", [320, 640, 1280, 1280]), ("full_adapter_xl", [320, 640, 1280, 1280]),
    ("light_adapter", [320, 640, 1280]), ("full_adapter", [16, 32, 48]),
])  # fmt: skip
@pytest.mark.parametrize("factor", [8, 16])
def test_features_of_a_t2i_adapter(kind: str, channels: list[int], factor: int) -> None:
    """diffusers: pixels are folded by the factor, and pooled by two, rounded up, before each block but the first; in
    an adapter of SDXL before the third alone."""
    config = {"channels": channels, "adapter_type": kind, "downscale_factor": factor, "in_channels": 3}
    found = describe_component("t2i_adapter", "T2IAdapter", config)
    sizes = {"batch_size": 2, "sample_height": 13 * factor, "sample_width": 22 * factor}
    widths = [*channels, channels[-1]] if kind == "light_adapter" else channels
    height, width, expected = 13, 22, []
    for index, wide in enumerate(widths):
        if index and (kind != "full_adapter_xl" or index == 2):
            height, width = halved(height, 1), halved(width, 1)
        expected.append((2, wide, height, width))
    fixed = at_size(found, sizes)
    assert list(dims(fixed.outputs).values()) == expected
    assert list(dims(fixed.outputs)) == [f"features.{number}" for number in range(len(expected))]
    assert dims(fixed.inputs) == {"sample": (2, 3, 13 * factor, 22 * factor)}


@pytest.mark.parametrize("levels", [1, 3, 4])
@pytest.mark.parametrize("class_name", ["AutoencoderKL", "AutoencoderTiny"])
def test_both_halves_of_an_autoencoder(class_name: str, levels: int) -> None:
    factor = 2 ** (levels - 1)
    config = {"in_channels": 3, "out_channels": 5, "latent_channels": 7, "block_out_channels": [8] * levels}
    decoder = at_size(
        describe_component("vae_decoder", class_name, config),
        {"batch_size": 2, "latent_height": 13, "latent_width": 22},
    )
    assert dims(decoder.inputs) == {"latent_sample": (2, 7, 13, 22)}
    assert dims(decoder.outputs) == {"sample": (2, 5, 13 * factor, 22 * factor)}
    encoder = at_size(
        describe_component("vae_encoder", class_name, config),
        {"batch_size": 2, "sample_height": 13 * factor, "sample_width": 22 * factor},
    )
    assert dims(encoder.inputs) == {"sample": (2, 3, 13 * factor, 22 * factor)}
    if class_name == "AutoencoderKL":
        assert dims(encoder.outputs) == {"latent_parameters": (2, 14, 13, 22)}
    else:
        assert dims(encoder.outputs) == {"latent_sample": (2, 7, 13, 22)}


@pytest.mark.parametrize("layers", [1, 2, 5, 12, 24])
@pytest.mark.parametrize("hidden", [False, True])
@pytest.mark.parametrize("class_name", ["CLIPTextModel", "CLIPTextModelWithProjection"])
def test_a_text_encoders_outputs(class_name: str, hidden: bool, layers: int) -> None:
    config = {"hidden_size": 48, "num_hidden_layers": layers, "projection_dim": 20}
    found = describe_component("text_encoder", class_name, config, hidden_states=hidden)
    assert found.inputs == (GraphTensor("input_ids", "int64", ("batch_size", "sequence_length")),)
    outputs = dims(at_size(found, SIZES).outputs)
    states = (2, 77, 48)
    if class_name == "CLIPTextModel":
        expected = [("last_hidden_state", states), ("pooler_output", (2, 48))]
    else:
        expected = [("text_embeds", (2, 20)), ("last_hidden_state", states)]
    if hidden:
        expected += [(f"hidden_states.{number}", states) for number in range(layers + 1)]
    elif class_name == "CLIPTextModel":
        skips = [outputs_name for outputs_name in outputs if outputs_name.rpartition(".")[2].isdecimal()]
        assert [int(name.rpartition(".")[2]) for name in skips] == [*range(2, min(layers, 12) + 1)]
        expected += [(name, states) for name in skips]
    assert list(outputs.items()) == expected


def test_an_image_encoder_makes_the_tokens_of_each_adapter() -> None:
    projections = [
        {"kind": "plain", "tokens": 4, "width": 768},
        {"kind": "plus", "tokens": 16, "width": 2048},
        {"kind": "plain", "tokens": 5, "width": 32},
    ]
    config = {"image_size": 28, "num_channels": 3, "projections": projections}
    found = at_size(describe_component("image_encoder", "CLIPVisionModelWithProjection", config), SIZES)
    assert dims(found.inputs) == {"pixel_values": (2, 3, 28, 28)}
    assert [tensor.name.rpartition(".")[2] for tensor in found.outputs] == ["0", "0", "1", "2", "2"]
    assert [tensor.dims for tensor in found.outputs] == [
        (2, 4, 768), (2, 4, 768), (2, 16, 2048), (2, 5, 32), (2, 5, 32),
    ]  # fmt: skip


@pytest.mark.parametrize("component", ["unet", "controlnet"])
@pytest.mark.parametrize(
    ("key", "value", "taken"),
    [
        ("class_embed_type", "timestep", False),
        ("num_class_embeds", 7, False),
        ("encoder_hid_dim_type", "text_proj", False),
        ("addition_embed_type", "image", False),
        ("attention_type", "gated", False),
        ("attention_type", "default", True),
        ("attention_type", None, True),
        ("addition_embed_type", "text_time", True),
    ],
)
def test_unets_with_other_inputs_are_refused(component: str, key: str, value: Any, taken: bool) -> None:
    more = {"conditioning_channels": 3, "conditioning_embedding_out_channels": [16, 32]}
    config = {**published.SDXL, "addition_embed_type": None, **more, key: value}
    class_name = "UNet2DConditionModel" if component == "unet" else "ControlNetModel"
    if taken:
        describe_component(component, class_name, config)
        return
    with pytest.raises(BadModelError, match=f"a UNet with {key} = '?{value}'? takes inputs") as caught:
        describe_component(component, class_name, config)
    assert caught.value.component == component


@pytest.mark.parametrize(
    ("component", "class_name", "config", "words"),
    [
        ("unet", "UNet2DConditionModel", {**UNET, "in_channels": True}, "in_channels = True"),
        ("unet", "UNet2DConditionModel", {**UNET, "in_channels": 0}, "in_channels = 0"),
        ("unet", "UNet2DConditionModel", {**UNET, "out_channels": 4.0}, "out_channels = 4.0"),
        ("unet", "UNet2DConditionModel", {**UNET, "cross_attention_dim": [768, 1024]}, "cross_attention_dim ="),
        ("unet", "UNet2DConditionModel", {}, "KeyError"),
        ("unet", "UNet2DConditionModel", {**UNET, "cross_attention_dim": []}, "cross_attention_dim"),
        ("controlnet", "ControlNetModel", {**UNET, "block_out_channels": None}, "TypeError"),
        ("controlnet", "ControlNetModel", {**UNET, "block_out_channels": []}, "IndexError"),
        ("vae_decoder", "AutoencoderKL", {"out_channels": 3}, "latent_channels"),
        ("text_encoder", "CLIPTextModel", {"hidden_size": 8, "num_hidden_layers": None}, "num_hidden_layers = None"),
    ],
)
def test_a_config_of_no_such_model_is_refused(
    component: str, class_name: str, config: dict[str, Any], words: str
) -> None:
    with pytest.raises(BadModelError, match=words) as caught:
        describe_component(component, class_name, config)
    assert caught.value.component == component


def test_each_component_has_a_folder_and_each_class_a_library() -> None:
    assert FOLDERS == {
        "text_encoder": "text_encoder", "text_encoder_2": "text_encoder_2", "text_encoder_3": "text_encoder_3",
        "unet": "unet", "transformer": "transformer", "vae_encoder": "vae", "vae_decoder": "vae",
        "controlnet": "controlnet", "t2i_adapter": "adapter", "image_encoder": "image_encoder",
        "safety_checker": "safety_checker",
    }  # fmt: skip
    assert {
        library: tuple(sorted(name for name, each in LIBRARIES.items() if each == library))
        for library in LIBRARIES.values()
    } == {
        "transformers": (
            "CLIPTextModel",
            "CLIPTextModelWithProjection",
            "CLIPVisionModelWithProjection",
            "Qwen3Model",
            "T5EncoderModel",
        ),
        "diffusers": (
            "AutoencoderKL",
            "AutoencoderTiny",
            "ChromaTransformer2DModel",
            "ControlNetModel",
            "FluxTransformer2DModel",
            "SD3Transformer2DModel",
            "StableDiffusionSafetyChecker",
            "T2IAdapter",
            "UNet2DConditionModel",
            "ZImageTransformer2DModel",
        ),
    }


NO_EFFECT = {
    "UNet2DConditionModel": ("sample_size", "dropout", "upcast_attention"),
    **dict.fromkeys(
        ("AutoencoderKL", "AutoencoderTiny"),
        ("sample_size", "scaling_factor", "shift_factor", "latents_mean", "latents_std", "force_upcast"),
    ),
    "CLIPTextModel": ("dtype", "torch_dtype", "architectures", "pad_token_id", "bos_token_id", "transformers_version"),
}
"""Keys that change no graph, so that a config with others has the same trace."""


@pytest.mark.parametrize("class_name", NO_EFFECT)
def test_configs_of_one_graph_become_equal(class_name: str) -> None:
    defaults = {**dict.fromkeys(NO_EFFECT[class_name], 1), "eos_token_id": 2, "act_fn": "silu", "unknown": None}
    plain = normalise(class_name, {}, defaults)
    for key in NO_EFFECT[class_name]:
        assert normalise(class_name, {key: 7}, defaults) == plain
    assert normalise(class_name, {"foreign": 7, "_class_name": "x"}, defaults) == plain
    for key in ("eos_token_id", "act_fn", "unknown"):
        assert normalise(class_name, {key: 7}, defaults) == {**plain, key: 7}
    assert list(plain) == sorted(plain)


def test_a_static_size_is_batch_height_and_width() -> None:
    found = StaticSize.parse("2x64x96")
    assert (found.batch, found.height, found.width, str(found)) == (2, 64, 96, "2x64x96")
    for text in ("64x96", "1x64x96x3", "1x64x", "-1x64x64", "1 x64x64", "1x64x64\n", "ax64x64", "0x64x64", "1x0x64",
                 "1x64x0", "1025x64x64", "1x16385x64", "1x64x16385"):  # fmt: skip
        with pytest.raises(UsageError, match="--static"):
            StaticSize.parse(text)


def test_options_and_their_defaults() -> None:
    from pathlib import Path

    plain = check_options({})
    assert plain.opset == DEFAULT_OPSET == 23
    assert not any((plain.components, plain.static, plain.control, plain.variant, plain.allow_pickle))
    assert not any((plain.lora, plain.embedding, plain.ip_adapters.adapters, plain.ip_adapters.encoder))
    found = check_options(
        {
            "components": ["unet"], "opset": 20, "static": "1x64x96", "control": True, "ip_adapter": ["a", "b"],
            "image_encoder": "c", "variant": "fp16", "allow_pickle": True, "config": "d", "vae": "e",
            "scheduler": "euler", "prediction_type": "sample", "ema": True, "lora": ["f.safetensors:0.5"],
            "embedding": ["g.safetensors:word"], "cache_dir": "h",
        }
    )  # fmt: skip
    replaced = found.replaced
    assert (found.components, found.opset, found.static) == (["unet"], 20, StaticSize(1, 64, 96))
    assert (found.control, found.variant, found.allow_pickle, found.traces) == (True, "fp16", True, Path("h"))
    assert (replaced.config, replaced.vae, replaced.scheduler) == (Path("d"), Path("e"), "euler")
    assert (replaced.prediction_type, replaced.ema) == ("sample", True)
    assert [(choice.path, choice.scale) for choice in found.lora] == [(Path("f.safetensors"), 0.5)]
    assert [(choice.path, choice.word) for choice in found.embedding] == [(Path("g.safetensors"), "word")]
    assert (found.ip_adapters.adapters, found.ip_adapters.encoder) == ((Path("a"), Path("b")), Path("c"))
