"""Every family by every exporter: the counts its config demands, few transposes, the same graph, the same numbers."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
from support import exports, models
from support.exports import Case
from support.hardware import provider_of
from support.optimized_models import Exported, check_structure, described, optimized, samples_of
from support.parity import compare
from support.turns import ALL

from sdort.graph.model import Model
from sdort.lowering.steps import OptimizeOptions, optimize_model
from sdort.onnx_io.load import load_model
from sdort.onnx_io.save import save_model
from sdort.optimizer.expected import architecture
from sdort.providers import load_target
from sdort.workload.samples import Sample

EXPORTERS = ("ts14", "ts17", "dy18", "dy23")
GRID = [case for e in EXPORTERS for dynamic in (True, False) if exports.is_traced(case := Case("sd1", e, dynamic))]
"""All exporters, static and dynamic, for one model: of the others only the counts are compared, see below."""
OTHERS = [
    *(Case(family, "ts14") for family in ("vae_decoder", "clip", "sd2", "sdxl", "text2")),
    *(Case(family, "ts17", dynamic=False) for family in ("vae_decoder", "clip", "inpaint", "openclip")),
    *(Case(family, "dy18", dynamic=False) for family in ("vae_decoder", "text2")),
    *(Case(family, "dy23") for family in ("clip", "vae_encoder", "openclip")),
    Case("sd1", "dy18raw"),
    Case("vae_decoder", "dy23raw"),
    Case("sd1", "ts14", legacy=True),
    # The exporter folds the zeros that baddbmm adds to the scores into a tensor of the scores' size.
    *(Case(family, "ts17", dynamic=False, legacy=True) for family in ("vae_encoder", "text2")),
    Case("sd1", "ts14", odd=True),
    Case("sd1", "ts17", dynamic=False, odd=True),
    *(Case(family, "ts17") for family in ("sd1_wide", "sd1_odd_groups", "sd1_geglu")),
]
if ALL:
    OTHERS += [Case("sd2", "dy18", dynamic=False), Case("sdxl", "dy23", dynamic=False)]
    OTHERS.append(Case("sd1", "dy18", dynamic=False, odd=True))
    OTHERS += [
        Case(family, exporter, d) for family in ("vae_decoder", "clip") for exporter in EXPORTERS for d in (True, False)
    ]
    OTHERS += [Case(family, f"dy{opset}raw") for family in ("sd1", "vae_decoder", "clip") for opset in (18, 23)]
    OTHERS += [Case(family, "ts14", legacy=True) for family in ("vae_decoder", "clip")]
    OTHERS += [Case(family, "ts14") for family in ("inpaint", "vae_encoder", "openclip")]
    OTHERS += [Case(family, "ts17", dynamic=False) for family in ("sd2", "sdxl", "text2")]
    OTHERS += [Case(family, "dy18", dynamic=False) for family in ("vae_encoder", "openclip")]
    OTHERS.append(Case("text2", "dy23"))
    OTHERS.append(Case("sd1", "ts17", dynamic=False, legacy=True))


def check_parity(exported: Exported, case: Case, target: str, model: Model, folder: Path) -> None:
    out = folder / "model.onnx"
    save_model(model, out)
    samples = samples_of(case, model.component)
    provider = provider_of(target)
    parity = compare(exported(case), out, component=model.component, samples=samples, provider=provider)
    assert len({output.sample for output in parity.outputs}) == (2 if case.dynamic else 1)
    parity.check()


TARGETS = (("cuda", False), ("rocm", True))


def turns() -> Iterator[tuple[Case, str, bool]]:
    """Each case for one of the targets, so that every family meets both.

    ``MATRIX=all`` takes both for each: minutes of work, for people.
    """
    for _, group in groupby(sorted([*GRID, *OTHERS], key=lambda case: case.family), lambda case: case.family):
        cases = [*dict.fromkeys(group)]
        for index, case in enumerate(cases):
            whole = len(cases) == 1 or ALL
            # Of two neighbours, which differ in what is dynamic, the first takes the one and the other in turns.
            for target in TARGETS if whole else [TARGETS[sum(divmod(index, 2)) % 2]]:
                yield case, *target


@pytest.mark.parametrize(("case", "target", "fp16"), [*turns()], ids=str)
def test_gpu(exported: Exported, tmp_path: Path, case: Case, target: str, fp16: bool) -> None:
    model, report = optimized(exported, case, target, fp16)
    check_structure(case, target, model, report)
    check_parity(exported, case, target, model, tmp_path)


def other_turns() -> Iterator[tuple[str, str, bool]]:
    """One family of each kind for every other target; of the rest, each for one of them in turns."""
    targets = (("cpu", False), ("cpu", True), ("migraphx", True))
    for index, family in enumerate(sorted(set(models.FAMILIES) - {"sd1_wide"})):
        whole = ALL or family in ("sd1", "vae_decoder", "clip")
        for target in targets if whole else [targets[index % len(targets)]]:
            yield family, *target


@pytest.mark.parametrize(("family", "target", "fp16"), [*other_turns()])
def test_other_providers(exported: Exported, tmp_path: Path, family: str, target: str, fp16: bool) -> None:
    case = Case(family, "ts17")
    model, report = optimized(exported, case, target, fp16)
    check_structure(case, target, model, report)
    check_parity(exported, case, target, model, tmp_path)


@pytest.mark.parametrize("disable", [(), ("upsampling_phases",)], ids=["phases", "disabled"])
@pytest.mark.parametrize(
    ("family", "dynamic"),
    [("vae_decoder", True), ("sd1", True), *((family, False) for family in ("vae_decoder", "sd1", "sd2", "sdxl"))],
)
def test_upsamplers_on_the_cpu(
    exported: Exported, tmp_path: Path, family: str, dynamic: bool, disable: tuple[str, ...]
) -> None:
    """Four convolutions each, where the image is always made twice as large: a UNet's goes to odd sizes too."""
    case = Case(family, "ts17", dynamic)
    component, config = described(family)
    model = load_model(exported(case), component)
    report = optimize_model(model, OptimizeOptions(load_target("cpu"), disable=disable))
    upsamplers = len(config["block_out_channels"]) - 1
    phases = 0 if disable or (family != "vae_decoder" and dynamic) else upsamplers
    counts = {name: report.operators.get(name, 0) for name in ("Conv", "DepthToSpace", "Resize")}
    assert counts == {
        "Conv": architecture(config, component)["conv"] + 3 * phases,
        "DepthToSpace": phases,
        "Resize": upsamplers - phases,
    }
    check_parity(exported, case, "cpu", model, tmp_path)


def image_operators(exported: Exported, case: Case) -> dict[str, int]:
    return optimized(exported, case, "cuda")[1].operators


@pytest.mark.parametrize("dynamic", [True, False])
@pytest.mark.parametrize("family", ["sd1", "vae_decoder"])
def test_every_exporter_gives_the_same_graph(exported: Exported, family: str, dynamic: bool) -> None:
    """The same operators, each as often, down to the last reshape."""
    wanted = image_operators(exported, Case(family, "ts14", dynamic))
    assert wanted["com.microsoft.NhwcConv"] > 20
    others = [case for e in exports.EXPORTERS[1:] if exports.is_traced(case := Case(family, e, dynamic))]
    assert len({case.exporter[:2] for case in others}) == 2
    others.append(Case(family, "ts14", dynamic, legacy=True))
    assert {str(case): image_operators(exported, case) for case in others} == {str(case): wanted for case in others}


@pytest.mark.parametrize("dynamic", [True, False])
def test_every_exporter_gives_the_same_fusions_of_a_text_encoder(exported: Exported, dynamic: bool) -> None:
    """The exporters write the pooling by other operators; what fuses is the same."""

    def fused(case: Case) -> dict[str, int]:
        operators = optimized(exported, case, "cuda")[1].operators
        return {name: count for name, count in operators.items() if name.startswith("com.microsoft") or "Norm" in name}

    wanted = fused(Case("clip", "ts14", dynamic))
    assert len(wanted) == 4
    others = [Case("clip", exporter, dynamic) for exporter in exports.EXPORTERS[1:]]
    assert {str(case): fused(case) for case in others} == {str(case): wanted for case in others}


def test_fresh_norms_and_equal_weights_do_not_confuse(exported: Exported, tmp_path: Path) -> None:
    """Exporters merge initializers that are equal; a fused operator must not change another's copy."""
    import onnx
    from onnx import numpy_helper

    source = exported(Case("sd1", "ts17"))
    proto = onnx.load(source)
    shared: dict[Any, str] = {}
    renamed = {}
    for tensor in list(proto.graph.initializer):
        if len(tensor.dims) != 1:
            continue
        fill = 1.0 if "norm" in tensor.name and tensor.name.endswith("weight") else 0.0
        values = numpy_helper.to_array(tensor) * 0 + numpy_helper.to_array(tensor).dtype.type(fill)
        if values.dtype.kind != "f":
            continue
        tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))
        renamed[tensor.name] = shared.setdefault((fill, tuple(tensor.dims)), tensor.name)
    for node in proto.graph.node:
        for index, name in enumerate(node.input):
            node.input[index] = renamed.get(name, name)
    keep = set(renamed.values())
    kept = [t for t in proto.graph.initializer if t.name not in renamed or t.name in keep]
    assert len(kept) < len(proto.graph.initializer) - 50
    del proto.graph.initializer[:]
    proto.graph.initializer.extend(kept)
    merged = tmp_path / "merged.onnx"
    onnx.save(proto, merged)
    model = load_model(merged, "unet")
    report = optimize_model(model, OptimizeOptions(load_target("cuda")))
    assert report.misses == []
    save_model(model, tmp_path / "model.onnx")
    compare(merged, tmp_path / "model.onnx", component="unet", samples=[Sample(2, 8, 12, 7)]).check()
