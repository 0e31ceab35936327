"""Components whose inputs' sizes are declared as ``torch.export.Dim`` and its multiples spell them, on every target."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import onnx
import pytest
from support import models
from support.expected_fusions import without_phases
from support.exports import Case, quiet
from support.optimized_models import check_structure
from support.parity import compare

from sdort.lowering.steps import OptimizeOptions, optimize_model
from sdort.onnx_io.load import load_model
from sdort.onnx_io.save import save_model
from sdort.providers import load_target
from sdort.workload.samples import Sample

Exported = Callable[[Case], Path]
TARGETS = ("rocm", "cuda", "cpu", "migraphx")
LATENT = [{0: "b", 2: "4*h", 3: "8*w"}, {0: "b", 2: "2*(h + 1)", 3: "w + 3"}]
"""The dims of a latent: multiples of what the UNet's downsampling divides, and others."""


def respelled(source: Path, out: Path, names: Mapping[str, Mapping[int, str]]) -> Path:
    """The model with other names of its inputs' sizes: all that a Dim changes in what torch writes."""
    proto = onnx.load(source)
    for info in proto.graph.input:
        for axis, name in names.get(info.name, {}).items():
            dim = info.type.tensor_type.shape.dim[axis]
            assert dim.dim_param
            dim.dim_param = name
    onnx.save(proto, out)
    return out


def check(case: Case, source: Path, target: str, folder: Path, samples: list[Sample]) -> dict[str, int]:
    model = load_model(source, models.build(case.family).component)
    report = optimize_model(model, OptimizeOptions(load_target(target)))
    check_structure(case, target, model, report)
    save_model(model, folder / "model.onnx")
    compare(source, folder / "model.onnx", component=model.component, samples=samples).check()
    return report.operators


@pytest.mark.parametrize(
    ("target", "latent"),
    [*((target, LATENT[0]) for target in TARGETS), ("rocm", LATENT[1]), ("cpu", LATENT[1])],
    ids=str,
)
def test_unet(exported: Exported, tmp_path: Path, target: str, latent: dict[int, str]) -> None:
    case = Case("sd1", "dy18")
    names = {"sample": latent, "encoder_hidden_states": {0: "b", 1: "2*tokens - 1"}}
    source = respelled(exported(case), tmp_path / "source.onnx", names)
    found = check(case, source, target, tmp_path, [Sample(1, 16, 24, 7), Sample(3, 8, 16, 5)])
    plain = optimize_model(load_model(exported(case), "unet"), OptimizeOptions(load_target(target))).operators
    assert without_phases(found) == without_phases(plain)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("family", ["vae_decoder", "clip"])
def test_other_components(exported: Exported, tmp_path: Path, family: str, target: str) -> None:
    case = Case(family, {"vae_decoder": "dy23", "clip": "dy18"}[family])
    names = {"latent_sample": LATENT[0], "input_ids": {0: "2*b", 1: "n//2"}}
    samples = [Sample(2, 8, 16, 77), Sample(4, 12, 8, 13)]
    check(case, respelled(exported(case), tmp_path / "source.onnx", names), target, tmp_path, samples)


def test_torch_writes_dims_so(tmp_path: Path) -> None:
    """What torch makes of a Dim, and of a sequence that it divides by the batch."""
    import torch
    from torch.export import Dim

    class Sequence(torch.nn.Module):  # type: ignore[misc]
        def forward(self, x: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
            batch, channels, height, width = x.shape
            length = (batch * height * width) // batch
            rows = x.permute(0, 2, 3, 1).reshape(batch, length, channels)
            return rows.reshape(batch, height, width, channels) + like.reshape(batch, height, width, 1)

    batch, height, width = Dim("b"), Dim("h"), Dim("w")
    x, like = torch.randn(2, 3, 8, 12), torch.randn(2, 8, 12)
    sizes = ({0: batch, 2: 2 * height, 3: 4 * width}, {0: batch, 1: 2 * height, 2: 4 * width})
    with quiet():
        program = torch.onnx.export(Sequence(), (x, like), None, dynamic_shapes=sizes, dynamo=True, verbose=False)
        program.save(str(tmp_path / "source.onnx"))
    declared = onnx.load(tmp_path / "source.onnx").graph.input[0].type.tensor_type.shape.dim
    assert [dim.dim_param for dim in declared] == ["b", "", "2*h", "4*w"]
    model = load_model(tmp_path / "source.onnx", "unet")
    found = optimize_model(model, OptimizeOptions(load_target("cpu"))).operators
    assert set(found) <= {"Add", "Reshape", "Transpose", "Unsqueeze"}
    assert found["Add"] == found["Transpose"] == 1
