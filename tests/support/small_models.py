"""Small models as files, and what they compute."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from support.small_graphs import Array, parse


def write(folder: Path, text: str, weights: Mapping[str, Array] | None = None) -> Path:
    """The model with its weights in a file of their own."""
    path = folder / "model.onnx"
    onnx.save(parse(text, weights, 18), path, save_as_external_data=True, location="model.onnx.data", size_threshold=0)
    return path


def evaluate(proto: onnx.ModelProto, folder: Path, feeds: Mapping[str, Array]) -> list[Array]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(folder))
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return [np.asarray(value) for value in session.run(None, dict(feeds))]
