"""Bounds and rules of the schemas of JSON files, at their edges: the last value that passes, the next that does not."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
from support import published_configs as published

from sdort.checkpoints import json_schema
from sdort.checkpoints.config_schemas import (
    CONTROLNET,
    IMAGE_ENCODER,
    MANIFEST_SCHEMA,
    PIPELINE_INDEX,
    PROCESSOR_FILES,
    REQUIRED,
    SCHEDULER,
    SHARD_INDEX,
    SPECIAL_TOKENS,
    T2I_ADAPTER,
    TEXT_ENCODER,
    TOKENIZER,
    TRANSFORMER,
    UNET,
    VAE,
    component_schema,
    contradiction,
)
from sdort.checkpoints.json_schema import Kind

Edges = tuple[tuple[Any, ...], tuple[Any, ...]]
"""Values that pass, and values that do not."""

FLAG_OR_NULL: Edges = ((True, False, None), (0, 1, "true", [], 1.0))
QWEN3 = {"num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 8, "rope_theta": 1e6}
NAME = (("a", "", "x" * 256), (None, 1, "x" * 257, "a\n", "\x1b", ["a"]))
NAME_OR_NULL = (("a", "x" * 256, None), (1, "x" * 257, "a\n", "\x9b", True))
WIDTH = ((1, 1 << 16), (0, -1, (1 << 16) + 1, 1.0, True, None, "1"))
WIDTH_OR_NULL = ((1, 1 << 16, None), (0, (1 << 16) + 1, 2.0, False))
COUNT = ((1, 64), (0, 65, 1.0, None))
COUNTS: Edges = ((1, 64, [1], [64] * 16), (0, 65, [], [0], [1] * 17, None))
DEPTHS: Edges = ((0, 64, [0], [64] * 16, [[0, 1], 2], [[1] * 64]), (-1, 65, [], [[1]] * 17, [[]], [[1] * 65], [1] * 65))
WIDTHS_OR_NULL: Edges = ((1, None, [1], [1 << 16] * 16), (0, [], [0], [1] * 17, [None], [1.5]))
SHARE = ((0, 1, 0.5, 1e-5), (-1e-9, 1.0001, None, True, "0"))
SCALE = ((1e-9, 1, 1e6), (0, -1, 1e6 + 1, None))
SHIFT = ((-1e6, 0, 1e6), (-1e6 - 1, 1e6 + 1, None, math.inf))
BLOCKS: Edges = ((["a"], ["a"] * 16), ([], ["a"] * 17, "a", [1], [None], None))
TOKEN = ((-1, 0, 10**7, None), (-2, 10**7 + 1, 1.0))
PATH = (("x" * 4096,), ("x" * 4097, None, 1))
PART: Edges = ((None, ["diffusers", "X"], [None, None]), (["a"], ["a", "b", "c"], "a", [1, 2], {}))
SIDE: Edges = ((None, 1, 8192, [1, 8192]), (0, 8193, [], [1], [1, 2, 3], [0, 1], [1, 8193], 64.0))
DENOISER = {
    **dict.fromkeys(("_class_name", "_diffusers_version"), NAME),
    "_name_or_path": PATH,
    "in_channels": WIDTH,
    "down_block_types": BLOCKS,
    "block_out_channels": (([1], [1 << 16] * 16), ([], [1] * 17, [0], 1, None)),
    "layers_per_block": COUNTS,
    "transformer_layers_per_block": DEPTHS,
    "reverse_transformer_layers_per_block": ((*DEPTHS[0], None), DEPTHS[1]),
    **dict.fromkeys(("cross_attention_dim", "attention_head_dim", "num_attention_heads"), WIDTHS_OR_NULL),
    "only_cross_attention": ((True, None, [True, False]), (1, [], [None], [True] * 17)),
    "norm_num_groups": WIDTH_OR_NULL,
    **dict.fromkeys(("norm_eps", "dropout"), SHARE),
    "freq_shift": SHIFT,
    "downsample_padding": ((0, 16), (-1, 17, None)),
    **dict.fromkeys(("conv_in_kernel", "conv_out_kernel"), ((1, 63), (0, 64, None))),
    **dict.fromkeys(("mid_block_scale_factor", "resnet_out_scale_factor"), SCALE),
    **dict.fromkeys(
        (
            "encoder_hid_dim", "addition_time_embed_dim", "addition_embed_type_num_heads", "num_class_embeds",
            "time_embedding_dim", "time_cond_proj_dim", "projection_class_embeddings_input_dim",
        ),
        WIDTH_OR_NULL,
    ),
    **dict.fromkeys(
        (
            "act_fn", "mid_block_type", "encoder_hid_dim_type", "class_embed_type", "addition_embed_type",
            "attention_type", "resnet_time_scale_shift", "time_embedding_type", "time_embedding_act_fn",
            "timestep_post_act", "cross_attention_norm",
        ),
        NAME_OR_NULL,
    ),
    **dict.fromkeys(
        (
            "center_input_sample", "flip_sin_to_cos", "dual_cross_attention", "use_linear_projection",
            "upcast_attention", "resnet_skip_time_act", "class_embeddings_concat", "mid_block_only_cross_attention",
        ),
        FLAG_OR_NULL,
    ),
}  # fmt: skip
CLIP = {
    **dict.fromkeys(("hidden_size", "num_attention_heads"), WIDTH),
    "projection_dim": WIDTH_OR_NULL,
    "intermediate_size": ((1, 1 << 20), (0, (1 << 20) + 1, None)),
    "hidden_act": NAME,
    **dict.fromkeys(("layer_norm_eps", "attention_dropout", "dropout"), SHARE),
    **dict.fromkeys(("initializer_factor", "initializer_range"), SHIFT),
}
CLIP_FILE = {
    **dict.fromkeys(("torch_dtype", "dtype", "model_type", "transformers_version"), NAME_OR_NULL),
    "architectures": ((None, [], ["a"] * 16), (["a"] * 17, "a", [None])),
    "_name_or_path": PATH,
}
VISION = {
    **CLIP,
    "num_hidden_layers": ((2, 256), (1, 257, None)),
    "num_channels": ((1, 64), (0, 65)),
    **dict.fromkeys(("image_size", "patch_size"), ((1, 4096), (0, 4097, 224.0))),
}
PROJECTION: dict[str, Any] = {"kind": "plain", "tokens": 4, "width": 768, "embeds": 1024}
BAKED: dict[str, Any] = {"name": "a", "scale": 1}
SPECIAL: Edges = ((None, "a", "x" * 1024, "\n", {"content": "x" * 1024}), (1, "x" * 1025, {}, {"content": None}, []))
TABLES: dict[str, tuple[Kind, dict[str, Any]]] = {
    "unet": (
        UNET,
        {**DENOISER, "sample_size": SIDE, "out_channels": WIDTH, "up_block_types": BLOCKS},
    ),
    "controlnet": (
        CONTROLNET,
        {
            **DENOISER,
            "conditioning_channels": ((1, 64), (0, 65, None)),
            "conditioning_embedding_out_channels": (([1], [1] * 8), ([], [1] * 9, 1, [0])),
            "controlnet_conditioning_channel_order": NAME,
            "global_pool_conditions": FLAG_OR_NULL,
        },
    ),
    "t2i adapter": (
        T2I_ADAPTER,
        {
            "in_channels": ((1, 64), (0, 65)),
            "channels": (([1], [1] * 16), ([], [1] * 17, [0])),
            "num_res_blocks": COUNT,
            "downscale_factor": ((1, 64), (0, 65, 8.0)),
            "adapter_type": NAME,
            "_name_or_path": PATH,
        },
    ),
    "vae": (
        VAE,
        {
            "_class_name": NAME,
            "sample_size": ((None, 1, 1 << 16, [1, 1 << 16]), (0, (1 << 16) + 1, [1])),
            **dict.fromkeys(("in_channels", "out_channels", "norm_num_groups"), WIDTH),
            "latent_channels": ((1, 1024), (0, 1025, None)),
            **dict.fromkeys(("down_block_types", "up_block_types"), BLOCKS),
            **dict.fromkeys(
                ("block_out_channels", "encoder_block_out_channels", "decoder_block_out_channels"),
                (([1], [1] * 8), ([], [1] * 9, [0], 1)),
            ),
            **dict.fromkeys(("num_encoder_blocks", "num_decoder_blocks"), (([0], [64] * 8), ([], [65], [1] * 9, [-1]))),
            "layers_per_block": COUNT,
            **dict.fromkeys(("act_fn", "upsample_fn"), NAME),
            "upsampling_scaling_factor": ((1, 16), (0, 17)),
            "scaling_factor": ((0.00101, 1, 1000), (0.001, 0, -1, 1000.1, None)),
            "shift_factor": ((None, -1000, 0, 1000), (-1000.1, 1000.1)),
            "latents_mean": ((None, [-1000], [1000] * 1024), ([], [0] * 1025, [1000.1], [None])),
            "latents_std": ((None, [1e-9], [1000] * 1024), ([], [1] * 1025, [0], [-1], [1000.1])),
            **dict.fromkeys(
                ("force_upcast", "use_quant_conv", "use_post_quant_conv", "mid_block_add_attention"), FLAG_OR_NULL
            ),
        },
    ),
    "text encoder": (
        TEXT_ENCODER,
        {
            **CLIP,
            **CLIP_FILE,
            "vocab_size": ((1, 10**7), (0, 10**7 + 1)),
            "num_hidden_layers": ((1, 256), (0, 257)),
            "max_position_embeddings": ((1, 1 << 17), (0, (1 << 17) + 1)),
            **dict.fromkeys(("bos_token_id", "pad_token_id"), (TOKEN[0], (*TOKEN[1], [1]))),
            "eos_token_id": ((*TOKEN[0], [-1], [1] * 64), (*TOKEN[1], [], [1] * 65, [-2])),
        },
    ),
    "transformer": (
        TRANSFORMER,
        {
            **dict.fromkeys(
                (
                    "in_channels", "num_attention_heads", "attention_head_dim", "joint_attention_dim",
                    "caption_projection_dim", "pooled_projection_dim",
                ),
                WIDTH,
            ),
            "out_channels": WIDTH_OR_NULL,
            "patch_size": ((1, 64), (0, 65, None, 2.0)),
            **dict.fromkeys(("num_layers", "num_single_layers"), ((0, 256), (-1, 257, None))),
            "pos_embed_max_size": ((1, 4096), (0, 4097, None)),
            "dual_attention_layers": ((None, [], [0] * 256), ([-1], [256], [0] * 257, 1)),
            "qk_norm": (("a", "x" * 256, None, True), (1, "x" * 257, "a\n", "\x9b")),
            **dict.fromkeys(("dim", "n_heads", "n_kv_heads", "cap_feat_dim"), WIDTH),
            "siglip_feat_dim": WIDTH_OR_NULL,
            "n_layers": ((1, 256), (0, 257, None)),
            "n_refiner_layers": ((0, 256), (-1, 257, None)),
            "axes_dims": (([2, 1024, 48],), ([2, 2], [2] * 4, [1, 2, 2], [1025, 2, 2], None)),
            "axes_lens": (([1, 1 << 15, 48],), ([2, 2], [2] * 4, [0, 2, 2], [(1 << 15) + 1, 2, 2], None)),
        },
    ),
    "image encoder": (
        IMAGE_ENCODER,
        {
            **VISION,
            **CLIP_FILE,
            "vision_config": ((None, {}, {"num_hidden_layers": 2}), ({"num_hidden_layers": 1}, [], {"hidden_size": 0})),
            "projections": (
                (None, [], [PROJECTION] * 64, [{**PROJECTION, "tokens": 4096, "depth": 64, "heads": 1024}]),
                (
                    [PROJECTION] * 65,
                    *([{key: value for key, value in PROJECTION.items() if key != left}] for left in PROJECTION),
                    *([{**PROJECTION, key: 0}] for key in ("tokens", "depth", "heads", "width", "embeds", "hidden")),
                    [{**PROJECTION, "inner": 0}],
                    [{**PROJECTION, "tokens": 4097}],
                    [{**PROJECTION, "heads": 1025}],
                    [{**PROJECTION, "kind": 1}],
                ),
            ),
        },
    ),
    "scheduler": (
        SCHEDULER,
        {
            **dict.fromkeys(("_class_name", "_diffusers_version"), NAME),
            **dict.fromkeys(("num_train_timesteps", "original_inference_steps"), ((1, 100_000), (0, 100_001, 1e3))),
            **dict.fromkeys(("beta_start", "beta_end"), ((1e-9, 0.9999), (0, 1, -0.1, None))),
            "trained_betas": ((None, [0.5], [0.9999]), ([], [0], [1.0], 0.5)),
            "steps_offset": ((0, 100_000), (-1, 100_001)),
            "solver_order": ((1, 16), (0, 17)),
            "dynamic_thresholding_ratio": SHARE,
            **dict.fromkeys(("clip_sample_range", "sample_max_value", "sigma_data", "timestep_scaling", "rho"), SCALE),
            **dict.fromkeys(("sigma_min", "sigma_max", "flow_shift", "shift"), ((None, 0, 1e6), (-1e-9, 1e6 + 1))),
            **dict.fromkeys(("base_shift", "max_shift", "shift_terminal"), ((None, -1e6, 1e6), (-1e6 - 1, 1e6 + 1))),
            "lambda_min_clipped": ((-math.inf, -5.1, 1e6), (1e6 + 1, None, math.nan, math.inf)),
            **dict.fromkeys(
                (
                    "algorithm_type", "beta_schedule", "final_sigmas_type", "interpolation_type", "prediction_type",
                    "solver_type", "time_shift_type", "timestep_spacing", "timestep_type", "variance_type",
                ),
                NAME_OR_NULL,
            ),
            **dict.fromkeys(
                (
                    "clip_sample", "euler_at_final", "invert_sigmas", "lower_order_final", "predict_x0",
                    "rescale_betas_zero_snr", "set_alpha_to_one", "skip_prk_steps", "stochastic_sampling",
                    "thresholding", "use_beta_sigmas", "use_dynamic_shifting", "use_exponential_sigmas",
                    "use_flow_sigmas", "use_karras_sigmas", "use_lu_lambdas",
                ),
                FLAG_OR_NULL,
            ),
            "disable_corrector": (([], [0, 100_000]), (None, [-1], [100_001])),
        },
    ),
    "index": (
        PIPELINE_INDEX,
        {
            **dict.fromkeys(
                (
                    "unet", "vae", "text_encoder", "text_encoder_2", "tokenizer", "tokenizer_2", "scheduler",
                    "feature_extractor", "image_encoder", "safety_checker", "controlnet", "adapter",
                ),
                PART,
            ),
            **dict.fromkeys(
                ("force_zeros_for_empty_prompt", "requires_safety_checker", "add_watermarker"), FLAG_OR_NULL
            ),
            "_name_or_path": PATH,
        },
    ),
    "tokenizer": (
        TOKENIZER,
        {
            **dict.fromkeys(("vocab", "merges", "gguf_file"), ((None, {}, []), ("/etc/passwd", ""))),
            "model_max_length": ((1, 10**31), (0, 10**31 + 1, 1e30, None)),
            **dict.fromkeys(("bos_token", "eos_token", "unk_token", "pad_token"), SPECIAL),
            **dict.fromkeys(("do_lower_case", "add_prefix_space", "clean_up_tokenization_spaces"), FLAG_OR_NULL),
            "tokenizer_class": NAME_OR_NULL,
            "errors": NAME,
            "added_tokens_decoder": (({}, {"1": {"content": "a"}}), ({"1": {}}, {"1": "a"}, None)),
        },
    ),
    "vocabulary": (PROCESSOR_FILES["vocab.json"], {"a": ((0, 10**7), (-1, 10**7 + 1, None, 1.0))}),
    "added tokens": (PROCESSOR_FILES["added_tokens.json"], {"a": ((0, 10**7), (-1, 10**7 + 1, None))}),
    "manifest": (
        MANIFEST_SCHEMA,
        {
            "source": ((None, "x" * 4096), ("x" * 4097, 1)),
            **dict.fromkeys(("pipeline", "static"), NAME_OR_NULL),
            "opset": ((None, 1, 1000), (0, 1001, 17.0)),
            "origin": (
                (None, {"description": "a", "weights": None}, {"description": "a", "weights": "b"}),
                ({}, {"description": "a"}, {"weights": None}, {"description": None, "weights": None},
                    {"description": "a", "weights": 1}, "a"),
            ),
            "versions": ((None, {}, {str(n): "1" for n in range(64)}), ({"a": 1}, {str(n): "1" for n in range(65)})),
            "components": ((None, {}, {"unet": {"any": 1}}), ({"unet": 1}, [], {str(n): {} for n in range(65)})),
            "adapters": (
                (None, [], [BAKED] * 1000, [{**BAKED, "path": None, "sha256": None, "bytes": 1 << 50}]),
                (
                    [BAKED] * 1001, [{"name": "a"}], [{"scale": 1}], [{**BAKED, "scale": 1e6 + 1}], BAKED,
                    [{**BAKED, "bytes": -1}], [{**BAKED, "bytes": (1 << 50) + 1}], [{**BAKED, "path": 1}],
                    [{**BAKED, "sha256": 1}], [{**BAKED, "name": 1}], [{**BAKED, "name": "x" * 4097}],
                ),
            ),
            "words": ((None, [{"word": "a"}]), ([{}], [{"word": 1}], [{"word": "a", "bytes": -1}])),
            "ip_adapters": ((None, [{"name": "a"}]), ([{}], [{"name": 1}], [{"name": "a", "path": 1}])),
            "optimized": (
                (None, {"from": "a"}, {"from": "a", "fp16": [1], "origin": None}),
                (
                    {}, {"from": None}, {"from": "a", "provider": None}, {"from": "a", "precision": 16},
                    {"from": "a", "sdort": 1}, {"from": "a", "origin": {}},
                ),
            ),
        },
    ),
    "shards": (SHARD_INDEX, {"weight_map": (({}, {"a": "b"}), (None, {"a": 1}, {"a": None}))}),
}  # fmt: skip
"""A schema -> its keys, each with values that pass and values that do not."""


@pytest.mark.parametrize("name", TABLES)
def test_each_key_takes_what_lies_within_its_bounds(name: str) -> None:
    kind, keys = TABLES[name]
    needed: dict[str, Any] = {"weight_map": {}} if name == "shards" else {}
    for key, (taken, refused) in keys.items():
        for value in taken:
            assert kind.problem({**needed, key: value}, "") is None, (key, value)
        for value in refused:
            problem = kind.problem({**needed, key: value}, "") or "nothing"
            assert problem.startswith(key), (key, value, problem)


def test_objects_are_asked_for() -> None:
    others: tuple[Any, ...] = (None, [], "a", 1)
    for kind, _ in TABLES.values():
        for value in others:
            assert (kind.problem(value, "it") or "").startswith("it is ")
    assert SHARD_INDEX.problem({}, "") == "it has no weight_map"
    assert SHARD_INDEX.problem({}, "a.b") == "a.b has no weight_map"


def test_each_component_has_its_own_schema() -> None:
    known = {
        "unet": UNET, "vae": VAE, "vae_encoder": VAE, "vae_decoder": VAE, "text_encoder": TEXT_ENCODER,
        "text_encoder_2": TEXT_ENCODER, "text_encoder_3": TEXT_ENCODER,
        "transformer": TRANSFORMER, "controlnet": CONTROLNET, "t2i_adapter": T2I_ADAPTER,
        "image_encoder": IMAGE_ENCODER, "safety_checker": IMAGE_ENCODER, "feature_extractor": None,
    }  # fmt: skip
    for component, kind in known.items():
        assert component_schema(component) is kind, component
    files = {
        "scheduler_config.json": SCHEDULER,
        "tokenizer_config.json": TOKENIZER,
        "special_tokens_map.json": SPECIAL_TOKENS,
    }
    assert {name: PROCESSOR_FILES[name] for name in files} == files


def test_what_is_wrong_is_said_with_its_place() -> None:
    inner = json_schema.record({"b": json_schema.list_of(json_schema.whole(1, 3), 1, 2)}, ("b",))
    outer = json_schema.record({"a": json_schema.mapping_to(inner, 2)})
    long = "k" * 100
    for value, words in (
        ({"a": {long: {"b": [1, 4]}}}, f"a.{'k' * 60}.b[1] is 4, not a whole number from 1 to 3"),
        ({"a": {"x": {}}}, "a.x has no b"),
        ({"a": {"x": {"b": [1, 2, 3]}}}, "a.x.b is [1, 2, 3], not a list of 1 to 2 times a whole number from 1 to 3"),
        ({"a": {"x": {"b": [1]}, "y": {"b": []}}}, "a.y.b is [], not a list of 1 to 2 times"),
        ({"a": {key: {"b": [1]} for key in "xyz"}}, "not an object with up to 2 times an object"),
    ):
        assert words in (outer.problem(value, "") or ""), value
    assert json_schema.list_of(json_schema.FLAG, 2, 2).words == "a list of 2 times true or false"
    assert json_schema.one_of("a", "b").words == '"a" or "b"'
    assert json_schema.one_of("a", "b").problem("b", "x") is None
    for other in ("c", None, 1):
        assert json_schema.one_of("a", "b").problem(other, "x") is not None
    # What is a part of an alternative is looked at too.
    assert (json_schema.NULL | inner).problem({"b": [4]}, "x") is not None


TINY = {
    "encoder_block_out_channels": [64] * 4, "decoder_block_out_channels": [64] * 4, "num_encoder_blocks": [1, 3, 3, 3],
    "num_decoder_blocks": [3, 3, 3, 1], "latent_channels": 4,
}  # fmt: skip
T2I = {"channels": [320, 640], "num_res_blocks": 2, "downscale_factor": 8, "adapter_type": "full_adapter"}
CONTROL = {**published.SD1, "conditioning_embedding_out_channels": [16, 32]}
LEVELS = (
    "layers_per_block", "transformer_layers_per_block", "reverse_transformer_layers_per_block", "cross_attention_dim",
    "attention_head_dim", "num_attention_heads", "only_cross_attention",
)  # fmt: skip


@pytest.mark.parametrize(
    ("architecture", "base", "change", "words"),
    [
        *(("UNet2DConditionModel", published.SD1, {key: [8] * 3}, f"{key} has 3 entries for 4") for key in LEVELS),
        *(("ControlNetModel", CONTROL, {key: [8] * 5}, f"{key} has 5 entries for 4") for key in LEVELS),
        ("UNet2DConditionModel", published.SD1, {"down_block_types": ["a"]}, "down_block_types has 1 entries for 4"),
        ("UNet2DConditionModel", published.SD1, {"up_block_types": ["a"]}, "up_block_types has 1 entries for 4"),
        # The number of heads goes before what older configs call so, and each level has its own.
        ("UNet2DConditionModel", published.SD1, {"num_attention_heads": 7}, "7 heads (num_attention_heads)"),
        ("UNet2DConditionModel", published.SD1, {"num_attention_heads": 8, "attention_head_dim": 7}, None),
        ("UNet2DConditionModel", published.SD1, {"attention_head_dim": [8, 8, 7, 8]}, "1280 block_out_channels do"),
        ("UNet2DConditionModel", published.SD1, {"attention_head_dim": [8, 8, 8, 7]}, None),  # no attention there
        ("UNet2DConditionModel", published.SD1, {"attention_head_dim": None}, "do not divide into None heads"),
        ("UNet2DConditionModel", published.SD1, {"norm_num_groups": None}, None),
        ("UNet2DConditionModel", published.SD1, {"addition_time_embed_dim": None}, None),
        ("UNet2DConditionModel", published.SDXL, {"addition_time_embed_dim": None}, "addition_time_embed_dim is null"),
        (
            "UNet2DConditionModel",
            published.SDXL,
            {"projection_class_embeddings_input_dim": None},
            "projection_class_embeddings_input_dim is null",
        ),
        ("ControlNetModel", CONTROL, {}, None),
        ("ControlNetModel", CONTROL, {"norm_num_groups": 7}, "7 norm_num_groups"),
        ("AutoencoderKL", published.VAE, {"down_block_types": ["a"]}, "down_block_types has 1 entries for 4"),
        ("AutoencoderKL", published.VAE, {"norm_num_groups": 48}, "128 block_out_channels do not divide into 48"),
        ("AutoencoderKL", published.VAE, {"latents_mean": [1.0] * 5}, "latents_mean has 5 entries for 4"),
        ("AutoencoderKL", published.VAE, {"latents_std": [1.0] * 3}, "latents_std has 3 entries for 4"),
        ("AutoencoderKL", published.VAE, {"latents_std": [1.0] * 4, "latents_mean": [1.0] * 4}, None),
        ("AutoencoderTiny", TINY, {}, None),
        ("AutoencoderTiny", TINY, {"num_encoder_blocks": [1] * 3}, "num_encoder_blocks has 3 entries for 4 encoder_"),
        ("AutoencoderTiny", TINY, {"num_decoder_blocks": [1] * 5}, "num_decoder_blocks has 5 entries for 4 decoder_"),
        ("AutoencoderTiny", TINY, {"upsampling_scaling_factor": 4}, "upsampling_scaling_factor is 4"),
        ("AutoencoderTiny", TINY, {"upsampling_scaling_factor": 2}, None),
        ("AutoencoderTiny", TINY, {"latents_mean": [0]}, "latents_mean has 1 entries for 4"),
        *(("T2IAdapter", T2I, {"adapter_type": kind}, None) for kind in
          ("full_adapter", "full_adapter_xl", "light_adapter")),
        ("T2IAdapter", T2I, {"adapter_type": "another"}, "adapter_type is 'another', none of full_adapter, full_"),
        ("T2IAdapter", T2I, {"adapter_type": "light_adapter", "channels": [320, 642]}, "642 channels do not divide by"),
        ("T2IAdapter", T2I, {"channels": [320, 642]}, None),
        ("T2IAdapter", T2I, {"downscale_factor": 12}, "downscale_factor 12 is no power of two"),
        *(("T2IAdapter", T2I, {"downscale_factor": factor}, None) for factor in (1, 8, 16)),
        *((name, published.TEXT, {"num_attention_heads": 7}, "768 does not divide into 7") for name in
          ("CLIPTextModel", "CLIPTextModelWithProjection", "CLIPVisionModelWithProjection")),
        *(("Qwen3Model", QWEN3, *each) for each in (
            ({}, None), ({"num_key_value_heads": 3}, "8 num_attention_heads do not divide into 3 num_key_value_heads"),
            ({"head_dim": 9}, "head_dim 9 does not divide"), ({"rope_theta": None}, "neither rope_theta nor"),
            ({"rope_theta": None, "rope_parameters": {"rope_theta": 1e6, "rope_type": "default"}}, None),
            ({"rope_parameters": {"rope_theta": 1e6, "rope_type": "yarn"}}, "its rotary embedding is scaled"),
            ({"rope_scaling": {"type": "yarn"}}, "its rotary embedding is scaled"),
            ({"use_sliding_window": True}, "its layers attend to the last tokens alone"),
            ({"layer_types": ["full_attention", "sliding_attention"]}, "its layers attend to the last tokens alone"),
        )),
    ],
)  # fmt: skip
def test_rules_between_keys(architecture: str, base: dict[str, Any], change: dict[str, Any], words: str | None) -> None:
    found = contradiction(architecture, {**copy.deepcopy(dict(base)), **change})
    if words is None:
        assert found is None
    else:
        assert words in (found or "")


def test_what_a_config_cannot_do_without() -> None:
    """A default of the library in the place of one of these would compute something else with the same weights."""
    denoiser = {
        "block_out_channels",
        "down_block_types",
        "layers_per_block",
        "cross_attention_dim",
        "attention_head_dim",
    }
    text = {
        "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "hidden_act", "vocab_size",
    }  # fmt: skip
    vision = text - {"hidden_act", "vocab_size"} | {"image_size", "patch_size", "projection_dim"}
    assert {name: set(keys) for name, keys in REQUIRED.items()} == {
        "UNet2DConditionModel": denoiser | {"up_block_types", "in_channels", "out_channels"},
        "ControlNetModel": denoiser | {"conditioning_embedding_out_channels"},
        "AutoencoderKL": {"block_out_channels", "down_block_types", "up_block_types", "latent_channels"},
        "AutoencoderTiny": {"encoder_block_out_channels", "decoder_block_out_channels", "latent_channels"},
        "T2IAdapter": {"channels", "num_res_blocks", "downscale_factor", "adapter_type"},
        "CLIPTextModel": text,
        "CLIPTextModelWithProjection": text,
        "T5EncoderModel": {"d_model", "d_kv", "d_ff", "num_layers", "num_heads", "feed_forward_proj", "vocab_size"},
        "FluxTransformer2DModel": {
            "in_channels",
            "num_layers",
            "num_single_layers",
            "num_attention_heads",
            "attention_head_dim",
            "joint_attention_dim",
            "pooled_projection_dim",
            "guidance_embeds",
        },
        "ChromaTransformer2DModel": {
            "in_channels",
            "num_layers",
            "num_single_layers",
            "num_attention_heads",
            "attention_head_dim",
            "joint_attention_dim",
            "approximator_num_channels",
            "approximator_hidden_dim",
            "approximator_layers",
        },
        "SD3Transformer2DModel": {
            "in_channels",
            "num_layers",
            "num_attention_heads",
            "attention_head_dim",
            "joint_attention_dim",
            "caption_projection_dim",
            "pooled_projection_dim",
            "pos_embed_max_size",
        },
        "Qwen3Model": text | {"num_key_value_heads", "head_dim", "rms_norm_eps"},
        "ZImageTransformer2DModel": {
            "in_channels",
            "dim",
            "n_layers",
            "n_refiner_layers",
            "n_heads",
            "cap_feat_dim",
            "axes_dims",
            "axes_lens",
        },
        "CLIPVisionModelWithProjection": vision,
        "StableDiffusionSafetyChecker": vision,
    }
