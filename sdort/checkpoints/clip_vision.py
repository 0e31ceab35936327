"""CLIP image encoders with a projection (``CLIPVisionModelWithProjection``): a folder of transformers, or a file."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sdort.checkpoints.config_schemas import REQUIRED, component_schema
from sdort.checkpoints.configs import read_config
from sdort.checkpoints.file_kind import recognise_file
from sdort.checkpoints.safetensors import read_tensors
from sdort.errors import BadModelError, UsageError
from sdort.families.component_names import IMAGE_ENCODER
from sdort.families.tensor_shapes import shape_of
from sdort.files.model_folder import check_model_folder
from sdort.graph.weights import Weight

_HEADS = {768: (12, "quick_gelu"), 1024: (16, "quick_gelu"), 1280: (16, "gelu"), 1408: (16, "gelu"), 1664: (16, "gelu")}
"""Width -> heads and activation, which no shape tells: OpenAI's ViT-B and L, LAION's ViT-H/14, g/14 and bigG/14."""
EMBEDDINGS = {768: "CLIP ViT-L/14", 1024: "CLIP ViT-H/14", 1280: "CLIP ViT-bigG/14"}
HIDDEN_STATES = {1024: "CLIP ViT-L/14", 1280: "CLIP ViT-H/14", 1664: "CLIP ViT-bigG/14"}
"""Width of the image embeddings and of the hidden states -> the published encoder that makes them."""
_AGAIN = "Copy or download it again."


@dataclass(frozen=True)
class ImageEncoder:
    """An image encoder, described and not read."""

    path: Path
    config: Mapping[str, Any]
    """Of ``CLIPVisionConfig``."""
    tensors: Mapping[str, Weight]

    def width(self, *, hidden: bool) -> int:
        """The width of its hidden states, or of its image embeddings."""
        return int(self.config["hidden_size" if hidden else "projection_dim"])


def read_image_encoder(path: Path) -> ImageEncoder:
    """The image encoder in a folder with ``config.json``, or in a safetensors file.

    Raises:
        UsageError: there is no such path.
        BadModelError: it holds no such encoder, or is broken.
    """
    if not path.exists():
        raise UsageError(f"--image-encoder {path} does not exist")
    if path.is_dir():
        return _read_folder(path)
    found = recognise_file(path)
    if path.suffix.lower() != ".safetensors":
        raise BadModelError(f"{path} is {found.what}, not a CLIP image encoder", hint=found.advice)
    tensors = _vision(path, read_tensors(path))
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    try:
        return ImageEncoder(path, vision_config(shapes), tensors)
    except BadModelError as error:
        error.message = f"{path}: {error.message}"
        raise


def _read_folder(path: Path) -> ImageEncoder:
    check_model_folder(path)
    nested = path / IMAGE_ENCODER
    if not (path / "config.json").is_file() and nested.is_dir():  # a pipeline's folder, or that of h94/IP-Adapter
        return _read_folder(nested)
    config = read_config(path / "config.json", "the config", _AGAIN, schema=component_schema(IMAGE_ENCODER))
    config = vision_settings(config)
    if any(not config.get(key) for key in REQUIRED["CLIPVisionModelWithProjection"]):
        raise BadModelError(f"{path} holds no CLIP image encoder with a projection (CLIPVisionModelWithProjection)")
    file = path / "model.safetensors"
    if not file.is_file():
        raise BadModelError(
            f"{path} has no model.safetensors",
            component=IMAGE_ENCODER,
            hint="Download model.safetensors of the image encoder too; pickles (pytorch_model.bin) are not read.",
        )
    return ImageEncoder(path, config, _vision(file, read_tensors(file)))


def vision_settings(config: dict[str, Any]) -> dict[str, Any]:
    """The config of the vision half of a whole CLIP model; any other config as it is.

    The width of the projection is the whole model's: its vision half has a number of its own, which is not used.
    """
    inner = config.get("vision_config")
    if not isinstance(inner, dict):
        return config
    # Saved by old versions of transformers beside the other, and then it counts.
    settings = {**inner, **(config.get("vision_config_dict") or {})}
    settings.pop("projection_dim", None)
    return settings | {key: config[key] for key in ("projection_dim",) if key in config}


def _vision(path: Path, tensors: Mapping[str, Weight]) -> dict[str, Weight]:
    """The vision half of a CLIP model, without what old versions of transformers saved beside it."""
    found = {
        name: tensor
        for name, tensor in tensors.items()
        if name.startswith(("vision_model.", "visual_projection.")) and not name.endswith(".position_ids")
    }
    if not found or "visual_projection.weight" not in found:
        layout = " (it has OpenCLIP's names)" if any(name.startswith("visual.") for name in tensors) else ""
        raise BadModelError(
            f"{path} holds no CLIP image encoder with a projection in the names of transformers{layout}",
            hint="Take model.safetensors of the folder image_encoder: https://huggingface.co/h94/IP-Adapter",
        )
    return found


def vision_config(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Any]:
    """The config of a published image encoder, by the shapes of its tensors.

    Raises:
        BadModelError: the tensors are not those of such an encoder, or its heads are not known.
    """
    width, channels, patch, _ = _dims(shapes, "vision_model.embeddings.patch_embedding.weight", 4)
    positions = _dims(shapes, "vision_model.embeddings.position_embedding.weight", 2)[0]
    layers = {match[1] for name in shapes if (match := re.match(r"vision_model\.encoder\.layers\.(\d+)\.", name))}
    if width not in _HEADS:
        raise BadModelError(
            f"nothing says how many heads an image encoder {width} wide has",
            hint="Give its folder with config.json: --image-encoder DIR",
        )
    heads, activation = _HEADS[width]
    return {
        "hidden_size": width,
        "num_channels": channels,
        "patch_size": patch,
        "image_size": math.isqrt(positions - 1) * patch,
        "num_hidden_layers": len(layers),
        "intermediate_size": _dims(shapes, "vision_model.encoder.layers.0.mlp.fc1.weight", 2)[0],
        "num_attention_heads": heads,
        "hidden_act": activation,
        "projection_dim": _dims(shapes, "visual_projection.weight", 2)[0],
    }


def _dims(shapes: Mapping[str, tuple[int, ...]], name: str, rank: int) -> tuple[int, ...]:
    shape = shape_of(shapes, name)
    if len(shape) != rank:
        raise BadModelError(f"its tensor {name!r} has the shape {list(shape)}", hint=_AGAIN)
    return shape
