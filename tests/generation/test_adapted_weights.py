"""Weights of open sessions: made of any parameters, merged with any differences, switched in any order.

No session and no export: the functions themselves, over drawn expressions and a device memory that counts.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from safetensors.numpy import save_file
from support.weight_expressions import Chain, Values, drawn, leaf, replaceable, store

from sdort.adapters.adapter_choice import AdapterChoice
from sdort.adapters.adapter_file import read_adapter
from sdort.adapters.weight_deltas import Delta, Factor, Whole
from sdort.errors import BadModelError, ParityError
from sdort.generation.denoising import adapted_weights
from sdort.generation.denoising.adapted_weights import AdapterPlan, RunningAdapters, _merged, is_adaptable, switched
from sdort.graph.signature import Array
from sdort.graph.weights import Absent, Cast, Concatenated, Transposed
from sdort.onnx_io.expression_factors import parameter_values
from sdort.onnx_io.expression_json import decode_origin
from sdort.onnx_io.overridable import ReplaceableWeight
from sdort.runtime.replaced_weights import ReplacedWeights
from sdort.runtime.session import Session


def difference(folder: Path, name: str, values: Array) -> Delta:
    return Delta(values.shape, Whole(Factor(name, store(folder, name, values))))


@pytest.mark.parametrize("seed", range(60))
def test_a_weight_of_any_expression_gets_its_parameters_differences(seed: int, tmp_path: Path) -> None:
    chain, shapes = drawn(seed)
    random = np.random.default_rng(seed)
    values = {name: random.uniform(-1, 1, shape).astype(np.float32) for name, shape in shapes.items()}
    weight = replaceable(tmp_path, "w", chain, values)
    half = chain.weight.dtype == np.float16
    unit = 2.0**-9 if half else 1e-5
    found = dict(parameter_values(decode_origin(weight.origin), weight.stored.load()))
    assert found.keys() == values.keys()
    scale = max(1.0, float(np.abs(weight.stored.load()).max()))
    for name, array in found.items():
        assert array.dtype == np.float32
        np.testing.assert_allclose(array, values[name], atol=4 * unit * scale)
    deltas = {name: random.uniform(-1, 1, shape).astype(np.float32) for name, shape in shapes.items()}
    changes = {
        name: [(difference(tmp_path, f"{name}.{n}", deltas[name] * (n + 1)), s) for n, s in enumerate((0.5, -1.0))]
        for name in list(shapes)[-2:]
    }
    merged = _merged("unet", "w", weight, changes)
    expected = chain.compute(
        {name: values[name] + (deltas[name] * (0.5 - 2.0) if name in changes else 0) for name in shapes}
    )
    assert merged.dtype == weight.stored.dtype
    assert merged.shape == weight.stored.shape
    np.testing.assert_allclose(merged, expected, atol=4 * unit * max(1, np.abs(expected).max()))
    if "combined" not in str(weight.origin):  # sums are solved, all else is read back to the bit
        others = {"other": next(iter(changes.values()))}
        np.testing.assert_array_equal(_merged("unet", "w", weight, others), weight.stored.load())


def test_a_record_of_another_shape_or_dtype_is_refused(tmp_path: Path) -> None:
    chain = leaf("p", (2, 3))
    right = replaceable(tmp_path, "w", chain, {"p": np.ones((2, 3), np.float32)})
    for wrong in (np.ones((3, 2), np.float32), np.ones((2, 3), np.float16)):
        other = ReplaceableWeight(store(tmp_path, "x", wrong), right.origin, right.parameters)
        with pytest.raises(BadModelError, match="made of is wrong"):
            _merged("unet", "w", other, {})


def test_an_overflow_is_refused_unless_the_weight_had_one(tmp_path: Path) -> None:
    chain = Chain(Cast(Absent("p", (2, 2), np.float32), np.float16), lambda values: values["p"])
    large = {"p": [(difference(tmp_path, "d", np.full((2, 2), 65504, np.float32)), 1.0)]}
    fits = replaceable(tmp_path, "w", chain, {"p": np.ones((2, 2), np.float32)})
    assert np.array_equal(_merged("unet", "w", fits, large), np.full((2, 2), 65504, np.float16))  # 65505 rounds to it
    too_large = replaceable(tmp_path, "v", chain, {"p": np.full((2, 2), 64, np.float32)})
    with pytest.raises(ParityError, match="'v' has values that float16 cannot hold"):
        _merged("unet", "v", too_large, large)
    infinite = replaceable(tmp_path, "i", chain, {"p": np.array([[np.inf, 0], [0, 0]], np.float32)})
    assert np.isinf(_merged("unet", "i", infinite, large)[0, 0])


@dataclass
class Memory:
    """One weight in a device's memory."""

    array: Array

    def update_inplace(self, array: Array) -> None:
        assert array.flags.c_contiguous
        assert (array.shape, array.dtype) == (self.array.shape, self.array.dtype)
        self.array = array.copy()


@dataclass
class Fake:
    """A component's session: its weights, which are those of a file, and what they are without an adapter."""

    component: str
    weights: ReplacedWeights
    own: Values = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.own = {name: weight.stored.load() for name, weight in self.weights.replaceable.items()}

    def now(self) -> Values:
        return {name: value.array for name, value in self.weights.initializers.items()}

    @property
    def session(self) -> Session:
        return cast(Session, SimpleNamespace(component=self.component, weights=self.weights, others=()))


Q, K, FC = (f"down_blocks.0.attentions.0.transformer_blocks.0.{end}.weight" for end in
            ("attn1.to_q", "attn1.to_k", "ff.net.2"))  # fmt: skip
WORD = "encoder.layers.0.mlp.fc1.weight"


@pytest.fixture
def sessions(tmp_path: Path) -> dict[str, Fake]:
    """A UNet whose queries and keys are packed, and two text encoders, whose parameters have the same names."""
    random = np.random.default_rng(0)
    values = {name: random.uniform(-1, 1, (4, 6)).astype(np.float32) for name in (Q, K, FC, WORD)}
    q, k = leaf(Q, (4, 6)), leaf(K, (4, 6))
    packed = Chain(
        Concatenated([Transposed(q.weight, (1, 0)), Transposed(k.weight, (1, 0))], 1),
        lambda v: np.concatenate([v[Q].T, v[K].T], 1),
    )
    unet = {
        "packed": replaceable(tmp_path, "packed", packed, {Q: values[Q], K: values[K]}),
        "fc": replaceable(tmp_path, "fc", leaf(FC, (4, 6)), {FC: values[FC]}),
    }
    texts = [
        {name: replaceable(tmp_path, name, leaf(WORD, (4, 6)), {WORD: values[WORD]})} for name in ("word", "other")
    ]
    return {
        name: Fake(name, ReplacedWeights(weights, Memory))
        for name, weights in (("unet", unet), ("text_encoder", texts[0]), ("text_encoder_2", texts[1]))
    }


def adapter(path: Path, sessions: dict[str, Fake], *parameters: str, size: float = 1.0) -> AdapterChoice:
    """An adapter that adds ``size`` to parameters."""
    stems = {name: ("lora_te1_text_model_" if name == WORD else "lora_unet_") + name.removesuffix(".weight")
             .replace(".", "_") for name in parameters}  # fmt: skip
    save_file({f"{stem}.diff": np.full((4, 6), size, np.float32) for stem in stems.values()}, path)
    return AdapterChoice(path)


def plan(sessions: dict[str, Fake], *choices: AdapterChoice) -> AdapterPlan:
    weights = {name: fake.weights.replaceable for name, fake in sessions.items()}
    shapes = {
        name: {key: shape for weight in part.values() for key, shape in weight.parameters.items()}
        for name, part in weights.items()
    }
    return AdapterPlan(choices, tuple(read_adapter(choice.path, shapes) for choice in choices), weights)


def scaled(choice: AdapterChoice, scale: float) -> AdapterChoice:
    return AdapterChoice(choice.path, scale)


def added(sessions: dict[str, Fake]) -> dict[str, Any]:
    """Weight -> what was added to all of it, or to its halves."""
    sums: dict[str, Any] = {}
    for fake in sessions.values():
        for name, array in fake.now().items():
            columns = np.split(array - fake.own[name], 2, 1) if name == "packed" else [array - fake.own[name]]
            constant = [round(float(part.mean()), 4) for part in columns]
            assert all(np.ptp(part) < 1e-5 for part in columns)
            sums[name] = tuple(constant) if name == "packed" else constant[0]
    assert sums.pop("other") == 0  # nothing here is for the second text encoder
    return sums


def test_switching_leaves_nothing_of_the_adapter_before(tmp_path: Path, sessions: dict[str, Fake]) -> None:
    a = adapter(tmp_path / "a.safetensors", sessions, Q, WORD)
    b = adapter(tmp_path / "b.safetensors", sessions, Q, K, FC, size=2.0)
    running = RunningAdapters({name: fake.session for name, fake in sessions.items()})
    states: list[tuple[tuple[AdapterChoice, ...], dict[str, Any]]] = [
        ((), {"packed": (0, 0), "fc": 0, "word": 0}),
        ((a,), {"packed": (1, 0), "fc": 0, "word": 1}),
        ((b,), {"packed": (2, 2), "fc": 2, "word": 0}),
        ((scaled(a, 0.5), b), {"packed": (2.5, 2), "fc": 2, "word": 0.5}),
        ((a, scaled(b, -0.5)), {"packed": (0, -1), "fc": -1, "word": 1}),
        ((scaled(a, 0.0), b), {"packed": (2, 2), "fc": 2, "word": 0}),
        ((a, a), {"packed": (2, 0), "fc": 0, "word": 2}),
        ((scaled(b, 0.0),), {"packed": (0, 0), "fc": 0, "word": 0}),
        ((), {"packed": (0, 0), "fc": 0, "word": 0}),
    ]
    for choices, expected in states:
        running.use(plan(sessions, *choices))
        assert added(sessions) == expected
        assert [(record.name, record.scale) for record in running.record] == [
            (choice.path.name, choice.scale) for choice in choices
        ]
        changed = {name for name, value in expected.items() if value not in (0, (0, 0))}
        assert set().union(*(fake.weights.changed for fake in sessions.values())) == changed
    for fake in sessions.values():
        for name, array in fake.now().items():
            np.testing.assert_array_equal(array, fake.own[name])


def test_the_same_adapters_are_not_merged_again_and_others_are(tmp_path: Path, sessions: dict[str, Fake]) -> None:
    """The same is what has the same bytes and scale, wherever it lies."""
    a = adapter(tmp_path / "a.safetensors", sessions, Q)
    running = RunningAdapters({name: fake.session for name, fake in sessions.items()})
    versions = [sessions["unet"].weights.version]

    def use(*choices: AdapterChoice) -> bool:
        running.use(plan(sessions, *choices))
        versions.append(sessions["unet"].weights.version)
        return versions[-1] > versions[-2]

    assert not use()
    assert use(a)
    assert not use(a)
    assert use(scaled(a, 0.9))
    adapter(a.path, sessions, Q, size=3.0)  # another file of the name
    assert use(scaled(a, 0.9))
    assert added(sessions)["packed"] == (2.7, 0)
    assert not use(scaled(a, 0.9))
    content = a.path.read_bytes()
    tensors = content[8 + int.from_bytes(content[:8], "little") :]
    (record,) = running.record
    assert (record.sha256, record.tensors_sha256) == tuple(hashlib.sha256(x).hexdigest() for x in (content, tensors))
    assert use()


def test_after_a_failure_the_next_adapter_is_whole(
    tmp_path: Path, sessions: dict[str, Fake], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one before it too, some of whose weights were written over."""
    monkeypatch.setattr(adapted_weights, "WORKERS", 1)
    a = adapter(tmp_path / "a.safetensors", sessions, Q, FC)
    bad = adapter(tmp_path / "bad.safetensors", sessions, Q, K, FC, size=2.0)
    running = RunningAdapters({name: fake.session for name, fake in sessions.items()})
    running.use(plan(sessions, a))
    merge = adapted_weights._merged

    def failing(component: str, name: str, *rest: Any) -> Array:
        if name == "fc":
            raise ParityError("a test")
        return merge(component, name, *rest)

    monkeypatch.setattr(adapted_weights, "_merged", failing)
    with pytest.raises(ParityError):
        running.use(plan(sessions, bad))
    monkeypatch.setattr(adapted_weights, "_merged", merge)
    assert running.record == []
    running.use(plan(sessions, a))
    assert added(sessions) == {"packed": (1, 0), "fc": 1, "word": 0}
    assert [record.name for record in running.record] == ["a.safetensors"]
    running.use(plan(sessions))
    assert added(sessions) == {"packed": (0, 0), "fc": 0, "word": 0}


@pytest.mark.parametrize("in_flight", [0, 2**30])
def test_weights_come_in_their_order_however_many_are_merged_at_a_time(
    in_flight: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adapted_weights, "IN_FLIGHT", in_flight)
    names = [f"w{number}" for number in range(40)]
    weights = {
        name: replaceable(tmp_path, name, leaf(name, (2, 2)), {name: np.full((2, 2), number, np.float32)})
        for number, name in enumerate(names)
    }
    fake = Fake("unet", ReplacedWeights(weights, Memory))
    chosen = names[::-3]
    changes = {name: [(difference(tmp_path, f"{name}.d", np.ones((2, 2), np.float32)), 0.5)] for name in chosen}
    assert list(switched(fake.session, chosen, changes)) == chosen
    for number, name in enumerate(names):
        assert (fake.now()[name] == number + (0.5 if name in chosen else 0)).all()
    assert fake.weights.changed == set(chosen)


def test_weights_are_written_in_the_memorys_order(sessions: dict[str, Fake]) -> None:
    weights = sessions["unet"].weights
    values = np.arange(24, dtype=np.float32).reshape(6, 4).T
    weights.write("fc", values)
    np.testing.assert_array_equal(sessions["unet"].now()["fc"], values)
    assert weights.nbytes == 4 * (6 * 8 + 4 * 6)


@pytest.mark.parametrize("as_inputs", [False, True])
def test_values_are_initializers_or_inputs(as_inputs: bool, sessions: dict[str, Fake]) -> None:
    known = sessions["unet"].weights.replaceable
    weights = ReplacedWeights(known, Memory, as_inputs=as_inputs)
    assert weights.as_inputs == as_inputs
    assert set(weights.inputs if as_inputs else weights.initializers) == set(known)
    assert not (weights.initializers if as_inputs else weights.inputs)
    assert not ReplacedWeights({}, Memory, as_inputs=as_inputs).as_inputs
    assert not ReplacedWeights(known).initializers  # nothing was uploaded


def test_adapters_change_what_has_text_or_noise() -> None:
    names = ("unet", "text_encoder", "text_encoder_2", "vae_encoder", "vae_decoder", "image_encoder")
    assert [name for name in names if is_adaptable(name)] == ["unet", "text_encoder", "text_encoder_2"]
