"""Adapters that a device adds to weights in its own memory, as products of two matrices.

The host's memory and the CPU provider take the place of the GPU's: the same graphs, the same blocks.
"""

from __future__ import annotations

import itertools
import time
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from support.weight_expressions import Chain, Values, drawn, leaf, replaceable, store

from sdort.adapters.weight_deltas import Delta, Factor, Form, Hadamard, LowRank, Product, Table
from sdort.errors import BadModelError, ParityError
from sdort.generation.denoising.adapted_weights import _merged, switched
from sdort.graph.signature import Array, Factors
from sdort.graph.weights import Cast, Combined, Concatenated, Reshaped, Transposed
from sdort.onnx_io.expression_factors import added_factors
from sdort.onnx_io.overridable import ReplaceableWeight
from sdort.providers import CPU
from sdort.providers.runtime_options import RuntimeOptions
from sdort.runtime import weight_sums
from sdort.runtime.placed_weights import PlacedWeights
from sdort.runtime.replaced_weights import ReplacedWeights
from sdort.runtime.session import Session
from sdort.runtime.weight_sums import WeightSums

Shape = tuple[int, ...]


def factors_for(random: np.random.Generator, shape: Shape, rank: int) -> Factors:
    columns = int(np.prod(shape[1:]))
    return (
        random.standard_normal((shape[0], rank)).astype(np.float32),
        random.standard_normal((rank, columns)).astype(np.float32),
    )


def heads(weight: Chain) -> Chain:
    """[outputs, inputs] of a projection as fused attention reads it: [inputs, heads, 1, size]."""
    rows, columns = weight.weight.shape
    turned = Reshaped(Transposed(weight.weight, (1, 0)), (columns, 2, 1, rows // 2))
    return Chain(turned, lambda values: weight.compute(values).T.reshape(columns, 2, 1, rows // 2))


def packed(weights: list[Chain]) -> Chain:
    """Queries, keys and values in one matrix, head by head."""
    parts = [heads(each) for each in weights]
    columns = weights[0].weight.shape[1]
    joined = Reshaped(Concatenated([part.weight for part in parts], 2), (columns, 3 * 8))
    return Chain(
        Cast(joined, np.float16),
        lambda values: np.concatenate([part.compute(values) for part in parts], 2).reshape(columns, -1),
    )


def nhwc(weight: Chain) -> Chain:
    """A convolution's filters as channels-last operators read them."""
    return Chain(Transposed(weight.weight, (0, 2, 3, 1)), lambda values: weight.compute(values).transpose(0, 2, 3, 1))


def as_matrix(weight: Chain) -> Chain:
    """A convolution of 1x1 as the matrix of a product."""
    rows, columns = weight.weight.shape[:2]
    flat = Reshaped(weight.weight, (rows, columns))
    return Chain(Transposed(flat, (1, 0)), lambda values: weight.compute(values).reshape(rows, columns).T)


def phases(weight: Chain) -> Chain:
    """An upsampler's filters: sums of rows and columns of a kernel, each phase a filter of its own."""
    matrix = np.array([[1, 0, 0], [0, 1, 1], [1, 1, 0], [0, 0, 1]], np.float64)
    rows, columns = weight.weight.shape[:2]
    sums = Combined(Combined(weight.weight, 2, matrix.tolist()), 3, matrix.tolist())
    split = Transposed(Reshaped(sums, (rows, columns, 2, 2, 2, 2)), (2, 4, 0, 3, 5, 1))

    def compute(values: Values) -> Array:
        filters: Array = np.einsum("oiyx,ay,bx->oiab", weight.compute(values), matrix, matrix)
        return filters.reshape(rows, columns, 2, 2, 2, 2).transpose(2, 4, 0, 3, 5, 1).reshape(4 * rows, 2, 2, columns)

    return Chain(Reshaped(split, (4 * rows, 2, 2, columns)), compute)


LAYOUTS: dict[str, tuple[Chain, dict[str, Shape]]] = {
    "plain": (leaf("p", (8, 6)), {"p": (8, 6)}),
    "packed": (packed([leaf(name, (8, 6)) for name in "qkv"]), dict.fromkeys("qkv", (8, 6))),
    "channels last": (nhwc(leaf("p", (4, 6, 3, 3))), {"p": (4, 6, 3, 3)}),
    "phases": (phases(leaf("p", (4, 6, 3, 3))), {"p": (4, 6, 3, 3)}),
    "1x1": (as_matrix(leaf("p", (4, 6, 1, 1))), {"p": (4, 6, 1, 1)}),
}


def sums_of(chain: Chain, shapes: dict[str, Shape], changes: dict[str, list[Factors]]) -> Array:
    """What the changes add, by the chain's own formula in float64."""
    zeros = {name: np.zeros(shape) for name, shape in shapes.items()}
    added = {
        name: sum((left.astype(np.float64) @ right for left, right in pairs), start=np.zeros(1)).reshape(shapes[name])
        for name, pairs in changes.items()
    }
    return np.asarray(chain.compute({**zeros, **added}))


@pytest.mark.parametrize(
    ("layout", "seed"), [*itertools.product(LAYOUTS, range(4)), *(("drawn", seed) for seed in range(60))]
)
def test_the_factors_of_a_weight_are_those_of_its_parameters(layout: str, seed: int) -> None:
    chain, shapes = LAYOUTS[layout] if layout in LAYOUTS else drawn(seed)
    random = np.random.default_rng(seed)
    changed = [name for name in shapes if random.random() < 0.7] or [*shapes][:1]
    changes = {
        name: [factors_for(random, shapes[name], int(random.integers(1, 3))) for _ in range(random.integers(1, 3))]
        for name in changed
    }
    found = added_factors(chain.weight, changes)
    if found is None:
        assert layout == "drawn"
        return
    left, right = found
    assert left.dtype == right.dtype == np.float32
    expected = sums_of(chain, shapes, changes)
    np.testing.assert_allclose(
        (left.astype(np.float64) @ right).reshape(expected.shape), expected, atol=1e-5 * max(1, np.abs(expected).max())
    )


def test_most_expressions_keep_their_factors() -> None:
    random, known = np.random.default_rng(0), 0
    for seed in range(60):
        chain, shapes = drawn(seed)
        changes = {name: [factors_for(random, shape, 1)] for name, shape in shapes.items()}
        known += added_factors(chain.weight, changes) is not None
    assert known >= 30


def test_factors_of_another_shape_are_refused() -> None:
    with pytest.raises(ValueError, match="another shape"):
        added_factors(leaf("p", (4, 6)).weight, {"p": [(np.ones((4, 1)), np.ones((1, 5)))]})


@dataclass
class Drawing:
    """Forms of differences, whose factors lie in files."""

    folder: Path
    random: np.random.Generator
    number: int = 0

    def factor(self, *shape: int) -> Factor:
        self.number += 1
        values = (self.random.standard_normal(shape) * 0.3).astype(np.float16)
        return Factor(f"f{self.number}", store(self.folder, f"f{self.number}", values))

    def form(self, kind: str, rows: int, columns: int) -> Form:
        match kind:
            case "LoRA":
                return LowRank(self.factor(rows, 2), self.factor(2, columns))
            case "Tucker":  # columns are those of a kernel of 3x3
                return LowRank(self.factor(rows, 2), self.factor(3, columns // 9), self.factor(2, 3, 3, 3))
            case "table":
                return Table(LowRank(self.factor(columns, 2), self.factor(2, rows)))
        return Hadamard(*(Product(self.factor(rows, 2), self.factor(2, columns)) for _ in range(2)))

    def delta(self, kind: str, shape: Shape) -> Delta:
        rows, columns = shape[0], int(np.prod(shape[1:]))
        if kind == "DoRA":
            return Delta(shape, self.form("LoRA", rows, columns), 0.5, magnitude=self.factor(rows))
        if kind == "part":  # of a fused matrix of two
            return Delta(shape, self.form("LoRA", 2 * rows, columns), 0.25, first_row=rows)
        return Delta(shape, self.form(kind, rows, columns), 0.5)


QUICK = ("LoRA", "Tucker", "table", "part")
CHAINS = {"packed": LAYOUTS["packed"], "channels last": LAYOUTS["channels last"], "plain": LAYOUTS["plain"]}


class Open:
    """A session whose weights lie in a block of memory."""

    def __init__(self, folder: Path, chains: dict[str, tuple[Chain, dict[str, Shape]]]) -> None:
        random = np.random.default_rng(0)
        self.weights: dict[str, ReplaceableWeight] = {}
        self.shapes: dict[str, dict[str, Shape]] = {}
        for name, (chain, shapes) in chains.items():
            renamed = {f"{name}.{key}": shape for key, shape in shapes.items()}
            values: Values = {key: random.uniform(-1, 1, shape).astype(np.float32) for key, shape in renamed.items()}
            own = {key.rpartition(".")[2]: array for key, array in values.items()}
            weight = replaceable(folder, name, chain, own)
            origin = _renamed(weight.origin, name)
            self.weights[name] = ReplaceableWeight(weight.stored, origin, renamed)
            self.shapes[name] = renamed
        stored = {name: weight.stored for name, weight in self.weights.items()}
        placed = PlacedWeights(stored, "", 0, tied=False)
        sums = WeightSums(CPU, RuntimeOptions("cpu"))
        self.replaced = ReplacedWeights(self.weights, placed=placed, sums=sums)
        self.session = cast(Session, SimpleNamespace(component="unet", weights=self.replaced))

    def now(self) -> Values:
        return {name: value.numpy().copy() for name, value in self.replaced.initializers.items()}

    def switch(self, changes: dict[str, Any]) -> None:
        changed = [name for name, weight in self.weights.items() if changes.keys() & weight.parameters]
        assert list(switched(self.session, changed, changes)) == changed


def _renamed(origin: Any, name: str) -> Any:
    """An origin whose parameters belong to a weight."""
    if isinstance(origin, list):
        return [_renamed(each, name) for each in origin]
    if not isinstance(origin, dict):
        return origin
    return {key: f"{name}.{value}" if key == "parameter" else _renamed(value, name) for key, value in origin.items()}


def kinds_for(shape: Shape, kinds: tuple[str, ...]) -> list[str]:
    return [kind for kind in kinds if kind != "Tucker" or len(shape) == 4]


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("piece", [7, 1 << 22])
def test_switches_in_any_order_give_what_the_host_computes(
    seed: int, piece: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the values of the file again without an adapter, to the bit."""
    monkeypatch.setattr(weight_sums, "PIECE", piece)
    opened = Open(tmp_path, CHAINS)
    plain = opened.now()
    random = np.random.default_rng(seed)
    drawing = Drawing(tmp_path, random)
    for _ in range(4):
        changes: dict[str, Any] = {}
        for shapes in opened.shapes.values():
            for parameter, shape in shapes.items():
                kinds = random.choice(kinds_for(shape, (*QUICK, "LoHa", "DoRA")), random.integers(0, 3))
                if len(kinds):
                    changes[parameter] = [
                        (drawing.delta(kind, shape), float(random.choice([1, 0.7, -0.4, 0]))) for kind in kinds
                    ]
        opened.switch(changes)
        for name, values in opened.now().items():
            expected = _merged("unet", name, opened.weights[name], changes)
            assert values.dtype == expected.dtype
            unit = 2.0**-10 if values.dtype == np.float16 else 1e-6  # a sum on the border of two is rounded either way
            np.testing.assert_allclose(values, expected, rtol=unit, atol=unit * 1e-2)
    opened.switch({})
    assert not opened.replaced.changed
    for name, values in opened.now().items():
        np.testing.assert_array_equal(values, plain[name])


def test_every_switch_is_another_version_of_the_weights(tmp_path: Path) -> None:
    """Taking adapters off too: what was prepared of the weights is made again."""
    opened, drawing = Open(tmp_path, CHAINS), Drawing(tmp_path, np.random.default_rng(0))
    shapes = [item for each in opened.shapes.values() for item in each.items()]
    versions = [opened.replaced.version]
    for count in (1, 0, len(shapes), 1, 0):
        opened.switch({parameter: [(drawing.delta("LoRA", shape), 1.0)] for parameter, shape in shapes[:count]})
        versions.append(opened.replaced.version)
    assert versions == sorted({*versions})
    opened.switch({})  # nothing is there to take off
    assert opened.replaced.version == versions[-1]


def test_a_product_is_added_to_what_the_file_has_however_long_that_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file is read in other threads, and what cannot be read is read again by the next switch."""
    opened, drawing = Open(tmp_path, CHAINS), Drawing(tmp_path, np.random.default_rng(0))
    plain = opened.now()
    shapes = [item for each in opened.shapes.values() for item in each.items()]
    changes = {parameter: [(drawing.delta("LoRA", shape), 1.0)] for parameter, shape in shapes}
    opened.switch(changes)
    adapted, load = opened.now(), PlacedWeights.load_one

    def slow(self: PlacedWeights, name: str) -> None:
        time.sleep(0.01)
        load(self, name)

    def broken(self: PlacedWeights, name: str) -> None:
        raise BadModelError(name)

    monkeypatch.setattr(PlacedWeights, "load_one", slow)
    opened.switch(changes)
    for name, values in opened.now().items():
        np.testing.assert_array_equal(values, adapted[name])
    monkeypatch.setattr(PlacedWeights, "load_one", broken)
    with pytest.raises(BadModelError):
        opened.switch({})
    assert opened.replaced.changed == {*opened.weights}
    monkeypatch.setattr(PlacedWeights, "load_one", slow)
    opened.switch({})
    for name, values in opened.now().items():
        np.testing.assert_array_equal(values, plain[name])


@pytest.mark.parametrize("kind", QUICK)
def test_products_never_become_whole_differences_on_the_host(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = Open(tmp_path, CHAINS)
    drawing = Drawing(tmp_path, np.random.default_rng(1))
    changes = {
        parameter: [(drawing.delta(kind, shape), 0.5)]
        for shapes in opened.shapes.values()
        for parameter, shape in shapes.items()
        if kinds_for(shape, (kind,))
    }
    monkeypatch.setattr(Delta, "rows", None)
    opened.switch(changes)
    assert opened.replaced.changed


def test_an_overflow_is_refused_unless_the_weight_had_one(tmp_path: Path) -> None:
    chains = {"packed": CHAINS["packed"], "plain": CHAINS["plain"]}
    opened = Open(tmp_path, chains)
    plain = opened.now()

    def changes(name: str, size: float) -> dict[str, Any]:
        left, right = np.full((8, 1), 1, np.float32), np.full((1, 6), size, np.float32)
        factors = (Factor(end, store(tmp_path, end, values)) for end, values in (("up", left), ("down", right)))
        return {parameter: [(Delta((8, 6), LowRank(*factors)), 1.0)] for parameter in [*opened.shapes[name]][:1]}

    opened.switch(changes("packed", 65500))
    assert np.isfinite(opened.now()["packed"]).all()
    opened.switch(changes("plain", 1e6))  # float32 holds it
    with pytest.raises(ParityError, match="'packed' has values that float16 cannot hold"):
        opened.switch(changes("packed", 65530))
    opened.switch({})
    for name, values in opened.now().items():
        np.testing.assert_array_equal(values, plain[name])
    stored = opened.weights["packed"].stored
    infinite = stored.load()
    infinite[0, 0] = np.inf
    infinite.tofile(stored.path)
    again = opened.replaced
    again.write("packed", infinite)
    opened.switch(changes("packed", 1.0))
    assert np.isinf(opened.now()["packed"][0, 0])


def test_weights_of_one_place_in_the_file_have_each_its_own(tmp_path: Path) -> None:
    """Else the sum of one would be added to the other."""
    values = np.random.default_rng(0).standard_normal((500, 130)).astype(np.float32)
    one = store(tmp_path, "w", values)
    placed = PlacedWeights({"a": one, "b": one}, "", 0, tied=False)
    addresses = {value.data_ptr() for value in placed.initializers.values()}
    assert len(addresses) == 2
    for value in placed.initializers.values():
        np.testing.assert_array_equal(value.numpy(), values)
