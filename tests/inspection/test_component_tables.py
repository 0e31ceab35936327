"""Tables and sentences of what is in models, from descriptions that are made by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from sdort import console
from sdort.inspection.component_tables import (
    change_tables,
    change_verdict,
    component_tables,
    rewriting_verdict,
)
from sdort.inspection.description import (
    Change,
    Component,
    DeclaredTensor,
    Parts,
    Rewrite,
    _dtype_name,
    _facts,
    _is_float,
    _item_size,
    compare_components,
)
from sdort.inspection.graph_difference import Place
from sdort.inspection.profile import Placement, Share, placement_table, remarks, summarize_placement
from sdort.providers import CPU
from sdort.providers.cuda import PROVIDER as CUDA
from sdort.tables import Table

PLACE = Place("attribute", "Conv", "one", "other", "pads: [0] -> [1]")
ONE = DeclaredTensor("x", "float32", ("b", 4, None))


def component(name: str = "unet", **values: Any) -> Component:
    base: dict[str, Any] = {
        "component": name, "path": None, "producer": "me 1", "ir_version": 9, "opsets": {"ai.onnx": 20, "sdort": 1},
        "inputs": (ONE,), "outputs": (DeclaredTensor("y", None, None),), "nodes": 1234,
        "operators": {"Conv": 5, "com.microsoft.NhwcConv": 2}, "parameters": 1_500_000,
        "weight_bytes": {"float16": 3_000_000, "int64": 1_000}, "computed_in": "", "providers": {}, "parts": None,
    }  # fmt: skip
    return Component(**{**base, **values})


def cells(table: Table) -> list[tuple[str, ...]]:
    return [tuple(row.cells) for row in table.rows]


def tables(*components: Component) -> dict[str, list[tuple[str, ...]]]:
    """Title, without what follows it, -> cells."""
    return {table.title.partition(" (")[0]: cells(table) for table in component_tables(components)}


# Contents


def test_the_sizes_of_a_component() -> None:
    found = tables(
        component(), component("vae_decoder", weight_bytes={"float": 40}, computed_in="bf16", ir_version=None)
    )
    assert list(found) == ["Components", "Operators"]  # inputs and outputs of several under -v only
    assert found["Components"] == [
        ("unet", "1,234", "1.5 M", "3.0 MB", "float16 100.0%", "ai.onnx 20, sdort 1", "9", "me 1"),
        ("vae_decoder", "1,234", "1.5 M", "40 B", "float 100.0%, computed in bf16", "ai.onnx 20, sdort 1", "", "me 1"),
    ]
    assert tables(component())["Inputs and outputs"] == [
        ("unet", "in", "x", "float32[b, 4, ?]"), ("unet", "out", "y", "?[?]".replace("[?]", "?"))
    ]  # fmt: skip
    assert tables(component(weight_bytes={}, computed_in="bf16"))["Components"][0][3:5] == ("0 B", "computed in bf16")
    console.set_verbosity(console.VERBOSE)
    found = tables(component(), component("vae_decoder"))
    assert found["Components"][0][4].startswith("float16 ")
    assert "int64" in found["Components"][0][4]
    assert [line[:3] for line in found["Inputs and outputs"]] == [
        (name, *each) for name in ("unet", "vae_decoder") for each in (("in", "x"), ("out", "y"))
    ]


def test_operators_are_shown_the_fused_ones_first_then_the_most_frequent() -> None:
    one = component(operators={"Add": 3, "Conv": 5, "com.microsoft.NhwcConv": 1, "sdort.GroupNorm": 2, "Mul": 3})
    other = component("vae_decoder", operators={"Add": 1000, "com.microsoft.NhwcConv": 7})
    assert tables(one, other)["Operators"] == [
        ("* NhwcConv", "1", "7"), ("* sdort.GroupNorm", "2", ""), ("  Add", "3", "1,000"), ("  Conv", "5", ""),
        ("  Mul", "3", ""),
    ]  # fmt: skip
    for count, shown in ((14, 14), (15, 15), (16, 15), (20, 15)):
        rows = tables(component(operators={f"Op{n:02}": 100 - n for n in range(count)}))["Operators"]
        assert len(rows) == shown
        rest = count - 14
        assert (rows[-1][0] == f"  {rest} more (-v)") is (count > 15)
        if count > 15:
            assert rows[-1][1] == str(sum(100 - n for n in range(14, count)))


def test_what_runs_before_the_steps() -> None:
    parts = Parts(11, 22, 3333, (ONE, ONE), (ONE,), 2000, 5_000_000)
    assert tables(component(parts=parts), component("vae_decoder"))["Prepared before the steps"] == [
        ("unet", "once a prompt", "11", "2 tensors", "2.0 kB", "x float32[b, 4, ?], x float32[b, 4, ?]"),
        ("unet", "once a schedule", "22", "1 tensor", "5.0 MB a step", "x float32[b, 4, ?]"),
        ("unet", "every step", "3,333", "", "", ""),
    ]


OPSET = Rewrite("opset 23", 50, "lowered to opset 20")
GELU = {
    name: Rewrite("com.microsoft.Gelu", n, f"{name} has no kernel for Gelu") for name, n in (("rocm", 4), ("cuda", 4))
}


def test_reasons_of_providers_are_one_row_where_they_count_the_same() -> None:
    one = component(providers={"rocm": (GELU["rocm"], OPSET), "cuda": (GELU["cuda"],), "cpu": ()})
    other = component("vae_decoder", providers={"rocm": (Rewrite("com.microsoft.Gelu", 3, GELU["rocm"].reason),),
                                                "cuda": (), "cpu": ()})  # fmt: skip
    assert tables(one, other)["To rewrite"] == [
        ("  opset 23", "50", "rocm", "lowered to opset 20", "unet"),
        ("* Gelu", "7", "rocm", "no kernel", "unet, vae_decoder"), ("* Gelu", "4", "cuda", "no kernel", "unet"),
    ]  # fmt: skip
    assert tables(one)["To rewrite"][1] == ("* Gelu", "4", "rocm, cuda", "no kernel", "unet")
    assert rewriting_verdict([one, other]) == (
        "To rewrite: the opset and 7 nodes for rocm; 4 nodes for cuda; nothing for cpu."
    )
    assert "To rewrite" not in tables(component(providers={"cpu": ()}))


# Differences


def test_changes_are_found_fact_by_fact() -> None:
    facts = _facts(component())
    assert list(facts) == [
        ("count", "nodes"), ("count", "parameters"), ("version", "IR"), ("version", "opset ai.onnx"),
        ("version", "opset sdort"), ("bytes", "float16"), ("bytes", "int64"), ("input", "x"), ("output", "y"),
        ("operator", "Conv"), ("operator", "com.microsoft.NhwcConv"),
    ]  # fmt: skip
    new = component(
        nodes=1, parameters=2, ir_version=3, opsets={"ai.onnx": 21}, weight_bytes={"float16": 3_000_000},
        inputs=(DeclaredTensor("x", "float16", ("b", 4, None)),), outputs=(), operators={"Conv": 5, "Add": 1},
    )  # fmt: skip
    [changes] = compare_components([component("a")], [new]).values()
    assert [(each.kind, each.name, each.before, each.after) for each in changes] == [
        ("count", "nodes", 1234, 1), ("count", "parameters", 1_500_000, 2), ("version", "IR", 9, 3),
        ("version", "opset ai.onnx", 20, 21), ("version", "opset sdort", 1, None), ("bytes", "int64", 1000, None),
        ("input", "x", "float32[b, 4, ?]", "float16[b, 4, ?]"), ("output", "y", "??", None),
        ("operator", "com.microsoft.NhwcConv", 2, None), ("operator", "Add", None, 1),
    ]  # fmt: skip
    assert list(compare_components([component("a"), component("b")], [component("c")])) == ["a", "b", "c"]
    both = compare_components([component("a"), component("b")], [component("c"), component("a", nodes=7)])
    assert {name: [(each.kind, each.before, each.after) for each in found] for name, found in both.items()} == {
        "a": [("count", 1234, 7)], "b": [("component", "present", None)], "c": [("component", None, "present")]
    }  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "places", "words"),
    [
        ({"a": []}, {"a": []}, "No differences."),
        ({"a": [Change("count", "nodes", 10, 11)]}, {"a": []},
         "1 component differs: the same is computed, 1 node more, weights of the same size, the same inputs and "
         "outputs."),
        ({"a": [], "b": []}, {"b": [PLACE]},
         "1 component differs: computed differently in 1 place, as many nodes, weights of the same size, the same "
         "inputs and outputs."),
        ({"a": [Change("count", "nodes", 10, 9)], "b": [Change("count", "nodes", 1, 5)]}, {"a": [PLACE], "b": [PLACE]},
         "2 components differ: computed differently in 2 places, 3 nodes more, weights of the same size, the same "
         "inputs and outputs."),
        ({"a": [Change("bytes", "float16", None, 3_000_000), Change("bytes", "float", 7_000_000, None)]}, {"a": []},
         "1 component differs: the same is computed, as many nodes, 4.0 MB of weights less, the same inputs and "
         "outputs."),
        ({"a": [Change("count", "parameters", 1, 2), Change("input", "x", None, "y"), Change("output", "x", "y", "z")]},
         {"a": []},
         "1 component differs: the same is computed, as many nodes, weights of the same size, 2 changes of inputs, "
         "outputs and components."),
        ({"a": [Change("component", "a", None, "present")]}, {},
         "1 component differs: as many nodes, weights of the same size, 1 change of inputs, outputs and components."),
    ],
)  # fmt: skip
def test_differences_in_a_sentence(
    changes: dict[str, list[Change]], places: dict[str, list[Place]], words: str
) -> None:
    assert change_verdict(changes, places) == words


@pytest.mark.parametrize("verbose", [True, False])
def test_what_computes_something_else_stands_first(verbose: bool) -> None:
    console.set_verbosity(console.VERBOSE if verbose else console.NORMAL)
    other = [replace(PLACE, what=f"pads: [0] -> [{number}]", before_name=str(number)) for number in range(20)]
    first, *_ = change_tables({"a": []}, {"a": [PLACE, replace(PLACE, before_name="two"), *other], "b": [PLACE]})
    assert first.title == "What is computed differently"
    rows = cells(first)
    if verbose:
        assert rows[:2] == [
            ("a", "1", "Conv", PLACE.what, "one", "other"), ("a", "1", "Conv", PLACE.what, "two", "other")
        ]  # fmt: skip
        assert len(rows) == 23
        return
    assert rows[0] == ("a", "3", "Conv", PLACE.what, "one", "other")  # with the one of ``other`` that is the same
    assert len(rows) == 15
    assert rows[-1][0] == "7 more (-v)"


def test_tables_of_differences() -> None:
    changes = {
        "a": [Change("count", "nodes", 1000, 9), Change("version", "opset ai.onnx", 20, 21),
              Change("bytes", "float16", 0, 2_000_000), Change("bytes", "float", 5_000_000, None),
              Change("input", "x", None, "float[1]"), Change("operator", "Conv", 5, 2),
              Change("operator", "com.microsoft.NhwcConv", None, 3)],
        "b": [Change("operator", "Conv", 1, 3), Change("bytes", "float", 1, 2), Change("operator", "Add", None, 1)],
        "c": [],
    }  # fmt: skip
    found = {table.title.partition(" (")[0]: cells(table) for table in change_tables(changes, {})}
    assert found["Differences"] == [
        ("a", "1,000 -> 9", "-3.0 MB", "20 -> 21"), ("b", "", "+1 B", ""), ("c (none)", "", "", "")
    ]  # fmt: skip
    assert found["Changes of operators"] == [
        ("* NhwcConv", "+3", "", ""), ("  Conv", "-3", "+2", ""), ("  Add", "", "+1", "")
    ]  # fmt: skip
    assert found["Inputs, outputs, components"] == [("a", "input", "x", "-", "float[1]")]
    assert "Counts" not in found
    assert list(change_tables({"a": []}, {"a": []})) == []
    console.set_verbosity(console.VERBOSE)
    counts = {table.title: cells(table) for table in change_tables(changes, {})}["Counts"]
    assert counts[0] == ("a", "count", "nodes", "1,000", "9", "-991")
    assert counts[3] == ("a", "bytes", "float", "5.0 MB", "0 B", "-5.0 MB")
    assert [line[1] for line in counts] == ["count", "version", "bytes", "bytes", "bytes"]


def test_types_that_numpy_lacks_have_names_and_sizes() -> None:
    import onnx

    bf16 = int(onnx.TensorProto.BFLOAT16)
    assert [_dtype_name(each) for each in (bf16, np.dtype(np.float16), np.int64)] == ["bfloat16", "float16", "int64"]
    assert [_item_size(each) for each in (bf16, np.dtype(np.float32))] == [2, 4]
    assert [_is_float(each) for each in (bf16, np.dtype(np.float16), np.dtype(np.int64))] == [True, True, False]


# Placement


def test_totals_are_of_one_provider_and_of_what_was_timed() -> None:
    shares = (Share("A", "x", 3, 1.5), Share("A", "y", 2, None), Share("B", "z", 7, 9.0), Share("C", "z", 1, None))
    placed = Placement("unet", shares, False, {}, {})
    assert Placement("a", (Share("A", "x", 1, 0.0),), False, {}, {}).total("A") == (1, 0.0)
    assert [placed.total(name) for name in "ABCD"] == [(5, 1.5), (7, 9.0), (1, None), (0, None)]


def test_the_table_of_a_placement_is_cut_short_by_provider() -> None:
    shares = tuple(Share(ep, f"{ep[:2]}{n}", n + 1, 10.0 - n) for ep in (CUDA.ep, "Other") for n in range(4))
    placed = Placement("unet", (*shares, Share(CUDA.ep, "", 5, None)), True, {}, {}, untimed=4)
    table = placement_table([placed], most=3)
    assert table.title == "Placement, with the time of kernels, of a step alone: not of what runs before the steps"
    assert cells(table) == [
        ("unet on cuda", "15", "34.000"), ("  CU0", "1", "10.000"), ("  CU1", "2", "9.000"), ("  CU2", "3", "8.000"),
        ("  1 more", "4", ""), ("unet on Other", "10", "34.000"), ("  Ot0", "1", "10.000"), ("  Ot1", "2", "9.000"),
        ("  Ot2", "3", "8.000"), ("  1 more", "4", ""),
    ]  # fmt: skip
    assert [line[0] for line in cells(placement_table([placed], most=4))].count("  0 more") == 0
    plain = Placement("a", (Share("A", "x", 1, None),), False, {}, {})
    timed = Placement("a", (Share("A", "x", 1, 0.0),), False, {}, {})
    assert placement_table([plain]).title == "Placement"
    assert placement_table([plain, timed]).title == "Placement, with the time of the host's calls"


def test_remarks_name_what_fell_and_what_is_whole() -> None:
    placed = [
        Placement("a", (), False, {}, {}), Placement("b", (), False, {"Softmax": 2, "Erf": 1}, {}),
        Placement("c", (), False, {}, {"MemcpyToHost": 3}), Placement("d", (), False, {}, {}),
    ]  # fmt: skip
    assert remarks(placed, CUDA) == [
        "b: 2 Softmax, 1 Erf on the CPU, no copies between host and device",
        "c: nothing but arithmetic on sizes on the CPU, 3 MemcpyToHost copies between host and device",
        "cuda runs all of a, d but arithmetic on sizes; no copies to the host.",
    ]
    assert remarks(placed[1:3], CUDA)[-1].startswith("c:")
    assert remarks(placed, CPU) == ["cpu runs every node of a, b, c, d."]


def test_shares_are_sorted_and_only_computing_falls() -> None:
    from collections import Counter

    placed = {
        CUDA.ep: Counter({"Conv": 1, "Add": 2, "Mul": 2}),
        CPU.ep: Counter({"Shape": 9, "Erf": 1, "MemcpyToHost": 2}),
    }
    found = summarize_placement("unet", CUDA, placed, [])
    assert [(share.operator, share.nodes) for share in found.shares] == [
        ("Shape", 9), ("Add", 2), ("MemcpyToHost", 2), ("Mul", 2), ("Conv", 1), ("Erf", 1)
    ]  # fmt: skip
    assert {"Erf"} <= set(found.fallen)
    assert "Shape" not in found.fallen
    assert found.copies == {"MemcpyToHost": 2}
    assert summarize_placement("unet", CPU, placed, []).fallen == {}
