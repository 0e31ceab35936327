"""Safety checkers: a tiny one of diffusers with random weights, and graphs that look at an image's mean colour."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

SIDE = 16
"""Pixels a side that a graph takes."""
PROCESSOR: dict[str, Any] = {
    "size": {"shortest_edge": 20}, "crop_size": {"height": SIDE, "width": SIDE}, "resample": 3,
    "image_mean": [0.4, 0.5, 0.3], "image_std": [0.2, 0.3, 0.25],
    "do_resize": True, "do_center_crop": True, "do_rescale": True, "do_normalize": True,
}  # fmt: skip
"""Settings that are not the usual ones."""
COLOURS = np.asarray([[1, 0.5, 0], [-1, 1, 0.25]], np.float32)
"""The concepts: directions of the mean colour after its channels are normalized."""
CARE = np.asarray([[0.2, -1, 1]], np.float32)
VISION = {
    "hidden_size": 24, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 28,
    "patch_size": 14, "hidden_act": "quick_gelu",
}  # fmt: skip


def build_safety_checker(folder: Path | None = None, seed: int = 3) -> Any:
    """A ``StableDiffusionSafetyChecker`` of diffusers with random weights, saved to ``folder`` as a pipeline has it."""
    import torch
    from diffusers.pipelines.stable_diffusion.safety_checker import StableDiffusionSafetyChecker
    from support.models import randomize
    from transformers import CLIPConfig

    text = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    torch.manual_seed(seed)
    checker = StableDiffusionSafetyChecker(CLIPConfig(vision_config=VISION, text_config=text, projection_dim=20)).eval()
    randomize(checker)
    if folder:
        checker.save_pretrained(str(folder))
    return checker


def cosines(pixels: Any, concepts: Any = COLOURS) -> Any:
    """The cosine of the mean colour of pixels [3, side, side] and each concept, in float64."""
    mean = np.asarray(pixels, np.float64).mean(axis=(1, 2))
    lengths = np.linalg.norm(mean) * np.linalg.norm(np.asarray(concepts, np.float64), axis=1)
    return np.asarray(concepts, np.float64) @ mean / lengths


def add_scores(folder: Path, thresholds: Any, care: float = 2.0) -> None:
    """Give a pipeline's folder a checker with scores, and the settings of its pixels.

    Args:
        thresholds: of each of :data:`COLOURS`.
        care: of :data:`CARE`; a cosine is never as large as the default.
    """
    outputs = "float[n, 2] concept_scores, float[n, 1] special_care_scores"
    _write(folder, f"(float[n, 3, {SIDE}, {SIDE}] clip_input) => ({outputs})", _SCORES, thresholds, care)


def add_flags(folder: Path, thresholds: Any) -> None:
    """Give a pipeline's folder a checker as diffusers' conversion script writes it: it decides, and makes black."""
    pixels = "float[n, c, h, w] clip_input, float[n, i, j, k] images"
    made = "float[n, i, j, k] out_images, bool[n] has_nsfw_concepts"
    _write(folder, f"({pixels}) => ({made})", _SCORES + _FLAGS, thresholds, 2.0)


_SCORES = """
    sides = Constant <value_ints = [2, 3]> ()
    axis = Constant <value_ints = [1]> ()
    least = Constant <value_float = 1e-12> ()
    mean = ReduceMean <keepdims = 0> (clip_input, sides)
    length = ReduceL2 <keepdims = 1> (mean, axis)
    kept = Clip (length, least)
    unit = Div (mean, kept)
    near = MatMul (unit, concepts)
    concept_scores = Sub (near, thresholds)
    care = MatMul (unit, special)
    special_care_scores = Sub (care, limit)
"""
_FLAGS = """
    zero = Constant <value_float = 0.0> ()
    above = Greater (concept_scores, zero)
    numbers = Cast <to = 1> (above)
    count = ReduceSum <keepdims = 0> (numbers, axis)
    has_nsfw_concepts = Greater (count, zero)
    flat = Cast <to = 1> (has_nsfw_concepts)
    dims = Constant <value_ints = [-1, 1, 1, 1]> ()
    shaped = Reshape (flat, dims)
    one = Constant <value_float = 1.0> ()
    left = Sub (one, shaped)
    out_images = Mul (images, left)
"""


def _write(folder: Path, signature: str, body: str, thresholds: Any, care: float) -> None:
    import onnx

    graph = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 18]> checker {signature} {{ {body} }}')
    values = {
        "concepts": (COLOURS / np.linalg.norm(COLOURS, axis=1, keepdims=True)).T,
        "special": (CARE / np.linalg.norm(CARE, axis=1, keepdims=True)).T,
        "thresholds": np.asarray(thresholds),
        "limit": np.asarray([care]),
    }
    tensors = [onnx.numpy_helper.from_array(np.asarray(each, np.float32), name) for name, each in values.items()]
    graph.graph.initializer.extend(tensors)
    (folder / "safety_checker").mkdir(exist_ok=True)
    onnx.save(graph, folder / "safety_checker" / "model.onnx")
    (folder / "feature_extractor").mkdir(exist_ok=True)
    (folder / "feature_extractor" / "preprocessor_config.json").write_text(json.dumps(PROCESSOR))
