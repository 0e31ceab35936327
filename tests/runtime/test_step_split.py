"""A step's graph without what the latents do not decide: the parts, and that together they are the whole.

Numbers are those of the whole graph to the last bit: no operator here computes another for a row beside other rows, as
ONNX Runtime's sine does by a unit in the last place.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from sdort.providers import CPU
from sdort.providers.runtime_options import RuntimeOptions
from sdort.runtime.session import Session, open_session
from sdort.runtime.step.preparation import ROWS
from sdort.runtime.step.step_caches import KEPT
from sdort.runtime.step.step_split import StepSplit, split_step

OPTIONS = RuntimeOptions("cpu", custom_ops="off")

HEAD = """<ir_version: 8, opset_import: ["": 17]>
unet (float[batch, 4, height, width] sample, {timestep} timestep, float[batch, tokens, 3] encoder_hidden_states{more})
  => (float[batch, 4, height, width] out_sample)
  <float[3, 4] to_k = {{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}}, float[1, 2] frequencies = {{0.01, 0.02}},
   float[2, 4] linear = {{1, -2, 3, -4, 5, -6, 7, -8}}, float[4] bias = {{0.5, 1.5, -0.5, 2}},
   int64[1] one = {{1}}, int64[1] zero = {{0}}, int64[2] two_three = {{2, 3}}, int64[2] column = {{-1, 1}},
   int64[2] last = {{1, 2}}>
{{
  key = MatMul (encoder_hidden_states, to_k)
  {{clock}}
  angles = Mul (rows, frequencies)
  waves = Mul (angles, angles)
  embedded = Gemm (waves, linear, bias)
  {{embedded}}
  shift = Unsqueeze (shifted, two_three)
  moved = Add (sample, shift)
  pooled = ReduceMean <axes = [1], keepdims = 0> (key)
  spread = Unsqueeze (pooled, two_three)
  out_sample = Mul (moved, spread)
}}"""
PLAIN = "shifted = Identity (embedded)"
SCALAR = """single = Cast <to = 1> (timestep)
  vector = Reshape (single, one)
  shape = Shape (sample)
  batch = Slice (shape, zero, one)
  times = Expand (vector, batch)
  rows = Reshape (times, column)"""
ONE = """single = Cast <to = 1> (timestep)
  rows = Reshape (single, column)"""


def model(clock: str = SCALAR, timestep: str = "int64", embedded: str = PLAIN, more: str = "") -> onnx.ModelProto:
    text = HEAD.format(timestep=timestep, more=more).replace("{clock}", clock).replace("{embedded}", embedded)
    return onnx.parser.parse_model(text)


def split(made: onnx.ModelProto) -> StepSplit:
    found = split_step(made)
    assert found is not None
    return found


def names(part: onnx.ModelProto | None) -> tuple[list[str], list[str]]:
    assert part is not None
    return [info.name for info in part.graph.input], [info.name for info in part.graph.output]


def feeds(made: Session, samples: int = 2, seed: int = 0) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    given: dict[str, Any] = {
        "sample": rng.normal(size=(samples, 4, 2, 3)),
        "encoder_hidden_states": rng.normal(size=(samples, 5, 3)),
        "text_embeds": rng.normal(size=(samples, 2)),
    }
    shape = made.inputs["timestep"].shape
    sizes = tuple(samples if size == "batch" else int(size or 0) for size in shape)
    return {name: given[name] for name in made.inputs if name != "timestep"} | {
        "timestep": np.arange(401, 401 + max(1, int(np.prod(sizes)))).reshape(sizes)
    }


def both(made: onnx.ModelProto, folder: Path) -> tuple[Session, Session]:
    path = folder / "unet.onnx"
    onnx.save(made, path)
    return tuple(open_session(path, "unet", CPU, replace(OPTIONS, split=part)) for part in (False, True))  # type: ignore[return-value]


def agree(whole: Session, parted: Session, fed: Mapping[str, Any]) -> None:
    np.testing.assert_array_equal(parted.run(fed)["out_sample"], whole.run(fed)["out_sample"])


def counted_runs(parted: Session, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows with every run of the part of the prompts."""
    runs: list[int] = []
    preparation = parted.preparation
    assert preparation is not None
    assert preparation.prompt is not None
    run = preparation.prompt.run_bound

    def counted(binding: Any, graph: int = 1) -> None:
        runs.append(graph)
        run(binding, graph)

    monkeypatch.setattr(preparation.prompt, "run_bound", counted)
    return runs


@pytest.mark.parametrize(
    ("clock", "timestep", "rows"),
    [
        pytest.param(SCALAR, "int64", True, id="a scalar for all samples"),
        pytest.param(SCALAR, "float[1]", True, id="a vector of one"),
        pytest.param(ONE, "float[batch]", True, id="one a sample"),
        pytest.param(ONE, "int64[1]", False, id="one row for all samples"),
    ],
)
def test_timesteps_are_rows(clock: str, timestep: str, rows: bool, tmp_path: Path) -> None:
    made = model(clock, timestep)
    found = split(made)
    assert names(found.prompt) == (["encoder_hidden_states"], ["spread"])
    assert names(found.time) == (["timestep"], ["shift"])
    assert names(found.step) == (["sample", "shift", "spread"], ["out_sample"])
    assert found.each_sample == ({"shift"} if rows else set())
    whole, parted = both(made, tmp_path)
    assert parted.inputs == whole.inputs
    for samples in (1, 3):
        agree(whole, parted, feeds(whole, samples))


def test_what_prompts_add_to_timesteps(tmp_path: Path) -> None:
    """As SDXL's embeddings of texts and sizes: the projections are of both."""
    added = "added = MatMul (text_embeds, linear)\n  shifted = Add (embedded, added)"
    made = model(embedded=added, more=", float[batch, 2] text_embeds")
    found = split(made)
    assert names(found.prompt) == (["encoder_hidden_states", "text_embeds"], ["spread", "added"])
    assert names(found.time) == (["timestep", "added"], ["shift"])
    assert names(found.step)[0] == ["sample", "shift", "spread"]
    whole, parted = both(made, tmp_path)
    for seed in range(3):
        agree(whole, parted, feeds(whole, seed=seed))


SWAPPED = """first = Slice (waves, zero, one, one)
  second = Slice (waves, one, two, one)
  turned = Concat <axis = -1> (second, first)
  embedded = Gemm (turned, linear, bias)
  minus = Constant <value = int64[2] {-1, 4}> ()
  shifted = Reshape (embedded, minus)"""


def test_rows_are_cut_and_turned(tmp_path: Path) -> None:
    """As diffusers puts cosines before sines, and with a constant in a node as torch's older exporter writes it."""
    made = model(embedded=SWAPPED)
    [old] = [node for node in made.graph.node if node.op_type == "Gemm" and node.input[0] == "waves"]
    made.graph.node.remove(old)
    made.graph.initializer.append(onnx.helper.make_tensor("two", 7, [1], [2]))
    assert names(split(made).time) == (["timestep"], ["shift"])
    agree(*(pair := both(made, tmp_path)), feeds(pair[0], 3))


MIXED = {
    "mean": "mean = ReduceMean <axes = [0], keepdims = 1> (embedded)\n  shifted = Add (embedded, mean)",
    "the first row": "first = Slice (embedded, zero, one, zero)\n  shifted = Add (embedded, first)",
    "all but the last row": "part = Slice (embedded, zero, minus, zero)\n  most = ReduceMean <axes = [0]> (part)\n"
    "  shifted = Add (embedded, most)",
    "a number for each row": "shifted = Mul (embedded, three_rows)",
    "a bias for each row": "shifted = Gemm (embedded, square, three_rows)",
    "rows under rows": "twice = Concat <axis = 0> (embedded, embedded)\n"
    "  both = ReduceMax <axes = [0]> (twice)\n  shifted = Add (embedded, both)",
}
"""Of three rows: what one becomes depends on the others, or on its place among them."""


@pytest.mark.parametrize("kind", MIXED)
def test_what_mixes_rows_stays_in_the_step(kind: str, tmp_path: Path) -> None:
    """Over timesteps of several steps it would be another result."""
    made = model(ONE, "float[batch]", embedded=MIXED[kind])
    helper = onnx.helper
    made.graph.initializer.append(helper.make_tensor("minus", 7, [1], [-1]))
    made.graph.initializer.append(helper.make_tensor("three_rows", 1, [3, 4], np.arange(12.0)))
    made.graph.initializer.append(helper.make_tensor("square", 1, [4, 4], np.arange(16.0)))
    found = split(made)
    assert names(found.time)[1] == ["embedded"]
    agree(*(pair := both(made, tmp_path)), feeds(pair[0], 3))


@pytest.mark.parametrize("op", ["RandomNormalLike", "RandomUniformLike"])
def test_noise_is_drawn_in_every_step(op: str) -> None:
    drawn = f"noise = {op} (key)\n  level = ReduceMean <keepdims = 0> (noise)\n  shifted = Add (embedded, level)"
    found = split(model(embedded=drawn))
    assert names(found.prompt)[1] == ["key", "spread"]
    assert names(found.time)[1] == ["embedded"]
    assert op in [node.op_type for node in found.step.graph.node]


def test_integers_are_not_prepared() -> None:
    """A shape as an input of a step would be in the device's memory, where a graph of the device cannot read it."""
    made = model(
        embedded="dims = Shape (encoder_hidden_states)\n  four = Slice (dims, zero, one)\n"
        "  shifted = Expand (embedded, target)\n  target = Concat <axis = 0> (four, four)"
    )
    assert all(info.type.tensor_type.elem_type == 1 for info in split(made).step.graph.input)


def test_a_model_without_latents_is_one_graph() -> None:
    made = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["": 17]>
        vae (float[b, 4, h, w] latent_sample) => (float[b, 4, h, w] sample) { sample = Sin (latent_sample) }""")
    assert split_step(made) is None


def test_a_result_that_is_prepared_leaves_one_graph() -> None:
    """As in graphs with further outputs, for the search of a wrong node."""
    made = model()
    made.graph.output.append(onnx.helper.make_tensor_value_info("key", 1, None))
    assert split_step(made) is None


def test_weights_go_to_the_part_that_reads_them() -> None:
    found = split(model())
    own = [
        {tensor.name for tensor in part.graph.initializer} for part in (found.prompt, found.time, found.step) if part
    ]
    assert "to_k" in own[0]
    assert "linear" in own[1]
    assert not {"to_k", "linear", "frequencies"} & own[2]


def test_long_schedules_are_taken_in_parts_of_one_shape(tmp_path: Path) -> None:
    _, parted = both(model(), tmp_path)
    preparation = parted.preparation
    assert preparation is not None
    assert preparation.time is not None
    times = np.linspace(0, 999, ROWS + 5).astype(np.int64)
    together = preparation.rows(times, {})["shift"]
    assert together.shape == (ROWS + 5, 4, 1, 1)
    for index in (0, ROWS - 1, ROWS, ROWS + 4):
        np.testing.assert_array_equal(preparation.rows(times[index : index + 1], {})["shift"][0], together[index])
    assert {shape for run in preparation.time.ran_on for _, shape in run} == {(ROWS,)}  # type: ignore[attr-defined]


def test_what_is_prepared_for_a_prompt_is_used_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, parted = both(model(), tmp_path)
    runs = counted_runs(parted, monkeypatch)
    first, second = feeds(whole, seed=0), feeds(whole, seed=1)
    for fed in (first, first, second, first):
        agree(whole, parted, fed)
    assert len(runs) == 2
    parted.weights.version += 1
    agree(whole, parted, first)
    assert len(runs) == 3


POSITIONS = """<ir_version: 8, opset_import: ["": 17]>
unet (float[batch, 4, height, width] sample, float[1] timestep, float[batch, tokens, 3] encoder_hidden_states)
  => (float[batch, 4, height, width] out_sample) <int64 zero = {0}, int64 one = {1}, int64 two = {2}> {
  turned = Transpose <perm = [0, 2, 3, 1]> (sample)
  sizes = Shape (turned)
  width = Gather (sizes, two)
  counted = Range (zero, width, one)
  places = Cast <to = 1> (counted)
  waves = Mul (places, places)
  moved = Add (sample, waves)
  late = Add (moved, timestep)
  text = ReduceMean <keepdims = 0> (encoder_hidden_states)
  out_sample = Mul (late, text)
}"""
"""As a transformer's, whose tables of positions follow from the latents' height and width."""


def test_positions_are_made_once_for_a_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = onnx.parser.parse_model(POSITIONS)
    found = split(made)
    assert names(found.prompt) == (["sample", "encoder_hidden_states"], ["waves", "text"])
    assert names(found.step)[0] == ["sample", "timestep", "waves", "text"]
    whole, parted = both(made, tmp_path)
    runs = counted_runs(parted, monkeypatch)
    first = feeds(whole)
    agree(whole, parted, first)
    agree(whole, parted, first | {"sample": first["sample"] * 2})  # the latents of another step
    assert len(runs) == 1
    wide = np.concatenate([first["sample"]] * 2, -1)
    for _ in range(2):
        agree(whole, parted, first | {"sample": wide})
        agree(whole, parted, first)
    assert len(runs) == 2


@pytest.mark.parametrize("beside", [False, True])
def test_what_is_made_of_a_timestep_is_used_again(
    beside: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not with another prompt, where that is part of it, nor with other weights."""
    added = "added = MatMul (text_embeds, linear)\n  shifted = Add (embedded, added)"
    whole, parted = both(model(embedded=added, more=", float[batch, 2] text_embeds") if beside else model(), tmp_path)
    assert parted.preparation is not None
    assert parted.preparation.time is not None
    runs: list[int] = []
    run = parted.preparation.time.run

    def counted(fed: Any) -> Any:
        runs.append(1)
        return run(fed)

    monkeypatch.setattr(parted.preparation.time, "run", counted)
    first = feeds(whole, seed=0)
    timestep, other = np.full_like(first["timestep"], 7), np.full_like(first["timestep"], 900)
    for value in (timestep, other, timestep, other):
        agree(whole, parted, {**first, "timestep": value})
    assert len(runs) == 2
    if beside:
        agree(whole, parted, {**first, "timestep": timestep, "text_embeds": first["text_embeds"] + 1})
        assert len(runs) == 3
    parted.weights.version += 1
    agree(whole, parted, {**first, "timestep": timestep})
    assert len(runs) == 3 + beside
    parted.preparation.forget()
    agree(whole, parted, {**first, "timestep": timestep})
    assert len(runs) == 4 + beside


def test_prompts_are_known_by_all_of_their_inputs_and_the_oldest_is_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    added = "added = MatMul (text_embeds, linear)\n  shifted = Add (embedded, added)"
    whole, parted = both(model(embedded=added, more=", float[batch, 2] text_embeds"), tmp_path)
    assert parted.preparation is not None
    assert parted.preparation.prompt is not None
    runs: list[int] = []
    run = parted.preparation.prompt.run_bound

    def counted(binding: Any, graph: int = 1) -> None:
        runs.append(graph)
        run(binding, graph)

    monkeypatch.setattr(parted.preparation.prompt, "run_bound", counted)
    first, other = feeds(whole), feeds(whole, seed=1)
    for name in ("encoder_hidden_states", "text_embeds"):  # another in one of them alone
        agree(whole, parted, {**first, name: other[name]})
        agree(whole, parted, first)
    assert len(runs) == 3
    changing = {name: values.astype(whole.inputs[name].dtype) for name, values in feeds(whole, seed=2).items()}
    agree(whole, parted, changing)
    changing["text_embeds"][0] += 1  # in the caller's own memory
    agree(whole, parted, changing)
    assert len(runs) == 5
    many = [feeds(whole, seed=seed) for seed in range(10, 10 + KEPT)]
    for fed in many:
        agree(whole, parted, fed)
    assert len(runs) == 5 + KEPT
    for fed in many:
        agree(whole, parted, fed)
    assert len(runs) == 5 + KEPT
    agree(whole, parted, first)
    assert len(runs) == 6 + KEPT
