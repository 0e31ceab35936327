"""What is added up for a run before it is refused: each part has a power of ten of its own, so that none is lost."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image

from sdort.errors import MemoryShortageError
from sdort.families.component_names import CONTROLNET, T2I_ADAPTER
from sdort.generation import memory_need
from sdort.generation.latents.decode import Plan
from sdort.generation.latents.graph_memory import GraphMemory, decoder_memory, element_bytes, keeps_scores
from sdort.generation.pictures.input_image import InputImage
from sdort.generation.requests.request import Request
from sdort.graph.signature import TensorSpec
from sdort.providers import CPU
from sdort.providers.cuda import PROVIDER as CUDA
from sdort.providers.migraphx import PROVIDER as MIGRAPHX
from sdort.providers.provider import Provider
from sdort.providers.rocm import PROVIDER as ROCM
from sdort.providers.runtime_options import RuntimeOptions
from sdort.workload.cases import Case

PHOTO = InputImage("photo.png", Image.new("RGB", (16, 8)))
REQUEST = Request("a", steps=11, images_at_once=3)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The cases whose bytes are asked for; a UNet has 1,000 of them a sample and a decoder 100 an image."""
    seen: list[Any] = []

    def case_bytes(folder: Any, case: Case, provider: Any, plan: Any = None, steps: int = 1, graphs: int = 1) -> int:
        seen.append((case, plan, steps))
        return {"unet": 1000 * graphs, "vae_decoder": 100, "vae_encoder": 50_000}[case.component] * case.batch

    class Planner:
        def size(self, case: Case) -> tuple[int, int, int]:
            return case.batch, case.height // 8, case.width // 8

        def plan(self, size: Any, tiling: Any, slicing: Any, free: int) -> Any:
            return size, tiling, slicing, free

    monkeypatch.setattr(memory_need, "case_bytes", case_bytes)
    monkeypatch.setattr(memory_need, "planner_of", lambda *_: Planner())
    monkeypatch.setattr(memory_need, "control_bytes", lambda folder, request, samples, size, provider: samples)
    stages = [SimpleNamespace(size=(16, 24), calls=5), SimpleNamespace(size=(32, 48), calls=7)]
    monkeypatch.setattr(memory_need, "plan_stages", lambda *_: stages)
    return seen


def test_the_largest_component_and_the_pixels_of_all_images_count(asked: list[Any]) -> None:
    folder: Any = SimpleNamespace(denoiser="unet")
    request = replace(REQUEST, vae_tiling=True, vae_slicing=False)
    found = memory_need.generation_bytes(folder, request, 7, CPU, 999)
    assert found == 6 * 1000 + 6 + 3 * 7 * 32 * 48  # two samples of three images, and the last stage's pixels
    for size, calls in (((16, 24), 5), ((32, 48), 7)):
        plan = (3, size[0] // 8, size[1] // 8), True, False, 999
        assert (Case("unet", 6, *size), None, calls) in asked
        assert (Case("vae_decoder", 3, *size), plan, 1) in asked
    assert {case.component for case, *_ in asked} == {"unet", "vae_decoder"}
    fewer = memory_need.generation_bytes(folder, replace(request, guidance_scale=1.0), 2, CPU, 999)
    assert fewer == 2 * 1000 + 2 + 3 * 2 * 32 * 48
    for every, graphs in ((1, 1), (3, 2)):  # the outer part of the UNet beside the whole
        cached = replace(request, deep_cache=every)
        assert memory_need.generation_bytes(folder, cached, 7, CPU, 999) == graphs * 6 * 1000 + 6 + 3 * 7 * 32 * 48


@pytest.mark.parametrize("options", [{"init_image": PHOTO}, {"hires": 2.0, "hires_upscale": "image"}])
def test_an_encoder_counts_where_images_are_encoded_one_by_one(options: dict[str, Any], asked: list[Any]) -> None:
    assert memory_need.encodes(replace(REQUEST, **options))
    folder: Any = SimpleNamespace(denoiser="unet")
    assert memory_need.generation_bytes(folder, replace(REQUEST, **options), 4, CPU, 9) == 50_000 + 3 * 4 * 32 * 48
    assert Case("vae_encoder", 1, 32, 48) in [case for case, *_ in asked]


def test_latents_alone_are_not_encoded() -> None:
    assert not memory_need.encodes(REQUEST)
    assert not memory_need.encodes(replace(REQUEST, hires=2.0, hires_upscale="latent"))
    assert not memory_need.encodes(replace(REQUEST, hires=2.0))


@pytest.fixture
def sums(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Each part of what is needed: the run 1, weights by component in powers of ten, a control 100,000 each."""
    weights = {"unet": 10, "vae_decoder": 100, "vae_encoder": 1000, "image_encoder": 10_000}
    nets = [tmp_path / name / "model.onnx" for name in ("a", "b")]
    for net in nets:
        net.parent.mkdir()
        net.write_bytes(bytes(100_000))
    found = SimpleNamespace(free=10**9, refused=[], nets=nets, generation=[])

    def generation_bytes(folder: Any, request: Any, images: int, provider: Any, free: int, stages: Any) -> int:
        assert stages[-1].size == (16, 48)
        found.generation.append((images, free))
        return 1

    monkeypatch.setattr(memory_need, "free_memory", lambda vendor, device_id: found.free)
    monkeypatch.setattr(memory_need, "plan_stages", lambda *_: [0, SimpleNamespace(size=(16, 48))])
    monkeypatch.setattr(memory_need, "generation_bytes", generation_bytes)
    monkeypatch.setattr(memory_need, "weight_bytes", lambda folder, names: sum(weights[name] for name in names))
    monkeypatch.setattr(memory_need, "control_files", lambda _: [SimpleNamespace(path=net) for net in nets])
    monkeypatch.setattr(memory_need, "refuse_shortage", lambda *of: found.refused.append(of))
    monkeypatch.setattr(
        memory_need, "open_refiner", lambda path, base: SimpleNamespace(denoiser="unet", path=Path("ref"))
    )
    monkeypatch.setattr(memory_need, "refiner_bytes", lambda refiner, size, *_: 10_000_000 * size[1] // size[0])
    return found


BASE: Any = SimpleNamespace(denoiser="unet", needed=("unet", "vae_decoder"))
WHAT = "generating 48x16 pixels, 3 at once,"


def test_weights_count_until_they_are_loaded(sums: Any) -> None:
    for options, more in (
        ({}, 0),
        ({"init_image": PHOTO}, 1000),
        ({"ip_adapter_image": (SimpleNamespace(),)}, 10_000),
        ({"init_image": PHOTO, "ip_adapter_image": (SimpleNamespace(),)}, 11_000),
    ):
        request: Any = replace(REQUEST, **options)
        assert memory_need.refuse_generation(BASE, request, 9, CPU, 0) == 1
        assert memory_need.refuse_generation(BASE, request, 9, CPU, 0, held=0) == 1
        before, loaded = sums.refused[-2:]
        assert before == (200_000 + 110 + more + 1, 10**9, WHAT)
        assert loaded == (200_000 + 1, 10**9, WHAT)
    assert sums.refused[0][2] == WHAT


def test_what_sessions_hold_is_free_and_open_controls_cost_nothing(sums: Any) -> None:
    memory_need.refuse_generation(BASE, REQUEST, 2, CPU, 0, held=500)
    memory_need.refuse_generation(BASE, REQUEST, 9, CPU, 0, held=500, controls_open={sums.nets[1].resolve()})
    assert sums.refused == [
        (200_001, 10**9 + 500, "generating 48x16 pixels, 2 at once,"),
        (100_001, 10**9 + 500, WHAT),
    ]
    assert sums.generation == [(2, 10**9 + 500), (9, 10**9 + 500)]


def test_a_refiner_counts_in_the_place_of_the_unet_until_it_is_open(sums: Any) -> None:
    request = replace(REQUEST, refiner=Path("ref"))
    memory_need.refuse_generation(BASE, request, 9, CPU, 0)
    assert sums.refused[1:] == [(200_110 + 30_000_000 - 10, 10**9, f"{WHAT} with the refiner ref")]
    memory_need.refuse_generation(BASE, request, 9, CPU, 0, refiner_open=True)
    assert len(sums.refused) == 3


def test_where_nothing_tells_what_is_free_nothing_is_refused(sums: Any) -> None:
    sums.free = None
    assert memory_need.refuse_generation(BASE, replace(REQUEST, refiner=Path("ref")), 9, CPU, 0) == 0
    assert sums.refused == []


def test_a_refiner_counts_without_a_decoder_and_with_its_unet(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []

    def case_bytes(folder: Any, case: Case, provider: Any, plan: Any = None, steps: int = 1, graphs: int = 1) -> int:
        seen.append((case, steps))
        return 7 * graphs

    monkeypatch.setattr(memory_need, "case_bytes", case_bytes)
    monkeypatch.setattr(memory_need, "weight_bytes", lambda folder, names: 100 * len(names) + ("vae_decoder" in names))
    refiner: Any = SimpleNamespace(denoiser="unet", needed=("text_encoder_2", "unet", "vae_decoder"))
    assert memory_need.refiner_bytes(refiner, (16, 48), REQUEST, 2, CPU) == 207
    assert memory_need.refiner_bytes(refiner, (16, 48), replace(REQUEST, guidance_scale=1.0), 9, CPU) == 207
    assert seen == [(Case("unet", 4, 16, 48), 11), (Case("unet", 3, 16, 48), 11)]
    assert memory_need.refiner_bytes(refiner, (16, 48), replace(REQUEST, deep_cache=2), 2, CPU) == 214


def test_what_fits_beside_the_base_is_what_is_free(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    free: int | None = 1000
    monkeypatch.setattr(memory_need, "free_memory", lambda vendor, number: free if (vendor, number) == ("", 3) else 0)
    monkeypatch.setattr(memory_need, "refiner_bytes", lambda *_: 1000)
    monkeypatch.setattr(memory_need, "weight_bytes", lambda *_: 1000)
    folder: Any = SimpleNamespace(denoiser="unet")
    options = RuntimeOptions("cpu", device_id=3)
    for free, fits in ((1000, True), (999, False), (None, True)):  # noqa: B007
        assert memory_need.fits_beside(folder, (16, 48), REQUEST, 1, CPU, options) is fits
        told = " ".join(capsys.readouterr().err.split())
        assert ("the refiner needs about 1.0 kB of memory and 999 B are free" in told) is not fits
        assert memory_need.has_room(folder, ["unet"], CPU, options) is fits


def test_a_folder_of_two_components_counts_once(tmp_path: Path) -> None:
    (tmp_path / "a" / "nested").mkdir(parents=True)
    (tmp_path / "b").mkdir()
    for name, size in {"a/model.onnx": 10, "a/data": 200, "a/nested/more": 5000, "b/model.onnx": 3}.items():
        (tmp_path / name).write_bytes(bytes(size))
    folder: Any = SimpleNamespace(
        denoiser="unet", models={"unet": tmp_path / "a/model.onnx", "again": tmp_path / "a/x", "vae": tmp_path / "b/y"}
    )
    assert memory_need.weight_bytes(folder, ["unet", "again"]) == 210
    assert memory_need.weight_bytes(folder, ["unet", "vae"]) == 213


@pytest.mark.parametrize(("kinds", "nets", "buffers"), [
    ([], 0, 1), ([T2I_ADAPTER], 0, 1), ([CONTROLNET], 1, 1), ([CONTROLNET, T2I_ADAPTER], 1, 1),
    ([CONTROLNET, CONTROLNET], 2, 3), ([CONTROLNET, CONTROLNET, CONTROLNET], 3, 4),
])  # fmt: skip
def test_controls_take_activations_and_what_lies_between(
    kinds: list[str], nets: int, buffers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    shape = ("N", 4, "H", "W")
    inputs = {
        "sample": TensorSpec("sample", np.dtype(np.float32), shape),
        "mid_block_additional_residual": TensorSpec("mid", np.dtype(np.float16), shape),
        "down_intrablock_additional_residuals.0": TensorSpec("in", np.dtype(np.float32), shape),
    }
    folder: Any = SimpleNamespace(
        denoiser="unet",
        vae_factor=8,
        sample_channels=4,
        file=lambda _: SimpleNamespace(signature=SimpleNamespace(inputs=inputs)),
    )
    files = [SimpleNamespace(component=kind, path=Path(f"{number}/m.onnx")) for number, kind in enumerate(kinds)]
    seen: list[Any] = []

    def unet_bytes(file: Any, config: Any, latents: Any, provider: Any, steps: int) -> int:
        seen.append((config, latents, steps))
        return 10**9

    monkeypatch.setattr(memory_need, "control_files", lambda _: files)
    monkeypatch.setattr(memory_need, "read_component_config", lambda path, component: {"of": str(path)})
    monkeypatch.setattr(memory_need, "unet_bytes", unet_bytes)
    request: Any = replace(REQUEST, control=tuple(kinds))  # type: ignore[arg-type]
    found = memory_need.control_bytes(folder, request, 6, (16, 48), CPU)
    between = 6 * 4 * 2 * 6 * (2 + 4)  # samples, channels, latents; of two bytes and of four
    assert found == (nets * 10**9 + buffers * between if kinds else 0)
    numbers = [number for number, kind in enumerate(kinds) if kind == CONTROLNET]
    assert seen == [({"of": f"{number}/config.json"}, (6, 2, 6), 11) for number in numbers]


@pytest.mark.parametrize(
    ("component", "wanted"),
    [("unet", ("unet", (5, 2, 6), 4)), ("vae_decoder", ("plan", (5, 2, 6))), ("vae_encoder", ("plan", (5, 2, 6))),
     ("text_encoder", 77), ("other", 0), ("absent", 0)],
)  # fmt: skip
def test_a_case_counts_by_its_component(component: str, wanted: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def planner_of(folder: Any, provider: Any, component: str) -> Any:
        asked.append(component)
        return SimpleNamespace(bytes_for=lambda latents, plan: ("plan", latents) if plan == PLAN else 0)

    monkeypatch.setattr(memory_need, "planner_of", planner_of)
    monkeypatch.setattr(
        memory_need,
        "unet_bytes",
        lambda file, config, latents, on, steps, _, tokens: (file, latents, steps) if tokens == 333 else 0,
    )
    counted = {"text_encoder": 77, "other": None}
    monkeypatch.setattr(
        memory_need,
        "activation_bytes",
        lambda file, sample, on: counted[file] if (sample.batch, sample.sequence) == (5, 333) else 0,
    )
    names = ("unet", "vae_decoder", "vae_encoder", "text_encoder", "other")
    folder: Any = SimpleNamespace(
        denoiser="unet",
        vae_factor=8,
        models=names,
        file=lambda name: name,
        config=lambda name: {},
        tokens=lambda _: 333,
    )
    assert memory_need.case_bytes(folder, Case(component, 5, 16, 48), CPU, PLAN, steps=4) == wanted
    assert asked == ([component] if component.startswith("vae") else [])


PLAN = Plan(True, 32)


def test_a_component_is_refused_by_its_own_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    free: int | None = 1000
    monkeypatch.setattr(memory_need, "free_memory", lambda vendor, number: free if number == 2 else 10**9)
    monkeypatch.setattr(memory_need, "case_bytes", lambda folder, case, provider, plan: 1151 if plan == PLAN else 1150)
    case = Case("vae_decoder", 1, 16, 48)
    folder: Any = SimpleNamespace()
    memory_need.refuse_case(folder, case, CPU, 2)
    with pytest.raises(MemoryShortageError, match="vae_decoder, batch 1, 48x16 needs about"):
        memory_need.refuse_case(folder, case, CPU, 2, PLAN)
    free = None
    memory_need.refuse_case(folder, case, CPU, 2, PLAN)


def graph(dtype: str, *nodes: tuple[str, str]) -> Any:
    made = [SimpleNamespace(op_type=op_type, domain=domain) for op_type, domain in nodes]
    file = SimpleNamespace(dtype=dtype, graph=SimpleNamespace(graph=SimpleNamespace(node=made)))
    file.derived = lambda make: make(file)
    return file


@pytest.mark.parametrize(
    ("nodes", "held"),
    [
        ([("Softmax", "")], True),
        ([("Attention", "")], True),
        ([("Attention", "com.microsoft")], False),
        ([("Softmax", "other")], False),
        ([("Conv", ""), ("Softmax", "")], True),
        ([("MultiHeadAttention", "com.microsoft"), ("Conv", "")], False),
        ([], False),
    ],
)
def test_scores_are_held_where_attention_is_spelled_out(nodes: list[tuple[str, str]], held: bool) -> None:
    assert keeps_scores(graph("float32", *nodes)) is held


@pytest.mark.parametrize("provider", [CPU, CUDA, ROCM, MIGRAPHX], ids=lambda each: each.name)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("widened", [False, True])
def test_a_decoders_footprint(provider: Provider, dtype: str, fused: bool, widened: bool) -> None:
    file = graph(dtype, *([] if fused else [("Softmax", "")]))
    narrow = dtype == "float16" and provider is not CPU
    assert element_bytes(file, provider) == (2 if narrow else 4)
    amd = provider in (ROCM, MIGRAPHX)
    copies = 0 if fused and not amd else 1 if provider is CPU else 2
    assert decoder_memory(file, provider, widened) == GraphMemory(2 if narrow and not widened else 4, copies)
