"""Forms of published configs: the keys and values in which they differ, on top of those of their family.

Old versions of diffusers wrote fewer keys, later ones all; distilled models use forms that no other model does.
"""

from __future__ import annotations

from typing import Any

_CROSS, _PLAIN = "CrossAttnDownBlock2D", "DownBlock2D"
_UP, _PLAIN_UP = "CrossAttnUpBlock2D", "UpBlock2D"
# As diffusers 0.2 to 0.5 wrote it, of Flax checkpoints too.
SD1: dict[str, Any] = {
    "attention_head_dim": 8,
    "block_out_channels": [320, 640, 1280, 1280],
    "cross_attention_dim": 768,
    "down_block_types": [_CROSS, _CROSS, _CROSS, _PLAIN],
    "in_channels": 4,
    "layers_per_block": 2,
    "out_channels": 4,
    "sample_size": 64,
    "up_block_types": [_PLAIN_UP, _UP, _UP, _UP],
}
SD2 = {**SD1, "attention_head_dim": [5, 10, 20, 20], "cross_attention_dim": 1024, "use_linear_projection": True}
SDXL = {
    **SD1,
    "addition_embed_type": "text_time",
    "addition_time_embed_dim": 256,
    "attention_head_dim": [5, 10, 20],
    "block_out_channels": [320, 640, 1280],
    "cross_attention_dim": 2048,
    "down_block_types": [_PLAIN, _CROSS, _CROSS],
    "projection_class_embeddings_input_dim": 2816,
    "reverse_transformer_layers_per_block": None,
    "sample_size": 128,
    "transformer_layers_per_block": [1, 2, 10],
    "up_block_types": [_UP, _UP, _PLAIN_UP],
    "upcast_attention": None,
    "use_linear_projection": True,
}
UNETS: dict[str, dict[str, Any]] = {
    "SD 1.4, Flax": {**SD1, "_class_name": "FlaxUNet2DConditionModel", "dropout": 0.0, "freq_shift": 0},
    "SD 1.5": {**SD1, "mid_block_scale_factor": 1, "norm_eps": 1e-05, "norm_num_groups": 32, "act_fn": "silu"},
    "SD 1.5 inpainting": {**SD1, "in_channels": 9},
    "InstructPix2Pix": {**SD1, "in_channels": 8, "class_embed_type": None, "conv_in_kernel": 3},
    "SD 2.0 inpainting": {**SD2, "in_channels": 9, "sample_size": 32},
    "SD 2.1": {**SD2, "sample_size": 96, "upcast_attention": True, "only_cross_attention": False},
    "SD-Turbo": {**SD2, "num_attention_heads": None, "attention_type": "default", "resnet_out_scale_factor": 1.0},
    "SDXL": SDXL,
    "SDXL refiner": {
        **SDXL,
        "attention_head_dim": [6, 12, 24, 24],
        "block_out_channels": [384, 768, 1536, 1536],
        "cross_attention_dim": 1280,
        "down_block_types": [_PLAIN, _CROSS, _CROSS, _PLAIN],
        "projection_class_embeddings_input_dim": 2560,
        "transformer_layers_per_block": 4,
        "up_block_types": [_PLAIN_UP, _UP, _UP, _PLAIN_UP],
    },
    "LCM SDXL": {**SDXL, "time_cond_proj_dim": 256},
    "SSD-1B": {
        **SDXL,
        "transformer_layers_per_block": [0, [2, 2], [4, 4]],
        "reverse_transformer_layers_per_block": [[4, 4, 10], [2, 1, 1], 1],
    },
    "Koala": {**SDXL, "layers_per_block": 1, "mid_block_type": None, "transformer_layers_per_block": [0, 2, 6]},
    "BK-SDM-Tiny": {
        **SD1,
        "block_out_channels": [320, 640, 1280],
        "down_block_types": [_CROSS] * 3,
        "layers_per_block": 1,
        "mid_block_type": None,
        "up_block_types": [_UP] * 3,
    },
}
VAE: dict[str, Any] = {
    "block_out_channels": [128, 256, 512, 512],
    "down_block_types": ["DownEncoderBlock2D"] * 4,
    "in_channels": 3,
    "latent_channels": 4,
    "layers_per_block": 2,
    "out_channels": 3,
    "sample_size": 512,
    "up_block_types": ["UpDecoderBlock2D"] * 4,
}
VAES: dict[str, dict[str, Any]] = {
    "SD 1.4": VAE,
    "SDXL": {**VAE, "force_upcast": True, "sample_size": 1024, "scaling_factor": 0.13025},
    "Playground 2.5": {
        **VAE,
        "latents_mean": [-1.6574, 0.886, -1.383, 2.5155],
        "latents_std": [8.4927, 5.9022, 6.5498, 5.2299],
        "scaling_factor": 0.5,
    },
    "SD 3": {
        **VAE,
        "latent_channels": 16,
        "latents_mean": None,
        "scaling_factor": 1.5305,
        "shift_factor": 0.0609,
        "use_quant_conv": False,
    },
}
TEXT: dict[str, Any] = {
    "_name_or_path": "openai/clip-vit-large-patch14",
    "architectures": ["CLIPTextModel"],
    "attention_dropout": 0.0,
    "bos_token_id": 0,
    "dropout": 0.0,
    "eos_token_id": 2,
    "hidden_act": "quick_gelu",
    "hidden_size": 768,
    "intermediate_size": 3072,
    "layer_norm_eps": 1e-05,
    "max_position_embeddings": 77,
    "num_attention_heads": 12,
    "num_hidden_layers": 12,
    "pad_token_id": 1,
    "torch_dtype": "float32",
    "vocab_size": 49408,
}
TEXT_ENCODERS: dict[str, dict[str, Any]] = {
    "CLIP-L": TEXT,
    "SD 2": {**TEXT, "hidden_size": 1024, "num_attention_heads": 16, "num_hidden_layers": 23, "projection_dim": 512},
    "SDXL 2": {**TEXT, "hidden_act": "gelu", "hidden_size": 1280, "num_attention_heads": 20, "projection_dim": 1280},
}
_BETAS = {"beta_end": 0.012, "beta_schedule": "scaled_linear", "beta_start": 0.00085, "num_train_timesteps": 1000}
SCHEDULERS: dict[str, dict[str, Any]] = {
    "SD 1.4": {**_BETAS, "_class_name": "PNDMScheduler", "clip_sample": False, "skip_prk_steps": True},
    "waifu": {**_BETAS, "_class_name": "LMSDiscreteScheduler", "timestep_values": None, "trained_betas": None},
    "SDXL": {**_BETAS, "_class_name": "EulerDiscreteScheduler", "interpolation_type": "linear", "steps_offset": 1},
    "DPM++": {**_BETAS, "_class_name": "DPMSolverMultistepScheduler", "lambda_min_clipped": float("-inf")},
    "LCM": {**_BETAS, "_class_name": "LCMScheduler", "original_inference_steps": 50, "timestep_scaling": 10.0},
    "Playground 2.5": {
        "_class_name": "EDMDPMSolverMultistepScheduler",
        "sigma_data": 0.5,
        "sigma_max": 80.0,
        "sigma_min": 0.002,
        "rho": 7.0,
        "num_train_timesteps": 1000,
        "solver_order": 2,
    },
    "Stable Cascade": {"_class_name": "DDPMWuerstchenScheduler", "s": 0.008, "scaler": 1.0},
}
INDEXES: dict[str, dict[str, Any]] = {
    "SDXL": {
        "_class_name": "StableDiffusionXLPipeline",
        "force_zeros_for_empty_prompt": True,
        "add_watermarker": None,
        "scheduler": ["diffusers", "EulerDiscreteScheduler"],
        "text_encoder_2": ["transformers", "CLIPTextModelWithProjection"],
        "unet": ["diffusers", "UNet2DConditionModel"],
    },
    "SD 1.5": {
        "_class_name": "StableDiffusionPipeline",
        "feature_extractor": ["transformers", "CLIPImageProcessor"],
        "safety_checker": ["stable_diffusion", "StableDiffusionSafetyChecker"],
        "unet": ["diffusers", "UNet2DConditionModel"],
    },
}
TOKENIZERS: dict[str, dict[str, Any]] = {
    "CLIP-L": {
        "add_prefix_space": False,
        "bos_token": {"__type": "AddedToken", "content": "<|startoftext|>", "lstrip": False},
        "do_lower_case": True,
        "errors": "replace",
        "model_max_length": 77,
        "pad_token": "<|endoftext|>",
    },
    "T5": {"model_max_length": 1000000000000000019884624838656, "additional_special_tokens": ["<extra_id_0>"]},
    "SDXL 2": {"added_tokens_decoder": {"0": {"content": "!", "special": True}}, "pad_token": "!"},
}
