"""Which pipeline of diffusers' does a task, with which components, and how a checkpoint is optimized for it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import diffusers
import pytest
import torch

from sdort.errors import BadModelError, UsageError
from sdort.families.component_names import CONTROLNET
from sdort.families.data import sd1, sdxl, sdxl_refiner
from sdort.first_use.making_plan import Making
from sdort.generation.denoising.adapted_weights import is_adaptable
from sdort.integrations.diffusers import assembled_pipeline, first_use
from sdort.integrations.diffusers.assembled_pipeline import TASKS, check_task, pipeline_class
from sdort.integrations.torch import opened_component
from sdort.integrations.torch.control_module import GraphControlNet
from sdort.integrations.torch.torch_place import TorchPlace, find_place
from sdort.integrations.torch.unet_module import _adapter_scale
from sdort.providers import CPU, PROVIDERS
from sdort.providers.cuda import PROVIDER as CUDA
from sdort.providers.migraphx import PROVIDER as MIGRAPHX
from sdort.providers.rocm import PROVIDER as ROCM

CLASSES = {
    "text-to-image": ("StableDiffusionPipeline", "StableDiffusionXLPipeline"),
    "image-to-image": ("StableDiffusionImg2ImgPipeline", "StableDiffusionXLImg2ImgPipeline"),
    "inpainting": ("StableDiffusionInpaintPipeline", "StableDiffusionXLInpaintPipeline"),
    "controlnet": ("StableDiffusionControlNetPipeline", "StableDiffusionXLControlNetPipeline"),
    "controlnet-image-to-image": (
        "StableDiffusionControlNetImg2ImgPipeline", "StableDiffusionXLControlNetImg2ImgPipeline",
    ),
    "controlnet-inpainting": ("StableDiffusionControlNetInpaintPipeline", "StableDiffusionXLControlNetInpaintPipeline"),
}  # fmt: skip


def folder(xl: bool = False, aesthetic: bool = False, channels: int = 4, encoder: bool = True) -> Any:
    family = (sdxl_refiner if aesthetic else sdxl if xl else sd1).FAMILY
    models = {"unet": Path("unet"), **({"vae_encoder": Path("vae")} if encoder else {})}
    return SimpleNamespace(
        denoiser="unet", path=Path("here"), family=family, sample_channels=channels, latent_channels=4, models=models
    )


@pytest.mark.parametrize("task", CLASSES)
def test_each_task_of_each_family_has_its_class(task: str) -> None:
    check_task(task)
    assert list(TASKS) == list(CLASSES)
    for xl, name in enumerate(CLASSES[task]):
        assert pipeline_class(folder(bool(xl)), task) is getattr(diffusers, name)


@pytest.mark.parametrize("task", CLASSES)
def test_a_task_is_refused_that_the_components_are_not_for(task: str) -> None:
    refused: dict[str, set[str]] = {
        "refiner": set(CLASSES) - {"image-to-image", "inpainting"},
        **{f"{number} channels": set(CLASSES) - {"inpainting", "controlnet-inpainting"} for number in (5, 8, 9)},
        "no vae_encoder": set(CLASSES) - {"text-to-image", "controlnet"},
    }
    folders = {"refiner": folder(True, True), "no vae_encoder": folder(encoder=False)}
    folders |= {f"{number} channels": folder(channels=number) for number in (5, 8, 9)}
    for message, tasks in refused.items():
        if task in tasks:
            with pytest.raises(BadModelError, match=message):
                pipeline_class(folders[message], task)
        else:
            name = CLASSES[task][message == "refiner"]
            assert pipeline_class(folders[message], task) is getattr(diffusers, name)


def test_a_family_whose_denoiser_has_no_module_is_refused() -> None:
    other: Any = folder()
    other.family = replace(sd1.FAMILY, denoiser=replace(sd1.FAMILY.denoiser, class_name="TilerModel"))
    with pytest.raises(BadModelError, match=r"here has a TilerModel, which no pipeline(.|\n)*sdort\.load runs"):
        pipeline_class(other, "text-to-image")


@pytest.mark.parametrize(("precision", "on_cpu", "on_gpu"), [(True, "fp32", "fp16"), ("fp16",) * 3, ("fp32",) * 3])
@pytest.mark.parametrize("provider", [CPU, CUDA], ids=lambda each: each.name)
def test_a_checkpoint_is_made_for_the_provider_that_runs_it(
    precision: Any, on_cpu: str, on_gpu: str, provider: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[Any] = []

    def choose(options: Any) -> Any:
        asked.append(options)
        return provider, None

    monkeypatch.setattr(first_use, "choose_provider", choose)

    def make(*given: Any) -> Path:
        asked.append(given)
        return tmp_path

    monkeypatch.setattr(first_use, "optimized_model", make)
    assert first_use.optimized_checkpoint(tmp_path, precision, {"provider": "auto", "device_id": 2}) == tmp_path
    assert (asked[0].provider, asked[0].device_id) == ("auto", 2)
    expected = on_gpu if provider.on_gpu else on_cpu
    assert asked[1] == (tmp_path, Making((), provider.name, expected, ""))


@pytest.mark.parametrize("nothing", [None, [], ()])
def test_a_controlnet_is_there_where_it_is_needed_and_only_there(nothing: Any) -> None:
    with pytest.raises(UsageError, match="controlnet-inpainting needs a ControlNet"):
        assembled_pipeline._check_controlnet("controlnet-inpainting", True, nothing)
    assembled_pipeline._check_controlnet("controlnet", True, "canny")
    assembled_pipeline._check_controlnet("inpainting", False, None)
    wrong: tuple[Any, ...] = ("canny", [])
    for given in wrong:
        with pytest.raises(UsageError, match="inpainting takes no ControlNet"):
            assembled_pipeline._check_controlnet("inpainting", False, given)


def test_controlnets_are_loaded_with_the_options_of_the_pipeline(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[Any] = []

    def load(path: Any, **options: Any) -> int:
        loaded.append((path, options))
        return len(loaded)

    monkeypatch.setattr(assembled_pipeline, "load_controlnet", load)
    net = torch.nn.Identity()
    found = assembled_pipeline._controlnets(("a", Path("b"), net), {"provider": "cpu", "graph": True})
    assert found == [1, 2, net]
    assert loaded == [("a", {"provider": "cpu", "graph": True}), (Path("b"), {"provider": "cpu", "graph": True})]
    with pytest.raises(UsageError, match="cannot be a int"):
        assembled_pipeline._controlnets(["a", 3], {})


def test_settings_are_the_folders() -> None:
    for empty, aesthetic in ((True, False), (False, True)):
        found = assembled_pipeline._settings(
            SimpleNamespace(empty_is_zero=empty, family=SimpleNamespace(aesthetic=aesthetic))  # type: ignore[arg-type]
        )
        assert (found["force_zeros_for_empty_prompt"], found["requires_aesthetics_score"]) == (empty, aesthetic)
        assert (found["add_watermarker"], found["requires_safety_checker"]) == (False, False)
        assert {found[name] for name in ("safety_checker", "feature_extractor", "image_encoder")} == {None}


@pytest.mark.parametrize(
    ("provider", "cuda", "hip", "gpu", "shared"),
    [
        (CUDA, "13.0", None, True, True),
        (CUDA, "13.0", None, False, False),
        (CUDA, None, "7.0", True, False),
        (CUDA, None, None, True, False),
        (ROCM, None, "7.0", True, True),
        (ROCM, None, "7.0", False, False),
        (ROCM, "13.0", None, True, False),
        (MIGRAPHX, None, "7.0", True, False),
        (CPU, "13.0", None, True, False),
    ],
    ids=lambda each: getattr(each, "name", str(each)),
)
def test_torch_and_a_provider_meet_on_a_gpu_of_both(
    provider: Any, cuda: str | None, hip: str | None, gpu: bool, shared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.version, "cuda", cuda)
    monkeypatch.setattr(torch.version, "hip", hip)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: SimpleNamespace(cuda_stream=77, device=device))
    place = find_place(provider, 2)
    device = torch.device("cuda", 2) if shared else torch.device("cpu")
    assert (place.device, place.memory) == (device, ("cuda", 2) if shared else ("cpu", 0))
    assert (place.address, place.stream is not None) == ((77, True) if shared else (0, False))
    if shared:
        assert place.stream.device == device


def test_components_are_opened_with_what_each_can_use(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Graphs where a component runs again and again, adapters where weights can change, one stream for all."""
    names = ("unet", CONTROLNET, "vae_decoder", "text_encoder", "vae_encoder")
    opened: dict[str, Any] = {}

    class Checked:
        def __enter__(self) -> Any:
            return SimpleNamespace(reads=lambda paths: opened.setdefault("read", list(paths)))

        def __exit__(self, *_: object) -> None: ...

    def session(path: Path, name: str, provider: Any, options: Any) -> Any:
        opened[name] = (path, provider, options)
        return SimpleNamespace()

    models = {name: tmp_path / name for name in names}
    monkeypatch.setattr(opened_component, "checked", lambda path, check: Checked())
    monkeypatch.setattr(opened_component, "open_folder", lambda path, needed: SimpleNamespace(models=models))
    monkeypatch.setattr(opened_component, "choose_provider", lambda options: (CUDA, None))
    place = TorchPlace(torch.device("cuda", 1), SimpleNamespace(cuda_stream=99))
    monkeypatch.setattr(opened_component, "find_place", lambda provider, device: place if device == 1 else None)
    for name in ("announce", "remark_inputs"):
        monkeypatch.setattr(opened_component, name, lambda _: None)
    monkeypatch.setattr(opened_component, "open_session", session)
    monkeypatch.setattr(opened_component, "TensorSession", lambda *given: given)
    options: Any = {"provider": "cuda", "graph": True, "adapters": True, "device_id": 1}
    found = opened_component.open_components(
        tmp_path, names[:4], options, optional=("vae_encoder", "gone"), control_inputs=True
    )
    assert list(found.sessions) == list(names)
    assert opened["read"] == [models[name] for name in names]
    graphs = {name: opened[name][2].graph for name in names}
    assert graphs == {name: name in ("unet", CONTROLNET) for name in names}
    assert {name for name in names if opened[name][2].adapters} == {name for name in names if is_adaptable(name)}
    for name in names:
        path, provider, given = opened[name]
        assert (path, provider, given.stream, given.control_inputs) == (models[name], CUDA, 99, True)
        assert found.sessions[name][1] is place  # type: ignore[index]
    plain = opened_component.open_components(tmp_path, ("unet",), {"device_id": 1})
    assert list(plain.sessions) == ["unet"]
    assert (opened["unet"][2].graph, opened["unet"][2].adapters, opened["unet"][2].control_inputs) == (False,) * 3


@pytest.mark.parametrize("pooled", [False, True])
def test_factors_of_a_controlnet_follow_scale_and_guess_at_every_call(pooled: bool) -> None:
    net: Any = SimpleNamespace(
        config=SimpleNamespace(global_pool_conditions=pooled), session=SimpleNamespace(outputs=[None] * 13),
        device=torch.device("cpu"), _scales=None,
    )  # fmt: skip
    for scale, guess in ((1.0, False), (1.0, True), (0.5, True), (0.5, False), (0.5, False), (1.0, True)):
        found = GraphControlNet._factors(net, scale, guess)
        grown = [10 ** (-1 + number / 12) for number in range(13)] if guess and not pooled else [1.0] * 13
        torch.testing.assert_close(found, torch.tensor([scale * each for each in grown]), rtol=1e-6, atol=0)


def test_the_scale_of_adapters_is_all_that_a_call_may_change() -> None:
    assert _adapter_scale({}) == 1.0
    assert _adapter_scale({"scale": 0.25}) == 0.25
    assert _adapter_scale({"scale": torch.tensor(0.5)}) == 0.5
    with pytest.raises(UsageError, match="cross_attention_kwargs gligen, ip_adapter_masks would change"):
        _adapter_scale({"scale": 1, "ip_adapter_masks": [], "gligen": {}})


def test_gpus_that_torch_calls_cuda_are_those_of_both_vendors() -> None:
    assert {name for name, each in PROVIDERS.items() if each.device and each.stream} == {"rocm", "cuda"}
