"""Schemas of the JSON files of pipelines.

Bounds are a power of two or ten above anything published, so that they refuse what no model means and what would take
memory or time without end. What shapes no graph and is not computed with has a type only. Sources of the keys:
``UNet2DConditionModel``, ``AutoencoderKL`` and the schedulers of diffusers; ``CLIPTextConfig``, ``CLIPTokenizer``
of transformers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from sdort.checkpoints.json_schema import (
    ANYTHING,
    FLAG,
    NULL,
    Kind,
    any_text,
    list_of,
    mapping_to,
    number,
    positive,
    record,
    text,
    whole,
)
from sdort.families.known_families import DENOISER_CLASSES, DENOISERS, FAMILIES, TEXT_ENCODERS, TOKENIZERS
from sdort.families.text_models import QWEN3, T5, TEXT_MODELS
from sdort.families.unet_signature import UNET_COMPONENT

LEVELS = 16
"""The most levels of a UNet: published ones have 3 to 6."""

_NAME = text()
_NAME_OR_NULL = NULL | _NAME
_FLAG_OR_NULL = FLAG | NULL
_WIDTH = whole(1, 1 << 16)  # channels; the widest published layer has 10,240
_WIDTH_OR_NULL = NULL | _WIDTH
_COUNT = whole(1, 64)  # layers in a row
_SHARE = number(0, 1)
_SCALE = positive(1e6)
_SHIFT = number(-1e6, 1e6)


def _per_level(kind: Kind) -> Kind:
    """One value for all levels, or a list of one a level."""
    return kind | list_of(kind, 1, LEVELS)


_DEPTH = whole(0, 64)  # SSD-1B and Koala have levels without transformers
_DEPTHS = _per_level(_DEPTH | list_of(_DEPTH, 1, 64))  # SSD-1B: another depth for each layer of a level
_BLOCKS = list_of(_NAME, 1, LEVELS)
_ADDRESS = {"_class_name": _NAME, "_diffusers_version": _NAME, "_name_or_path": text(4096)}


def _side(most: int) -> Kind:
    return NULL | whole(1, most) | list_of(whole(1, most), 2, 2)


_DENOISER: Mapping[str, Kind] = {
    **_ADDRESS,
    "in_channels": _WIDTH,
    "down_block_types": _BLOCKS,
    "block_out_channels": list_of(_WIDTH, 1, LEVELS),
    "layers_per_block": _per_level(_COUNT),
    "transformer_layers_per_block": _DEPTHS,
    "reverse_transformer_layers_per_block": NULL | _DEPTHS,
    "cross_attention_dim": NULL | _per_level(_WIDTH),
    **dict.fromkeys(("attention_head_dim", "num_attention_heads"), NULL | _per_level(_WIDTH)),
    "only_cross_attention": NULL | _per_level(FLAG),
    "norm_num_groups": _WIDTH_OR_NULL,
    "norm_eps": _SHARE,
    "dropout": _SHARE,
    "freq_shift": _SHIFT,
    "downsample_padding": whole(0, 16),
    **dict.fromkeys(("conv_in_kernel", "conv_out_kernel"), whole(1, 63)),
    **dict.fromkeys(("mid_block_scale_factor", "resnet_out_scale_factor"), _SCALE),
    **dict.fromkeys(
        (
            "encoder_hid_dim",
            "addition_time_embed_dim",
            "addition_embed_type_num_heads",
            "num_class_embeds",
            "time_embedding_dim",
            "time_cond_proj_dim",
            "projection_class_embeddings_input_dim",
        ),
        _WIDTH_OR_NULL,
    ),
    **dict.fromkeys(
        (
            "act_fn",
            "mid_block_type",
            "encoder_hid_dim_type",
            "class_embed_type",
            "addition_embed_type",
            "attention_type",
            "resnet_time_scale_shift",
            "time_embedding_type",
            "time_embedding_act_fn",
            "timestep_post_act",
            "cross_attention_norm",
        ),
        _NAME_OR_NULL,
    ),
    **dict.fromkeys(
        (
            "center_input_sample",
            "flip_sin_to_cos",
            "dual_cross_attention",
            "use_linear_projection",
            "upcast_attention",
            "resnet_skip_time_act",
            "class_embeddings_concat",
            "mid_block_only_cross_attention",
        ),
        _FLAG_OR_NULL,
    ),
}
"""The keys that the configs of a UNet and of its ControlNet share."""

UNET = record(
    {
        **_DENOISER,
        "sample_size": _side(8192),  # latents: 65,536 pixels, PNG's own limit of most programs
        "out_channels": _WIDTH,
        "up_block_types": _BLOCKS,
    }
)

TRANSFORMER = record(
    {
        **_ADDRESS,
        "sample_size": _side(8192),
        "patch_size": whole(1, 64),
        **dict.fromkeys(
            (
                "in_channels",
                "num_attention_heads",
                "attention_head_dim",
                "joint_attention_dim",
                "caption_projection_dim",
                "pooled_projection_dim",
            ),
            _WIDTH,
        ),
        "out_channels": _WIDTH_OR_NULL,
        **dict.fromkeys(("num_layers", "num_single_layers"), whole(0, 256)),  # published: up to 60
        "pos_embed_max_size": whole(1, 4096),  # published: up to 384; its table has the square of it
        "dual_attention_layers": NULL | list_of(whole(0, 255), 0, 256),
        "guidance_embeds": FLAG,
        "axes_dims_rope": list_of(_WIDTH, 1, 8),
        "qk_norm": _NAME_OR_NULL | _FLAG_OR_NULL,
        # of ChromaTransformer2DModel
        **dict.fromkeys(("approximator_num_channels", "approximator_hidden_dim"), _WIDTH),
        "approximator_layers": whole(0, 256),
        # of ZImageTransformer2DModel
        **dict.fromkeys(("dim", "n_heads", "n_kv_heads", "cap_feat_dim"), _WIDTH),
        "n_layers": whole(1, 256),
        "n_refiner_layers": whole(0, 256),
        "siglip_feat_dim": _WIDTH_OR_NULL,
        "axes_dims": list_of(whole(2, 1024), 3, 3),
        "axes_lens": list_of(whole(1, 1 << 15), 3, 3),
        "rope_theta": positive(1e12, 1.0),
        "t_scale": positive(1e6),
        "norm_eps": _SHARE,
    }
)
"""Of denoisers that are no UNet; what its signature computes with it checks."""

CONTROLNET = record(
    {
        **_DENOISER,
        "conditioning_channels": whole(1, 64),
        "conditioning_embedding_out_channels": list_of(_WIDTH, 1, 8),  # each but one halves the image
        "controlnet_conditioning_channel_order": _NAME,
        "global_pool_conditions": _FLAG_OR_NULL,
    }
)

T2I_ADAPTER = record(
    {
        **_ADDRESS,
        "in_channels": whole(1, 64),
        "channels": list_of(_WIDTH, 1, LEVELS),
        "num_res_blocks": _COUNT,
        "downscale_factor": whole(1, 64),
        "adapter_type": _NAME,
    }
)

_PER_CHANNEL = 1024
"""The most channels of latents; 4 to 128 are published."""

VAE = record(
    {
        **_ADDRESS,
        "sample_size": _side(1 << 16),
        **dict.fromkeys(("in_channels", "out_channels"), _WIDTH),
        "latent_channels": whole(1, _PER_CHANNEL),
        **dict.fromkeys(("down_block_types", "up_block_types"), _BLOCKS),
        "block_out_channels": list_of(_WIDTH, 1, 8),  # each but one doubles the pixels of a latent: 128 at 8
        "layers_per_block": _COUNT,
        "norm_num_groups": _WIDTH,
        "act_fn": _NAME,
        # of AutoencoderTiny
        **dict.fromkeys(("encoder_block_out_channels", "decoder_block_out_channels"), list_of(_WIDTH, 1, 8)),
        **dict.fromkeys(("num_encoder_blocks", "num_decoder_blocks"), list_of(whole(0, 64), 1, 8)),
        "upsampling_scaling_factor": whole(1, 16),
        "upsample_fn": _NAME,
        "scaling_factor": positive(1000.0, 0.001),  # published: 0.08 to 1.5
        "shift_factor": NULL | number(-1000, 1000),
        "latents_mean": NULL | list_of(number(-1000, 1000), 1, _PER_CHANNEL),
        "latents_std": NULL | list_of(positive(1000.0), 1, _PER_CHANNEL),
        **dict.fromkeys(
            ("force_upcast", "use_quant_conv", "use_post_quant_conv", "mid_block_add_attention"), _FLAG_OR_NULL
        ),
    }
)

_TOKEN = whole(-1, 10**7)  # -1 stands for no token in some configs

TEXT_ENCODER = record(
    {
        "vocab_size": whole(1, 10**7),
        **dict.fromkeys(("hidden_size", "num_attention_heads"), _WIDTH),
        "projection_dim": _WIDTH_OR_NULL,
        "intermediate_size": whole(1, 1 << 20),
        "num_hidden_layers": whole(1, 256),
        "max_position_embeddings": whole(1, 1 << 17),
        "hidden_act": _NAME,
        **dict.fromkeys(("layer_norm_eps", "attention_dropout", "dropout"), _SHARE),
        # of T5EncoderModel
        **dict.fromkeys(("d_model", "d_kv", "num_heads"), _WIDTH),
        "d_ff": whole(1, 1 << 20),
        "num_layers": whole(1, 256),
        "num_decoder_layers": NULL | whole(1, 256),
        "relative_attention_num_buckets": whole(4, 1 << 16),
        "relative_attention_max_distance": whole(1, 1 << 20),
        "feed_forward_proj": _NAME,
        **dict.fromkeys(("layer_norm_epsilon", "dropout_rate"), _SHARE),
        # of Qwen3Model
        **dict.fromkeys(("num_key_value_heads", "head_dim"), _WIDTH),
        "rms_norm_eps": _SHARE,
        "rope_theta": NULL | positive(1e12, 1.0),
        "rope_parameters": NULL | record({"rope_theta": positive(1e12, 1.0), "rope_type": _NAME}),
        "layer_types": NULL | list_of(_NAME, 1, 256),
        **dict.fromkeys(("initializer_factor", "initializer_range"), _SHIFT),
        **dict.fromkeys(("bos_token_id", "pad_token_id"), NULL | _TOKEN),
        "eos_token_id": NULL | _TOKEN | list_of(_TOKEN, 1, 64),
        **dict.fromkeys(("torch_dtype", "dtype", "model_type", "transformers_version"), _NAME_OR_NULL),
        "architectures": NULL | list_of(_NAME, 0, 16),
        "_name_or_path": text(4096),
    }
)

_PROJECTION = record(
    {
        "kind": _NAME,
        **dict.fromkeys(("width", "embeds", "hidden", "inner"), _WIDTH),
        "tokens": whole(1, 4096),
        "depth": _COUNT,
        "heads": whole(1, 1024),
    },
    ("kind", "tokens", "width", "embeds"),
)

_VISION: Mapping[str, Kind] = {
    **dict.fromkeys(("hidden_size", "num_attention_heads"), _WIDTH),
    "projection_dim": _WIDTH_OR_NULL,
    "intermediate_size": whole(1, 1 << 20),
    "num_hidden_layers": whole(2, 256),
    "num_channels": whole(1, 64),
    **dict.fromkeys(("image_size", "patch_size"), whole(1, 4096)),
    "hidden_act": _NAME,
    **dict.fromkeys(("layer_norm_eps", "attention_dropout", "dropout"), _SHARE),
    **dict.fromkeys(("initializer_factor", "initializer_range"), _SHIFT),
}

IMAGE_ENCODER = record(
    {
        **_VISION,
        "projections": NULL | list_of(_PROJECTION, 0, 64),
        **dict.fromkeys(("vision_config", "vision_config_dict"), NULL | record(_VISION)),
        **dict.fromkeys(("torch_dtype", "dtype", "model_type", "transformers_version"), _NAME_OR_NULL),
        "architectures": NULL | list_of(_NAME, 0, 16),
        "_name_or_path": text(4096),
    }
)
"""CLIP's vision model (``CLIPVisionConfig`` of transformers), or a whole CLIP model with one (``CLIPConfig``);
``projections`` are the IP-Adapters' of an export."""

_TIMESTEPS = 100_000  # the tables of a scheduler have as many rows; published: up to 2,000
_BETA = positive(0.9999)  # at 0 and 1 the signal's or the noise's share is 0, which is divided by

SCHEDULER = record(
    {
        "_class_name": _NAME,
        "_diffusers_version": _NAME,
        "num_train_timesteps": whole(1, _TIMESTEPS),
        **dict.fromkeys(("beta_start", "beta_end"), _BETA),
        "trained_betas": NULL | list_of(_BETA, 1, _TIMESTEPS),
        "steps_offset": whole(0, _TIMESTEPS),
        "original_inference_steps": whole(1, _TIMESTEPS),
        "solver_order": whole(1, 16),
        "dynamic_thresholding_ratio": _SHARE,
        **dict.fromkeys(
            (
                "clip_sample_range",
                "sample_max_value",
                "sigma_data",
                "timestep_scaling",
                "rho",
            ),
            _SCALE,
        ),
        **dict.fromkeys(("sigma_min", "sigma_max", "flow_shift", "shift"), NULL | number(0, 1e6)),
        **dict.fromkeys(("base_shift", "max_shift", "shift_terminal"), NULL | _SHIFT),
        "lambda_min_clipped": number(float("-inf"), 1e6),  # -Infinity clips nothing, and is the default
        **dict.fromkeys(
            (
                "algorithm_type",
                "beta_schedule",
                "final_sigmas_type",
                "interpolation_type",
                "prediction_type",
                "solver_type",
                "time_shift_type",
                "timestep_spacing",
                "timestep_type",
                "variance_type",
            ),
            _NAME_OR_NULL,
        ),
        **dict.fromkeys(
            (
                "clip_sample",
                "euler_at_final",
                "invert_sigmas",
                "lower_order_final",
                "predict_x0",
                "rescale_betas_zero_snr",
                "set_alpha_to_one",
                "skip_prk_steps",
                "stochastic_sampling",
                "thresholding",
                "use_beta_sigmas",
                "use_dynamic_shifting",
                "use_exponential_sigmas",
                "use_flow_sigmas",
                "use_karras_sigmas",
                "use_lu_lambdas",
            ),
            _FLAG_OR_NULL,
        ),
        "disable_corrector": list_of(whole(0, _TIMESTEPS), 0, _TIMESTEPS),
    }
)

_PART = NULL | list_of(_NAME_OR_NULL, 2, 2)  # a library and a class, or neither

_INDEX: Mapping[str, Kind] = {
    **_ADDRESS,
    **dict.fromkeys(
        (
            *DENOISERS,
            "vae",
            *TEXT_ENCODERS,
            *TOKENIZERS,
            "scheduler",
            "feature_extractor",
            "image_encoder",
            "safety_checker",
            "controlnet",
            "adapter",
        ),
        _PART,
    ),
    **dict.fromkeys(("force_zeros_for_empty_prompt", "requires_safety_checker", "add_watermarker"), _FLAG_OR_NULL),
}
PIPELINE_INDEX = record(_INDEX)
PUBLISHED_INDEX = record({**_INDEX, "_class_name": _NAME | list_of(_NAME, 2, 2)})
"""Of a checkpoint, whose pipeline may be a class of a module beside it, which sdort does not run."""

_CONTENT = any_text(1024)
_TOKEN_RECORD = record({"content": _CONTENT}, ("content",))
_SPECIAL = NULL | _CONTENT | _TOKEN_RECORD

# transformers hands these keys to the constructor of a tokenizer, which reads the file that a text names, anywhere.
_TABLE = Kind("a table; text would name a file to read", lambda value: not isinstance(value, str))

_BESIDE = Kind("the name of a file beside it", lambda value: isinstance(value, str) and "/" not in value)

TOKENIZER = record(
    {
        **dict.fromkeys(("vocab", "merges", "gguf_file"), _TABLE),
        "init_inputs": list_of(ANYTHING, 0, 0),  # the constructor's first parameters, which are tables too
        "fast_tokenizer_files": list_of(_BESIDE, 0, 100),
        "model_max_length": whole(1, 10**31),  # transformers writes int(1e30) where a tokenizer has no longest text
        **dict.fromkeys(("bos_token", "eos_token", "unk_token", "pad_token"), _SPECIAL),
        **dict.fromkeys(("do_lower_case", "add_prefix_space", "clean_up_tokenization_spaces"), _FLAG_OR_NULL),
        "tokenizer_class": _NAME_OR_NULL,
        "errors": _NAME,
        "added_tokens_decoder": mapping_to(_TOKEN_RECORD, 100_000),
    }
)


def _named_file(tokens: Mapping[str, Any], path: str) -> str | None:
    """The problem of special tokens that name a file: from here they take the place of those that transformers found,
    which no text of ``tokenizer_config.json`` does."""
    files = {key: _TABLE for key in tokens if key.endswith("_file")}
    return record(files).parts(tokens, path) or TOKENIZER.parts(tokens, path)


SPECIAL_TOKENS = Kind(TOKENIZER.words, TOKENIZER.fits, _named_file)
_VOCABULARY = mapping_to(whole(0, 10**7), 10**6)

_SIDES = whole(1, 4096)
_SIZE = _SIDES | record(dict.fromkeys(("shortest_edge", "height", "width"), _SIDES))  # old configs have a number

PREPROCESSOR = record(
    {
        **dict.fromkeys(("size", "crop_size"), _SIZE),
        "image_mean": list_of(_SHARE, 3, 3),
        "image_std": list_of(positive(1), 3, 3),
        "rescale_factor": positive(1),
        "resample": whole(0, 5),
        **dict.fromkeys(("do_resize", "do_center_crop", "do_rescale", "do_normalize"), FLAG),
    }
)
"""``CLIPImageProcessor`` of transformers, and ``CLIPFeatureExtractor``, its name in old pipelines."""

PROCESSOR_FILES = {
    "scheduler_config.json": SCHEDULER,
    "tokenizer_config.json": TOKENIZER,
    "special_tokens_map.json": SPECIAL_TOKENS,
    "vocab.json": _VOCABULARY,
    "added_tokens.json": _VOCABULARY,
}
"""The JSON files of schedulers and tokenizers; others, such as ``tokenizer.json``, have to be objects."""

_BAKED = {"path": NULL | text(4096), "sha256": _NAME_OR_NULL, "bytes": NULL | whole(0, 1 << 50)}
"""The file of an adapter or an embedding in the weights."""

_ORIGIN = NULL | record({"description": _NAME, "weights": _NAME_OR_NULL}, ("description", "weights"))

_PART = NULL | record({"path": text(4096), "origin": _ORIGIN}, ("path", "origin"))

MANIFEST_SCHEMA = record(
    {
        "source": NULL | text(4096),
        "path": NULL | text(4096),
        "made_with": NULL
        | record(
            {
                "config": _PART,
                "vae": _PART,
                "scheduler": _NAME_OR_NULL,
                "prediction_type": _NAME_OR_NULL,
                "variant": _NAME_OR_NULL,
                "ema": _FLAG_OR_NULL,
                "allow_pickle": _FLAG_OR_NULL,
            }
        ),
        "origin": _ORIGIN,
        "pipeline": _NAME_OR_NULL,
        "opset": NULL | whole(1, 1000),
        "static": _NAME_OR_NULL,
        "versions": NULL | mapping_to(_NAME, 64),
        "components": NULL | mapping_to(record({}), 64),
        "adapters": NULL
        | list_of(record({**_BAKED, "name": text(4096), "scale": number(-1e6, 1e6)}, ("name", "scale")), 0, 1000),
        "words": NULL | list_of(record({**_BAKED, "word": text(4096)}, ("word",)), 0, 1000),
        "ip_adapters": NULL | list_of(record({**_BAKED, "name": text(4096)}, ("name",)), 0, 1000),
        "optimized": NULL
        | record(
            {
                "sdort": _NAME,
                "from": text(4096),
                "origin": _ORIGIN,
                "provider": _NAME,
                "precision": _NAME,
                "fp16": ANYTHING,
                "weights": _NAME_OR_NULL,
                "group": NULL | whole(1, 10**6),
                "checkpoint": _NAME_OR_NULL,
                "sha256": _NAME_OR_NULL,
            },
            ("from",),
        ),
    }
)

SHARD_INDEX = record({"weight_map": mapping_to(_NAME, 10**6)}, ("weight_map",))

_COMPONENTS: Mapping[str, Kind] = {
    **dict.fromkeys(DENOISERS, TRANSFORMER),
    UNET_COMPONENT: UNET,
    "vae": VAE,
    "vae_encoder": VAE,
    "vae_decoder": VAE,
    **dict.fromkeys(TEXT_ENCODERS, TEXT_ENCODER),
    "controlnet": CONTROLNET,
    "t2i_adapter": T2I_ADAPTER,
    "image_encoder": IMAGE_ENCODER,
    "safety_checker": IMAGE_ENCODER,
}


def component_schema(component: str) -> Kind | None:
    """The schema of a component's ``config.json``; None for a component whose config sdort does not compute with."""
    return _COMPONENTS.get(component)


def contradiction(class_name: str, config: Mapping[str, Any]) -> str | None:
    """The first rule between several keys of a whole config that does not hold, in a sentence; None if all do.

    Args:
        class_name: the architecture.
        config: its config after :func:`component_schema`, with defaults filled in.
    """
    if class_name not in _RULES and any(class_name in classes for classes in DENOISER_CLASSES.values()):
        return None  # its signature checks what it reads
    return next(_RULES.get(class_name, _head_rules)(config), None)


def _unet_rules(config: Mapping[str, Any]) -> Iterator[str]:
    yield from _block_rules(config)
    channels = config["block_out_channels"]
    for key in (
        "layers_per_block",
        "transformer_layers_per_block",
        "reverse_transformer_layers_per_block",
        "cross_attention_dim",
        "attention_head_dim",
        "num_attention_heads",
        "only_cross_attention",
    ):
        if isinstance(value := config.get(key), list) and len(value) != len(channels):
            yield f"{key} has {len(value)} entries for {len(channels)} block_out_channels"
    # diffusers: attention_head_dim is the number of heads, by an old mistake that all published configs rely on.
    key = "num_attention_heads" if config.get("num_attention_heads") is not None else "attention_head_dim"
    heads = config.get(key)
    for level, kind in enumerate(config["down_block_types"]):
        count = heads[level] if isinstance(heads, list) else heads
        if kind == "CrossAttnDownBlock2D" and (count is None or channels[level] % count):
            yield f"{channels[level]} block_out_channels do not divide into {count} heads ({key})"
    if config.get("addition_embed_type") == "text_time":
        yield from _added_rules(config)


def _added_rules(config: Mapping[str, Any]) -> Iterator[str]:
    for key in ("addition_time_embed_dim", "projection_class_embeddings_input_dim"):
        if config.get(key) is None:
            yield f"addition_embed_type is text_time, and {key} is null"


def _vae_rules(config: Mapping[str, Any]) -> Iterator[str]:
    yield from _block_rules(config)
    yield from latent_rules(config)


def _tiny_vae_rules(config: Mapping[str, Any]) -> Iterator[str]:
    for half in ("encoder", "decoder"):
        widths, counts = config[f"{half}_block_out_channels"], config[f"num_{half}_blocks"]
        if len(widths) != len(counts):
            yield f"num_{half}_blocks has {len(counts)} entries for {len(widths)} {half}_block_out_channels"
    if (factor := config.get("upsampling_scaling_factor", 2)) != 2:
        yield f"upsampling_scaling_factor is {factor}, and the encoder halves each side"
    yield from latent_rules(config)


def latent_rules(config: Mapping[str, Any]) -> Iterator[str]:
    """The contradictions of a VAE's config in what scales its latents."""
    channels = config.get("latent_channels")
    for key in ("latents_mean", "latents_std"):
        value = config.get(key)
        if value is not None and channels is not None and len(value) != channels:
            yield f"{key} has {len(value)} entries for {channels} latent_channels"


def _block_rules(config: Mapping[str, Any]) -> Iterator[str]:
    channels, groups = config["block_out_channels"], config.get("norm_num_groups")
    for key in ("down_block_types", "up_block_types"):
        if len(config.get(key, channels)) != len(channels):
            yield f"{key} has {len(config[key])} entries for {len(channels)} block_out_channels"
    for width in channels:
        if groups is not None and width % groups:
            yield f"{width} block_out_channels do not divide into {groups} norm_num_groups"


def _head_rules(config: Mapping[str, Any]) -> Iterator[str]:
    width, heads = config["hidden_size"], config["num_attention_heads"]
    if width % heads:
        yield f"hidden_size {width} does not divide into {heads} num_attention_heads"


def _t5_rules(config: Mapping[str, Any]) -> Iterator[str]:
    buckets, farthest = config["relative_attention_num_buckets"], config["relative_attention_max_distance"]
    # The logarithm of their ratio spreads the far half of them.
    if farthest <= buckets // 4:
        yield f"{buckets} relative_attention_num_buckets do not reach relative_attention_max_distance {farthest}"


def _qwen3_rules(config: Mapping[str, Any]) -> Iterator[str]:
    heads, groups = config["num_attention_heads"], config["num_key_value_heads"]
    if heads % groups:
        yield f"{heads} num_attention_heads do not divide into {groups} num_key_value_heads"
    if config["head_dim"] % 2:
        yield f"head_dim {config['head_dim']} does not divide into pairs"
    rotary = config.get("rope_parameters") or {}
    if not config.get("rope_theta") and "rope_theta" not in rotary:
        yield "it has neither rope_theta nor rope_parameters"
    if config.get("rope_scaling") or rotary.get("rope_type", "default") != "default":
        yield "its rotary embedding is scaled, which sdort does not export"
    if config.get("use_sliding_window") or {*(config.get("layer_types") or ())} - {"full_attention"}:
        yield "its layers attend to the last tokens alone, which sdort does not export"


_ADAPTER_TYPES = ("full_adapter", "full_adapter_xl", "light_adapter")


def _adapter_rules(config: Mapping[str, Any]) -> Iterator[str]:
    kind, factor = config["adapter_type"], config["downscale_factor"]
    if kind not in _ADAPTER_TYPES:
        yield f"adapter_type is {kind!r}, none of {', '.join(_ADAPTER_TYPES)}"
    for width in config["channels"]:
        if kind == "light_adapter" and width % 4:
            yield f"{width} channels do not divide by 4"
    if factor & (factor - 1):
        yield f"downscale_factor {factor} is no power of two"


_RULES: Mapping[str, Callable[[Mapping[str, Any]], Iterator[str]]] = {
    "UNet2DConditionModel": _unet_rules,
    "ControlNetModel": _unet_rules,
    "AutoencoderKL": _vae_rules,
    "AutoencoderTiny": _tiny_vae_rules,
    "T2IAdapter": _adapter_rules,
    T5: _t5_rules,
    QWEN3: _qwen3_rules,
}

REQUIRED: Mapping[str, tuple[str, ...]] = {
    "UNet2DConditionModel": (
        "block_out_channels",
        "down_block_types",
        "up_block_types",
        "in_channels",
        "out_channels",
        "layers_per_block",
        "cross_attention_dim",
        "attention_head_dim",
    ),
    "AutoencoderKL": ("block_out_channels", "down_block_types", "up_block_types", "latent_channels"),
    "AutoencoderTiny": ("encoder_block_out_channels", "decoder_block_out_channels", "latent_channels"),
    "ControlNetModel": (
        "block_out_channels",
        "down_block_types",
        "layers_per_block",
        "cross_attention_dim",
        "attention_head_dim",
        "conditioning_embedding_out_channels",
    ),
    "T2IAdapter": ("channels", "num_res_blocks", "downscale_factor", "adapter_type"),
    **dict.fromkeys(
        ("CLIPVisionModelWithProjection", "StableDiffusionSafetyChecker"),
        (
            "hidden_size",
            "num_hidden_layers",
            "num_attention_heads",
            "intermediate_size",
            "image_size",
            "patch_size",
            "projection_dim",
        ),
    ),
    **{name: model.required for name, model in TEXT_MODELS.items()},
    **{each.denoiser.class_name: each.denoiser.required for each in FAMILIES.values() if each.denoiser.required},
}
"""The keys that every published config of an architecture has. Without them the library's default would stand in, such
as another number of heads, with which the same weights compute something else."""
