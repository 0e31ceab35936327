"""The layout of what is prepared for steps: addresses, words, rows of timesteps; and the conditioning of batches."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from sdort.errors import UsageError
from sdort.graph.signature import TensorSpec
from sdort.runtime.step.bound_unet import Batch, batch_slices, condition_width, repeated
from sdort.runtime.step.device_buffer import Buffer
from sdort.runtime.step.prepared_inputs import (
    StepRow,
    bind_prepared,
    bind_prompts,
    prepared_beside,
    prepared_rows,
    step_inputs,
    timed_rows,
)
from sdort.runtime.step.step_conditions import StepConditions

HALF, FLOAT, LONG = np.dtype(np.float16), np.dtype(np.float32), np.dtype(np.int64)


class Value:
    """An ``OrtValue`` at an address of its own."""

    def __init__(self, values: Any) -> None:
        self.values = values

    def data_ptr(self) -> int:
        return 10_000

    def update_inplace(self, content: Any) -> None:
        self.values[...] = content


SESSION: Any = SimpleNamespace(upload=Value, memory=("cuda", 3), guard=lambda call: call(),
                               download=lambda value: value.values)  # fmt: skip


def test_a_part_of_a_buffer_is_named_by_its_address() -> None:
    buffer = Buffer(SESSION, np.arange(24.0, dtype=np.float16).reshape(2, 3, 4))
    assert buffer.binding_arguments() == ("cuda", 3, HALF, [2, 3, 4], 10_000)
    assert buffer.binding_arguments(1, (1, 3, 4)) == ("cuda", 3, HALF, [1, 3, 4], 10_000 + 24)
    buffer.write(np.arange(24.0) * 2)
    np.testing.assert_array_equal(buffer.read(), np.arange(24.0).reshape(2, 3, 4) * 2)
    buffer.fill(np.arange(4.0))
    np.testing.assert_array_equal(buffer.read(), np.broadcast_to(np.arange(4.0), (2, 3, 4)))
    read = buffer.read()
    buffer.fill(0.0)
    assert read.any()  # a copy


ARRAYS: dict[str, tuple[tuple[int, ...], np.dtype[Any]]] = {
    "clock": ((), LONG),
    "shift": ((3, 70), HALF),
    "one": ((1, 64), FLOAT),
    "two": ((3, 2), FLOAT),
}
PLACES = {"clock": 0, "shift": 256, "one": 256 + 512, "two": 256 + 512 + 256}
"""Of 8, 420, 256 and 24 bytes, each at a multiple of 256."""


def test_arrays_of_a_row_begin_at_multiples_of_256_bytes() -> None:
    row = StepRow(SESSION, ARRAYS)
    assert row.words.shape == ((256 + 512 + 256 + 256) // 4,)
    assert row.words.dtype == np.int32
    for name, (shape, dtype) in ARRAYS.items():
        assert name in row
        assert row.array(name) == (shape, dtype)
        assert row.binding_arguments(name) == ("cuda", 3, dtype, list(shape), 10_000 + PLACES[name])
    assert "other" not in row
    assert row.binding_arguments("shift", slice(1, 3)) == ("cuda", 3, HALF, [2, 70], 10_000 + 256 + 140)
    assert row.binding_arguments("two", slice(2, 3)) == ("cuda", 3, FLOAT, [1, 2], 10_000 + 1024 + 16)


def test_words_are_the_bytes_of_every_step() -> None:
    row = StepRow(SESSION, ARRAYS)
    rng = np.random.default_rng(0)
    values = {
        "clock": np.array([999, 1 << 40]), "shift": rng.normal(size=(2, 1, 70)), "one": rng.normal(size=(2, 1, 64)),
        "two": rng.normal(size=(2, 3, 2)),
    }  # fmt: skip
    packed = row.packed(row.widened(values))
    assert (packed.shape, packed.dtype) == ((2, 320), np.dtype(np.int32))
    for step in range(2):
        content = packed[step].tobytes()
        for name, (shape, dtype) in ARRAYS.items():
            wanted = np.broadcast_to(values[name][step], shape).astype(dtype)
            found = np.frombuffer(content, dtype, int(np.prod(shape)), PLACES[name]).reshape(shape)
            np.testing.assert_array_equal(found, wanted)


def spec(name: str, *shape: Any, dtype: Any = FLOAT) -> TensorSpec:
    return TensorSpec(name, dtype, shape)


def session_with(**parts: Any) -> Any:
    usual = {"prompt": None, "time": None, "each_sample": {"shift"}, "taken": ["sample", "keys", "shift", "one"],
             "step": ["sample"], "beside": [], "rows": None}  # fmt: skip
    return SimpleNamespace(inputs={"sample": 0, "all": 0}, preparation=SimpleNamespace(**{**usual, **parts}),
                           download=lambda value: value.values)  # fmt: skip


TIME: Any = SimpleNamespace(outputs=[spec("shift", "rows", 8, dtype=HALF), spec("one", "rows", 2, 4)])


def test_rows_have_each_sample_or_one_for_all() -> None:
    made = session_with(time=TIME)
    assert prepared_rows(made, 6) == {"shift": ((6, 8), HALF), "one": ((1, 2, 4), FLOAT)}
    assert prepared_rows(session_with(), 6) == {}
    plain: Any = SimpleNamespace(preparation=None, inputs={"sample": 0, "all": 0})
    assert prepared_rows(plain, 6) == {}
    assert (list(step_inputs(made)), list(step_inputs(plain))) == (["sample"], ["sample", "all"])
    assert (bind_prompts(plain, [slice(0, 1)], lambda *_: ()), bind_prompts(made, [slice(0, 1)], lambda *_: ())) == (
        [],
        [],
    )
    assert (prepared_beside(plain, [], {}), timed_rows(plain, np.zeros(2), {})) == ({}, {})


@pytest.mark.parametrize("samples", [1, 3])
def test_each_timestep_is_made_with_what_every_sample_adds(samples: int) -> None:
    asked: list[Any] = []

    def rows(timesteps: Any, beside: Any) -> Any:
        asked.append((timesteps.tolist(), {name: values.shape for name, values in beside.items()}))
        added = beside["added"][:, 0] if beside else 0
        total = timesteps * 100.0 + added
        return {"shift": np.repeat(total[:, None], 8, axis=1), "one": np.tile(total[:, None, None], (1, 2, 4))}

    made = session_with(time=TIME, rows=rows)
    times = np.array([9.0, 5.0])
    added = np.arange(2.0 * samples * 4).reshape(2, samples, 4)
    found = timed_rows(made, times, {"added": added})
    assert asked == [(np.repeat(times, samples).tolist(), {"added": (2 * samples, 4)})]
    assert (found["shift"].shape, found["one"].shape) == ((2, samples, 8), (2, 1, 2, 4))
    np.testing.assert_array_equal(found["shift"][:, :, 0], times[:, None] * 100 + added[:, :, 0])
    np.testing.assert_array_equal(found["one"][:, 0, 0, 0], times * 100 + added[:, 0, 0])
    assert timed_rows(made, times, {})["shift"].shape == (2, 1, 8)


def test_what_is_beside_comes_from_the_prompts_part_or_the_conditioning() -> None:
    prompts: Any = [SimpleNamespace(values={"added": Value(np.full((2, 4), number)), "keys": 0}) for number in range(2)]
    made = session_with(beside=["added", "text_embeds"])
    found = prepared_beside(made, prompts, {"text_embeds": np.ones((4, 3)), "other": np.zeros(1)})
    assert sorted(found) == ["added", "text_embeds"]
    assert found["added"][:, 0].tolist() == [0, 0, 1, 1]
    assert found["text_embeds"].shape == (4, 3)


def test_a_step_is_bound_to_what_it_takes() -> None:
    bound: list[Any] = []
    binding: Any = SimpleNamespace(
        bind_ortvalue_input=lambda name, value: bound.append((name, value)),
        bind_input=lambda name, *of: bound.append((name, *of)),
    )
    row: Any = SimpleNamespace(binding_arguments=lambda name, samples: (name, samples))
    prompts: Any = [SimpleNamespace(values={"keys": "k", "added": "not of the step"})]
    part = slice(2, 4)
    bind_prepared(binding, session_with(time=TIME), row, part, prompts)
    assert bound == [("keys", "k"), ("shift", "shift", part), ("one", "one", None)]
    bound.clear()
    bind_prepared(binding, session_with(time=TIME), None, part, [])
    assert bound == []


# Batches


def test_a_batch_counts_copies_times_images() -> None:
    batch = Batch(3, 2, (4, 2, 6), 5)
    assert (batch.samples, batch.elements) == (6, 2 * 48)


@pytest.mark.parametrize(
    ("size", "total", "slices"),
    [("N", 6, [(0, 6)]), (2, 6, [(0, 2), (2, 4), (4, 6)]), (6, 6, [(0, 6)]), (1, 2, [(0, 1), (1, 2)])],
)
def test_a_static_batch_divides_the_samples(size: Any, total: int, slices: list[tuple[int, int]]) -> None:
    session: Any = SimpleNamespace(inputs={"sample": spec("sample", size, 4)}, component="unet")
    assert [(part.start, part.stop) for part in batch_slices(session, "sample", total)] == slices
    if isinstance(size, int) and size > 1:
        with pytest.raises(UsageError, match=f"exported for {size} samples at once, which does not divide {size + 1}"):
            batch_slices(session, "sample", size + 1)


def test_every_condition_is_for_all_images_in_a_row() -> None:
    one, each = np.full((1, 2), 5.0), np.array([[1.0, 1.0], [2.0, 2.0]])
    found = repeated([{"a": one, "b": each}, {"a": one + 1, "b": each * 10}], 2)
    assert found["a"][:, 0].tolist() == [5, 5, 6, 6]
    assert found["b"][:, 0].tolist() == [1, 2, 10, 20]


def test_a_batch_changes_where_any_copy_of_any_image_does() -> None:
    a, b, c = ({"x": np.full((1, 2), value)} for value in (1.0, 2.0, 3.0))
    conditions = StepConditions([[[a, b], [a, b], [a, c], [a, c]], [[b, b], [b, b], [b, b], [c, b]]])
    assert [conditions.changes(call) for call in range(4)] == [True, False, True, True]
    assert conditions.copies == 2
    first, second = conditions.at(3)
    assert (first["x"][:, 0].tolist(), second["x"][:, 0].tolist()) == ([1, 3], [3, 2])
    assert [StepConditions.fixed([a, b], 3).changes(call) for call in range(3)] == [True, False, False]


def test_the_width_of_an_embedded_scale() -> None:
    for inputs, width in (
        ({}, None),
        ({"timestep_cond": spec("t", "N", 32)}, 32),
        ({"timestep_cond": spec("t", "N", "D")}, 256),
    ):
        assert condition_width(SimpleNamespace(inputs=inputs)) == width
