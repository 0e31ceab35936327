"""T5's encoder as a text encoder of a pipeline: its graph against torch, what fuses, and a stream beyond fp16."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from safetensors.torch import load_file, save_file
from support.models import randomize
from support.pipelines import trace_folder

import sdort
from sdort.engines.rounding import emulate
from sdort.errors import BadModelError
from sdort.onnx_io.standard_operators import expand

NAME = "text_encoder_2"
CONFIG: dict[str, Any] = {
    "vocab_size": 128, "d_model": 32, "d_kv": 16, "d_ff": 64, "num_layers": 2, "num_heads": 2,
    "feed_forward_proj": "gated-gelu",
}  # fmt: skip


def relative(found: Any, wanted: Any) -> float:
    return float(np.sqrt(np.square(found - wanted).mean()) / wanted.std())


class Exported:
    def __init__(self, root: Path, traces: Path) -> None:
        from transformers import T5Config, T5EncoderModel

        torch.manual_seed(0)
        self.root, self.traces = root, traces
        self.model = T5EncoderModel(T5Config(**CONFIG)).eval()
        randomize(self.model)
        self.checkpoint = root / "checkpoint"
        self.weights = self.checkpoint / NAME / "model.safetensors"
        self.save("out")

    def save(self, out: str) -> Path:
        self.model.save_pretrained(self.checkpoint / NAME)
        index = {"_class_name": "FluxPipeline", NAME: ["transformers", "T5EncoderModel"]}
        (self.checkpoint / "model_index.json").write_text(json.dumps(index))
        return self.export(out)

    def export(self, out: str) -> Path:
        sdort.export(self.checkpoint, self.root / out, cache_dir=self.traces)
        return self.root / out

    def states(self, ids: Any) -> Any:
        with torch.no_grad():
            return self.model(ids)[0].numpy()


@pytest.fixture(scope="module")
def t5(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Exported:
    return Exported(tmp_path_factory.mktemp("t5"), trace_folder(request.config))


def run(path: Path, ids: Any) -> Any:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return session.run(None, {"input_ids": ids.numpy()})[0]


@pytest.mark.parametrize("shape", [(1, 1), (2, 77), (3, 300)])
def test_its_graph_computes_what_transformers_does(t5: Exported, shape: tuple[int, int]) -> None:
    """Padding is attended to, as the pipelines do: they give T5 no mask. 300 tokens reach past the farthest bucket."""
    ids = torch.randint(2, 128, shape)
    ids[:, shape[1] // 2 + 1 :] = 0
    assert relative(run(t5.root / "out" / NAME / "model.onnx", ids), t5.states(ids)) < 5e-5


def test_files_may_have_the_table_of_tokens_under_both_names(t5: Exported, tmp_path: Path) -> None:
    tensors = load_file(t5.weights)
    whole = t5.weights.read_bytes()
    table = tensors.pop("shared.weight")
    first = (t5.root / "out" / NAME / "model.onnx.data").read_bytes()
    for names in (("encoder.embed_tokens.weight",), ("encoder.embed_tokens.weight", "shared.weight")):
        save_file({**tensors, **{name: table.clone() for name in names}}, t5.weights)
        assert (t5.export(f"{len(names)}") / NAME / "model.onnx.data").read_bytes() == first
    save_file(tensors, t5.weights)
    with pytest.raises(BadModelError, match=r"encoder\.embed_tokens\.weight"):
        t5.export("none")
    t5.weights.write_bytes(whole)


def test_a_config_of_buckets_that_reach_nowhere_is_refused(t5: Exported) -> None:
    path = t5.checkpoint / NAME / "config.json"
    whole = path.read_text()
    path.write_text(json.dumps({**json.loads(whole), "relative_attention_max_distance": 8}))
    with pytest.raises(BadModelError, match="32 relative_attention_num_buckets do not reach"):
        t5.export("none")
    path.write_text(whole)


@pytest.mark.parametrize("provider", ["cpu", "cuda", "rocm", "migraphx"])
def test_all_that_its_config_promises_is_fused(t5: Exported, provider: str, tmp_path: Path) -> None:
    report = sdort.optimize(t5.root / "out", tmp_path / "fast", provider=provider)
    operators = report.components[NAME].operators
    norms = [operators[f"com.microsoft.{skip}SimplifiedLayerNormalization"] for skip in ("", "Skip")]
    assert (norms, operators["com.microsoft.FastGelu"]) == ([1, 4], 2)
    assert operators.get("com.microsoft.MultiHeadAttention", 0) == (0 if provider == "migraphx" else 2)
    ids = torch.randint(0, 128, (2, 77))
    proto = onnx.load(tmp_path / "fast" / NAME / "model.onnx")
    expand(proto)
    onnx.save(proto, tmp_path / "run.onnx")
    assert relative(run(tmp_path / "run.onnx", ids), t5.states(ids)) < 5e-5


@pytest.mark.parametrize("provider", ["rocm", "migraphx"])
def test_a_stream_beyond_fp16_is_right_in_fp16(t5: Exported, provider: str, tmp_path: Path) -> None:
    """T5-XXL's passes 65504, though all of its weights are small."""
    whole = t5.weights.read_bytes()
    seen: list[float] = []
    watch = t5.model.encoder.final_layer_norm.register_forward_pre_hook(
        lambda module, given: seen.append(float(given[0].abs().max()))
    )
    writers = [block.layer[1].DenseReluDense.wo.weight for block in t5.model.encoder.block]
    with torch.no_grad():
        for weight in writers:
            weight *= 30000
    out = t5.save(f"loud {provider}")
    ids = torch.randint(0, 128, (2, 77))
    wanted = t5.states(ids)
    watch.remove()
    with torch.no_grad():
        for weight in writers:
            weight /= 30000
    t5.weights.write_bytes(whole)
    assert seen[0] > 65504
    sdort.optimize(out, tmp_path / "fast", provider=provider, fp16=True)
    proto = emulate(tmp_path / "fast" / NAME / "model.onnx", "model")  # as a GPU computes it: every result is rounded
    onnx.save(proto, tmp_path / "fast" / NAME / "run.onnx")
    found = run(tmp_path / "fast" / NAME / "run.onnx", ids)
    assert np.isfinite(found).all()
    assert relative(found, wanted) < 1e-2
