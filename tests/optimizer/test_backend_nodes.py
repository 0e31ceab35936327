"""The ONNX backend's node tests of the operators that diffusion models are made of, for every target.

Each of some 350 models is either computed as the specification asks for, or refused in words; what is refused is listed
in :data:`REFUSED`, by cause.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest
from support.backend_nodes import PLAIN, NodeTest, Refused, Variant, Wrong, is_image, judge, node_tests
from support.turns import ALL

from sdort.providers import PROVIDER_NAMES

MODULES = (
    "attention",
    "conv",
    "gelu",
    "groupnormalization",
    "instance_normalization",
    "layernormalization",
    "resize",
    "rmsnormalization",
    "rotaryembedding",
)
OTHERS = tuple(module for module in MODULES if module != "attention")
EVERYWHERE = frozenset(PROVIDER_NAMES)


class Refusal(NamedTuple):
    """Models that no target, or some targets, take."""

    concerns: Callable[[NodeTest], bool]
    sentence: str
    """What the message has to say."""
    targets: frozenset[str] = EVERYWHERE


REFUSED = (
    Refusal(lambda test: "bf16" in test.name, "computes in bfloat16, of which ONNX Runtime's providers have no"),
)
"""The first that concerns a model counts. Whatever is not listed has to be right."""


def expected_refusal(test: NodeTest, target: str) -> str | None:
    return next((r.sentence for r in REFUSED if target in r.targets and r.concerns(test)), None)


def in_turn(index: int, target: str, targets: Sequence[str]) -> bool:
    """Function bodies are more than half of all models: each for one of a variant's targets (:mod:`support.turns`).

    That a body is an operator is seen before a target is asked; with the operator itself every target is.
    """
    return (index // 2) % len(targets) == targets.index(target)


def failures(
    module: str, target: str, folder: Path, variant: Variant = PLAIN, targets: Sequence[str] = PROVIDER_NAMES
) -> Iterator[str]:
    """What is not as it should be, a line for each model."""
    for index, test in enumerate(node_tests(module)):
        if variant.convolved and not is_image(test.inputs[0]):
            continue
        if "_expanded" in test.name and not (ALL or in_turn(index, target, targets)):
            continue
        if "_expanded" in test.name and module == "attention" and variant.fp16 and not ALL:
            continue
        sentence = expected_refusal(test, target)
        try:
            judge(test, target, folder, variant)
        except Refused as error:
            if sentence is None or sentence not in str(error):
                yield f"{test}: refused, {error}"
        except Wrong as error:
            yield f"{test}: {error}"
        else:
            if sentence is not None:
                yield f"{test}: is right, and was to be refused: {sentence}"


VARIANTS = {
    "as it is": (Variant(), MODULES, PROVIDER_NAMES),
    # As weights are: the lowerings of norms and convolutions ask for constants.
    "weights in the model": (Variant(constants=True), OTHERS, PROVIDER_NAMES),
    "inside a channels-last region": (Variant(convolved=True), OTHERS, ("rocm", "cuda")),
    "of unknown sizes": (Variant(constants=True, dynamic=True), OTHERS, ("rocm", "cpu")),
    "in half precision": (Variant(constants=True, fp16=True), OTHERS, ("rocm",)),
    "attention in half precision": (Variant(fp16=True), ("attention",), ("cpu",)),
}
CASES = [
    pytest.param(variant, module, target, targets, id=f"{module}-{target}-{name}")
    for name, (variant, modules, targets) in VARIANTS.items()
    for module in modules
    for target in targets
]


@pytest.mark.parametrize(("variant", "module", "target", "targets"), CASES)
def test_every_model_is_right_or_refused(
    tmp_path: Path, variant: Variant, module: str, target: str, targets: Sequence[str]
) -> None:
    assert list(failures(module, target, tmp_path, variant, targets)) == []


def test_every_body_has_its_turn() -> None:
    for _, modules, targets in VARIANTS.values():
        for module in modules:
            bodies = [index for index, test in enumerate(node_tests(module)) if "_expanded" in test.name]
            assert all(sum(in_turn(index, target, targets) for target in targets) == 1 for index in bodies)


def test_the_suite_is_there() -> None:
    """Both a model of the operator and one of its function body, for each operator that has one."""
    for module in MODULES:
        names = {test.name for test in node_tests(module)}
        bodies = {name for name in names if "_expanded" in name}
        assert names - bodies
        assert bool(bodies) == (module not in ("conv", "instance_normalization", "resize"))
