"""Kinds of models by the names and shapes of their tensors: facts about published file layouts.

Names of single-file checkpoints and of other architectures: diffusers' ``loaders/single_file_utils.py``; of LoRAs:
kohya-ss/sd-scripts, diffusers and peft; of LyCORIS: KohakuBlueleaf/LyCORIS; of IP-Adapter: tencent-ailab/IP-Adapter;
of T2I adapters: diffusers' ``convert_original_t2i_adapter.py``; of upscalers: xinntao/Real-ESRGAN, JingyunLiang/SwinIR.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TypeVar

from sdort.families.data import sd1, sd2, sdxl, sdxl_refiner
from sdort.families.family import Family
from sdort.families.known_families import FAMILIES
from sdort.families.unet import EDITING, INPAINTING, UNET

Shapes = Mapping[str, Sequence[int]]
"""The shapes of a file's tensors by name."""


class Kind(Enum):
    """A kind of file that people take for a model."""

    CHECKPOINT = "checkpoint"
    UNET = "UNet"
    DENOISER = "transformer"
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


SD1, SD2, SDXL, REFINER = sd1.FAMILY.name, sd2.FAMILY.name, sdxl.FAMILY.name, sdxl_refiner.FAMILY.name
FAMILY_OF_WIDTH = {family.context_width: family.name for family in FAMILIES.values() if family.denoiser is UNET}
"""Family by the width of the text encoders' output, which the UNet attends to."""
LATENTS = 4
"""Channels of the latents of all of these families."""

LDM_UNET = "model.diffusion_model."
_WRAPPED = re.compile(r"(.*?)((?:model\.)?diffusion_model\.)(?:input_blocks\.0\.0|conv_in)\.weight")
_LDM_TEXT = ("cond_stage_model.", "conditioner.embedders.")
_LDM_VAE = "first_stage_model."
VAE_PREFIXES = (_LDM_VAE, "vae.")
_DENOISERS = (LDM_UNET, "diffusion_model.", "transformer.", "")
"""Beginnings of a transformer's names: of ComfyUI's whole checkpoints, of its models alone, of diffusers' pipelines."""

_UNET = r"(model\.diffusion_model\.)?"
_KINDS = (
    (Kind.IP_ADAPTER, r"(ip_adapter|image_proj)\."),
    (Kind.LYCORIS, r".+\.(hada_w[12]_[ab]|lokr_w[12](_[ab])?|oft_blocks|oft_diag)$"),
    (Kind.LORA, r".+[._](lora_down|lora_up|lora_[AB]|lora\.down|lora\.up|lora_linear_layer\.(up|down))\b"),
    (Kind.CONTROLNET, r"(control_model|controlnet_cond_embedding|input_hint_block|zero_convs|lora_controlnet)\b"),
    (Kind.MOTION_MODULE, r".*\bmotion_modules\."),
    (Kind.CHECKPOINT, r"model\.diffusion_model\.(input_blocks|output_blocks)\."),
    (Kind.CHECKPOINT, r"model_ema\."),
    (Kind.TRANSFORMER, rf"{_UNET}(joint_blocks|double_blocks|double_layers)\."),
    (Kind.TRANSFORMER, rf"{_UNET}(patchify_proj|cap_embedder|clip_txt_mapper)\."),
    (Kind.TRANSFORMER, rf"{_UNET}(single_)?transformer_blocks\.\d+\."),
    (Kind.TRANSFORMER, rf"{_UNET}down_blocks\.\d\.\d\.channelwise\."),
    (Kind.TRANSFORMER, r"(model\.diffusion_model\.|net\.)(blocks|layers|x_embedder|head)\."),
    (Kind.TRANSFORMER, r"(down_blocks\.1\.0\.channelwise|blocks\.\d+\.(cross_attn|self_attn|attn))\."),
    (Kind.UNET, rf"{_UNET}(down_blocks\.\d+\.(resnets|attentions)|input_blocks\.0\.0)\."),
    (Kind.T2I_ADAPTER, r"(adapter\.)?body\.\d+\.(block1|block2|in_conv|resnets|body)\."),
    (Kind.VAE, r"((encoder|decoder)\.)?(layers\.)?\d+\.conv\.\d+\."),
    (Kind.VAE, r"(first_stage_model\.)?(encoder|decoder)\.(conv_in|conv_out|mid|mid_block)\."),
    (Kind.TEXT_ENCODER, r"(cond_stage_model|conditioner\.embedders|(.*\.)?text_model\.encoder)\."),
    (Kind.TEXT_ENCODER, r"encoder\.block\.\d+\.layer\."),
    (Kind.UPSCALER, r"(conv_first\.|body\.\d+\.rdb1\.|model\.1\.sub\.|layers\.\d+\.residual_group\.)"),
    (Kind.TRANSFORMER, rf"{_UNET}(\w+_)?(blocks|layers)\.\d+\.\w+\."),
    (Kind.EMBEDDING, r"(emb_params|string_to_param\..*|clip_[lg]|<.+>)$"),
)
"""The first pattern that some tensor's name begins with decides: what comes later may be a part of what comes first."""

_FOREIGN = (
    ("SD 2.1 unCLIP", r"(noise_augmentor|embedder\.model\.visual|image_normalizer)\b"),
    ("Zero123", r"cc_projection\."),
    ("Stable Video Diffusion", rf"{_UNET}(.*\.(time_stack|time_mixer|temporal_res_block)\.|add_time_.*temporal)"),
    ("AnimateDiff", rf"{_UNET}.*\b(motion_modules|temporal_transformer)\."),
    (
        "text-to-video",
        rf"{_UNET}(.*\.(temopral_conv|temp_convs|temp_attentions|temporal_transformer)\.|transformer_in\.)",
    ),
    ("GLIGEN", rf"{_UNET}(.*\.fuser\.|position_net\.)"),
    ("SD 2.x depth", r"depth_model\."),
    ("x4 upscaler", rf"(low_scale_model\.|{_UNET}(label_emb|class_embedding)\.weight$)"),
    ("SD 2.1 unCLIP", rf"{_UNET}class_embedding\.linear_1\."),
    ("latent diffusion with BERT", r"(cond_stage_model|bert)\.transformer\.(attn_layers|token_emb)\."),
    (
        "Kandinsky 2",
        rf"{_UNET}(add_embedding\.(image_|text_norm|text_proj)|encoder_hid_proj\.(image|text)_|ln_model_n\.)",
    ),
    ("DeepFloyd IF", rf"{_UNET}(add_embedding\.(norm1|pool|proj|norm2)\.|encoder_pooling\.)"),
    ("Kandinsky 3", rf"{_UNET}(add_time_condition|projection_linear)\."),
    ("Kolors", rf"{_UNET}encoder_hid_proj\."),
    ("ControlNet-XS", rf"{_UNET}(.*\.base_to_ctrl\.|control_to_base|ctrl_|base_(down|up|mid)_blocks\.)"),
    ("IP-Adapter and UNet", rf"{_UNET}.*\.to_[kv]_ip\."),
    (
        "unconditional diffusion",
        rf"{_UNET}((down|mid|up)_blocks?\.(\d+\.)?attentions\.\d+\.(to_q|query)|(input|output|middle)_blocks?\..*\.qkv)\.",
    ),
    ("AudioLDM", r"(vocoder|clap|cond_stage_model\.model\.audio_branch)\."),
)
"""Models whose UNets have the names of Stable Diffusion's and more, by what else the files have: diffusers' classes of
UNets, Stability-AI/generative-models and stablediffusion, cvlab-columbia/zero123, gligen/GLIGEN, guoyww/AnimateDiff."""

_OTHER_FAMILIES = (
    ("HunyuanVideo", r".*(individual_token_refiner|context_embedder\.token_refiner)\."),
    ("Hunyuan-DiT", r".*(mlp_t5|text_embedding_padding|time_extra_emb)\b"),
    ("Chroma", r".*distilled_guidance_layer\."),
    ("Qwen-Image", r".*transformer_blocks\.\d+\.txt_(mlp|mod)\."),
    ("HiDream", r".*double_stream_blocks\."),
    ("Wan", rf"{_UNET}(time_projection\.1|condition_embedder\.time_proj)\."),
    ("Mochi", rf"{_UNET}(t5_y_embedder|t5_yproj)\."),
    ("CogVideoX", rf"{_UNET}patch_embed\.text_proj\."),
    ("AuraFlow", r".*(double_layers|joint_transformer_blocks)\."),
    ("Flux.2", r".*(double_stream_modulation_(img|txt)|single_stream_modulation)\."),
    ("Flux", r".*(double_blocks|single_transformer_blocks)"),
    ("SD 3", r"(.*\bjoint_blocks|.*transformer_blocks\.\d+\.attn\.add_q_proj|.*lora_unet_joint_blocks)"),
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
    shapes = unwrapped(shapes)
    if denoiser := find_denoiser(shapes):
        return _of_family(denoiser.family, shapes)
    kind = next((kind for kind, pattern in _KINDS if _first(shapes, pattern)), Kind.UNKNOWN)
    if kind in (Kind.CHECKPOINT, Kind.UNET) and (family := _foreign_family(shapes)):
        return Architecture(Kind.TRANSFORMER, family)
    if kind is Kind.UNKNOWN and _is_embedding(shapes):
        kind = Kind.EMBEDDING
    if kind is not Kind.CHECKPOINT:
        return Architecture(kind, _family(shapes, kind), _variant(shapes) if kind is Kind.UNET else None)
    parts: dict[str, tuple[str, ...]] = {"text encoder": _LDM_TEXT, "VAE": (_LDM_VAE,)}
    lacks = tuple(part for part, prefixes in parts.items() if not any(name.startswith(prefixes) for name in shapes))
    return Architecture(Kind.UNET if len(lacks) == len(parts) else kind, _family(shapes, kind), _variant(shapes), lacks)


@dataclass(frozen=True)
class FoundDenoiser:
    """A transformer among the tensors of a file.

    Attributes:
        prefix: the beginning of its tensors' names.
    """

    family: Family
    prefix: str

    def names(self, tensors: Collection[str]) -> list[str]:
        """Its tensors among those of a file."""
        others = (*(each for part in self.family.encoders for each in part.prefixes), *VAE_PREFIXES)
        return [name for name in tensors if name.startswith(self.prefix) and not name.startswith(others)]


def find_denoiser(shapes: Mapping[str, object]) -> FoundDenoiser | None:
    """The transformer in a file, in its authors' names or diffusers'; None for another file."""
    for prefix in _DENOISERS:
        inner = [name.removeprefix(prefix) for name in shapes if name.startswith(prefix)]
        for family in FAMILIES.values():
            names = family.denoiser.layers
            if names and inner and family.holds(dict.fromkeys(names.own(inner), ())):
                return FoundDenoiser(family, prefix)
    return None


def _of_family(family: Family, shapes: Shapes) -> Architecture:
    texts = tuple(prefix for part in family.encoders for prefix in part.prefixes)
    parts = {"text encoder": texts, "VAE": VAE_PREFIXES}
    lacks = tuple(part for part, prefixes in parts.items() if not any(name.startswith(prefixes) for name in shapes))
    kind = Kind.DENOISER if len(lacks) == len(parts) else Kind.CHECKPOINT
    return Architecture(kind, family.name, None, lacks)


_Tensor = TypeVar("_Tensor")


def unwrapped(tensors: Mapping[str, _Tensor]) -> Mapping[str, _Tensor]:
    """A checkpoint's tensors without what a trainer or a converter put before all names, such as ``module.``.

    A UNet alone stands behind ``model.diffusion_model.`` afterwards, also if it did behind ``diffusion_model.``, or
    twice behind the whole. A file in which two names would become one stays as it is.
    """
    found = [match.groups() for match in map(_WRAPPED.fullmatch, tensors) if match]
    if not found or ("", LDM_UNET) in found:
        return tensors
    wrap, root = found[0]
    inner = {name.removeprefix(wrap): tensor for name, tensor in tensors.items()}
    plain = {
        LDM_UNET + name.removeprefix(root) if name.startswith(root) else name: tensor for name, tensor in inner.items()
    }
    return plain if len(plain) == len(tensors) else tensors


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
    width = _context_width(shapes)
    return FAMILY_OF_WIDTH.get(width) if width else None


def _foreign_family(shapes: Shapes) -> str | None:
    """The family of a UNet that takes or makes more than Stable Diffusion's."""
    named = next((family for family, pattern in _FOREIGN if _first(shapes, pattern)), None)
    if not named and _first(shapes, r"cond_stage_model\.model\.visual\.") and not _has_open_clip(shapes):
        return "SD image variations"
    if named or not _first(shapes, rf"{_UNET}(label_emb\.0\.0|add_embedding\.linear_1)\.weight$"):
        return named
    # A class embedding, which of these families SDXL alone has: beside the states of its text encoders.
    width = _context_width(shapes)
    foreign = width in FAMILY_OF_WIDTH and FAMILY_OF_WIDTH[width] not in (SDXL, REFINER)
    return "SD 2.1 unCLIP" if foreign or _first(shapes, r"cond_stage_model\.") else None


def _has_open_clip(shapes: Shapes) -> bool:
    """Whether a checkpoint is conditioned by OpenCLIP's text half: SD 2.x, whose UNets have linear projections."""
    linear = any(len(shape) == 2 for name, shape in shapes.items() if name.endswith(".proj_in.weight"))
    return linear and "cond_stage_model.model.token_embedding.weight" in shapes


def _context_width(shapes: Shapes) -> int | None:
    """The width of the states that a UNet, an adapter or an IP-Adapter attends to."""
    context = r".*(attn2[._](processor\.)?to_k|to_k_ip)([._](lora_down|lora_A|lora\.down))?\.weight$"
    name = _first(shapes, context)
    return shapes[name][-1] if name and len(shapes[name]) > 1 else None


def _variant(shapes: Shapes) -> str | None:
    first = _first(shapes, rf"({_UNET}input_blocks\.0\.0|conv_in)\.weight$")
    last = _first(shapes, rf"({_UNET}out\.2|conv_out)\.weight$")
    inputs, outputs = (shapes[name] if name else () for name in (first, last))
    variant = unet_variant(inputs[1], outputs[0] if len(outputs) == 4 else LATENTS) if len(inputs) == 4 else None
    return variant or ("v-prediction" if "v_pred" in shapes else None)


def unet_variant(inputs: int, outputs: int) -> str | None:
    """The variant of a UNet by the channels that it takes and makes; None where these are alike: text to image.

    What it makes are latents. Beside them it may take a depth map, a small image, an image's latents, and these with a
    mask.
    """
    if inputs == outputs:
        return None
    known = {outputs + 1: "depth", outputs + 3: "upscaler", 2 * outputs: EDITING, 2 * outputs + 1: INPAINTING}
    return known.get(inputs, f"{inputs} channels of input, {outputs} of output")


def _is_embedding(shapes: Shapes) -> bool:
    """Whether these few tensors are vectors as wide as a text encoder's: diffusers names them by their token."""
    return len(shapes) in (1, 2) and all(
        len(shape) in (1, 2) and shape[-1] in FAMILY_OF_WIDTH for shape in shapes.values()
    )
