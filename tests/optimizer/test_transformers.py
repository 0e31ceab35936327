"""Transformers of diffusion models and their text encoders: what fuses, by their configs, and what it computes.

Short ones, by torch.export, go through all targets; one of each family has its true depth, by TorchScript, which writes
it in a few seconds. ``TRUE_DEPTH=all`` takes those to all targets, in fp16 too: ten minutes, for people.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from support.diffusion_transformers import CHROMA_LAYERS, Traceable, built, write

from sdort.engines.rounding import emulate
from sdort.lowering.component_report import ComponentReport
from sdort.lowering.steps import OptimizeOptions, optimize_model
from sdort.onnx_io.load import load_model
from sdort.onnx_io.save import save_model
from sdort.onnx_io.standard_operators import expand
from sdort.optimizer.expected import NORMS, OWN, Expectation
from sdort.providers import load_target

Array = np.ndarray[Any, Any]
TARGETS = ("rocm", "cuda", "cpu", "migraphx")
OWNERS = ("rocm", "cuda")
"""Those that sdort's own operators run on."""
HALVES = ("rocm", "migraphx")
"""Targets in fp16: one without a rotary embedding, and one whose root mean square norms stay fp32."""
ROTARY_KERNELS = ("cuda", "cpu", "migraphx")
SINGLE, HALF, OWN_HALF = 5e-5, 4e-3, 2e-3
"""Largest root mean square error, relative to the standard deviation of torch's output."""

SHORT: dict[str, tuple[dict[str, int], int, bool]] = {
    "sd35_medium": ({"blocks": 3, "dual": 1}, 18, False),
    "flux": ({"double": 1, "single": 2}, 23, False),
    "z_image": ({"blocks": 2, "refiners": 1}, 23, False),
    "t5": ({"layers": 2}, 18, True),
    "qwen3": ({"layers": 2}, 23, True),
}
"""Depth, opset, and whether sizes are dynamic."""
DEEP: dict[str, tuple[dict[str, int], str, bool]] = {
    "sd35_medium": ({"blocks": 24, "dual": 13}, "cuda", True),
    "flux": ({"double": 19, "single": 38}, "rocm", True),
    "chroma": ({"double": 19, "single": 38}, "cuda", True),
    "z_image": ({"blocks": 30, "refiners": 2}, "migraphx", False),
    "t5": ({"layers": 24}, "cpu", False),
    "qwen3": ({"layers": 36}, "cpu", False),
}
"""True depth, the target that it is taken to, and whether sdort's own operators are used."""


def expected(family: str, depth: dict[str, int]) -> dict[str, int]:
    """Attentions, norms, rotary embeddings and Gelus, by the family's config."""
    if family == "sd35_medium":
        blocks, dual = depth["blocks"], depth["dual"]
        # The last block's text is not read: it has neither a second norm nor a feed-forward part.
        return {"attention": blocks + dual, "rms": 4 * blocks + 2 * dual, "layer": 4 * blocks, "gelu": 2 * blocks - 1}
    if family in ("flux", "chroma"):
        double, single, network = depth["double"], depth["single"], CHROMA_LAYERS * (family == "chroma")
        return {
            "attention": double + single, "rms": 4 * double + 2 * single + network, "layer": 4 * double + single + 1,
            "gelu": 2 * double + single, "rotary": 2 * (double + single),
        }  # fmt: skip
    if family == "z_image":
        blocks = depth["blocks"] + 2 * depth["refiners"]
        return {"attention": blocks, "rms": 6 * blocks + 1, "layer": 1, "rotary": 2 * blocks}
    if family == "t5":
        return {"attention": depth["layers"], "rms": 2 * depth["layers"] + 1, "gelu": depth["layers"]}
    layers = depth["layers"] - 1  # the states before the last layer are asked for
    return {"attention": layers, "rms": 4 * layers, "rotary": 2 * layers}


def expected_own(family: str, depth: dict[str, int]) -> dict[str, int]:
    """What sdort's own operators stand for, by the family's config: modulations, gated sums, gated halves."""
    if family == "sd35_medium":
        blocks, dual = depth["blocks"], depth["dual"]
        return {"modulation": 4 * blocks + dual, "gated_sum": 4 * blocks - 2 + dual}
    if family in ("flux", "chroma"):
        double, single = depth["double"], depth["single"]
        return {"modulation": 4 * double + single + 1, "gated_sum": 4 * double + single}
    if family == "z_image":
        # Of the refiners, those of the image are modulated.
        blocks, refiners = depth["blocks"], depth["refiners"]
        return {
            "modulation": 2 * (blocks + refiners), "gated_sum": 2 * (blocks + refiners), "swiglu": blocks + 2 * refiners
        }  # fmt: skip
    return {"gated_gelu": depth["layers"]} if family == "t5" else {"swiglu": depth["layers"] - 1}


KINDS = {
    "attention": ("com.microsoft.MultiHeadAttention", "Softmax"),
    "rms": ("com.microsoft.SimplifiedLayerNormalization", "com.microsoft.SkipSimplifiedLayerNormalization"),
    "layer": ("LayerNormalization", "com.microsoft.SkipLayerNormalization"),
    "gelu": ("com.microsoft.FastGelu",),
    "rotary": ("com.microsoft.RotaryEmbedding",),
}


def check_counts(report: ComponentReport, family: str, depth: dict[str, int], target: str) -> None:
    wanted = expected(family, depth)
    if target not in ROTARY_KERNELS and "rotary" in wanted:
        left = {row.kind: (row.left, row.reason) for row in report.remaining}
        assert left["rotary embedding"] == (wanted.pop("rotary"), "rocm has no kernel for RotaryEmbedding")
    counts = {kind: sum(report.operators.get(name, 0) for name in KINDS[kind]) for kind in wanted}
    assert counts == wanted
    kinds = {row.kind for row in report.remaining}
    masked = {"attention"} if target == "migraphx" and family in ("t5", "qwen3") else set()
    assert kinds - {"rotary embedding"} == masked, "masked attentions are MIGraphX's own to fuse"


def check_own_counts(path: Path, report: ComponentReport, family: str, depth: dict[str, int]) -> None:
    """Of the graph that was written, all norms but Z-Image's last one, which has a scale and no shift, among them."""
    graph = load_model(path, "model", None).graph
    forms = {**{name: OWN[name] for name in OWN}, "rms": NORMS["rms_norm"], "layer": NORMS["layer_norm"]}
    counts = {name: Expectation(name, form.operators, 0).count_in(graph) for name, form in forms.items()}
    norms = {kind: number for kind, number in expected(family, depth).items() if kind in ("rms", "layer")}
    wanted = {**norms, **expected_own(family, depth)}
    assert {name: number for name, number in counts.items() if number} == wanted
    assert {row.kind for row in report.remaining} <= {"attention"}


def error(
    made: Traceable, wanted: Array, source: Path, target: str, fp16: bool, own: bool = False
) -> tuple[float, ComponentReport]:
    """The result's root mean square error, relative to the standard deviation of what is wanted."""
    model = load_model(source, "model", None)
    report = optimize_model(model, OptimizeOptions(load_target(target), fp16=fp16, sdort_ops=own))
    path = source.parent / f"{target}.onnx"
    save_model(model, path)
    if fp16:  # as a GPU computes it: every result is rounded
        proto = emulate(path, "model")
    else:
        proto = onnx.load(path)
        expand(proto)
    onnx.save(proto, source.parent / "run.onnx")
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(source.parent / "run.onnx", options, providers=["CPUExecutionProvider"])
    names = {each.name for each in session.get_inputs()}
    feeds = {name: value.numpy() for name, value in made.inputs.items() if name in names}
    (found,) = session.run(None, feeds)
    assert np.isfinite(found).all()
    return float(np.sqrt(np.square(found - wanted).mean()) / wanted.std()), report


@pytest.fixture(params=SHORT, scope="module")
def short(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    depth, opset, dynamic = SHORT[request.param]
    made = built(request.param, **depth)
    path = tmp_path_factory.mktemp(request.param) / "model.onnx"
    write(made, path, opset, dynamic=dynamic)
    return request.param, made, made.expected(), path


@pytest.mark.parametrize("target", TARGETS)
def test_every_target_computes_what_torch_does(short: Any, target: str) -> None:
    family, made, wanted, path = short
    depth, opset, _ = SHORT[family]
    for fp16 in (False, True) if target in HALVES else (False,):
        found, report = error(made, wanted, path, target, fp16)
        assert found <= (HALF if fp16 else SINGLE)
        check_counts(report, family, depth, target)
        if opset < 23 or family != "qwen3":  # whose exporter wrote rotary embeddings and norms as operators
            assert report.nodes_after < report.nodes_before


@pytest.mark.parametrize(("target", "fp16"), [("rocm", True), ("cuda", False)])
def test_own_operators_take_in_what_modulates_and_gates(short: Any, target: str, fp16: bool) -> None:
    family, made, wanted, path = short
    depth, _, _ = SHORT[family]
    found, report = error(made, wanted, path, target, fp16, own=True)
    assert found <= (OWN_HALF if fp16 else SINGLE)
    check_own_counts(path.parent / f"{target}.onnx", report, family, depth)
    # Qwen3's two layers came with operators for rotary embeddings and norms, and in fp16 their sum gets its size back.
    assert report.nodes_after < report.nodes_before + (family == "qwen3")


OTHER_SIZES: dict[str, dict[str, tuple[int, ...]]] = {
    "t5": {"input_ids": (3, 13)}, "qwen3": {"input_ids": (3, 13), "attention_mask": (3, 13)},
}  # fmt: skip
"""Sizes of which neither was traced."""


@pytest.mark.parametrize("short", OTHER_SIZES, indirect=True)
@pytest.mark.parametrize("target", TARGETS)
def test_other_sizes_than_were_traced(short: Any, target: str) -> None:
    family, made, _, path = short
    inputs = {name: torch.randint(0, 128, size) for name, size in OTHER_SIZES[family].items()}
    if "attention_mask" in inputs:
        inputs["attention_mask"] = torch.ones_like(inputs["attention_mask"])
        inputs["attention_mask"][0, 9:] = 0
    other = Traceable(made.module, inputs, {})
    found, _ = error(other, other.expected(), path, target, False)
    assert found <= SINGLE


CASES = [
    (family, target, fp16, own)
    for family in DEEP
    for target in TARGETS
    for fp16 in (False, True)
    for own in ((False, True) if target in OWNERS else (False,))
]
if os.environ.get("TRUE_DEPTH") != "all":
    CASES = [(family, target, False, own) for family, (_, target, own) in DEEP.items()]


@pytest.mark.long
@pytest.mark.parametrize(("family", "target", "fp16", "own"), CASES)
def test_every_block_of_the_true_depth_fuses(family: str, target: str, fp16: bool, own: bool, tmp_path: Path) -> None:
    depth, _, _ = DEEP[family]
    made = built(family, **depth)
    write(made, tmp_path / "model.onnx", 17, script=True)
    found, report = error(made, made.expected(), tmp_path / "model.onnx", target, fp16, own)
    assert found <= (HALF if fp16 else SINGLE)
    if own:
        check_own_counts(tmp_path / f"{target}.onnx", report, family, depth)
    else:
        check_counts(report, family, depth, target)
    assert report.nodes_after < report.nodes_before / 2


STREAMS = {
    "t5": ({"layers": 2}, "DenseReluDense.wo.weight", 30000, "encoder.final_layer_norm"),
    "z_image": ({"blocks": 2, "refiners": 1}, "norm2.weight", 20000, "all_final_layer.2-1.norm_final"),
    "flux": ({"double": 2, "single": 1}, "ff.net.2.weight", 100000, "norm_out.norm"),
    "sd35_medium": ({"blocks": 3, "dual": 1}, "ff.net.2.weight", 100000, "norm_out.norm"),
}
"""Depth, the weights that write to the residual stream, how much larger they are made, and the norm at its end."""


@pytest.mark.parametrize(("target", "own"), [("rocm", True), *((target, False) for target in HALVES)])
@pytest.mark.parametrize("family", STREAMS)
def test_a_stream_that_passes_fp16_is_computed(family: str, target: str, own: bool, tmp_path: Path) -> None:
    """As those of T5-XXL, Z-Image and Flux do: each weight fits, and the sum of what they write does not."""
    depth, writers, factor, norm = STREAMS[family]
    made = built(family, **depth)
    with torch.no_grad():
        for name, parameter in made.module.named_parameters():
            if name.endswith(writers):
                parameter *= factor
    states: list[Array] = []
    made.module.model.get_submodule(norm).register_forward_pre_hook(
        lambda module, given: states.append(given[0].detach().numpy())
    )
    wanted = made.expected()
    assert np.abs(states[0]).max() > 65504
    assert max(float(each.detach().abs().max()) for each in made.module.parameters()) < 65504
    write(made, tmp_path / "model.onnx", 17, script=True)
    found, _ = error(made, wanted, tmp_path / "model.onnx", target, True, own)
    assert found <= 1e-2
