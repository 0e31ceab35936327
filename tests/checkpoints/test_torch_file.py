"""Files of ``torch.save``, read without torch: equal to what torch reads, and nothing of them runs."""

from __future__ import annotations

import collections
import io
import os
import pickle
import random
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sdort.checkpoints.torch_file import read_torch_file
from sdort.errors import BadModelError
from sdort.graph.weights import Weight

KINDS = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8,
         torch.uint8, torch.bool]  # fmt: skip


def tensors() -> dict[str, torch.Tensor]:
    """Of every kind and layout: whole, parts of one another, turned, strided, empty, of no axis."""
    torch.manual_seed(0)
    found = {str(kind): (torch.rand(3, 4) * 9).to(kind) for kind in KINDS}
    large = torch.rand(6, 5, 4)
    found |= {"large": large, "rows": large[2:4], "columns": large[:, 1:4, ::2], "turned": large.permute(2, 0, 1)}
    found |= {"last": large.to(memory_format=torch.contiguous_format)[-1], "none": torch.rand(0, 3)}
    found |= {"scalar": torch.tensor(2.5), "one": large[1, 2, 3], "side": torch.rand(4, 1)[:, 0]}
    return found


def saved(path: Path, content: object, legacy: bool) -> Path:
    torch.save(content, path, _use_new_zipfile_serialization=not legacy)
    return path


def same(found: Any, expected: torch.Tensor) -> bool:
    if not isinstance(found, Weight) or found.shape != tuple(expected.shape):
        return False
    bits = expected.view(torch.int16) if expected.dtype == torch.bfloat16 else expected
    return bool(found.load().tobytes() == bits.contiguous().numpy().tobytes())


@pytest.mark.parametrize("legacy", [False, True])
def test_every_tensor_is_what_torch_has(legacy: bool, tmp_path: Path) -> None:
    expected = tensors()
    found = read_torch_file(saved(tmp_path / "m.pth", expected, legacy))
    assert found.keys() == expected.keys()
    assert all(same(found[name], expected[name]) for name in expected)


@pytest.mark.parametrize("legacy", [False, True])
def test_networks_and_their_training_state_are_read(legacy: bool, tmp_path: Path) -> None:
    network = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.PReLU(4))
    optimizer = torch.optim.Adam(network.parameters())
    network(torch.rand(1, 3, 5, 5)).sum().backward()
    optimizer.step()
    content = {
        "params": network.state_dict(), "optimizer": optimizer.state_dict(), "step": 7, "numbers": np.float64(3.5),
        "weight": network[0].weight, "place": Path("x"), "set": {1, 2}, "counter": collections.Counter("ab"),
    }  # fmt: skip
    found = read_torch_file(saved(tmp_path / "m.pth", content, legacy))
    assert found["step"] == 7
    assert same(found["weight"], network[0].weight.detach())
    assert all(same(found["params"][name], value) for name, value in network.state_dict().items())


class _Runs:
    def __init__(self, call: Any, *arguments: Any) -> None:
        self.made = call, arguments

    def __reduce__(self) -> Any:
        return self.made


@pytest.mark.parametrize("protocol", range(6))
def test_nothing_of_it_runs(protocol: int, tmp_path: Path) -> None:
    """Calls of a pickle, in every protocol: torch's own file with a payload beside its tensors."""
    mark = tmp_path / "ran"
    payloads = [_Runs(os.system, f"touch {mark}"), _Runs(exec, f"import pathlib; pathlib.Path({str(mark)!r}).touch()")]
    path = tmp_path / "m.pth"
    torch.save({"w": torch.ones(2), "payloads": payloads}, path, pickle_protocol=protocol or 2)
    found = read_torch_file(path)
    assert same(found["w"], torch.ones(2))
    assert not mark.exists()
    torch.load(path, weights_only=False)  # they are loaded with the file where torch is allowed to
    assert mark.exists()


def test_torch_is_not_imported(tmp_path: Path) -> None:
    saved(tmp_path / "m.pth", {"w": torch.ones(2)}, False)
    code = (
        "import sys; from pathlib import Path; from sdort.checkpoints.torch_file import read_torch_file; "
        f"read_torch_file(Path({str(tmp_path / 'm.pth')!r}))['w'].load(); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("legacy", [False, True])
def test_damaged_files_are_refused_in_words(legacy: bool, tmp_path: Path) -> None:
    """Every cut, and changes of single bytes: an error of sdort's, or tensors that lie inside of the file."""
    path = saved(tmp_path / "m.pth", {"a": torch.rand(3, 4), "b": torch.rand(5)}, legacy)
    content, rng = path.read_bytes(), random.Random(0)
    cases = [content[: rng.randrange(len(content))] for _ in range(60)]
    for _ in range(300):
        place = rng.randrange(len(content))
        cases.append(content[:place] + bytes([rng.randrange(256)]) + content[place + 1 :])
    refused = 0
    for case in cases:
        path.write_bytes(case)
        try:
            for part in read_torch_file(path).values():
                if isinstance(part, Weight):
                    assert part.load().nbytes <= 1 << 20
        except BadModelError:
            refused += 1
    assert refused > 60


def tampered(path: Path, **numbers: Any) -> Path:
    """A file whose one tensor claims other numbers than it has."""
    values = {"offset": 0, "shape": (2, 3), "strides": (3, 1), "count": 6} | numbers

    stored = object()

    class Pickler(pickle.Pickler):
        def persistent_id(self, value: Any) -> Any:
            whole = ("storage", torch.FloatStorage, "0", "cpu", values["count"])
            return (*whole, *([values["view"]] if "view" in values else [])) if value is stored else None

    class Tensor:
        def __reduce__(self) -> Any:
            made: Any = (stored, values["offset"], values["shape"], values["strides"], False, collections.OrderedDict())
            return torch._utils._rebuild_tensor_v2, made

    buffer = io.BytesIO()
    Pickler(buffer, 2).dump({"w": Tensor()})
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("m/data.pkl", buffer.getvalue())
        archive.writestr("m/data/0", np.arange(6, dtype=np.float32).tobytes())
    return path


def test_a_tensor_lies_inside_of_its_values(tmp_path: Path) -> None:
    assert read_torch_file(tampered(tmp_path / "m.pth"))["w"].load().tolist() == [[0, 1, 2], [3, 4, 5]]
    claims: list[dict[str, Any]] = [
        {"offset": 1}, {"offset": -1}, {"shape": (3, 3)}, {"strides": (4, 1)}, {"strides": (-3, 1)},
        {"shape": (1 << 40, 1 << 40)}, {"shape": (1000, 1000), "strides": (0, 0)}, {"shape": (2,), "strides": (3, 1)},
        {"shape": (True, 6), "strides": (6, 1)},
    ]  # fmt: skip
    for claim in claims:
        with pytest.raises(BadModelError):
            read_torch_file(tampered(tmp_path / "m.pth", **claim))


@pytest.mark.parametrize(("first", "offset"), [(0, 0), (0, 2), (1, 0), (2, 1)])
def test_a_view_of_a_storage_begins_at_its_first_element(first: int, offset: int, tmp_path: Path) -> None:
    """As torch wrote storages that share memory before 1.6: a part of another one, by its first element."""
    view = ("0", first, 6 - first)
    found = read_torch_file(tampered(tmp_path / "m.pth", view=view, offset=offset, shape=(2,), strides=(1,)))
    assert found["w"].load().tolist() == [first + offset, first + offset + 1]
    assert read_torch_file(tampered(tmp_path / "m.pth", view=None))["w"].load().shape == (2, 3)


def test_what_is_no_table_is_refused(tmp_path: Path) -> None:
    for content in ([torch.ones(2)], torch.ones(2), torch.nn.Linear(2, 2)):
        with pytest.raises(BadModelError, match="something else than named tensors"):
            read_torch_file(saved(tmp_path / "m.pth", content, False))
    with zipfile.ZipFile(tmp_path / "other.zip", "w") as archive:
        archive.writestr("a.txt", "a")
    with pytest.raises(BadModelError, match="an archive of something else"):
        read_torch_file(tmp_path / "other.zip")
