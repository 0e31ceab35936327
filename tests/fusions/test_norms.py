"""Norms in all spellings, drawn from a product, become one operator that computes what the formula says in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.small_graphs import Array, load, run

from sdort.lowering.steps import OptimizeOptions, optimize_model
from sdort.providers import load_target

SQUARES = ("square = Pow ({c}, two)", "square = Mul ({c}, {c})")
ROOTS = (
    "root = Sqrt (shifted)  normal = Div ({x}, root)",
    "root = Sqrt (shifted)  inverse = Reciprocal (root)  normal = Mul ({x}, inverse)",
    "root = Sqrt (shifted)  inverse = Div (one, root)  normal = Mul (inverse, {x})",
    "inverse = Pow (shifted, minus_half)  normal = Mul ({x}, inverse)",
    "root = Pow (shifted, half)  normal = Div ({x}, root)",
)
CENTERED = (
    ("c = Sub (w, mean)", "c", "c"),
    ("c = Sub (w, mean)  other = Sub (mean, w)", "other", "c"),
    ("c = Sub (w, mean)  other = Sub (w, mean)", "other", "c"),
)
NUMBERS = {"two": 2.0, "one": 1.0, "half": 0.5, "minus_half": -0.5, "epsilon": 1e-3}
ONE_OPERATOR = {"layer": "LayerNormalization", "rms": "SimplifiedLayerNormalization", "group": "InstanceNormalization"}
RANKS = {"layer": (2, 3, 4), "rms": (2, 3, 4), "group": (3, 4, 5)}
SHAPES = {2: (3, 8), 3: (2, 3, 8), 4: (2, 3, 5, 8), 5: (2, 3, 2, 5, 8)}


def draw(kind: str, seed: int) -> dict[str, Any]:
    """One spelling: each of its parts, the dtype of the graph, the opset and the rank."""
    rng = np.random.default_rng([*kind.encode(), seed])

    def one_of(options: Any) -> Any:
        return options[int(rng.integers(len(options)))]

    return {
        "kind": kind, "square": one_of(SQUARES), "root": one_of(ROOTS), "centered": one_of(CENTERED),
        "affine": one_of(("none", "scale", "both", "swapped")), "half": bool(rng.integers(2)), "seed": seed,
        "opset": one_of((13, 17, 18, 20)), "rank": one_of(RANKS[kind]), "shaped": bool(rng.integers(2)),
        "between": bool(rng.integers(2)),
    }  # fmt: skip


def spelled(form: dict[str, Any]) -> tuple[str, dict[str, Array], tuple[int, ...]]:
    """The graph's text, its constants and the shape of its input."""
    rng, rank, kind = np.random.default_rng(form["seed"]), form["rank"], form["kind"]
    shape = (2, 8, *SHAPES[rank][2:]) if kind == "group" else SHAPES[rank]
    dtype = np.float16 if form["half"] else np.float32
    mean = "ReduceMean <axes = [-1]> ({})" if form["opset"] < 18 else "ReduceMean ({}, last)"
    groups = (shape[0], 4, -1) if kind == "group" else ()
    lines = ["g = Reshape (x, groups)" if groups else "g = Identity (x)"]
    lines.append("w = Cast <to = 1> (g)" if form["half"] else "w = Identity (g)")
    squared = divided = "w"
    if kind != "rms":
        text, squared, divided = form["centered"]
        lines += [f"mean = {mean.format('w')}", text]
    lines.append(form["square"].format(c=squared))
    lines += [f"variance = {mean.format('square')}", "shifted = Add (variance, epsilon)"]
    lines.append(form["root"].format(x=divided))
    last = "normal"
    if groups:
        lines.append("back = Reshape (normal, sizes)")
        last = "back"
    if form["half"] and form["between"]:
        lines.append(f"narrow = Cast <to = 10> ({last})")
        last = "narrow"
    parameter = dtype if form["between"] else np.float32
    size = (shape[1], *[1] * (rank - 2)) if groups else (1,) * form["shaped"] + (shape[-1],)
    for name, op in (("gamma", "Mul"), ("beta", "Add"))[: {"none": 0, "scale": 1}.get(form["affine"], 2)]:
        order = (name, last) if form["affine"] == "swapped" else (last, name)
        lines.append(f"by_{name} = {op} ({', '.join(order)})")
        last = f"by_{name}"
    lines.append(f"y = Cast <to = {10 if form['half'] else 1}> ({last})")
    values: dict[str, Array] = {name: np.array(value, np.float32) for name, value in NUMBERS.items()}
    values |= {"last": np.array([-1]), "groups": np.array(groups or [1]), "sizes": np.array(shape)}
    values |= {name: rng.uniform(0.5, 1.5, size).astype(parameter) for name in ("gamma", "beta")}
    kind_name = "float16" if form["half"] else "float"
    dims = ", ".join(map(str, shape))
    body = "\n".join(lines)
    return f"graph ({kind_name}[{dims}] x) => ({kind_name}[{dims}] y) {{ {body} }}", values, shape


def formula(form: dict[str, Any], x: Array, values: dict[str, Array]) -> Array:
    wide = x.astype(np.float64)
    rows = wide.reshape(x.shape[0], 4, -1) if form["kind"] == "group" else wide
    centered = rows if form["kind"] == "rms" else rows - rows.mean(-1, keepdims=True)
    y: Array = (centered / np.sqrt((centered**2).mean(-1, keepdims=True) + 1e-3)).reshape(x.shape)
    y = y if form["affine"] == "none" else y * values["gamma"].astype(np.float64)
    return y if form["affine"] in ("none", "scale") else y + values["beta"].astype(np.float64)


@pytest.mark.parametrize("kind", ONE_OPERATOR)
@pytest.mark.parametrize("seed", range(16))
def test_a_norm_is_one_operator(kind: str, seed: int) -> None:
    form = draw(kind, seed)
    text, values, shape = spelled(form)
    model = load(text, {name: value for name, value in values.items() if name in text}, form["opset"])
    report = optimize_model(model, OptimizeOptions(load_target("cpu")))
    operators = {name.rpartition(".")[2]: number for name, number in report.operators.items()}
    assert operators.get(ONE_OPERATOR[kind]) == 1, form
    assert not {"ReduceMean", "Sqrt", "Reciprocal", "Pow"} & {*operators}, form
    assert report.misses == []
    x = np.random.default_rng(seed).standard_normal(shape).astype(np.float16 if form["half"] else np.float32)
    (found,) = run(model, {"x": x})
    expected = formula(form, x, values)
    tolerance = 4e-3 if form["half"] else 1e-5  # fp16 rounds the result, the parameters and perhaps the norm: 2^-11
    assert np.abs(found - expected).max() <= tolerance * np.abs(expected).max(), form


@pytest.mark.parametrize("inverse", ["Reciprocal (root)", "Div (one, root)"])
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("first", ["c", "gamma"])
@pytest.mark.parametrize("kind", ["layer", "rms"])
def test_the_factors_of_a_norm_stand_in_any_order(kind: str, first: str, turned: bool, inverse: str) -> None:
    """Of two factors of the inverse root the one that is normalized is divided, whichever comes first."""
    pairs = [("inverse", first), ("factor", {"c": "gamma", "gamma": "c"}[first])]
    made = [", ".join(pair[::-1] if turned else pair) for pair in pairs]
    centered = "mean = ReduceMean (x, last)  c = Sub (x, mean)" if kind == "layer" else "c = Identity (x)"
    text = f"""graph (float[2, 3, 8] x) => (float[2, 3, 8] y) {{
        {centered}
        square = Mul (c, c)
        variance = ReduceMean (square, last)
        shifted = Add (variance, epsilon)
        root = Sqrt (shifted)
        inverse = {inverse}
        factor = Mul ({made[0]})
        y = Mul ({made[1]})
    }}"""
    values: dict[str, Array] = {"last": np.array([-1]), "epsilon": np.array(1e-3, np.float32)}
    values |= {"gamma": np.linspace(0.5, 1.5, 8, dtype=np.float32), "one": np.array(1, np.float32)}
    model = load(text, {name: value for name, value in values.items() if name in text}, 18)
    report = optimize_model(model, OptimizeOptions(load_target("cpu")))
    assert {name.rpartition(".")[2] for name in report.operators} == {ONE_OPERATOR[kind]}
    x = np.random.default_rng(0).standard_normal((2, 3, 8)).astype(np.float32)
    (found,) = run(model, {"x": x})
    np.testing.assert_allclose(found, formula({"kind": kind, "affine": "scale"}, x, values), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "change",
    [
        ("y = Mul (normal, gamma)", "y = Mul (normal, scale)"),  # a modulation is no parameter
        ("Mul (x, x)", "Mul (x, u)"),
        ("[-1]", "[1]"),
        ("Add (mean, epsilon)", "Sub (mean, epsilon)"),
    ],
)
def test_what_is_no_such_norm_keeps_its_numbers(change: tuple[str, str]) -> None:
    text = """graph (float[2, 3, 8] x, float[2, 3, 8] u, float[2, 1, 8] scale) => (float[2, 3, 8] y) {
        square = Mul (x, x)  mean = ReduceMean <axes = [-1]> (square)  shifted = Add (mean, epsilon)
        root = Sqrt (shifted)  normal = Div (x, root)  y = Mul (normal, gamma)
    }""".replace(*change)
    values = {"gamma": np.linspace(0.5, 1.5, 8).astype(np.float32), "epsilon": np.array(1e-3, np.float32)}
    rng = np.random.default_rng(0)
    feeds = {"x": rng.standard_normal((2, 3, 8)), "u": rng.standard_normal((2, 3, 8)), "scale": np.ones((2, 1, 8))}
    feeds["u"] = np.abs(feeds["u"]) * np.sign(feeds["x"]) + feeds["x"]
    given = {name: value.astype(np.float32) for name, value in feeds.items()}
    used = {name: value for name, value in values.items() if name in text}
    (expected,) = run(load(text, used, 17), given)
    model = load(text, used, 17)
    optimize_model(model, OptimizeOptions(load_target("cpu")))
    (found,) = run(model, given)
    np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("computed", [False, True])
@pytest.mark.parametrize("end", ["normal = Div (x, root)  y = Mul (normal, gamma)",
                                 "scaled = Mul (x, gamma)  y = Div (scaled, root)"])  # fmt: skip
def test_a_factor_of_any_shape_keeps_its_numbers(end: str, computed: bool) -> None:
    """Of a root mean square norm: one for each element of the last axis is a parameter, others are not."""
    for dims in ((8,), (1, 8), (1, 1, 8), (1,), (), (3, 1), (3, 8), (2, 1, 1), (2, 3, 8)):
        given = f", float[{', '.join(map(str, dims))}] gamma" if computed and dims else ""
        text = f"""graph (float[2, 3, 8] x{given}) => (float[2, 3, 8] y) {{
            square = Mul (x, x)  mean = ReduceMean <axes = [-1]> (square)  shifted = Add (mean, epsilon)
            root = Sqrt (shifted)  {end}
        }}"""
        rng = np.random.default_rng(len(dims))
        values = {"epsilon": np.array(1e-3, np.float32), "gamma": rng.uniform(0.5, 1.5, dims).astype(np.float32)}
        feeds = {"x": rng.standard_normal((2, 3, 8)).astype(np.float32)} | ({"gamma": values["gamma"]} if given else {})
        own = {name: value for name, value in values.items() if name not in feeds}
        (expected,) = run(load(text, own, 17), feeds)
        model = load(text, own, 17)
        optimize_model(model, OptimizeOptions(load_target("cpu")))
        (found,) = run(model, feeds)
        assert np.abs(found - expected).max() <= 1e-5 * np.abs(expected).max(), dims
