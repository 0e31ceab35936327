"""Every fusion: Before becomes After, a second time nothing happens, and both compute the same."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from types import ModuleType

import numpy as np
import onnx
import onnx_graphsurgeon as gs
import onnxruntime
import pytest
from support.fusion_models import CASES, TOLERANCE, before_model, feeds
from support.small_graphs import edit

from sdort.graph.model import Model
from sdort.lowering.component_report import count_operators
from sdort.onnx_io.load import from_proto
from sdort.onnx_io.save import save_model
from sdort.onnx_io.standard_operators import expand
from sdort.passes import upgrade
from sdort.rewrite.apply import apply_fusion, apply_stage
from sdort.rewrite.editor import Editor
from sdort.rewrite.fusion import STAGES, Fusion, load_fusions
from sdort.rewrite.pattern import Pattern


@pytest.mark.parametrize(("name", "index"), CASES)
def test_before_becomes_after(name: str, index: int, tmp_path: Path) -> None:
    check_variant(load_fusions()[name], index, tmp_path)


def check_variant(fusion: Fusion, index: int, folder: Path) -> None:
    rng = np.random.default_rng([*fusion.name.encode(), index])
    before = before_model(fusion, index, rng)
    model = from_proto(onnx.ModelProto.FromString(before.SerializeToString()), None, "test")
    editor = Editor(model)

    pattern, after = fusion.variants[index]
    # Of several Afters of one Before, the first that the target runs: here one that runs this one.
    others = any(earlier.text == pattern.text for earlier, _ in fusion.variants[:index])
    target = Runs(_operators(after)) if others else None
    assert apply_fusion(fusion, editor, target).matched == 1
    editor.finish()
    assert count_operators(model) == dict(sorted(_operators(fusion.variants[index][1]).items()))
    if fusion.stage != "lower":
        assert apply_fusion(fusion, editor).matched == 0

    inputs = feeds(before, rng)
    for wanted, found in zip(_run(before, inputs), _run(_saved(model, folder), inputs), strict=True):
        assert found.shape == wanted.shape
        assert np.abs(found - wanted).max() <= TOLERANCE * wanted.std()


class Runs:
    """A target that has these operators alone."""

    def __init__(self, operators: Counter[str]) -> None:
        self.operators = operators

    def unsupported(self, node: gs.Node, editor: Editor | None = None) -> str | None:
        name = f"{node.domain}.{node.op}" if node.domain else node.op
        return None if name in self.operators else f"there is no {name}"


def _operators(after: Pattern) -> Counter[str]:
    return Counter(f"{n.domain}.{n.op}" if n.domain else n.op for n in after.nodes)


def _saved(model: Model, folder: Path) -> onnx.ModelProto:
    upgrade.set_opset(model, model.graph.opset)
    save_model(model, folder / "after.onnx")
    return onnx.load(folder / "after.onnx")


def _run(model: onnx.ModelProto, inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
    expand(model)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return list(session.run(None, {i.name: inputs[i.name] for i in session.get_inputs()}))


@pytest.mark.parametrize("index", range(len(load_fusions()["restore_group_norm"].variants)))
def test_fp32_parameters_become_what_an_fp16_image_is(index: int, tmp_path: Path) -> None:
    """ONNX Runtime's GroupNorm takes gamma and beta in fp32 alone, ONNX's GroupNormalization in the image's type."""
    fusion, rng = load_fusions()["restore_group_norm"], np.random.default_rng(index)
    single = before_model(fusion, index, rng)
    inputs = feeds(single, rng)
    half = onnx.ModelProto.FromString(single.SerializeToString())
    for info in (*half.graph.output, *(each for each in half.graph.input if each.name == "x")):
        info.type.tensor_type.elem_type = onnx.TensorProto.FLOAT16
    model = from_proto(half, None, "test")
    editor = Editor(model)
    assert apply_fusion(fusion, editor).matched == 1
    editor.finish()
    (found,) = _run(_saved(model, tmp_path), {**inputs, "x": inputs["x"].astype(np.float16)})
    (wanted,) = _run(single, inputs)
    assert found.dtype == np.float16
    assert np.abs(found - wanted).max() <= 4e-3 * np.abs(wanted).max()


@pytest.mark.parametrize("name", load_fusions())
def test_file_is_complete(name: str) -> None:
    fusion = load_fusions()[name]
    assert fusion.stage in STAGES
    assert fusion.module.__doc__
    anchor = fusion.anchor.rpartition(".")[2]
    for before, _ in fusion.variants:
        assert anchor in {node.op for node in before.nodes}


def test_order_follows_run_after() -> None:
    order = list(load_fusions())
    for name, fusion in load_fusions().items():
        for earlier in fusion.run_after:
            assert order.index(earlier) < order.index(name)
            assert load_fusions()[earlier].stage == fusion.stage


def test_the_page_on_adding_one_is_all_that_it_takes(tmp_path: Path) -> None:
    """Its file passes the tests of this one, and its example of an explanation is what is explained."""
    page = (Path(__file__).parents[2] / "docs" / "add-a-fusion.md").read_text()
    (text,) = re.findall(r"```python\n(.+?)```", page, re.DOTALL)
    module = ModuleType("fusions.mish")
    exec(text, vars(module))
    check_variant(Fusion(module), 0, tmp_path)
    graph = "g (float[N, 8] x, float[N, 8] u) => (float[N, 8] y) { s = Softplus (x)  t = Tanh (s)  y = Mul (t, u) }"
    (outcome,) = apply_stage([Fusion(module)], edit(graph), explain=True)
    (place,) = outcome.left
    cells = (
        "unet",
        f"{outcome.matched}/{outcome.candidates}",
        "Softplus_0",
        f"{place.matched}/{place.of}",
        place.reason,
    )
    assert list(cells) in [re.split(r" {2,}", line) for line in page.splitlines()]
