"""IP-Adapter files: attention to an image beside the text, plain and plus (https://arxiv.org/abs/2308.06721).

A file holds the projection of a CLIP image encoder's output to a few tokens (``image_proj.*``), and for each
cross-attention of the UNet the projections of these tokens to keys and values (``ip_adapter.N.to_k_ip.weight``), in
the order of diffusers' ``attn_processors``, of which those of self-attentions have no weights.
Names: tencent-ailab/IP-Adapter; the kinds and their names in diffusers: its ``loaders/unet.py``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sdort.checkpoints.file_kind import recognise_file
from sdort.checkpoints.layout import equal_parts
from sdort.checkpoints.safetensors import read_tensors
from sdort.checkpoints.weight_names import FAMILY_OF_WIDTH, Kind
from sdort.errors import BadModelError, UsageError
from sdort.families.component_names import PLAIN, PLUS, RESAMPLER_HEAD
from sdort.families.unet import UNET
from sdort.graph.weights import Stored, Weight

_ATTENTION = re.compile(r"ip_adapter\.(\d+)\.to_(k|v)_ip\.weight")
_OTHERS = (
    ("FaceID Plus", r"image_proj\.perceiver_resampler\."),
    ("full (full-face)", r"image_proj\.proj\.3\."),
    ("FaceID", r"image_proj\.proj\.0\.|ip_adapter\.\d+\.to_\w+_lora\."),
)
"""Kinds that take something else than a picture's CLIP embedding, or more -> tensors that only they have."""
_RESAMPLER = (
    (r"layers\.(\d+)\.0\.norm1\.", r"layers.\1.ln0."),
    (r"layers\.(\d+)\.0\.norm2\.", r"layers.\1.ln1."),
    (r"layers\.(\d+)\.0\.to_out\.", r"layers.\1.attn.to_out.0."),
    (r"layers\.(\d+)\.0\.to_", r"layers.\1.attn.to_"),
    (r"layers\.(\d+)\.1\.0\.", r"layers.\1.ff.0."),
    (r"layers\.(\d+)\.1\.1\.", r"layers.\1.ff.1.net.0.proj."),
    (r"layers\.(\d+)\.1\.3\.", r"layers.\1.ff.1.net.2."),
)
"""Names of a resampler's tensors -> diffusers' (``IPAdapterPlusImageProjection``)."""
_CROSS = re.compile(r"(?:down|up|mid)_block.*\.attn2\.to_k\.weight")
_HALVES = ("down", "up", "mid")
"""The order in which diffusers' UNet has its blocks as modules."""


@dataclass(frozen=True)
class IpAdapter:
    """An IP-Adapter's file, described and not read."""

    path: Path
    projection: Mapping[str, Any]
    """``kind``, and sizes: as ``projections`` of an image encoder's config has it."""
    projection_tensors: Mapping[str, Weight]
    """By diffusers' names."""
    attention: Sequence[tuple[Weight, Weight]]
    """The projections to keys and to values for each cross-attention."""

    @property
    def kind(self) -> str:
        """``plain`` or ``plus``."""
        return str(self.projection["kind"])

    @property
    def tokens(self) -> int:
        """The number of tokens of an image."""
        return int(self.projection["tokens"])


def read_ip_adapter(path: Path) -> IpAdapter:
    """The adapter in a file.

    Raises:
        UsageError: there is no file.
        BadModelError: it is broken, no IP-Adapter, or of a kind that sdort does not export.
    """
    if not path.is_file():
        raise UsageError(f"--ip-adapter {path} {'is no file' if path.exists() else 'does not exist'}")
    found = recognise_file(path)
    if found.kind is not Kind.IP_ADAPTER:
        raise BadModelError(f"{path} is {found.what}, not an IP-Adapter", hint=found.advice)
    tensors = read_tensors(path)
    _refuse_others(path, tensors)
    image = {
        name.removeprefix("image_proj."): tensor for name, tensor in tensors.items() if name.startswith("image_proj.")
    }
    config, projection = _plain(image) if "proj.weight" in image else _plus(image)
    return IpAdapter(path, config, projection, _attention(path, tensors))


def _refuse_others(path: Path, tensors: Mapping[str, Any]) -> None:
    """Raise for the kinds of IP-Adapter that are neither plain nor plus."""
    kind = next((kind for kind, pattern in _OTHERS if any(re.match(pattern, name) for name in tensors)), None)
    if kind is None and not {"image_proj.proj.weight", "image_proj.latents"} & tensors.keys():
        names = ", ".join(sorted(name for name in tensors if name.startswith("image_proj."))[:3]) or "no image_proj"
        kind = f"an unknown kind ({names})"
    if kind:
        raise BadModelError(
            f"{path} is an IP-Adapter of another kind: {kind}; sdort exports plain ones and plus",
            hint="Such as ip-adapter_sd15, ip-adapter-plus_sd15, ip-adapter-plus-face_sd15, ip-adapter_sdxl and "
            "ip-adapter-plus_sdxl_vit-h (https://huggingface.co/h94/IP-Adapter).",
        )


def _plain(image: Mapping[str, Stored]) -> tuple[dict[str, Any], dict[str, Weight]]:
    """One matrix to all tokens, each of which is normalized (diffusers' ``ImageProjection``)."""
    rows, embeds = _shape(image, "proj.weight", 2)
    (width,) = _shape(image, "norm.weight", 1)
    if rows % width:
        raise _broken("proj.weight", image)
    config = {"kind": PLAIN, "tokens": rows // width, "width": width, "embeds": embeds}
    return config, {re.sub(r"^proj\.", "image_embeds.", name): tensor for name, tensor in image.items()}


def _plus(image: Mapping[str, Stored]) -> tuple[dict[str, Any], dict[str, Weight]]:
    """A resampler of the hidden states (diffusers' ``IPAdapterPlusImageProjection``)."""
    _, tokens, hidden = _shape(image, "latents", 3)
    depth = len({match[1] for name in image if (match := re.match(r"layers\.(\d+)\.", name))})
    renamed: dict[str, Weight] = {}
    for name, tensor in image.items():
        for pattern, other in _RESAMPLER:
            name = re.sub(f"^{pattern}", other, name)
        if ".to_kv." in name:
            halves = zip("kv", equal_parts(tensor, 2, "keys and values"), strict=True)
            renamed |= {name.replace(".to_kv.", f".to_{part}."): half for part, half in halves}
        else:
            renamed[name] = tensor
    heads, rest = divmod(_shape(renamed, "layers.0.attn.to_q.weight", 2)[0], RESAMPLER_HEAD)
    if rest:
        raise _broken("layers.0.attn.to_q.weight", renamed)
    config = {
        "kind": PLUS,
        "tokens": tokens,
        "width": _shape(image, "proj_out.weight", 2)[0],
        "embeds": _shape(image, "proj_in.weight", 2)[1],
        "hidden": hidden,
        "depth": depth,
        "heads": heads,
        "inner": _shape(renamed, "layers.0.ff.1.net.2.weight", 2)[1],
    }
    return config, renamed


def _shape(tensors: Mapping[str, Weight], name: str, rank: int) -> tuple[int, ...]:
    if name not in tensors or len(tensors[name].shape) != rank or 0 in tensors[name].shape:
        raise _broken(name, tensors)
    return tensors[name].shape


def _broken(name: str, tensors: Mapping[str, Weight]) -> BadModelError:
    what = f"has the shape {list(tensors[name].shape)}" if name in tensors else "is missing"
    return BadModelError(
        f"the IP-Adapter is damaged: its tensor image_proj.{name} {what}", hint="Copy or download it again."
    )


def _attention(path: Path, tensors: Mapping[str, Weight]) -> list[tuple[Weight, Weight]]:
    found: dict[int, dict[str, Weight]] = {}
    for name, tensor in tensors.items():
        if match := _ATTENTION.fullmatch(name):
            found.setdefault(int(match[1]), {})[match[2]] = tensor
        elif not name.startswith("image_proj."):
            raise BadModelError(f"{path} is no IP-Adapter that sdort knows: it has a tensor {name!r}")
    lacking = next((number for number, pair in found.items() if len(pair) < 2), None)
    if lacking is not None or not found:
        what = "attention weights" if lacking is None else f"a key or a value of ip_adapter.{lacking}"
        raise BadModelError(f"{path} is incomplete: it lacks {what}", hint="Copy or download it again.")
    return [(found[number]["k"], found[number]["v"]) for number in sorted(found)]


def attention_tensors(adapters: Sequence[IpAdapter], unet: Mapping[str, Weight], model: str) -> dict[str, Weight]:
    """The weights that adapters add to a UNet, by the names of diffusers' modules.

    Args:
        unet: its tensors by diffusers' names.
        model: its name, for messages.

    Raises:
        BadModelError: an adapter is for another UNet.
    """
    names = sorted((name for name in unet if _CROSS.fullmatch(name)), key=_place)
    added: dict[str, Weight] = {}
    for number, adapter in enumerate(adapters):
        shapes = [pair[0].shape for pair in adapter.attention], [tuple(unet[name].shape) for name in names]
        uneven = next((pair for pair in adapter.attention if pair[0].shape != pair[1].shape), None)
        if uneven:
            raise BadModelError(
                f"the IP-Adapter {adapter.path} is damaged: keys of the shape {list(uneven[0].shape)} stand beside "
                f"values of {list(uneven[1].shape)}",
                hint="Copy or download it again.",
            )
        if shapes[0] != shapes[1]:
            raise _other_family(adapter, *shapes, model)
        for name, pair in zip(names, adapter.attention, strict=True):
            attention = name.removesuffix(".to_k.weight")
            for part, weight in zip("kv", pair, strict=True):
                added[f"{attention}.processor.to_{part}_ip.{number}.weight"] = weight
    return added


def _place(name: str) -> tuple[int, list[int]]:
    return _HALVES.index(name.partition("_")[0]), [int(number) for number in re.findall(r"\.(\d+)\.", name)]


_Shapes = Sequence[tuple[int, ...]]


def _other_family(adapter: IpAdapter, own: _Shapes, unet: _Shapes, model: str) -> BadModelError:
    widths = [next((shape[-1] for shape in shapes), 0) for shapes in (own, unet)]
    names = [f"{width} numbers wide ({FAMILY_OF_WIDTH.get(width, 'of no known family')})" for width in widths]
    if widths[0] != widths[1]:
        what = f"its attention is to text embeddings {names[0]}, and those of {model} are {names[1]}"
    elif len(own) != len(unet):
        what = f"it is for {len(own)} cross-attentions, and the UNet of {model} has {len(unet)}"
    else:
        index = next(index for index, pair in enumerate(zip(own, unet, strict=True)) if pair[0] != pair[1])
        what = f"its attention {index + 1} is {list(own[index])}, and that of {model} is {list(unet[index])}"
    return BadModelError(
        f"the IP-Adapter {adapter.path} does not fit: {what}",
        component=UNET.component,
        hint="Each is for SD 1.x or for SDXL: take the one of your checkpoint's family.",
    )
