"""The GroupNorm operators on ONNX Runtime's CPU provider with the library registered."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from support import native
from support.drawn import Generator, drawn, grid, name_of
from support.group_norm_cases import Array, Case, draw_case, draw_tensors, exact, tolerance
from support.group_norm_models import EXTENDED, PLAIN, SKIP, draw, make_model

from sdort.onnx_io import standard_operators as reference

PRECISIONS = pytest.mark.parametrize("dtype", [np.float16, np.float32], ids=["fp16", "fp32"])


def run(model: onnx.ModelProto, feeds: dict[str, Array], threads: int = 1, library: bool = True) -> list[Array]:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 4
    if library:
        options.register_custom_ops_library(str(native.library()))
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return list(session.run(None, feeds))


def check(y: Array, source: Array, feeds: dict[str, Array], groups: int, silu: bool, epsilon: float = 1e-5) -> None:
    """Y against float64 of S = ``source`` (N, H, W, C).

    A channel's values are added one after another in float32, those of up to 32768 elements' rows: n additions lose
    sqrt(n) / 3 half units of the sum, at random, four standard deviations of which are a little more than sqrt(n) of
    them. What is added, distances to the first row, is on average up to four standard deviations of a group.
    """
    images, channels = source.shape[0], source.shape[-1]
    flat = source.reshape(images, -1, channels)
    expected, error = exact(flat, feeds["gamma"], feeds["beta"], groups, silu, epsilon)
    normalized, _ = exact(flat, np.ones(channels), np.zeros(channels), groups, False, epsilon)
    rows = min(flat.shape[1], max(1, 32768 // channels))
    error = error + 2.0**-22 * rows**0.5 * np.abs(feeds["gamma"]) * (1 + np.abs(normalized))
    assert y.shape == source.shape
    assert (np.abs(y.reshape(flat.shape) - expected) <= tolerance(expected, error, y.dtype)).all()


SHAPES = [((2, 8, 8, 320), 32, 0.0), ((1, 7, 5, 60), 4, 1000.0), ((1, 33, 31, 128), 32, 3.0), ((3, 1, 1, 33), 3, 0.0)]


@PRECISIONS
@pytest.mark.parametrize("silu", [0, 1])
@pytest.mark.parametrize(("shape", "groups", "mean"), SHAPES)
def test_group_norm(shape: tuple[int, ...], groups: int, mean: float, silu: int, dtype: Any) -> None:
    """Channels last and first; (33, 31, 128) is four chunks of rows, the last one shorter."""
    feeds = draw(dtype, {"X": shape, "gamma": shape[-1:], "beta": shape[-1:]}, mean)
    [y] = run(make_model(PLAIN, feeds, ("Y",), groups=groups, activation=silu), feeds)
    check(y, feeds["X"], feeds, groups, bool(silu))
    planes = {**feeds, "X": np.ascontiguousarray(feeds["X"].transpose(0, 3, 1, 2))}
    [y] = run(make_model(PLAIN, planes, ("Y",), groups=groups, activation=silu, channels_last=0), planes)
    check(y.transpose(0, 2, 3, 1), feeds["X"], feeds, groups, bool(silu))


@PRECISIONS
@pytest.mark.parametrize("stored", [True, False])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("skip", ["full", "flat", "pixel"])
def test_skip_group_norm(skip: str, bias: bool, stored: bool, dtype: Any) -> None:
    shape = (2, 6, 5, 48)
    skip_shape = {"full": shape, "flat": (2, 48), "pixel": (2, 1, 1, 48)}[skip]
    feeds = draw(
        dtype,
        {"X": shape, "gamma": (48,), "beta": (48,), "skip": skip_shape, **({"bias": (48,)} if bias else {})},
    )
    outputs = ("Y", "S") if stored else ("Y",)
    results = run(make_model(SKIP, feeds, outputs, groups=8, activation=1, epsilon=1e-5), feeds)
    total = feeds["X"] + feeds["skip"].reshape((2, 1, 1, 48) if skip != "full" else shape).astype(np.float64)
    check_sum(total + (feeds["bias"] if bias else 0), results, feeds, 8)


def check_sum(total: Array, results: list[Array], feeds: dict[str, Array], groups: int) -> None:
    """S is the float64 sum rounded once, and Y normalizes it."""
    y = results[0]
    source = total.astype(y.dtype)
    if len(results) == 2:
        last = np.spacing(np.abs(source)).astype(np.float64) * (0.5 if y.dtype == np.float16 else 2)
        assert (np.abs(results[1] - total) <= last + 2.0**-22).all()
        source = results[1]
    check(y, source, feeds, groups, True)


@PRECISIONS
@pytest.mark.parametrize(
    "given", ["X2", "skip", "bias", "embedding", "X2 skip bias embedding", "X2 skip", "skip embedding", ""]
)
@pytest.mark.parametrize("stored", [True, False])
def test_extended_group_norm(given: str, stored: bool, dtype: Any) -> None:
    images, height, width, first, second = 2, 3, 7, 40, 24
    channels = first + (second if "X2" in given.split() else 0)
    whole, pixel = (images, height, width, channels), (images, channels)
    shapes = {"X2": (images, height, width, second), "skip": whole, "bias": (channels,), "embedding": pixel}
    wanted = {"X": (images, height, width, first), "gamma": (channels,), "beta": (channels,)}
    feeds = draw(dtype, {**wanted, **{name: shapes[name] for name in given.split()}})
    results = run(make_model(EXTENDED, feeds, ("Y", "S") if stored else ("Y",), groups=8, activation=1), feeds)
    total = np.concatenate([feeds["X"], *([feeds["X2"]] if "X2" in feeds else [])], -1).astype(np.float64)
    for name in ("skip", "bias"):
        total = total + feeds.get(name, np.zeros(channels))
    total = total + feeds.get("embedding", np.zeros(pixel))[:, None, None]
    check_sum(total, results, feeds, 8)


@dataclass(frozen=True)
class Drawn:
    seed: int
    operator: str
    dtype: Any
    case: Case
    channels_last: bool
    skip: str
    height: int

    def __str__(self) -> str:
        order = "" if self.channels_last else "-planes"
        return f"{self.operator}{order}-{name_of(self.dtype)}-{self.height}-{self.skip}-{self.case}"

    def feeds(self) -> dict[str, Array]:
        """X as (N, H, W, C), the parts that the operator takes."""
        case, tensors = self.case, draw_tensors(self.case, self.dtype, self.seed)
        pixels, own = (case.images, self.height, case.hw // self.height), case.channels - case.x2
        x = tensors.x.reshape(*pixels, case.channels)
        feeds = {"X": np.ascontiguousarray(x[..., :own]), "gamma": tensors.gamma, "beta": tensors.beta}
        if case.x2:
            feeds["X2"] = np.ascontiguousarray(x[..., own:])
        if tensors.skip is not None:
            feeds["skip"] = tensors.skip.reshape(x.shape)
        if self.skip != "full":  # the same for every pixel: SkipGroupNorm's skip, the extended form's embedding
            name = "skip" if self.operator == SKIP else "embedding"
            vector = grid(np.random.default_rng([self.seed, 2]), (case.images, case.channels), self.dtype, case.spread)
            feeds[name] = vector if self.skip == "flat" else vector[:, None, None]
        if tensors.bias is not None:
            feeds["bias"] = tensors.bias
        return feeds


def draw_operator(rng: Generator, seed: int) -> Drawn:
    """Any operator and form of its inputs. Where the attribute epsilon is left out, it is 1e-5."""
    operator = (PLAIN, SKIP, EXTENDED, PLAIN)[seed % 4]
    case = draw_case(rng, 120000, 640)
    skip = str(rng.choice(["full", "flat", "pixel"]))
    if operator == PLAIN:
        case, skip = replace(case, bias=False, sum=False, x2=0, skip=False), "full"
    elif operator == SKIP:
        case = replace(case, x2=0, skip=skip == "full")
    if seed // 4 % 4 == 3:
        case = replace(case, epsilon=1e-5, spread=2.0**-8, mean=0.0)
    height = max(n for n in range(1, 20) if case.hw % n == 0)
    case = replace(case, embedding=False)
    return Drawn(seed, operator, (np.float16, np.float32)[seed // 4 % 2], case, seed % 4 != 3, skip, height)


@drawn(160, draw_operator)
def test_any_problem(case: Drawn) -> None:
    problem, feeds = case.case, case.feeds()
    attributes: dict[str, Any] = {"groups": problem.groups, "activation": int(problem.silu)}
    if problem.epsilon != 1e-5:
        attributes["epsilon"] = problem.epsilon
    total = np.concatenate([feeds["X"], *([feeds["X2"]] if "X2" in feeds else [])], -1).astype(np.float64)
    for name in {"skip", "bias", "embedding"} & set(feeds):
        part = feeds[name].astype(np.float64)
        total = total + (part[:, None, None] if part.ndim == 2 else part)
    source = total.astype(case.dtype)
    if not case.channels_last:
        feeds["X"], attributes["channels_last"] = np.ascontiguousarray(feeds["X"].transpose(0, 3, 1, 2)), 0
    y, *stored = run(make_model(case.operator, feeds, ("Y", "S") if problem.sum else ("Y",), **attributes), feeds)
    assert all(np.array_equal(s, source) for s in stored)
    y = y if case.channels_last else y.transpose(0, 2, 3, 1)
    check(y, source, feeds, problem.groups, problem.silu, problem.epsilon)


@pytest.mark.parametrize("operator", [PLAIN, SKIP])
def test_same_as_the_reference(operator: str) -> None:
    """The function of standard operators that `sdort verify` uses where the library is not there."""
    shape = (2, 9, 4, 64)
    extra = {"skip": shape, "bias": (64,)} if operator == SKIP else {}
    feeds = draw(np.float32, {"X": shape, "gamma": (64,), "beta": (64,), **extra})
    model = make_model(operator, feeds, ("Y",), groups=16, activation=1)
    [ours] = run(model, feeds)
    assert reference.expand(model) == 1
    [theirs] = run(model, feeds, library=False)
    assert np.abs(ours - theirs).max() < 1e-5


def test_threads_do_not_change_the_bits() -> None:
    feeds = draw(np.float16, {"X": (2, 40, 40, 64), "gamma": (64,), "beta": (64,), "skip": (2, 40, 40, 64)})
    model = make_model(SKIP, feeds, ("Y", "S"), groups=16, activation=1)
    one, four, again = (run(model, feeds, threads) for threads in (1, 4, 4))
    for other in (four, again):
        assert all(np.array_equal(a.view(np.uint16), b.view(np.uint16)) for a, b in zip(one, other, strict=True))


@PRECISIONS
def test_equal_values_and_infinities(dtype: Any) -> None:
    """Equal values give beta exactly; an infinity makes NaN of its group and leaves the others their bits."""
    feeds = draw(dtype, {"X": (1, 9, 9, 32), "gamma": (32,), "beta": (32,)})
    clean = feeds["X"]
    dirty = clean.copy()
    dirty[0, 4, 4, 9] = np.inf
    for last in (1, 0):
        order = (0, 1, 2, 3) if last else (0, 3, 1, 2)
        back = (0, 1, 2, 3) if last else (0, 2, 3, 1)
        model = make_model(PLAIN, feeds, ("Y",), groups=4, channels_last=last)
        equal, expected, y = (
            run(model, {**feeds, "X": np.ascontiguousarray(x.transpose(order))})[0].transpose(back)
            for x in (np.full_like(clean, 1000.1), clean, dirty)
        )
        assert np.array_equal(equal, np.broadcast_to(feeds["beta"].astype(dtype), equal.shape))
        assert np.isnan(y[..., 8:16]).all()
        assert np.array_equal(np.delete(y, range(8, 16), -1), np.delete(expected, range(8, 16), -1))


@PRECISIONS
def test_every_float16_converts(dtype: Any) -> None:
    """S = X + 0: every float16 there is, subnormal ones and infinities too; and float32 sums round to nearest even."""
    halves = np.arange(65536, dtype=np.uint16).view(np.float16)
    values = halves[~np.isnan(halves)].astype(dtype)
    values = np.concatenate([values, np.zeros(-len(values) % 64, dtype)]).reshape(1, 1, -1, 64)
    feeds = {**draw(dtype, {"gamma": (64,), "beta": (64,), "bias": (64,), "skip": values.shape}), "X": values}
    for skip in (np.zeros_like(values), feeds["skip"]):
        feeds.update(skip=skip, bias=np.zeros(64, dtype))
        _, stored = run(make_model(SKIP, feeds, ("Y", "S"), groups=8), feeds)
        with np.errstate(over="ignore"):
            expected = (values.astype(np.float32) + skip.astype(np.float32)).astype(dtype)
        assert np.array_equal(stored, expected)


ERRORS = [
    (PLAIN, {"X": (2, 3, 3, 32), "gamma": (31,), "beta": (32,)}, {}, "gamma must have the shape (32), it has (31)"),
    (PLAIN, {"X": (2, 3, 3, 32), "gamma": (32,), "beta": (32, 1)}, {}, "beta must have the shape (32), it has (32, 1)"),
    (
        PLAIN,
        {"X": (2, 9, 32), "gamma": (32,), "beta": (32,)},
        {},
        "X must have four dimensions, it has the shape (2, 9, 32)",
    ),
    (
        PLAIN,
        {"X": (2, 3, 3, 30), "gamma": (30,), "beta": (30,)},
        {},
        "the number of channels must be a multiple of groups = 8, it is 30",
    ),
    (PLAIN, {"X": (1, 1, 1, 8), "gamma": (8,), "beta": (8,)}, {"groups": 0}, "groups must be positive, it is 0"),
    (
        PLAIN,
        {"X": (1, 1, 1, 8), "gamma": (8,), "beta": (8,)},
        {"activation": 2},
        "activation must be 0 (none) or 1 (SiLU), it is 2",
    ),
    (
        SKIP,
        {"X": (2, 3, 3, 32), "gamma": (32,), "beta": (32,), "skip": (2, 3, 3, 16)},
        {},
        "skip must have X's shape (2, 3, 3, 32), or (2, 32), or (2, 1, 1, 32), it has (2, 3, 3, 16)",
    ),
    (
        SKIP,
        {"X": (2, 3, 3, 32), "gamma": (32,), "beta": (32,), "skip": (2, 32), "bias": (2, 32)},
        {},
        "bias must have the shape (32), it has (2, 32)",
    ),
    (
        SKIP,
        {"X": (2, 3, 3, 32), "gamma": (32,), "beta": (32,), "skip": (2, 32)},
        {"channels_last": 0},
        "channels_last must be 1: there is no form for (N, C, H, W)",
    ),
    (
        EXTENDED,
        {"X": (2, 3, 3, 32), "X2": (2, 3, 4, 32), "gamma": (64,), "beta": (64,)},
        {},
        "X2 must have X's shape (2, 3, 3, 32) but for the channels, it has (2, 3, 4, 32)",
    ),
    (
        EXTENDED,
        {"X": (2, 3, 3, 32), "gamma": (32,), "beta": (32,), "skip": (2, 32)},
        {},
        "skip must have X's shape (2, 3, 3, 32), it has (2, 32)",
    ),
    (
        EXTENDED,
        {"X": (2, 3, 3, 32), "gamma": (32,), "beta": (32,), "embedding": (1, 32)},
        {},
        "embedding must have the shape (2, 32) or (2, 1, 1, 32), it has (1, 32)",
    ),
]


@pytest.mark.parametrize(("operator", "shapes", "attributes", "message"), ERRORS, ids=[row[3] for row in ERRORS])
def test_errors(operator: str, shapes: dict[str, tuple[int, ...]], attributes: dict[str, int], message: str) -> None:
    """With the operator, the node and the value."""
    feeds = draw(np.float32, shapes)
    model = make_model(operator, feeds, ("Y",), **{"groups": 8, **attributes})
    with pytest.raises(Exception, match="ONNXRuntimeError") as caught:
        run(model, feeds)
    assert f"{operator.split('.')[-1]} node 'norm': {message}" in str(caught.value)


def test_an_empty_batch_is_no_error() -> None:
    feeds = draw(np.float32, {"X": (0, 3, 3, 32), "gamma": (32,), "beta": (32,)})
    [y] = run(make_model(PLAIN, feeds, ("Y",), groups=8), feeds)
    assert y.shape == (0, 3, 3, 32)
