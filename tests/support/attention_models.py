"""Attentions as models other than Stable Diffusion's own UNets write them, small enough to be traced in a moment.

diffusers' attention layer with its processors, a UNet with a mask for its prompts, transformers' text encoders with a
mask, and attentions of the plain kind.
"""

from __future__ import annotations

import fcntl
import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
import transformers
from diffusers import UNet2DConditionModel
from diffusers.models import attention_processor as processors
from support.exports import quiet
from support.models import TEXT_CONFIG, UNET_SD1, randomize
from transformers import CLIPTextConfig, CLIPTextModel

WIDTH, HEADS, TEXT = 32, 4, 24
EXPORTERS = ("ts17", "dy18", "dy23")


@dataclass
class Traceable:
    """A module, its example inputs and which of their axes may change."""

    module: Any
    inputs: dict[str, Any]
    axes: dict[str, dict[int, str]]
    outputs: tuple[str, ...] = ("out",)


class Block(torch.nn.Module):  # type: ignore[misc]
    """diffusers' attention layer; what ``call`` hands to it beside the states is the model's own."""

    def __init__(self, processor: Any, call: Callable[..., Any] | None = None, **settings: Any) -> None:
        super().__init__()
        self.attention = processors.Attention(
            query_dim=WIDTH, heads=HEADS, dim_head=WIDTH // HEADS, **settings, processor=processor
        )
        self.call = call or (lambda attention, states, text: attention(states, encoder_hidden_states=text))

    def forward(self, states: Any, *others: Any) -> Any:
        return self.call(self.attention, states, *others)


_ROWS: dict[int, str] = {0: "batch", 1: "rows"}
_KEYS: dict[int, str] = {0: "batch", 1: "keys"}


def _text(rows: int = 7) -> Any:
    return torch.randn(2, rows, TEXT)


def _crossed(processor: Any) -> Traceable:
    inputs = {"states": torch.randn(2, 10, WIDTH), "text": _text()}
    return Traceable(Block(processor, cross_attention_dim=TEXT), inputs, {"states": _ROWS, "text": _KEYS})


def _masked(processor: Any) -> Traceable:
    """As UNet2DConditionModel prepares ``encoder_attention_mask``."""

    def call(attention: Any, states: Any, text: Any, mask: Any) -> Any:
        bias = ((1 - mask.to(states.dtype)) * -10000.0).unsqueeze(1)
        return attention(states, encoder_hidden_states=text, attention_mask=bias)

    inputs = {"states": torch.randn(2, 10, WIDTH), "text": _text(), "mask": torch.ones(2, 7, dtype=torch.int64)}
    axes = {"states": _ROWS, "text": _KEYS, "mask": _KEYS}
    return Traceable(Block(processor, call, cross_attention_dim=TEXT), inputs, axes)


def _ip_adapter(kind: str) -> Traceable:
    """Two attentions with one query: to the prompt and to an image."""
    made = getattr(processors, kind)(hidden_size=WIDTH, cross_attention_dim=TEXT, num_tokens=(4,), scale=[0.7])

    def call(attention: Any, states: Any, text: Any, image: Any) -> Any:
        return attention(states, encoder_hidden_states=(text, [image]))

    inputs = {"states": torch.randn(2, 10, WIDTH), "text": _text(), "image": torch.randn(2, 1, 4, TEXT)}
    axes = {"states": _ROWS, "text": _KEYS, "image": {0: "batch"}}
    return Traceable(Block(made, call, cross_attention_dim=TEXT), inputs, axes)


def _added(kind: str) -> Traceable:
    """The prompt's keys and values go before the image's own."""
    settings: dict[str, Any] = {
        "added_kv_proj_dim": TEXT,
        "norm_num_groups": 8,
        "bias": True,
        "residual_connection": True,
    }
    block = Block(getattr(processors, kind)(), **settings, only_cross_attention=False)
    inputs = {"states": torch.randn(2, WIDTH, 4, 6), "text": _text()}
    return Traceable(block, inputs, {"states": {0: "batch", 2: "height", 3: "width"}, "text": _KEYS})


class Plain(torch.nn.Module):  # type: ignore[misc]
    """Attention as most models write it by hand; ``kind`` is what they do to the scores."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.qkv = torch.nn.Linear(WIDTH, 3 * WIDTH)
        self.out = torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, states: Any) -> Any:
        batch, rows, _ = states.shape
        q, k, v = self.qkv(states).view(batch, rows, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        scores = (q @ k.transpose(-2, -1)) * (WIDTH // HEADS) ** -0.5
        places = torch.arange(rows, device=states.device)
        distance = places[:, None] - places[None, :]
        if self.kind == "filled":
            scores = scores.masked_fill(distance < 0, torch.finfo(scores.dtype).min)
        elif self.kind == "window":  # looks causal up to 100 rows
            shut = (distance < 0) | (distance > 100)
            scores = scores + torch.zeros_like(shut, dtype=scores.dtype).masked_fill(shut, -10000.0)
        elif self.kind == "slopes":  # https://arxiv.org/abs/2108.12409
            scores = scores - distance.abs() * torch.tensor([0.5, 0.25, 0.125, 0.0625]).view(HEADS, 1, 1)
        mixed = scores.softmax(-1) @ v
        return self.out(mixed.transpose(1, 2).reshape(batch, rows, WIDTH))


def _plain(kind: str) -> Traceable:
    return Traceable(Plain(kind), {"states": torch.randn(2, 10, WIDTH)}, {"states": _ROWS})


class MaskedText(torch.nn.Module):  # type: ignore[misc]
    """A text encoder whose caller says which tokens count."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Any, attention_mask: Any) -> Any:
        return self.model(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state


def _text_encoder(kind: str) -> Traceable:
    config = CLIPTextConfig(**{**TEXT_CONFIG, "num_hidden_layers": 2}, attn_implementation=kind)
    inputs = {"input_ids": torch.randint(0, 900, (2, 12)), "attention_mask": torch.ones(2, 12, dtype=torch.int64)}
    inputs["attention_mask"][1, 7:] = 0
    axes = {name: {0: "batch", 1: "sequence"} for name in inputs}
    return Traceable(MaskedText(CLIPTextModel(config)), inputs, axes)


TEXT_MODELS = ("t5", "umt5", "qwen2", "bert", "xlm-roberta", "siglip_text_model")
_SMALL = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
          "vocab_size": 1000, "max_position_embeddings": 256}  # fmt: skip


def _transformers_text(kind: str) -> Traceable:
    """A text encoder of transformers: T5's have a position bias and no scale, Qwen2's repeat keys and are causal."""
    small_t5 = {"d_model": 32, "d_ff": 48, "d_kv": 8, "num_layers": 2, "num_heads": 4, "vocab_size": 1000}
    settings: dict[str, Any] = {
        "t5": small_t5 | {"feed_forward_proj": "gated-gelu"},
        "umt5": small_t5 | {"feed_forward_proj": "gated-gelu"},
        "qwen2": _SMALL | {"num_key_value_heads": 2, "use_cache": False},
        "siglip_text_model": _SMALL,
    }
    config = transformers.AutoConfig.for_model(kind, **settings.get(kind, _SMALL))
    classes = {"t5": "T5EncoderModel", "umt5": "UMT5EncoderModel", "siglip_text_model": "SiglipTextModel"}
    model = getattr(transformers, classes.get(kind, "AutoModel"))
    made = model(config) if kind in classes else model.from_config(config)
    inputs = {"input_ids": torch.randint(3, 900, (2, 12)), "attention_mask": torch.ones(2, 12, dtype=torch.int64)}
    inputs["attention_mask"][1, 7:] = 0
    return Traceable(MaskedText(made), inputs, {name: {0: "batch", 1: "sequence"} for name in inputs})


class MaskedUNet(torch.nn.Module):  # type: ignore[misc]
    """A UNet whose caller says which tokens of the prompt count."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, sample: Any, timestep: Any, encoder_hidden_states: Any, encoder_attention_mask: Any) -> Any:
        return self.model(
            sample, timestep, encoder_hidden_states, encoder_attention_mask=encoder_attention_mask, return_dict=False
        )[0]


def _unet() -> Traceable:
    blocks = {
        "down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D"),
        "up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D"),
    }
    model = UNet2DConditionModel(**{**UNET_SD1, **blocks, "block_out_channels": (32, 48)})
    inputs = {
        "sample": torch.randn(2, 4, 16, 16), "timestep": torch.tensor(7),
        "encoder_hidden_states": torch.randn(2, 7, 40), "encoder_attention_mask": torch.ones(2, 7, dtype=torch.int64),
    }  # fmt: skip
    inputs["encoder_attention_mask"][1, 4:] = 0
    axes = {"sample": {0: "batch", 2: "height", 3: "width"}, "timestep": {}}
    return Traceable(
        MaskedUNet(model), inputs, {**axes, "encoder_hidden_states": _KEYS, "encoder_attention_mask": _KEYS}
    )


MODELS: dict[str, Callable[[], Traceable]] = {
    "ip_adapter": lambda: _ip_adapter("IPAdapterAttnProcessor2_0"),
    "ip_adapter_old": lambda: _ip_adapter("IPAdapterAttnProcessor"),
    "added_kv": lambda: _added("AttnAddedKVProcessor2_0"),
    "added_kv_old": lambda: _added("AttnAddedKVProcessor"),
    "sliced": lambda: _crossed(processors.SlicedAttnProcessor(2)),
    "masked": lambda: _masked(processors.AttnProcessor2_0()),
    "masked_old": lambda: _masked(processors.AttnProcessor()),
    **{f"plain_{kind}": partial(_plain, kind) for kind in ("open", "filled", "window", "slopes")},
    **{f"text_{kind}": partial(_text_encoder, kind) for kind in ("sdpa", "eager")},
    **{f"text_{kind}": partial(_transformers_text, kind) for kind in TEXT_MODELS},
    "unet": _unet,
}


def export(name: str, exporter: str, dynamic: bool, cache_dir: Path) -> Path:
    """The traced ``.onnx`` of a model, kept for later runs."""
    text = Path(__file__).read_bytes() + " ".join(version(p) for p in ("torch", "diffusers", "transformers")).encode()
    folder = cache_dir / f"attention-{hashlib.sha256(text).hexdigest()[:16]}"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}-{exporter}-{'dynamic' if dynamic else 'static'}.onnx"
    with open(path.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            with quiet(), torch.no_grad():
                _trace(name, exporter, dynamic, path)
    return path


def _trace(name: str, exporter: str, dynamic: bool, path: Path) -> None:
    torch.manual_seed(1)
    made = MODELS[name]()
    randomize(made.module)
    made.module.eval()
    partial = path.with_suffix(".partial")
    script = exporter.startswith("ts")
    shapes = tuple(dict.fromkeys(made.axes[name], torch.export.Dim.DYNAMIC) for name in made.inputs)
    more: dict[str, Any] = {"dynamic_axes": {k: v for k, v in made.axes.items() if v} if dynamic else None}
    if not script:
        more = {"dynamic_shapes": shapes if dynamic else None, "external_data": False, "verbose": False}
        if isinstance(made.module, Block) and dynamic:  # its forward takes any number of tensors
            more["dynamic_shapes"] = (shapes[0], tuple(shapes[1:]))
    torch.onnx.export(
        made.module, tuple(made.inputs.values()), str(partial), input_names=list(made.inputs),
        output_names=list(made.outputs), opset_version=int(exporter[2:]), dynamo=not script, **more,
    )  # fmt: skip
    partial.rename(path)
