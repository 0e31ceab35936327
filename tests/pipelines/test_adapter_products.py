"""Adapters of all features at once, drawn, held to their papers' formulas in float64.

The formulas are written here from the papers and from LyCORIS's ``rebuild`` functions, over whole tensors and by
``einsum`` and ``kron``; nothing of sdort's arithmetic is shared. LoRA https://arxiv.org/abs/2106.09685, LoHa
https://arxiv.org/abs/2108.06098, LoKr https://arxiv.org/abs/2309.14859, DoRA https://arxiv.org/abs/2402.09353.
"""

from __future__ import annotations

import itertools
import json
import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from sdort.exporter.baked_adapters import apply_adapters
from sdort.model import pieces
from sdort.model.signature import Array
from sdort.model.weights import Inline, Weight
from sdort.pipelines.adapters.adapter_choice import AdapterChoice
from sdort.pipelines.adapters.adapter_file import read_adapter

TOLERANCE = 1e-6
"""Of the largest number that occurs: fp32 rounds a product of at most 36 terms, the sum and DoRA's quotient. The
largest error of these cases was 2.1e-7."""

BLOCK = "mid_block.attentions.0.transformer_blocks.0"
LAYER = "text_model.encoder.layers.1.self_attn"


@dataclass(frozen=True)
class Place:
    """A module of an adapter's file, and the weights that it changes, which lie one below the other in it."""

    component: str
    stem: str
    modules: tuple[str, ...]
    shape: tuple[int, ...]
    """Of one weight."""

    @property
    def outputs(self) -> int:
        return self.shape[0] * len(self.modules)


PLACES = {
    "linear": Place("unet", "lora_unet_mid_block_attentions_0_transformer_blocks_0_ff_net_2", (f"{BLOCK}.ff.net.2",),
                    (8, 6)),
    "convolution": Place("unet", "lora_unet_mid_block_resnets_0_conv1", ("mid_block.resnets.0.conv1",), (8, 4, 3, 3)),
    "qkv": Place("unet", f"unet.{BLOCK}.attn1.to_qkv", tuple(f"{BLOCK}.attn1.to_{letter}" for letter in "qkv"), (8, 6)),
    "kv": Place("unet", f"unet.{BLOCK}.attn2.to_kv", tuple(f"{BLOCK}.attn2.to_{letter}" for letter in "kv"), (8, 10)),
    "in_proj": Place("text_encoder_2", "lora_te2_transformer_resblocks_1_attn_in_proj",
                     tuple(f"{LAYER}.{letter}_proj" for letter in "qkv"), (6, 6)),
}  # fmt: skip
Q_OF_ATTN2 = f"{BLOCK}.attn2.to_q"
"""Gives ``attn2`` its query, without which its keys and values have no fused name."""
FORMS = ("lora", "lora tucker", "loha", "loha tucker", "diff", *(f"lokr {a} {b}" for a, b in itertools.product(
    ("whole", "low"), ("whole", "low", "tucker"))))  # fmt: skip
DORA = ("none", "outputs", "inputs", "peft")
SCALINGS = (
    "none",
    "alpha",
    "integer alpha",
    "alpha over peft",
    "peft",
    "rank-stabilised",
    "pattern",
    "pattern of another",
)
BIASES = ("none", "diff_b", "up_bias")
DTYPES = (np.dtype(np.float32), np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16))


@dataclass
class Drawn:
    """An adapter of one module and what it makes of the weights with scale 1."""

    place: Place
    tensors: dict[str, Array] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    expected: dict[str, Array] = field(default_factory=dict)
    """Parameter -> its values in float64."""


class Draw:
    """Draws the tensors of an adapter and computes what they mean."""

    def __init__(self, seed: int, place: Place, dtype: np.dtype[Any]) -> None:
        self.generator = np.random.default_rng(seed)
        self.place, self.dtype = place, dtype
        self.adapter = Drawn(place)
        self.kernel = place.shape[2:]
        self.inputs = place.shape[1]

    def part(self, name: str, *shape: int) -> Array:
        """A tensor of the file; its values in float64 as the file's dtype holds them."""
        tensor = self.generator.uniform(-1, 1, shape).astype(self.dtype)
        self.adapter.tensors[f"{self.place.stem}.{name}"] = tensor
        values: Array = tensor.astype(np.float64)
        return values

    def difference(self, form: str) -> tuple[Array, int | None]:
        """A form's tensors: the difference before it is scaled, and the rank that alpha is divided by."""
        kind, *rest = form.split()
        made: tuple[Array, int | None] = getattr(self, f"_{kind}")(*rest)
        return made

    def _diff(self) -> tuple[Array, None]:
        return self.part("diff", self.place.outputs, self.inputs, *self.kernel), None

    def _lora(self, tucker: str = "") -> tuple[Array, int]:
        ones, rows, rank = [1] * len(self.kernel), 3, 2
        if not tucker:
            up = self.part("lora_up.weight", self.place.outputs, rank, *ones)
            down = self.part("lora_down.weight", rank, self.inputs, *self.kernel)
            return np.einsum("or,r...->o...", up.reshape(-1, rank), down), rank
        up = self.part("lora_up.weight", self.place.outputs, rows, *ones)
        core = self.part("lora_mid.weight", rows, rank, *self.kernel)
        down = self.part("lora_down.weight", rank, self.inputs, *ones)
        return self._of_core(core, up.reshape(-1, rows), down.reshape(rank, -1)), rank

    @staticmethod
    def _of_core(core: Array, left: Array, right: Array) -> Array:
        """``left`` [outputs, r], ``core`` [r, s, *kernel], ``right`` [s, inputs] -> [outputs, inputs, *kernel]."""
        product: Array = np.einsum("or,rs...,si->oi...", left, core, right)
        return product

    def _loha(self, tucker: str = "") -> tuple[Array, int]:
        rank, rows, halves = 3, 2, []
        for n in (1, 2):
            if tucker:
                core = self.part(f"hada_t{n}", rows, rank, *self.kernel)
                left = self.part(f"hada_w{n}_a", rows, self.place.outputs)
                right = self.part(f"hada_w{n}_b", rank, self.inputs)
                halves.append(self._of_core(core, left.T, right))
            else:
                left = self.part(f"hada_w{n}_a", self.place.outputs, rank)
                right = self.part(f"hada_w{n}_b", rank, math.prod((self.inputs, *self.kernel)))
                halves.append((left @ right).reshape(-1, self.inputs, *self.kernel))
        return halves[0] * halves[1], rank

    def _lokr(self, first: str, second: str) -> tuple[Array, int | None]:
        rank, outer, inner = 2, (2, 2), (self.place.outputs // 2, self.inputs // 2)
        if first == "whole":
            left = self.part("lokr_w1", *outer)
        else:
            left = self.part("lokr_w1_a", outer[0], rank) @ self.part("lokr_w1_b", rank, outer[1])
        if second == "whole":
            right = self.part("lokr_w2", *inner, *self.kernel)
        elif second == "low":
            columns = math.prod((inner[1], *self.kernel))
            right = self.part("lokr_w2_a", inner[0], rank) @ self.part("lokr_w2_b", rank, columns)
            right = right.reshape(*inner, *self.kernel)
        else:
            core = self.part("lokr_t2", rank, rank, *self.kernel)
            w2_a, w2_b = self.part("lokr_w2_a", rank, inner[0]), self.part("lokr_w2_b", rank, inner[1])
            right = self._of_core(core, w2_a.T, w2_b)
        left = left.reshape(*outer, *[1] * len(self.kernel))
        return np.kron(left, right), None if (first, second) == ("whole", "whole") else rank

    def factor(self, scaling: str, rank: int | None, form: str) -> float:
        """Writes what scales a difference, and returns it."""
        stem, component = self.place.stem, self.place.component
        if "alpha" in scaling:
            whole = scaling == "integer alpha"
            if scaling == "alpha over peft":
                self.adapter.settings = {f"{component}.lora_alpha": 3.0, f"{component}.r": 8}
            self.adapter.tensors[f"{stem}.alpha"] = np.array(5) if whole else np.array(0.75, self.dtype)
            return (5 if whole else 0.75) / rank if rank else 1.0
        if scaling == "none":
            return 1.0
        settings: dict[str, Any] = {"lora_alpha": 3.0, "r": 8}
        if scaling == "rank-stabilised":
            settings["use_rslora"] = True
        if scaling.startswith("pattern"):
            # peft looks a name's end up; file names with underscores have none.
            end = "conv2" if scaling == "pattern of another" else stem.rpartition(".")[2]
            other = {f"x.{end}": 7, end[1:]: 9}  # a name's end begins at a point
            settings |= {"alpha_pattern": {**other, end: 5.0}, "rank_pattern": {**other, end: 4}}
        self.adapter.settings = {f"{component}.{name}": value for name, value in settings.items()}
        if form == "diff":
            return 1.0
        own = scaling == "pattern"
        divisor = rank or (4 if own else 8)
        return (5.0 if own else 3.0) / (math.sqrt(divisor) if scaling == "rank-stabilised" else divisor)

    def decomposed(self, dora: str, changed: Array) -> Array:
        """DoRA: the changed weight with the norms that are drawn, of outputs or of inputs."""
        axis, ones = int(dora == "inputs"), [1] * len(self.kernel)
        count = changed.shape[axis]
        if dora == "peft":
            shape = (1, count, *ones) if self.kernel else (count,)
            magnitudes = self.part("lora_magnitude_vector", *shape)
        else:
            magnitudes = self.part("dora_scale", *((1, count, *ones) if axis else (count, 1, *ones)))
        lines = np.moveaxis(changed, axis, 0).reshape(count, -1)
        norms = np.sqrt((lines**2).sum(1))
        ratio = np.where(norms > 0, magnitudes.reshape(-1) / np.where(norms > 0, norms, 1), 0)
        decomposed: Array = changed * np.expand_dims(ratio, [other for other in range(changed.ndim) if other != axis])
        return decomposed


def draw(
    seed: int, base: dict[str, Array], place: Place, options: tuple[str, str, str, str], dtype: np.dtype[Any]
) -> Drawn:
    """An adapter with these options for the weights of a place."""
    form, dora, scaling, bias = options
    drawing = Draw(seed, place, dtype)
    weights = [base[f"{module}.weight"].astype(np.float64) for module in place.modules]
    whole = np.concatenate(weights)
    difference, rank = drawing.difference(form)
    factor = drawing.factor(scaling, rank, form)
    difference = difference.reshape(whole.shape) * factor
    changed = whole + difference
    if dora != "none":
        changed = drawing.decomposed(dora, changed)
    names = [f"{module}.weight" for module in place.modules]
    drawing.adapter.expected |= dict(zip(names, np.split(changed, len(weights)), strict=True))
    if bias != "none":
        name = "diff_b" if bias == "diff_b" else "lora_up.bias"
        values = drawing.part(name, place.outputs) * (factor if bias == "up_bias" else 1.0)
        for module, part in zip(place.modules, np.split(values, len(weights)), strict=True):
            drawing.adapter.expected[f"{module}.bias"] = base[f"{module}.bias"] + part
    return drawing.adapter


def possible(place: Place, form: str, dora: str, scaling: str, bias: str) -> bool:
    if "tucker" in form and not place.shape[2:]:
        return False  # a core is a kernel
    if dora == "inputs" and len(place.modules) > 1:
        return False  # refused: a fused matrix has other norms of inputs than its parts
    if bias == "up_bias" and not form.startswith("lora"):
        return False
    # Only names with points have an end that a pattern can name.
    return not (scaling == "pattern" and "." not in place.stem)


def cases() -> Iterator[tuple[Place, tuple[str, str, str, str], np.dtype[Any]]]:
    """Every form with every DoRA on every place; the other options in turns that meet all of these."""
    every = list(itertools.product(DTYPES, BIASES, SCALINGS))
    others = itertools.cycle(random.Random(0).sample(every, len(every)))
    for place, form, dora in itertools.product(PLACES.values(), FORMS, DORA):
        taken = 0
        while taken < 1:
            dtype, bias, scaling = next(others)
            if not possible(place, form, dora, "none", "none"):
                break
            if possible(place, form, dora, scaling, bias):
                taken += 1
                yield place, (form, dora, scaling, bias), dtype


@pytest.fixture(scope="module")
def weights() -> dict[str, dict[str, Array]]:
    """The base of all places, in fp32; a row of each is zero."""
    generator = np.random.default_rng(7)
    base: dict[str, dict[str, Array]] = {"unet": {f"{Q_OF_ATTN2}.weight": np.ones((8, 6), np.float32)}}
    for place in PLACES.values():
        for module in place.modules:
            weight = generator.uniform(-1, 1, place.shape).astype(np.float32)
            weight[2] = 0
            base.setdefault(place.component, {})[f"{module}.weight"] = weight
            base[place.component][f"{module}.bias"] = generator.uniform(-1, 1, place.shape[0]).astype(np.float32)
    return base


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two rows of the smallest weights: every difference is computed in several pieces."""
    monkeypatch.setattr(pieces, "PIECE", 20)


def write(path: Path, adapter: Drawn) -> Path:
    notes = {"lora_adapter_metadata": json.dumps(adapter.settings)} if adapter.settings else None
    save_file(adapter.tensors, path, notes)
    return path


def baked(weights: dict[str, dict[str, Array]], *choices: AdapterChoice) -> dict[str, dict[str, Weight]]:
    """The weights with adapters, as an export writes them."""
    tensors = {folder: {name: Inline(array) for name, array in part.items()} for folder, part in weights.items()}
    changed, applied = apply_adapters(choices, tensors)
    assert all(adapter.unmatched == () for adapter in applied)
    assert [adapter.scale for adapter in applied] == [choice.scale for choice in choices]
    return {folder: dict(part) for folder, part in changed.items()}


def assert_close(actual: Array, expected: Array, what: object) -> None:
    assert actual.shape == expected.shape
    assert actual.dtype == np.float32
    error = np.abs(actual - expected).max()
    assert error <= TOLERANCE * max(np.abs(expected).max(), 1), f"{what}: {error}"


def assert_whole_rows(weight: Weight) -> None:
    """Pieces of whole rows, which need not be the weight's own, are the weight; BLAS rounds other numbers of rows
    otherwise.
    """
    size = math.prod(weight.shape)
    row = size // 3 if size % 3 == 0 else size // 4
    made = [piece.copy() for piece in weight.pieces(row)]
    assert all(piece.size % row == 0 for piece in made)
    assert_close(np.concatenate(made).reshape(weight.shape), weight.load().astype(np.float64), "pieces")


@pytest.mark.usefixtures("small_pieces")
def test_each_product_of_features_is_the_formula_of_its_paper(
    tmp_path: Path, weights: dict[str, dict[str, Array]], capsys: pytest.CaptureFixture[str]
) -> None:
    met = set()
    for number, (place, options, dtype) in enumerate(cases()):
        scale = (1.0, -0.5, 1.75)[number % 3]
        base = weights[place.component]
        adapter = draw(number, base, place, options, dtype)
        file = write(tmp_path / "style.safetensors", adapter)
        made = baked(weights, AdapterChoice(file, scale))
        what = (number, place.stem, options, dtype, scale)
        for component, parts in made.items():
            for name, weight in parts.items():
                original = weights[component][name]
                if component != place.component or name not in adapter.expected:
                    np.testing.assert_array_equal(weight.load(), original)
                    continue
                expected = original + scale * (adapter.expected[name] - original)
                assert_close(weight.load(), expected, (name, what))
                assert_whole_rows(weight)
        met.add((options, dtype))
    capsys.readouterr()  # the lines of an export
    assert {options[2] for options, _ in met} == set(SCALINGS)
    assert len(met) > 100


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("dora", list(itertools.product(("none", "outputs", "inputs"), repeat=2)))
def test_adapters_add_up_and_each_starts_from_the_original(
    tmp_path: Path, weights: dict[str, dict[str, Array]], dora: tuple[str, str]
) -> None:
    """Of two decomposed ones too: none is computed from what another made of the weight, in either order."""
    place = PLACES["convolution"]
    name = f"{place.modules[0]}.weight"
    base = weights["unet"][name]
    drawn = [
        draw(seed, weights["unet"], place, (form, decomposed, "alpha", "diff_b"), np.dtype(np.float32))
        for seed, form, decomposed in ((1, "lora", dora[0]), (2, "lokr low tucker", dora[1]))
    ]
    choices = [
        AdapterChoice(write(tmp_path / f"{number}.safetensors", adapter), scale)
        for number, (adapter, scale) in enumerate(zip(drawn, (0.75, -1.5), strict=True))
    ]
    total = sum(choice.scale * (adapter.expected[name] - base) for choice, adapter in zip(choices, drawn, strict=True))
    for order in (choices, choices[::-1]):
        assert_close(baked(weights, *order)["unet"][name].load(), base + total, order)


@pytest.mark.parametrize("form", FORMS)
def test_rows_are_the_callers_who_may_change_them(
    tmp_path: Path, weights: dict[str, dict[str, Array]], form: str
) -> None:
    place = PLACES["convolution"]
    adapter = draw(5, weights["unet"], place, (form, "none", "none", "none"), np.dtype(np.float32))
    shapes = {"unet": {name: array.shape for name, array in weights["unet"].items()}}
    (delta,) = read_adapter(write(tmp_path / "a.safetensors", adapter), shapes).deltas["unet"].values()
    rows, base = delta.rows(), np.zeros((3, *place.shape[1:]), np.float32)
    first = rows(2, base)
    kept = first.copy()
    first *= 0
    np.testing.assert_array_equal(rows(2, base), kept)
    np.testing.assert_array_equal(kept, delta.array()[2:5])


def without(name: str) -> Callable[[dict[str, Array]], None]:
    def change(tensors: dict[str, Array]) -> None:
        del tensors[next(key for key in tensors if key.endswith(name))]

    return change


def of_shape(name: str, *shape: int) -> Callable[[dict[str, Array]], None]:
    def change(tensors: dict[str, Array]) -> None:
        key = next(key for key in tensors if key.endswith(name))
        tensors[key] = np.ones(shape, tensors[key].dtype)

    return change


def also(name: str, *shape: int) -> Callable[[dict[str, Array]], None]:
    def change(tensors: dict[str, Array]) -> None:
        stem = next(iter(tensors)).partition(".lora_")[0].partition(".diff")[0]
        tensors[f"{stem}.{name}"] = np.ones(shape, np.float32)

    return change


def of_dtype(name: str, dtype: np.dtype[Any]) -> Callable[[dict[str, Array]], None]:
    def change(tensors: dict[str, Array]) -> None:
        key = next(key for key in tensors if key.endswith(name))
        tensors[key] = tensors[key].astype(dtype)

    return change


BROKEN: list[tuple[str, str, Callable[[dict[str, Array]], None], str]] = [
    ("convolution", "lora", without("lora_down.weight"), "a part of the change is missing"),
    ("convolution", "lora", of_shape("lora_down.weight", 3, 4, 3, 3), "do not belong together"),
    ("convolution", "lora", of_shape("lora_up.weight", 8, 1, 1, 1), "do not belong together"),
    ("convolution", "lora", of_shape("lora_up.weight", 9, 2, 1, 1), "9 x 36 numbers"),
    ("convolution", "lora", of_shape("lora_down.weight", 2, 5, 3, 3), "8 x 45 numbers"),
    ("convolution", "lora tucker", of_shape("lora_mid.weight", 2, 3, 3, 3), "do not belong together"),
    ("convolution", "lora tucker", of_shape("lora_mid.weight", 3, 2, 3, 2), "8 x 24 numbers"),
    ("convolution", "lora tucker", of_shape("lora_mid.weight", 3, 3, 3, 3), "do not belong together"),
    ("convolution", "loha tucker", of_shape("hada_w1_b", 4, 4), "do not belong together"),
    ("convolution", "lokr low tucker", of_shape("lokr_w2_b", 3, 2), "do not belong together"),
    ("kv", "lora", also("dora_scale", 1, 10), "16 x 10 numbers"),
    ("linear", "loha", of_shape("hada_w2_b", 2, 6), "do not belong together"),
    ("linear", "loha", of_shape("hada_w2_b", 3, 5), "do not belong together"),
    ("linear", "loha", of_shape("hada_w1_a", 7, 3), "do not belong together"),
    ("linear", "loha", without("hada_w2_a"), "a part of the change is missing"),
    ("convolution", "loha tucker", of_shape("hada_t2", 3, 2, 3, 3), "do not belong together"),
    ("convolution", "loha tucker", without("hada_t1"), "a part of the change is missing"),
    ("linear", "lokr low low", of_shape("lokr_w1_b", 3, 2), "do not belong together"),
    ("linear", "lokr low low", of_shape("lokr_w2_a", 4, 3), "do not belong together"),
    ("linear", "lokr whole low", without("lokr_w1"), "a part of the change is missing"),
    ("linear", "lora", also("alpha", 2), "its alpha is no single number"),
    ("linear", "lora", also("diff", 8, 6), "two changes of the same weight"),
    ("linear", "diff", also("w_norm", 8, 6), "two changes of the same weight"),
    ("linear", "lora", also("dora_scale", 5, 1), "8 x 6 numbers"),
    ("linear", "lora", also("dora_scale", 1, 1), "8 x 6 numbers"),
    ("linear", "diff", of_dtype("diff", np.dtype(np.int32)), "its values are int32"),
    ("linear", "lora", of_dtype("lora_up.weight", np.dtype(np.int8)), "its values are int8"),
    ("linear", "lora", of_shape("lora_up.weight", 16), "is none of a up"),
]


@pytest.mark.parametrize(("where", "form", "change", "reason"), BROKEN)
def test_parts_that_do_not_belong_together_are_left_out_whole(
    tmp_path: Path,
    weights: dict[str, dict[str, Array]],
    where: str,
    form: str,
    change: Callable[[dict[str, Array]], None],
    reason: str,
) -> None:
    """With all their parts and the reason; a change beside them stays."""
    place = PLACES[where]
    broken = draw(3, weights[place.component], place, (form, "none", "none", "none"), np.dtype(np.float32)).tensors
    change(broken)
    good = draw(4, weights["unet"], PLACES["qkv"], ("lora", "none", "none", "none"), np.dtype(np.float32))
    shapes = {folder: {name: array.shape for name, array in part.items()} for folder, part in weights.items()}
    save_file({**broken, **good.tensors}, tmp_path / "a.safetensors")
    adapter = read_adapter(tmp_path / "a.safetensors", shapes)
    assert {component: set(deltas) for component, deltas in adapter.deltas.items()} == {"unet": set(good.expected)}
    assert {entry.key for entry in adapter.unmatched} == set(broken)
    assert all(reason in entry.reason for entry in adapter.unmatched), adapter.unmatched[0].reason
