"""Kinds of models by the names and shapes of their tensors: facts about published file layouts.

Names of single-file checkpoints and of other architectures: diffusers' ``loaders/single_file_utils.py``; of LoRAs:
kohya-ss/sd-scripts, diffusers and peft; of LyCORIS: KohakuBlueleaf/LyCORIS; of IP-Adapter: tencent-ailab/IP-Adapter;
of T2I adapters: diffusers' ``convert_original_t2i_adapter.py``; of upscalers: xinntao/Real-ESRGAN, JingyunLiang/SwinIR.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

Shapes = Mapping[str, Sequence[int]]
"""The shapes of a file's tensors by name."""


class Kind(Enum):
    """A kind of file that people take for a model."""

    CHECKPOINT = "checkpoint"
    UNET = "UNet"
    TEXT_ENCODER = "text encoder"
    VAE = "VAE"
    LORA = "LoRA"
    LYCORIS = "LyCORIS adapter"
    CONTROLNET = "ControlNet"
    T2I_ADAPTER = "T2I adapter"
    IP_ADAPTER = "IP-Adapter"
    MOTION_MODULE = "AnimateDiff motion module"
    EMBEDDING = "textual inversion"
    UPSCALER = "upscaler"
    TRANSFORMER = "model of another architecture"
    ONNX = "ONNX graph"
    GGUF = "GGUF file"
    PICKLE = "pickle"
    ENGINE = "TensorRT engine"
    ARCHIVE = "archive"
    POINTER = "git-lfs pointer"
    UNFINISHED = "unfinished download"
    WEB_PAGE = "web page"
    EMPTY = "empty file"
    UNKNOWN = "unknown"


SD1, SD2, SDXL, REFINER = "SD 1.x", "SD 2.x", "SDXL", "SDXL refiner"
FAMILY_OF_WIDTH = {768: SD1, 1024: SD2, 2048: SDXL, 1280: REFINER}
"""Family by the width of the text encoders' output, which the UNet attends to."""
INPAINTING, EDITING = "inpainting", "instruct-pix2pix"
_VARIANT_OF_CHANNELS = {5: "depth", 7: "upscaler", 8: EDITING, 9: INPAINTING}
"""Variant of a UNet by the channels of its input; 4 is text to image."""

LDM_UNET = "model.diffusion_model."
_LDM_TEXT = ("cond_stage_model.", "conditioner.embedders.")
_LDM_VAE = "first_stage_model."

_KINDS = (
    (Kind.IP_ADAPTER, r"(ip_adapter|image_proj)\."),
    (Kind.LYCORIS, r".+\.(hada_w[12]_[ab]|lokr_w[12](_[ab])?|oft_blocks|oft_diag)$"),
    (Kind.LORA, r".+[._](lora_down|lora_up|lora_[AB]|lora\.down|lora\.up|lora_linear_layer\.(up|down))\b"),
    (Kind.CONTROLNET, r"(control_model|controlnet_cond_embedding|input_hint_block|zero_convs|lora_controlnet)\b"),
    (Kind.MOTION_MODULE, r".*\bmotion_modules\."),
    (Kind.CHECKPOINT, r"model\.diffusion_model\.(input_blocks|output_blocks)\."),
    (Kind.CHECKPOINT, r"model_ema\."),
    (Kind.TRANSFORMER, r"(model\.diffusion_model\.)?(joint_blocks|double_blocks|double_layers)\."),
    (Kind.TRANSFORMER, r"(model\.diffusion_model\.)?(patchify_proj|cap_embedder|clip_txt_mapper)\."),
    (Kind.TRANSFORMER, r"(single_)?transformer_blocks\.\d+\."),
    (Kind.TRANSFORMER, r"(model\.diffusion_model\.|net\.)(blocks|layers|x_embedder|head)\."),
    (Kind.TRANSFORMER, r"(down_blocks\.1\.0\.channelwise|blocks\.\d+\.(cross_attn|self_attn|attn))\."),
    (Kind.UNET, r"(down_blocks\.\d+\.(resnets|attentions)|input_blocks\.0\.0)\."),
    (Kind.T2I_ADAPTER, r"(adapter\.)?body\.\d+\.(block1|block2|in_conv|resnets|body)\."),
    (Kind.VAE, r"((encoder|decoder)\.)?(layers\.)?\d+\.conv\.\d+\."),
    (Kind.VAE, r"(first_stage_model\.)?(encoder|decoder)\.(conv_in|conv_out|mid|mid_block)\."),
    (Kind.TEXT_ENCODER, r"(cond_stage_model|conditioner\.embedders|(.*\.)?text_model\.encoder)\."),
    (Kind.TEXT_ENCODER, r"encoder\.block\.\d+\.layer\."),
    (Kind.UPSCALER, r"(conv_first\.|body\.\d+\.rdb1\.|model\.1\.sub\.|layers\.\d+\.residual_group\.)"),
    (Kind.EMBEDDING, r"(emb_params|string_to_param\..*|clip_[lg]|<.+>)$"),
)
"""The first pattern that some tensor's name begins with decides: what comes later may be a part of what comes first."""

_OTHER_FAMILIES = (
    ("SD 3", r"(.*\bjoint_blocks|.*transformer_blocks\.\d+\.attn\.add_q_proj|.*lora_unet_joint_blocks)"),
    ("Flux", r".*(double_blocks|single_transformer_blocks)"),
    ("AuraFlow", r".*double_layers\."),
    ("Stable Cascade", r"(.*\.)?(down_blocks\.\d\.\d\.channelwise|clip_txt_mapper)\."),
    ("LTX-Video", r".*patchify_proj\."),
    ("Lumina", r".*cap_embedder\."),
    ("Sana", r".*(attention_y_norm|caption_norm)\."),
    ("PixArt", r".*(adaln_single|y_embedder)\."),
)


@dataclass(frozen=True)
class Architecture:
    """A file of tensors.

    Attributes:
        family: ``SD 1.x``, ``SD 2.x``, ``SDXL``, ``SDXL refiner``, another's name, or None where nothing tells.
        variant: of a UNet, what it takes beside latents: ``inpainting``, ``instruct-pix2pix``, ...; else None.
        lacks: of a single-file checkpoint, the parts that it has not: ``text encoder``, ``VAE``.
    """

    kind: Kind
    family: str | None = None
    variant: str | None = None
    lacks: tuple[str, ...] = ()


def recognise_tensors(shapes: Shapes) -> Architecture:
    """The model that tensors of these names and shapes are."""
    kind = next((kind for kind, pattern in _KINDS if _first(shapes, pattern)), Kind.UNKNOWN)
    if kind is Kind.UNKNOWN and _is_embedding(shapes):
        kind = Kind.EMBEDDING
    if kind is not Kind.CHECKPOINT:
        return Architecture(kind, _family(shapes, kind), _variant(shapes) if kind is Kind.UNET else None)
    parts: dict[str, tuple[str, ...]] = {"text encoder": _LDM_TEXT, "VAE": (_LDM_VAE,)}
    lacks = tuple(part for part, prefixes in parts.items() if not any(name.startswith(prefixes) for name in shapes))
    return Architecture(Kind.UNET if len(lacks) == len(parts) else kind, _family(shapes, kind), _variant(shapes), lacks)


def _first(shapes: Shapes, pattern: str) -> str | None:
    match = re.compile(pattern).match
    return next((name for name in shapes if match(name)), None)


def _family(shapes: Shapes, kind: Kind) -> str | None:
    other = next((family for family, pattern in _OTHER_FAMILIES if _first(shapes, pattern)), None)
    if kind in (Kind.VAE, Kind.TEXT_ENCODER, Kind.UPSCALER):
        return None
    if kind is Kind.TRANSFORMER or other:
        return other
    if kind is Kind.EMBEDDING:
        # SDXL's first encoder is that of SD 1.x, and what stands for both of its encoders names both.
        widths = {shape[-1] for shape in shapes.values() if shape}
        return SDXL if 1280 in widths else FAMILY_OF_WIDTH.get(min(widths, default=0))
    if any(name.startswith("lora_te2_") for name in shapes):
        return SDXL
    context = r".*(attn2[._](processor\.)?to_k|to_k_ip)([._](lora_down|lora_A|lora\.down))?\.weight$"
    name = _first(shapes, context)
    return FAMILY_OF_WIDTH.get(shapes[name][-1]) if name and len(shapes[name]) > 1 else None


def _variant(shapes: Shapes) -> str | None:
    if "v_pred" in shapes:
        return "v-prediction"
    name = _first(shapes, r"((model\.diffusion_model\.)?input_blocks\.0\.0|conv_in)\.weight$")
    shape = shapes[name] if name else ()
    return _VARIANT_OF_CHANNELS.get(shape[1]) if len(shape) == 4 else None


def _is_embedding(shapes: Shapes) -> bool:
    """Whether these few tensors are vectors as wide as a text encoder's: diffusers names them by their token."""
    return len(shapes) in (1, 2) and all(
        len(shape) in (1, 2) and shape[-1] in FAMILY_OF_WIDTH for shape in shapes.values()
    )
