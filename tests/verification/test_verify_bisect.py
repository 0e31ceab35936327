"""The search for a divergence: tensors correspond, the search finds the node, and what was planted gets blamed."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from support.bisected import CONFIGURATION, compare, found_in, optimized, scaled
from support.exports import Case

from sdort.errors import BadModelError
from sdort.rewrite.fusion import load_fusions
from sdort.rewrite.fusion_names import fusion_names
from sdort.rewrite.pattern import parse_pattern
from sdort.rewrite.provenance import PROVENANCE_KEY, Provenance, read_provenance
from sdort.verification.bisection import search as bisect_module
from sdort.verification.bisection.blame import CAST, FUSION, NODE, SUM, bisect
from sdort.verification.bisection.search import find_divergence, search
from sdort.verification.bisection.tensor_pairs import TENSORS_PER_SESSION, GraphPair, TensorPair, difference
from sdort.verification.component_comparison import ONNX, Comparison
from sdort.verification.limits import Tolerance
from sdort.verification.recorded_inputs import RANDOM

Exported = Callable[[Case], Path]
UNET, DECODER, TEXT = Case("sd1", "ts17"), Case("vae_decoder", "ts17"), Case("clip", "ts17")


# --- correspondences ---


@pytest.mark.parametrize(
    ("case", "target", "share"),
    [
        (UNET, "rocm", 0.4),
        (Case("sd1", "dy18"), "cpu", 0.5),
        (DECODER, "cuda", 0.3),
        (TEXT, "rocm", 0.4),
    ],
    ids=str,
)
def test_tensors_that_correspond_hold_the_same_values(
    exported: Exported, tmp_path: Path, case: Case, target: str, share: float
) -> None:
    """In fp32, where only the order of sums may differ: a name that a pass gave to other values would show."""
    graphs = optimized(exported(case), case, tmp_path, target)
    output = graphs.graph(graphs.candidate).graph.output[0].name
    pairs = graphs.pairs(output)
    assert len(pairs) > share * len(graphs.graph(graphs.candidate).graph.node)
    assert pairs[-1] == TensorPair(output, output)
    values = graphs.values(pairs)
    apart = {pair: difference(*values[pair]) for pair in pairs}
    assert max(largest for largest, _ in apart.values()) < 1e-4, max(apart.items(), key=lambda item: item[1])
    turned = [pair for pair in pairs if pair.original != pair.candidate]
    assert bool(turned) is (target != "cpu" and case is not TEXT)
    assert all(values[pair][1].ndim == 4 for pair in turned)


def test_provenance_is_read_back_and_a_damaged_one_is_none(exported: Exported, tmp_path: Path) -> None:
    graphs = optimized(exported(UNET), UNET, tmp_path, "rocm", fp16=True)
    model = graphs.graph(graphs.candidate)
    makers = read_provenance(model).makers
    nodes = {node.name: node for node in model.graph.node}
    assert set(makers) <= set(nodes)
    attention = {makers[name][-1] for name, node in nodes.items() if node.op_type == "MultiHeadAttention"}
    assert attention == {"packed_qkv", "packed_kv"}
    assert makers[next(n for n, node in nodes.items() if node.op_type == "SkipGroupNorm")][-1] in (
        "skip_group_norm",
        "biases",
    )
    # A fusion that took in another's result names both.
    merged = [makers[name] for name, node in nodes.items() if node.op_type == "SkipGroupNorm"]
    assert any("group_norm_silu" in names[:-1] for names in merged)
    for text in ("no json", "[]", '{"makers": 3, "layouts": {}}', '{"layouts": {}}'):
        model.metadata_props[0].CopyFrom(onnx.StringStringEntryProto(key=PROVENANCE_KEY, value=text))
        assert read_provenance(model) == Provenance()


def test_the_record_is_small_and_always_the_same(exported: Exported, tmp_path: Path) -> None:
    first = optimized(exported(DECODER), DECODER, tmp_path, "rocm")
    text = first.graph(first.candidate).metadata_props[0].value
    again = optimized(exported(DECODER), DECODER, tmp_path, "rocm")
    assert again.graph(again.candidate).metadata_props[0].value == text
    assert len(text) < 100 * len(first.graph(first.candidate).graph.node)
    assert set(json.loads(text)) == {"makers", "layouts"}


def test_an_output_that_the_original_calls_otherwise_is_no_agreement(exported: Exported, tmp_path: Path) -> None:
    """The search ends at the last pair: without the output it would end before what is wrong."""
    graphs = optimized(exported(TEXT), TEXT, tmp_path, "cpu")
    output = graphs.graph(graphs.candidate).graph.output[0].name
    model = onnx.load(exported(TEXT))
    for node in model.graph.node:
        node.output[:] = ["renamed" if name == output else name for name in node.output]
        node.input[:] = ["renamed" if name == output else name for name in node.input]
    model.graph.output[0].name = "renamed"
    onnx.save(model, tmp_path / "renamed.onnx")
    with pytest.raises(BadModelError, match=f"the original has no output {output}"):
        find_divergence(replace(graphs, original=tmp_path / "renamed.onnx"), output, Tolerance(1e-9, 1e-9))


# --- the search ---


def random_case(seed: int) -> tuple[list[list[int]], list[bool]]:
    """Sources of every tensor, and whether it is wrong: one node breaks, and what reads it is wrong or, rarely, not."""
    draw = np.random.default_rng(seed)
    count = int(draw.integers(1, 120))
    sources = [
        sorted({int(draw.integers(0, i)) for _ in range(draw.integers(0, 4))}) if i else [] for i in range(count)
    ]
    broken = int(draw.integers(0, count))
    wrong = [False] * count
    for index in range(count):
        wrong[index] = index == broken or (any(wrong[s] for s in sources[index]) and draw.random() < 0.9)
    return sources, wrong


@pytest.mark.parametrize("width", [1, 3, 16])
def test_what_the_search_finds_is_wrong_and_all_its_sources_are_right(width: int) -> None:
    searched = 0
    for seed in range(300):
        sources, wrong = random_case(seed)
        asked: set[int] = set()

        def measure(
            positions: Sequence[int], wrong: list[bool] = wrong, asked: set[int] = asked
        ) -> Mapping[int, float]:
            asked.update(positions)
            return {position: 2.0 if wrong[position] else 0.5 for position in positions}

        found = search(len(wrong), measure, sources.__getitem__, width)
        if not wrong[-1]:
            assert found is None
            continue
        assert found is not None
        assert wrong[found]
        assert not any(wrong[source] for source in sources[found])
        searched += 1
    assert searched > 20


def test_a_long_chain_takes_few_measurements() -> None:
    calls: list[int] = []

    def measure(positions: Sequence[int]) -> Mapping[int, float]:
        calls.append(len(positions))
        return {position: 2.0 if position >= 1234 else 0.0 for position in positions}

    assert search(5000, measure, lambda position: [position - 1] if position else []) == 1234
    assert max(calls) <= TENSORS_PER_SESSION
    assert len(calls) <= 6  # 16^4 > 5000, the output first, the sources last


# --- what was planted ---


def plant(monkeypatch: pytest.MonkeyPatch, fusion: str, right: str, wrong: str) -> None:
    """A fusion whose After computes something else."""
    found = load_fusions()[fusion]
    texts = found.module.AFTER if isinstance(found.module.AFTER, tuple) else (found.module.AFTER,)
    assert all(right in text for text in texts)
    afters = [parse_pattern(text.replace(right, wrong)) for text in texts]
    befores = [before for before, _ in found.variants]
    pairs = list(zip(befores, afters * len(befores) if len(afters) == 1 else afters, strict=True))
    monkeypatch.setitem(vars(found), "variants", pairs)


@pytest.mark.parametrize(
    ("case", "target", "fusion", "right", "wrong", "operator", "original"),
    [
        (TEXT, "cpu", "quick_gelu", "alpha = 1.702", "alpha = 1.5", "QuickGelu", "Mul"),
        (
            Case("sd1", "ts17"), "rocm", "skip_layer_normalization", "epsilon: float = @epsilon", "epsilon = 0.5",
            "SkipLayerNormalization", "LayerNormalization",
        ),
        (DECODER, "rocm", "group_norm_silu", "activation = 1", "activation = 0", "GroupNorm", "Mul"),
    ],
    ids=["quick_gelu", "skip_layer_normalization", "group_norm_silu"],
)  # fmt: skip
def test_a_wrong_fusion_is_named(
    exported: Exported,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    case: Case,
    target: str,
    fusion: str,
    right: str,
    wrong: str,
    operator: str,
    original: str,
) -> None:
    plant(monkeypatch, fusion, right, wrong)
    graphs = optimized(exported(case), case, tmp_path, target)
    finding = found_in(graphs)
    assert finding.kind == FUSION, finding
    assert fusion in finding.blamed
    assert set(finding.blamed) <= set(fusion_names())
    assert fusion in finding.message
    assert operator in [culprit.operator for culprit in finding.culprits]
    # In the original's names: its node exists, and is the first of its kind.
    nodes = list(graphs.graph(graphs.original).graph.node)
    named = next(node for node in nodes if node.name == finding.node)
    assert finding.tensor in named.output
    assert finding.operator == named.op_type
    assert original in (named.op_type, "LayerNormalization")
    assert all(share <= 1 for share in finding.sources.values())
    assert finding.share > 1


def test_the_first_of_several_wrong_places_is_found(
    exported: Exported, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch, "quick_gelu", "alpha = 1.702", "alpha = 1.5")
    graphs = optimized(exported(TEXT), TEXT, tmp_path, "cpu")
    finding = found_in(graphs)
    gelus = [node.name for node in graphs.graph(graphs.candidate).graph.node if node.op_type == "QuickGelu"]
    assert len(gelus) > 1
    assert [culprit.node for culprit in finding.culprits] == gelus[:1]


def reader_of(path: Path, weight: str) -> onnx.NodeProto:
    nodes: list[onnx.NodeProto] = list(onnx.load(path, load_external_data=False).graph.node)
    return next(node for node in nodes if any(name.endswith(weight) for name in node.input))


def test_an_overflow_in_fp16_is_blamed_on_the_cast(exported: Exported, tmp_path: Path) -> None:
    """The decoder's first convolution gives 1e5 and more; a normalization after it brings fp32 back to size.

    In a graph for ROCm: in one for the CPU, ONNX Runtime keeps fp32 between its nodes.
    """
    source = scaled(exported(DECODER), tmp_path, "decoder.conv_in.weight", 6e4)
    graphs = optimized(source, DECODER, tmp_path, "rocm", fp16=True)
    assert [each.problem for each in compare(graphs, "float16")] == ["has NaN or infinite values (100 % of it)"]
    finding = found_in(graphs, "float16")
    assert (finding.kind, finding.blamed) == (CAST, ("half",))
    assert finding.node == reader_of(source, "decoder.conv_in.weight").name
    assert finding.largest_value > 65504
    assert "fp16" in finding.message
    # The same model in fp32 is right.
    assert all(each.passed for each in compare(optimized(source, DECODER, tmp_path, "rocm")))


def test_a_changed_weight_is_no_fusions_fault(exported: Exported, tmp_path: Path) -> None:
    graphs = optimized(scaled(exported(DECODER), tmp_path, "decoder.conv_in.weight", 1.01), DECODER, tmp_path, "cpu")
    finding = found_in(GraphPair(graphs.component, exported(DECODER), graphs.candidate, CONFIGURATION, graphs.feeds))
    assert (finding.kind, finding.blamed) == (NODE, ())
    assert finding.node == reader_of(exported(DECODER), "decoder.conv_in.weight").name


def test_errors_that_only_add_up_are_told_apart(exported: Exported, tmp_path: Path) -> None:
    """An fp16 decoder against a limit that no single rounding exceeds, but all together do."""
    graphs = optimized(exported(DECODER), DECODER, tmp_path, "cpu", fp16=True)
    [right] = compare(graphs, "float16")
    assert right.errors is not None
    limit = Tolerance(right.errors.largest_share * 0.9, right.errors.mean_share * 0.9)
    finding = bisect(graphs, Comparison(graphs.component, "float16", RANDOM, "", ONNX, right.output, limit))
    assert finding.kind == SUM, finding
    assert finding.blamed == ()


def test_right_graphs_do_not_part_and_sessions_stay_bounded(
    exported: Exported, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graphs = optimized(exported(DECODER), DECODER, tmp_path, "cpu")
    output = graphs.graph(graphs.candidate).graph.output[0].name
    assert find_divergence(graphs, output, Tolerance(1e-4, 1e-5)) is None
    sizes: list[int] = []
    values = GraphPair.values

    def counted(self: GraphPair, pairs: Sequence[TensorPair]) -> object:
        sizes.append(len(pairs))
        return values(self, pairs)

    monkeypatch.setattr(GraphPair, "values", counted)
    monkeypatch.setattr(bisect_module, "TENSORS_PER_SESSION", 5)
    parting = find_divergence(graphs, output, Tolerance(1e-12, 1e-12))
    assert parting is not None
    assert max(sizes) <= 5
    assert len(sizes) == parting.sessions


def test_a_fusion_of_onnx_runtimes_own_is_told(exported: Exported, tmp_path: Path) -> None:
    graphs = optimized(exported(DECODER), DECODER, tmp_path, "cpu")
    [right] = compare(graphs)
    finding = bisect(graphs, right)  # as if it had failed: recorded, it is right
    assert finding.kind == "runtime"
    assert finding.node is None
