"""The ONNX backend's node tests of the operators that diffusion models are made of, for every target.

Each of some 350 models is either computed as the specification asks for, or refused in words; what is refused is listed
in :data:`REFUSED`, by cause.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from backend_nodes import PLAIN, NodeTest, Refused, Variant, Wrong, is_image, judge, node_tests

from sdort.rewrite.pattern import OPSET
from sdort.targets import NAMES

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
ALL = frozenset(NAMES)


class Refusal(NamedTuple):
    """Models that no target, or some targets, take."""

    concerns: Callable[[NodeTest], bool]
    sentence: str
    """What the message has to say."""
    targets: frozenset[str] = ALL


def opset(test: NodeTest) -> int:
    return next(entry.version for entry in test.model.opset_import if not entry.domain)


REFUSED = (
    Refusal(lambda test: opset(test) > OPSET, "has changed since and sdort does not know how to convert it"),
    Refusal(lambda test: "bf16" in test.name, "of bfloat16 tensors, for which sdort knows no kernels"),
)
"""The first that concerns a model counts. Whatever is not listed has to be right."""


def expected_refusal(test: NodeTest, target: str) -> str | None:
    return next((r.sentence for r in REFUSED if target in r.targets and r.concerns(test)), None)


def failures(module: str, target: str, folder: Path, variant: Variant = PLAIN) -> Iterator[str]:
    """What is not as it should be, a line for each model."""
    for test in node_tests(module):
        if variant.convolved and not is_image(test.inputs[0]):
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


@pytest.mark.parametrize("target", NAMES)
@pytest.mark.parametrize("module", MODULES)
def test_every_model_is_right_or_refused(tmp_path: Path, module: str, target: str) -> None:
    assert list(failures(module, target, tmp_path)) == []


@pytest.mark.parametrize("target", NAMES)
@pytest.mark.parametrize("module", [module for module in MODULES if module != "attention"])
def test_with_weights_in_the_model(tmp_path: Path, module: str, target: str) -> None:
    """All inputs but the first are initializers, which the lowerings of norms and convolutions ask for."""
    assert list(failures(module, target, tmp_path, Variant(constants=True))) == []


@pytest.mark.parametrize("target", ["rocm", "cpu"])
@pytest.mark.parametrize("module", MODULES)
def test_in_half_precision(tmp_path: Path, module: str, target: str) -> None:
    """Converted to fp16, weights in the model."""
    assert list(failures(module, target, tmp_path, Variant(constants=module != "attention", fp16=True))) == []


@pytest.mark.parametrize("target", ["rocm", "cuda"])
@pytest.mark.parametrize("module", [module for module in MODULES if module not in ("attention", "gelu")])
def test_between_convolutions(tmp_path: Path, module: str, target: str) -> None:
    """Inside a channels-last region."""
    assert list(failures(module, target, tmp_path, Variant(convolved=True))) == []


def test_the_suite_is_there() -> None:
    """Both a model of the operator and one of its function body, for each operator that has one."""
    for module in MODULES:
        names = {test.name for test in node_tests(module)}
        bodies = {name for name in names if "_expanded" in name}
        assert names - bodies
        assert bool(bodies) == (module not in ("conv", "instance_normalization", "resize"))
