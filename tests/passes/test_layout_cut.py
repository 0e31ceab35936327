"""The choice of a region against all others: none costs less, and of those that cost the same it is the largest."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import numpy as np
import onnx_graphsurgeon as gs
import pytest
from support.small_graphs import edit

from sdort.passes import layout_choice, nhwc
from sdort.passes.layout_choice import CONVOLUTION, DECOMPOSED_NORM, NORM, TRANSPOSE, VIEW, choose
from sdort.passes.layout_rules import TO_FIRST, TO_LAST, Layout, Turn
from sdort.rewrite.editor import Editor

STEPS = ("Neg ({a})", "Sigmoid ({a})", "Add ({a}, {b})", "Mul ({a}, {b})", "Concat <axis = 0> ({a}, {b})",
         "MaxPool <kernel_shape = [1, 1]> ({a})", "Transpose <perm = [0, 2, 3, 1]> ({a})",
         "Transpose <perm = [0, 3, 1, 2]> ({a})", "Exp ({a})")  # fmt: skip
GAINS = (-8, -1, 0, 0, 14, 24)
LAYOUTS = {"last": TO_LAST, "first": TO_FIRST}


def drawn(seed: int) -> tuple[Editor, set[str]]:
    """A graph of six steps over images that are as high and wide as they are deep, or over pixels."""
    rng = np.random.default_rng(seed)
    size = "2, 4, 1, 1" if seed % 4 == 3 else "2, 4, 4, 4"
    steps = STEPS[:5] if seed % 4 == 3 else STEPS
    names, lines = ["x", "z"], []
    for index in range(6):
        a, b = (names[-1 - int(min(rng.geometric(0.5) - 1, len(names) - 1))] for _ in range(2))
        step = steps[int(rng.integers(len(steps)))]
        if "Concat" in step and index < 4:  # later steps would not fit
            step = steps[0]
        lines.append(f"t{index} = {step.format(a=a, b=b)}")
        names.append(f"t{index}")
    read = {name for name in names for line in lines if f"({name}" in line or f", {name})" in line}
    outputs = [name for name in names[2:] if name not in read or rng.random() < 0.1]
    text = f"g (float[{size}] x, float[{size}] z) => ({', '.join(f'float[] {name}' for name in outputs)})"
    return edit(f"{text} {{ {'  '.join(lines)} }}"), set(outputs)


def cost(layout: Layout, plans: dict[int, Turn], turned: set[int]) -> int:
    """Passes in eighths: each image that is written in one layout and read in the other, and what is lost."""
    editor = layout.editor
    total = sum(turn.gain for number, turn in plans.items() if number not in turned and turn.gain > 0)
    total -= sum(turn.gain for number, turn in plans.items() if number in turned and turn.gain < 0)
    images = {}
    for node in (node for node in editor.graph.nodes if id(node) in plans):
        turn = plans[id(node)]
        images.update({id(t): t for t in (*turn.images, *(node.outputs if turn.turned else ()))})
    for image in images.values():
        written = _is_written_turned(layout, plans, turned, image)
        reads = {_is_read_turned(layout, plans, turned, node, image) for node in image.outputs}
        if editor.is_output(image):
            reads.add(False)
        shape = editor.shape(image) or ()
        pixel = shape[2:] == (1, 1) if layout.last else shape[1:3] == (1, 1)
        total += (VIEW if pixel else TRANSPOSE) if (not written) in reads else 0
    return total


def _is_written_turned(layout: Layout, plans: dict[int, Turn], turned: set[int], image: gs.Tensor) -> bool:
    if not image.inputs:
        return False
    (node,) = image.inputs
    back = TO_FIRST if layout.to == TO_LAST else TO_LAST
    if node.op == "Transpose" and tuple(node.attrs["perm"]) == back:
        return True
    return id(node) in turned and plans[id(node)].turned


def _is_read_turned(layout: Layout, plans: dict[int, Turn], turned: set[int], node: gs.Node, image: gs.Tensor) -> bool:
    if id(node) in plans and any(read is image for read in plans[id(node)].images):
        return id(node) in turned
    return node.op == "Transpose" and tuple(node.attrs["perm"]) == layout.to


@pytest.mark.parametrize("to", LAYOUTS)
@pytest.mark.parametrize("seed", range(12))
def test_no_other_choice_costs_less(seed: int, to: str) -> None:
    editor, _ = drawn(seed)
    layout, rng = Layout(editor, LAYOUTS[to]), np.random.default_rng(seed + 100)
    plans = {number: replace(turn, gain=int(rng.choice(GAINS))) for number, turn in nhwc.plans(layout, None).items()}
    costs = {
        frozenset(some): cost(layout, plans, set(some))
        for count in range(len(plans) + 1)
        for some in combinations(plans, count)
    }
    least = min(costs.values())
    found = choose(layout, plans)
    assert costs[frozenset(found)] == least
    assert found == set().union(*(some for some, paid in costs.items() if paid == least))


def test_savings_are_what_the_kernels_save() -> None:
    """Passes over an image in eighths: a convolution a little less than two, a norm three."""
    assert (VIEW, TRANSPOSE, CONVOLUTION, NORM, DECOMPOSED_NORM) == (1, 8, 14, 24, -8)


def test_every_image_is_looked_at_once() -> None:
    editor = edit(
        "g (float[2, 4, 4, 4] x) => (float[] y, float[] s) { a = Neg (x)  b = Add (a, x)  y = Exp (b)  s = Shape (b) }"
    )
    layout = Layout(editor, TO_LAST)
    plans = nhwc.plans(layout, None)
    assert [image.name for image in layout_choice._images(editor, plans)] == ["x", "a", "b", "y"]
    del plans[id(editor.graph.nodes[0])]
    assert [image.name for image in layout_choice._images(editor, plans)] == ["a", "x", "b", "y"]
