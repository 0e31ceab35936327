"""Sessions that a pipeline opens, exchanges and hands its arrays to, on stand-ins: no model is loaded."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from support.noting import noting

from sdort.errors import BadModelError, UsageError
from sdort.families.family import Encoder
from sdort.generation import pipeline
from sdort.generation.denoising import guard
from sdort.generation.denoising.guard import Guard
from sdort.generation.latents import preview
from sdort.generation.latents.preview import _session_decode, _vae_decode
from sdort.generation.pipeline import TextToImage
from sdort.generation.schedules.image_noise import ImageSeed
from sdort.graph.signature import TensorSpec
from sdort.passes.widen import all_nodes

FP32 = np.dtype(np.float32)


@dataclass(frozen=True)
class Options:
    adapters: bool = False
    control_inputs: bool = False
    graph: bool = True


# The guard


@pytest.mark.parametrize(
    ("opened", "named"),
    [([], None), (["controlnet"], "all of controlnet"), (["t2i_adapter", "controlnet", "controlnet"],
                                                       "all of controlnet and t2i_adapter")],
    ids=["none", "one", "several"],
)  # fmt: skip
def test_what_steers_the_unet_is_widened_first(
    opened: list[str], named: str | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(guard, "_open", noting(asked, "session"))

    def exchange(safer: Any) -> Any:
        for component in opened:
            assert safer(SimpleNamespace(place=f"place of {component}", options="options")) == "session"
        return [SimpleNamespace(component=component) for component in opened]

    held = Guard({})
    assert held._widen_controls("unet", SimpleNamespace(exchange=exchange), "it is dead") is bool(opened)  # type: ignore[arg-type]
    assert asked == [(f"place of {component}", all_nodes, "options") for component in opened]
    assert held.widened == dict.fromkeys(opened, "all of it")
    told = " ".join(capsys.readouterr().err.split())
    assert told == "" if named is None else f"unet: it is dead. It is done again with {named} in fp32" in told
    if named:
        assert told.endswith("sdort optimize IN OUT --fp16 auto")


# Sessions of a pipeline


@pytest.mark.parametrize("room", [True, False])
@pytest.mark.parametrize("widened", [None, "all of it"])
def test_the_unet_with_control_inputs_is_beside_the_other_where_there_is_room(
    room: bool, widened: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(pipeline, "has_room", noting(asked, room))
    held: Any = SimpleNamespace(denoiser="unet",
        sessions={"unet": SimpleNamespace(place="place"), "vae": 1}, folder="folder", provider="p", options="given",
        loop="loop", _set_aside="older", _opened_again=lambda *given: given,
    )  # fmt: skip
    found: Any = TextToImage._with_control_inputs(held, "options", widened)  # type: ignore[arg-type]
    assert found == ("place", "options")
    assert asked == [("folder", ["unet"], "p", "given")]
    assert held._set_aside == (("loop", widened) if room else None)
    assert ("unet" in held.sessions, hasattr(held, "loop")) == (room, room)
    assert held.sessions["vae"] == 1


@pytest.mark.parametrize("name", ["unet", "text_encoder"])
def test_a_session_is_opened_again_for_adapters(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    told: list[Any] = []
    forgotten: list[str] = []
    monkeypatch.setattr(pipeline, "remark_inputs", told.append)
    held: Any = SimpleNamespace(denoiser="unet",
        sessions={each: SimpleNamespace(place=f"place of {each}", options=Options(False, True, False))
                  for each in ("unet", "text_encoder")},
        _opened_again=lambda *given: given, adapters=SimpleNamespace(forget=forgotten.append),
    )  # fmt: skip
    TextToImage._open_for_adapters(held, name)
    again = (f"place of {name}", Options(True, True, False))
    assert held.sessions[name] == again
    assert held.sessions["text_encoder" if name == "unet" else "unet"].options.adapters is False
    assert told == ([again] if name == "unet" else [])
    assert forgotten == [name]  # it has no adapters yet
    assert f"{name} is loaded again" in capsys.readouterr().err


def test_an_image_goes_through_the_image_encoder() -> None:
    opened: list[Any] = []
    session = SimpleNamespace(inputs={"pixel_values": 1, "other": 2}, run=lambda feeds: {"tokens": feeds, "more": 3})

    def guarded(component: str, work: Any, arrays: Any) -> Any:
        assert component == "image_encoder"
        assert list(arrays({"a": 1, "b": 2})) == [1, 2]
        return work()

    held: Any = SimpleNamespace(_opened=noting(opened, session), _guarded=guarded)
    assert TextToImage._image_tokens(held, "pixels") == {"tokens": {"pixel_values": "pixels"}, "more": 3}  # type: ignore[arg-type]
    assert opened == [("image_encoder",)]


def test_every_text_encoder_says_which_output_conditions(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("text_encoder", "text_encoder_2")
    encoders = [Encoder(name, {}) for name in names]
    monkeypatch.setattr(pipeline, "encoder_outputs", lambda encoder, *given: (encoder.component, *given))
    folder = SimpleNamespace(family=SimpleNamespace(encoders=encoders), config=lambda name: f"config of {name}")
    sessions = {
        name: SimpleNamespace(outputs=[SimpleNamespace(name=f"{name}.{index}") for index in range(2)]) for name in names
    }
    held: Any = SimpleNamespace(denoiser="unet", folder=folder, sessions=sessions)
    held._outputs = partial(TextToImage._outputs, held)
    found: Any = TextToImage._conditioning_outputs(held, 3)
    assert found == {name: (name, [f"{name}.0", f"{name}.1"], f"config of {name}", 3) for name in names}


@pytest.mark.parametrize(
    ("at_once", "batches"), [(2, [[0, 0], [0, 1], [1]]), (5, [[0, 0, 0, 1, 1]]), (1, [[0]] * 3 + [[1]] * 2)]
)
@pytest.mark.parametrize("variation", [None, 0.25])
def test_batches_go_through_every_stage_with_their_own_conditions(
    at_once: int, batches: list[list[int]], variation: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The latents of a stage begin the next; the first begins with the start, in every batch."""
    monkeypatch.setattr(pipeline, "NoiseSource", lambda seeds, strength: ("noise", tuple(seeds), strength))
    monkeypatch.setattr(pipeline, "StepConditions", list)
    requests: list[Any] = [
        SimpleNamespace(seeds=[ImageSeed(10 * number + index) for index in range(count)], images_at_once=at_once,
                        variation_strength=variation, number=number)
        for number, count in enumerate((3, 2))
    ]  # fmt: skip
    ran: list[Any] = []

    def denoised(work: Any, source: Any, on_step: Any) -> Any:
        assert on_step is print
        ran.append((*work("loop"), source))
        return np.full(2, len(ran))

    held: Any = SimpleNamespace(denoiser="unet",
        _recurrence=lambda request, stage: (request.number, stage),
        _larger=lambda latents, request, stage, seeds: ("larger", latents[0], request.number, stage, tuple(seeds)),
        _denoise_batch=lambda *given, following: (*given, *following), _denoised=denoised, one_group=None,
    )  # fmt: skip
    for name in ("_begun", "_pass", "_gathered"):
        setattr(held, name, partial(getattr(TextToImage, name), held))
    conditions: Any = [[f"{stage}{number}" for number in range(2)] for stage in "ab"]
    found = list(TextToImage._passes(held, requests, ["A", "B"], conditions, "start", print))  # type: ignore[arg-type, list-item]
    everything = [seed for request in requests for seed in request.seeds]
    assert [batch.numbers for batch in found] == batches
    assert [seed for batch in found for seed in batch.seeds] == everything
    for index, batch in enumerate(found):
        source: Any = ("noise", tuple(batch.seeds), variation or 0.0)
        assert batch.source == source
        first, second = ran[2 * index : 2 * index + 2]
        assert first == (
            requests[0], "A", (0, "A"), [f"a{number}" for number in batch.numbers], "start", source, "loop", source,
        )  # fmt: skip
        larger = ("larger", 2 * index + 1, 0, "B", tuple(batch.seeds))
        assert second == (
            requests[0], "B", (0, "B"), [f"b{number}" for number in batch.numbers], larger, source, "loop", source,
        )  # fmt: skip
        assert batch.latents.tolist() == [2 * index + 2] * 2


# Previews


@pytest.mark.parametrize("channels", [4, 16, "c"])
@pytest.mark.parametrize("scale", [None, 0.5])
def test_a_small_vae_decodes_previews(
    channels: int | str, scale: float | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "vae_decoder" / "model.onnx"
    asked: list[Any] = []
    session = SimpleNamespace(
        inputs={"latent": TensorSpec("latent", FP32, ("n", channels, "h", "w")), "other": None},
        outputs=[SimpleNamespace(name="pixels"), SimpleNamespace(name="more")],
        run=lambda feeds: {"more": None, "pixels": feeds["latent"]},
    )
    monkeypatch.setattr(preview, "find_components", lambda folder: {"vae_decoder": place} if folder == tmp_path else {})
    monkeypatch.setattr(preview, "open_session", noting(asked, session))
    config = {} if scale is None else {"scaling_factor": scale}
    monkeypatch.setattr(
        preview, "read_component_config",
        lambda *given: config if given == (place.parent / "config.json", "vae_decoder") else None,
    )  # fmt: skip
    if channels == 16:
        with pytest.raises(UsageError, match="decodes latents of 16 channels, the UNet has 4"):
            _vae_decode(tmp_path, 4, "provider", "options")  # type: ignore[arg-type]
    else:
        decode = _vae_decode(tmp_path, 4, "provider", "options")  # type: ignore[arg-type]
        latents = np.arange(6, dtype=np.float32)
        np.testing.assert_array_equal(decode(latents), latents / (scale or 1.0))
        assert decode(latents).dtype == np.float32
    assert asked == [(place, "vae_decoder", "provider", "options")]
    with pytest.raises(BadModelError, match="has no vae_decoder"):
        _vae_decode(tmp_path / "other", 4, "provider", "options")  # type: ignore[arg-type]


def test_previews_are_of_unscaled_latents() -> None:
    session: Any = SimpleNamespace(outputs=[SimpleNamespace(name="b")], run=lambda feeds: {"a": 0, "b": feeds["x"]})
    assert _session_decode(session, "x", 0.25)(np.array([1, 2], np.float32)).tolist() == [4, 8]
