"""Configs by the shapes of tensors alone, for structures that no published model shares in all of its numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from sdort.checkpoints import shape_configs
from sdort.checkpoints.clip_vision import vision_config
from sdort.checkpoints.layout import clip_tensors, equal_parts, vae_tensors
from sdort.checkpoints.ldm_names import control_name, count_hint_layers, count_layers, unet_name, vae_name
from sdort.checkpoints.pipeline_files import _index
from sdort.checkpoints.prediction import Prediction
from sdort.checkpoints.single_file import SingleFile, _check_latents, _family, _scheduler
from sdort.checkpoints.weight_names import REFINER, SD1, SD2, SDXL
from sdort.errors import BadModelError
from sdort.families import tensor_shapes
from sdort.families.known_families import FAMILIES
from sdort.families.scheduler_configs import EDM
from sdort.families.unet import INPAINTING
from sdort.graph.weights import Stored, Weight

Shapes = dict[str, tuple[int, ...]]
Depths = Sequence[Sequence[int]]
"""Of each level, the depth of the transformer behind each residual block."""


def unet(
    channels: Sequence[int],
    down: Depths,
    up: Depths,
    *,
    context: int = 768,
    linear: bool = False,
    middle: int | None = 1,
) -> Shapes:
    """The tensors of a UNet in diffusers' names that its structure shows in; ``middle`` None for no mid block."""
    found: Shapes = {"conv_in.weight": (channels[0], 9, 3, 3), "conv_out.weight": (4, channels[0], 3, 3)}
    for half, depths, widths in (("down", down, channels), ("up", up, channels[::-1])):
        for level, layers in enumerate(depths):
            for layer, depth in enumerate(layers):
                stem = f"{half}_blocks.{level}"
                found[f"{stem}.resnets.{layer}.conv1.weight"] = (widths[level], 32, 3, 3)
                if depth:
                    shape = (widths[level], widths[level])
                    found[f"{stem}.attentions.{layer}.proj_in.weight"] = shape if linear else (*shape, 1, 1)
                for block in range(depth):
                    name = f"{stem}.attentions.{layer}.transformer_blocks.{block}.attn2.to_k.weight"
                    found[name] = (widths[level], context)
    if middle is not None:
        found["mid_block.resnets.0.conv1.weight"] = (channels[-1], channels[-1], 3, 3)
        if middle:
            found["mid_block.attentions.0.norm.weight"] = (channels[-1],)
    return found


CROSS, PLAIN, CROSS_UP, PLAIN_UP = "CrossAttnDownBlock2D", "DownBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"


@pytest.mark.parametrize(
    ("down", "up", "expected"),
    [
        ([[1, 1], [1, 1], [0, 0]], [[0] * 3, [1] * 3, [1] * 3], {"transformer_layers_per_block": 1}),
        ([[4, 4], [4, 4], [0, 0]], [[0] * 3, [4] * 3, [4] * 3], {"transformer_layers_per_block": 4}),
        ([[0, 0], [2, 2], [10, 10]], [[10] * 3, [2] * 3, [0] * 3], {"transformer_layers_per_block": [1, 2, 10]}),
        (
            [[0, 0], [2, 2], [4, 4]],
            [[4, 4, 10], [2, 1, 1], [0] * 3],
            {"transformer_layers_per_block": [1, 2, 4],
             "reverse_transformer_layers_per_block": [[4, 4, 10], [2, 1, 1], 1]},
        ),
        (
            [[0, 0], [2, 4], [4, 4]],
            [[4] * 3, [2] * 3, [0] * 3],
            {"transformer_layers_per_block": [1, [2, 4], 4], "reverse_transformer_layers_per_block": [4, 2, 1]},
        ),
        (
            [[1, 0], [1, 1], [0, 0]],
            [[0] * 3, [1] * 3, [1] * 3],
            {"transformer_layers_per_block": [[1, 0], 1, 1], "reverse_transformer_layers_per_block": [1, 1, 1]},
        ),
    ],
)  # fmt: skip
@pytest.mark.parametrize("linear", [False, True])
def test_a_unets_structure(down: Depths, up: Depths, expected: dict[str, Any], linear: bool) -> None:
    found = shape_configs.unet_config(unet([32, 128, 192], down, up, linear=linear, context=48))
    assert found == {
        "_class_name": "UNet2DConditionModel",
        "in_channels": 9,
        "out_channels": 4,
        "block_out_channels": [32, 128, 192],
        "down_block_types": [CROSS if any(depths) else PLAIN for depths in down],
        "up_block_types": [CROSS_UP if any(depths) else PLAIN_UP for depths in up],
        "layers_per_block": 2,
        "cross_attention_dim": 48,
        "attention_head_dim": [1, 2, 3] if linear else 8,
        "use_linear_projection": linear,
        **expected,
    }


def test_layers_of_each_level_and_middles() -> None:
    down, up = [[1], [1, 1, 1], [0, 0]], [[0] * 3, [1] * 3, [1] * 3]
    assert shape_configs.unet_config(unet([32, 64, 64], down, up))["layers_per_block"] == [1, 3, 2]
    single = shape_configs.unet_config(unet([32], [[3]], [[3]]))
    assert (single["layers_per_block"], single["transformer_layers_per_block"]) == (1, 3)
    for middle, kind in ((0, "UNetMidBlock2D"), (None, None)):
        found = shape_configs.unet_config(unet([32, 64, 64], down, up, middle=middle))
        assert found["mid_block_type"] == kind
    assert "mid_block_type" not in shape_configs.unet_config(unet([32, 64, 64], down, up))
    more = {"add_embedding.linear_1.weight": (128, 2816), "time_embedding.cond_proj.weight": (32, 96)}
    found = shape_configs.unet_config({**unet([32, 64, 64], down, up), **more})
    assert (found["addition_embed_type"], found["addition_time_embed_dim"]) == ("text_time", 256)
    assert (found["projection_class_embeddings_input_dim"], found["time_cond_proj_dim"]) == (2816, 96)


@pytest.mark.parametrize(
    "lost", ["conv_in.weight", "conv_out.weight", "down_blocks.1.resnets", "up_blocks.2.", "attn2"]
)
def test_what_a_unet_lacks_is_named(lost: str) -> None:
    whole = unet([32, 64, 64], [[1, 1], [1, 1], [0, 0]], [[0] * 3, [1] * 3, [1] * 3])
    left = {name: shape for name, shape in whole.items() if lost not in name}
    with pytest.raises(BadModelError, match="missing"):
        shape_configs.unet_config(left)


@pytest.mark.parametrize("shape", [(), (4,), (0, 4), (4, 0, 3, 3)])
def test_a_weight_has_axes_and_values(shape: tuple[int, ...]) -> None:
    with pytest.raises(BadModelError, match="has the shape"):
        tensor_shapes.shape_of({"a": shape}, "a")
    assert tensor_shapes.shape_of({"a": (1, 2)}, "a") == (1, 2)


def test_a_controlnets_image() -> None:
    image = "controlnet_cond_embedding"
    net = unet([32, 64], [[1, 1], [0, 0]], [], context=48)
    net |= {f"{image}.conv_in.weight": (16, 5, 3, 3), f"{image}.conv_out.weight": (32, 96, 3, 3)}
    for block, width in enumerate((16, 24, 24, 48)):
        net[f"{image}.blocks.{block}.weight"] = (width, 16, 3, 3)
    found = shape_configs.controlnet_config(net)
    assert found["_class_name"] == "ControlNetModel"
    assert found["conditioning_channels"] == 5
    assert found["conditioning_embedding_out_channels"] == [16, 24, 48]
    assert (found["cross_attention_dim"], found["transformer_layers_per_block"]) == (48, 1)
    plain = {name: shape for name, shape in net.items() if "attentions" not in name}
    assert shape_configs.controlnet_config(plain)["cross_attention_dim"] == 2048


@pytest.mark.parametrize(("quant", "post"), [(True, True), (False, True), (True, False)])
def test_an_autoencoders_structure(quant: bool, post: bool) -> None:
    shapes: Shapes = {
        "encoder.conv_in.weight": (32, 5, 3, 3), "decoder.conv_out.weight": (7, 32, 3, 3),
        "decoder.conv_in.weight": (64, 6, 3, 3), "encoder.conv_out.weight": (12, 64, 3, 3),
    }  # fmt: skip
    for level, width in enumerate((32, 48, 64)):
        for layer in range(3):
            shapes[f"encoder.down_blocks.{level}.resnets.{layer}.conv1.weight"] = (width, 32, 3, 3)
    shapes |= {"quant_conv.weight": (12, 12, 1, 1)} if quant else {}
    shapes |= {"post_quant_conv.weight": (6, 6, 1, 1)} if post else {}
    assert shape_configs.vae_config(shapes) == {
        "_class_name": "AutoencoderKL", "in_channels": 5, "out_channels": 7, "latent_channels": 6,
        "block_out_channels": [32, 48, 64], "down_block_types": ["DownEncoderBlock2D"] * 3,
        "up_block_types": ["UpDecoderBlock2D"] * 3, "layers_per_block": 3, "norm_num_groups": 32, "act_fn": "silu",
        "use_quant_conv": quant, "use_post_quant_conv": post,
    }  # fmt: skip
    tiny = shape_configs.tiny_vae_config(
        {"encoder.layers.0.weight": (48, 3, 3, 3), "decoder.layers.0.weight": (48, 16, 3, 3)}
    )
    assert (tiny["latent_channels"], tiny["scaling_factor"], tiny["force_upcast"]) == (16, 1.0, False)
    assert (tiny["_class_name"], tiny["in_channels"], tiny["out_channels"]) == ("AutoencoderTiny", 3, 3)
    assert tiny["block_out_channels"] == [48] * 4
    assert tiny["encoder_block_out_channels"] == tiny["decoder_block_out_channels"] == [48] * 4
    assert (tiny["num_encoder_blocks"], tiny["num_decoder_blocks"]) == ([1, 3, 3, 3], [3, 3, 3, 1])


@pytest.mark.parametrize("prefix", ["", "text_model."])
@pytest.mark.parametrize("projection", [None, 20])
def test_a_text_encoders_structure(prefix: str, projection: int | None) -> None:
    shapes: Shapes = {
        f"{prefix}embeddings.token_embedding.weight": (1000, 192),
        f"{prefix}embeddings.position_embedding.weight": (55, 192),
        **{f"{prefix}encoder.layers.{layer}.mlp.fc1.weight": (777, 192) for layer in (0, 1, 10)},
    }
    shapes |= {"text_projection.weight": (projection, 192)} if projection else {}
    assert shape_configs.count_text_layers(shapes) == 3
    found = shape_configs.text_config(shapes, "gelu", 2)
    assert found["architectures"] == ["CLIPTextModelWithProjection" if projection else "CLIPTextModel"]
    assert (found["vocab_size"], found["hidden_size"], found["intermediate_size"]) == (1000, 192, 777)
    assert (found["num_hidden_layers"], found["num_attention_heads"]) == (2, 3)
    assert (found["max_position_embeddings"], found["hidden_act"]) == (55, "gelu")
    assert (found["layer_norm_eps"], found["model_type"]) == (1e-5, "clip_text_model")
    assert (found["bos_token_id"], found["eos_token_id"], found["pad_token_id"]) == (0, 2, 1)
    assert found.get("projection_dim") == projection


@pytest.mark.parametrize(
    ("width", "heads", "activation"),
    [(768, 12, "quick_gelu"), (1024, 16, "quick_gelu"), (1280, 16, "gelu"), (1408, 16, "gelu"), (1664, 16, "gelu")],
)
def test_an_image_encoders_structure(width: int, heads: int, activation: str) -> None:
    shapes: Shapes = {
        "vision_model.embeddings.patch_embedding.weight": (width, 3, 14, 14),
        "vision_model.embeddings.position_embedding.weight": (1 + 16 * 16, width),
        **{f"vision_model.encoder.layers.{layer}.mlp.fc1.weight": (4000, width) for layer in range(3)},
        "visual_projection.weight": (640, width),
    }
    assert vision_config(shapes) == {
        "hidden_size": width, "num_channels": 3, "patch_size": 14, "image_size": 224, "num_hidden_layers": 3,
        "intermediate_size": 4000, "num_attention_heads": heads, "hidden_act": activation, "projection_dim": 640,
    }  # fmt: skip
    with pytest.raises(BadModelError, match=f"how many heads an image encoder {width + 1} wide has"):
        vision_config({name: tuple(size + (size == width) for size in shape) for name, shape in shapes.items()})


def test_the_family_of_a_unets_structure() -> None:
    def with_embedding(total: int, context: int) -> Shapes:
        whole = unet([32, 64], [[1, 1], [0, 0]], [[0] * 3, [1] * 3], context=context, linear=True)
        return {**whole, "add_embedding.linear_1.weight": (128, total)}

    plain: Callable[[bool], Shapes] = lambda linear: unet([32], [[1]], [[1]], linear=linear)  # noqa: E731
    assert _family(plain(False)) is FAMILIES[SD1]
    assert _family(plain(True)) is FAMILIES[SD2]
    assert _family(with_embedding(1280 + 6 * 256, 2048)) is FAMILIES[SDXL]
    assert _family(with_embedding(1280 + 5 * 256, 1280)) is FAMILIES[REFINER]


NOISE = {"num_train_timesteps": 1000, "beta_start": 0.00085, "beta_end": 0.012, "beta_schedule": "scaled_linear"}


@pytest.mark.parametrize(
    ("family", "scheduler", "size", "scale", "index", "encoders"),
    [
        (
            SD1, "PNDMScheduler", 64, 0.18215, {},
            [("text_encoder", "CLIPTextModel", "quick_gelu", "<|endoftext|>", 768)],
        ),
        (SD2, "PNDMScheduler", 64, 0.18215, {}, [("text_encoder", "CLIPTextModel", "gelu", "!", 512)]),
        (
            SDXL, "EulerDiscreteScheduler", 128, 0.13025, {"force_zeros_for_empty_prompt": True},
            [("text_encoder", "CLIPTextModel", "quick_gelu", "<|endoftext|>", 768),
             ("text_encoder_2", "CLIPTextModelWithProjection", "gelu", "!", None)],
        ),
        (
            REFINER, "EulerDiscreteScheduler", 128, 0.13025,
            {"force_zeros_for_empty_prompt": False, "requires_aesthetics_score": True},
            [("text_encoder_2", "CLIPTextModelWithProjection", "gelu", "!", None)],
        ),
    ],
)  # fmt: skip
def test_what_published_configs_of_a_family_say(
    family: str, scheduler: str, size: int, scale: float, index: dict[str, Any], encoders: list[Any]
) -> None:
    release = FAMILIES[family]
    assert (release.name, release.scheduler["_class_name"], release.sample_size) == (family, scheduler, size)
    assert {key: release.scheduler[key] for key in NOISE} == NOISE
    assert (release.scheduler["steps_offset"], release.scheduler["clip_sample"]) == (1, False)
    assert (release.scheduler["set_alpha_to_one"], release.scheduler["skip_prk_steps"]) == (False, True)
    assert (release.vae["scaling_factor"], release.vae["sample_size"]) == (scale, 8 * size)
    assert release.vae.get("force_upcast", False) == (size == 128)
    assert release.index == index
    found = [(part.component, part.class_name, part.activation, part.pad, part.config.get("projection_dim"))
             for part in release.encoders]  # fmt: skip
    assert found == encoders
    assert [part.tokenizer for part in release.encoders] == [
        name.replace("text_encoder", "tokenizer") for name, *_ in encoders
    ]
    assert [part.unused for part in release.encoders] == ([24] if family == SD2 else [None] * len(encoders))
    if scheduler == "EulerDiscreteScheduler":
        assert release.scheduler["timestep_spacing"] == "leading"


def test_edm_models_have_their_own_noise() -> None:
    release, found = FAMILIES[SDXL], Prediction("epsilon")
    nothing = Stored(Path("nowhere"), 0, (), np.float32)
    assert _scheduler(release, found, {"edm_mean": nothing}, {}) == EDM
    assert (EDM["sigma_min"], EDM["sigma_max"], EDM["sigma_data"], EDM["rho"]) == (0.002, 80.0, 0.5, 7.0)
    with pytest.raises(BadModelError, match="CosXL"):
        _scheduler(release, found, {"edm_vpred.sigma_max": nothing}, {})


@pytest.mark.parametrize(("made", "decoded", "fits"), [(4, 4, True), (4, None, True), (16, 4, False), (4, 16, False)])
def test_a_files_halves_have_the_same_latents(made: int, decoded: int | None, fits: bool) -> None:
    file = SingleFile(Path("a"), FAMILIES[SD1], None, Prediction("epsilon"))
    file.configs = {"unet": {"out_channels": made}, **({"vae": {"latent_channels": decoded}} if decoded else {})}
    if fits:
        _check_latents(file)
    else:
        with pytest.raises(BadModelError, match=f"makes {made} channels, and its VAE decodes latents of {decoded}"):
            _check_latents(file)


@pytest.mark.parametrize("parts", [(), ("vae",), ("text_encoder",), ("text_encoder", "text_encoder_2", "vae")])
def test_an_index_names_what_a_file_holds(parts: tuple[str, ...]) -> None:
    file = SingleFile(Path("a"), FAMILIES[SDXL], INPAINTING, Prediction("epsilon"), scheduler={"_class_name": "X"})
    file.tensors = {"unet": {}, **{part: {} for part in parts}}
    classes = {"text_encoder": "CLIPTextModel", "text_encoder_2": "CLIPTextModelWithProjection"}
    expected: dict[str, Any] = {
        "_class_name": "StableDiffusionXLInpaintPipeline", "force_zeros_for_empty_prompt": True,
        "unet": ["diffusers", "UNet2DConditionModel"], "scheduler": ["diffusers", "X"],
    }  # fmt: skip
    for part in parts:
        expected[part] = ["diffusers", "AutoencoderKL"] if part == "vae" else ["transformers", classes[part]]
        if part != "vae":
            expected[part.replace("text_encoder", "tokenizer")] = ["transformers", "CLIPTokenizer"]
    assert _index(file.family, file.variant, file.tensors, file.scheduler) == expected
    assert file.lacks == [part for part in ("text_encoder", "text_encoder_2", "vae") if part not in parts]


def stored(path: Path, array: Any) -> Stored:
    path.write_bytes(b"12345" + array.tobytes())
    return Stored(path, 5, array.shape, array.dtype)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, ml_dtypes.bfloat16])
def test_a_tensor_in_equal_parts(tmp_path: Path, dtype: Any) -> None:
    array = np.arange(6 * 5).reshape(6, 5).astype(dtype)
    for count in (1, 2, 3, 6):
        parts = [part.load() for part in equal_parts(stored(tmp_path / "a", array), count, "x")]
        assert all(part.dtype == dtype for part in parts)
        np.testing.assert_array_equal(np.stack(parts), np.stack(np.split(array, count)))
    for count, shape in ((4, (6, 5)), (2, ()), (2, (0, 5))):
        with pytest.raises(BadModelError, match=f"a tensor of x in one has the shape .* not {count} equal parts"):
            equal_parts(Stored(Path("a"), 0, shape, dtype), count, "x")


def test_open_clips_matrices_are_cut_and_turned(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    block = "transformer.resblocks.3"
    arrays = {
        f"{block}.attn.in_proj_weight": random.standard_normal((12, 4)).astype(np.float32),
        f"{block}.attn.in_proj_bias": random.standard_normal(12).astype(np.float32),
        f"{block}.attn.out_proj.weight": random.standard_normal((4, 4)).astype(np.float32),
        f"{block}.ln_1.weight": random.standard_normal(4).astype(np.float32),
        f"{block}.ln_2.bias": random.standard_normal(4).astype(np.float32),
        f"{block}.mlp.c_fc.weight": random.standard_normal((7, 4)).astype(np.float32),
        f"{block}.mlp.c_proj.weight": random.standard_normal((4, 7)).astype(np.float32),
        "text_projection": random.standard_normal((4, 6)).astype(np.float32),
        "positional_embedding": random.standard_normal((9, 4)).astype(np.float32),
        "token_embedding.weight": random.standard_normal((11, 4)).astype(np.float32),
        "ln_final.weight": random.standard_normal(4).astype(np.float32),
    }
    found = clip_tensors({name: stored(tmp_path / str(n), array) for n, (name, array) in enumerate(arrays.items())})
    layer = "encoder.layers.3"
    expected = {
        **{f"{layer}.self_attn.{part}_proj.{kind}": np.split(arrays[f"{block}.attn.in_proj_{kind}"], 3)[number]
           for number, part in enumerate("qkv") for kind in ("weight", "bias")},
        f"{layer}.self_attn.out_proj.weight": arrays[f"{block}.attn.out_proj.weight"],
        f"{layer}.layer_norm1.weight": arrays[f"{block}.ln_1.weight"],
        f"{layer}.layer_norm2.bias": arrays[f"{block}.ln_2.bias"],
        f"{layer}.mlp.fc1.weight": arrays[f"{block}.mlp.c_fc.weight"],
        f"{layer}.mlp.fc2.weight": arrays[f"{block}.mlp.c_proj.weight"],
        "text_projection.weight": arrays["text_projection"].T,
        "embeddings.position_embedding.weight": arrays["positional_embedding"],
        "embeddings.token_embedding.weight": arrays["token_embedding.weight"],
        "final_layer_norm.weight": arrays["ln_final.weight"],
    }  # fmt: skip
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name].load(), array, err_msg=name)


def named(names: Sequence[str]) -> Mapping[str, Stored]:
    return {name: Stored(Path("nowhere"), 0, (4, 4, 1, 1), np.float32) for name in names}


def test_an_autoencoders_levels_are_counted_from_the_image_and_from_the_latent() -> None:
    ups = [f"decoder.up.{level}.block.1.conv1.weight" for level in range(3)]
    others = (
        "decoder.mid.attn_1.q.weight", "decoder.up.2.upsample.conv.weight", "encoder.down.2.downsample.conv.bias",
        "decoder.mid.block_1.norm1.bias", "encoder.mid.block_2.nin_shortcut.weight", "quant_conv.weight",
    )  # fmt: skip
    found: Mapping[str, Weight] = vae_tensors(named([*ups, *others]))
    assert list(found) == [
        "decoder.up_blocks.2.resnets.1.conv1.weight", "decoder.up_blocks.1.resnets.1.conv1.weight",
        "decoder.up_blocks.0.resnets.1.conv1.weight", "decoder.mid_block.attentions.0.to_q.weight",
        "decoder.up_blocks.0.upsamplers.0.conv.weight", "encoder.down_blocks.2.downsamplers.0.conv.bias",
        "decoder.mid_block.resnets.0.norm1.bias", "encoder.mid_block.resnets.1.conv_shortcut.weight",
        "quant_conv.weight",
    ]  # fmt: skip
    assert found["decoder.mid_block.attentions.0.to_q.weight"].shape == (4, 4)
    assert found["quant_conv.weight"].shape == (4, 4, 1, 1)
    for old, new in (("norm.weight", "group_norm.weight"), ("proj_out.bias", "to_out.0.bias"), ("k.bias", "to_k.bias"),
                     ("to_out.weight", "to_out.0.weight"), ("to_v.bias", "to_v.bias"),
                     ("to_out.0.bias", "to_out.0.bias")):  # fmt: skip
        assert vae_name(f"encoder.mid.attn_1.{old}", 4) == f"encoder.mid_block.attentions.0.{new}"
    assert vae_name("decoder.norm_out.weight", 4) == "decoder.conv_norm_out.weight"


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_blocks_are_counted_through_in_one_layout_and_by_level_in_the_other(layers: int) -> None:
    names = ["input_blocks.0.0.weight"]
    expected = ["conv_in.weight"]
    number = 1
    for level in range(3):
        for layer in range(layers):
            names += [f"input_blocks.{number}.0.in_layers.2.weight", f"input_blocks.{number}.1.proj_in.weight"]
            expected += [f"down_blocks.{level}.resnets.{layer}.conv1.weight",
                         f"down_blocks.{level}.attentions.{layer}.proj_in.weight"]  # fmt: skip
            number += 1
        if level < 2:
            names.append(f"input_blocks.{number}.0.op.weight")
            expected.append(f"down_blocks.{level}.downsamplers.0.conv.weight")
            number += 1
    for number in range(3 * (layers + 1)):
        level, layer = divmod(number, layers + 1)
        names += [f"output_blocks.{number}.0.out_layers.3.bias", f"output_blocks.{number}.1.norm.bias",
                  f"output_blocks.{number}.1.conv.bias", f"output_blocks.{number}.2.conv.bias"]  # fmt: skip
        expected += [f"up_blocks.{level}.resnets.{layer}.conv2.bias", f"up_blocks.{level}.attentions.{layer}.norm.bias",
                     *[f"up_blocks.{level}.upsamplers.0.conv.bias"] * 2]  # fmt: skip
    assert count_layers(names) == layers
    assert [unet_name(name, layers) for name in names] == expected
    assert count_layers(["input_blocks.0.0.weight"]) == 2
    assert unet_name("strange.weight", layers) is None


def test_a_controlnets_image_goes_through_convolutions_and_activations() -> None:
    hints = [f"input_hint_block.{number}.weight" for number in range(0, 15, 2)]
    assert count_hint_layers(hints) == 14
    assert [control_name(name, 2, 14) for name in hints] == [
        "controlnet_cond_embedding.conv_in.weight",
        *(f"controlnet_cond_embedding.blocks.{number}.weight" for number in range(6)),
        "controlnet_cond_embedding.conv_out.weight",
    ]
    assert control_name("zero_convs.7.0.bias", 2, 14) == "controlnet_down_blocks.7.bias"
    assert control_name("middle_block_out.0.weight", 2, 14) == "controlnet_mid_block.weight"
    assert control_name("middle_block.2.emb_layers.1.bias", 2, 14) == "mid_block.resnets.1.time_emb_proj.bias"
    assert count_hint_layers([]) == 0


def test_a_files_own_means_are_read_where_there_is_one_of_each_channel(tmp_path: Path) -> None:
    from sdort.checkpoints.safetensors import read_tensors
    from sdort.checkpoints.single_file import _edm_scales

    path = tmp_path / "a.safetensors"
    save_file({"edm_mean": np.ones((1, 4, 1, 1), np.float32), "edm_std": np.full(5, 2, np.float32)}, path)
    found = _edm_scales(read_tensors(path))
    assert found["latents_mean"] == [1.0] * 4
    assert found["latents_std"] == [8.4927, 5.9022, 6.5498, 5.2299]
