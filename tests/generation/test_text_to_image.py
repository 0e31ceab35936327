"""What a running pipeline hands from one of its parts to the next, each part replaced by one that notes it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image

from sdort.errors import ParityError
from sdort.families.component_names import CONTROLNET, DECODER, ENCODER, IMAGE_ENCODER
from sdort.families.data import sd1
from sdort.generation import keep_tuning
from sdort.generation import pipeline as module
from sdort.generation import pipeline as pipeline_module
from sdort.generation.denoising.guard import Guard
from sdort.generation.denoising.session_groups import Openings
from sdort.generation.latents.start_latents import BatchStart, Start
from sdort.generation.pictures.images import Generated
from sdort.generation.pipeline import TextToImage, Timings
from sdort.generation.prompts.encoded_texts import EncodedTexts
from sdort.generation.requests.request import Request
from sdort.generation.schedules.image_noise import ImageSeed
from sdort.generation.schedules.schedule_part import Begin, Part
from sdort.graph.signature import TensorSpec
from sdort.providers import CPU
from sdort.providers.rocm import PROVIDER as ROCM
from sdort.providers.runtime_options import RuntimeOptions
from sdort.runtime.step.step_conditions import StepConditions
from sdort.workload.cases import Case

OPTIONS = RuntimeOptions("rocm", graph=True, tuning=True)


def spec(*shape: Any) -> TensorSpec:
    return TensorSpec("x", np.dtype(np.float32), shape)


def made(**values: Any) -> TextToImage:
    """A pipeline of which the parts that a test needs are there."""
    found = TextToImage.__new__(TextToImage)
    folder = SimpleNamespace(
        path=Path("pipe"), vae_factor=8, latent_channels=4, sample_channels=4, vae={}, models={},
        file=lambda name: name, family=sd1.FAMILY, denoiser="unet",
    )  # fmt: skip
    usual: dict[str, Any] = {
        "folder": folder, "sessions": {}, "provider": ROCM, "fallback": None, "options": OPTIONS, "guard": None,
        "_set_aside": None, "_samples": 0, "timings": Timings(), "previewer": None, "decoded": None, "one_group": None,
        "openings": Openings(), "adapters": SimpleNamespace(forget=lambda name: None, renew=lambda: None, record=[]),
        "encoded_texts": EncodedTexts(),
        "_steered": False, "_scales": {}, "denoiser": "unet",
    }  # fmt: skip
    found.__dict__.update(usual | {"schedule": folder} | values)
    return found


# Text encoders


@pytest.mark.parametrize(
    ("at_once", "calls"),
    [("N", [[0], [1], [2]]), (1, [[0], [1], [2]]), (2, [[0, 1], [2, 2]]), (4, [[0, 1, 2, 2]])],
)
def test_rows_go_through_an_encoder_in_the_number_that_it_takes(at_once: Any, calls: list[list[int]]) -> None:
    seen: list[list[int]] = []

    def run(feeds: dict[str, Any]) -> dict[str, Any]:
        ids = feeds["input_ids"]
        assert ids.dtype == np.int64
        seen.append(ids[:, 0].tolist())
        return {"last": ids[:, None] + 0.5, "pooled": ids * 10, "other": ids * 0}

    sessions = {"text_encoder_2": SimpleNamespace(inputs={"input_ids": spec(at_once, 77)}, run=run)}
    outputs = {"text_encoder": {}, "text_encoder_2": {"encoder_hidden_states": "last", "text_embeds": "pooled"}}
    found = made(sessions=sessions)._encode(outputs, "text_encoder_2", [(0, 7), (1, 8), (2, 9)])
    assert seen == calls
    assert [sorted(each) for each in found] == [["encoder_hidden_states", "text_embeds"]] * 3
    for number, each in enumerate(found):
        np.testing.assert_array_equal(each["text_embeds"], [[number * 10, (number + 7) * 10]])
        np.testing.assert_array_equal(each["encoder_hidden_states"], [[[number + 0.5, number + 7.5]]])


def test_scores_and_images_go_to_the_negative_prompt_and_to_the_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline_module, "at_size", lambda _, each, size: each | {"size": size})
    monkeypatch.setattr(pipeline_module, "scored", lambda _, each, score: each | {"score": score})
    pipe = made()
    encoded: Any = {("a",): {"of": "a"}, ("b",): {"of": "b"}, None: {"of": "zeros"}}
    beside: Any = [(2.5, {"image": "none"}), (6.0, {"image": "photo"})]
    calls: Any = [[[(None, ("a",)), (("b",), ("a",))]], [[(("b",),)]]]

    def wanted(of: str, negative: bool) -> dict[str, Any]:
        score, image = (2.5, "none") if negative else (6.0, "photo")
        return {"of": of, "size": (16, 24), "score": score, "image": image}

    [[first, second]] = pipe._of_stage(encoded, calls[0], (16, 24), beside, guided=True)
    assert first == [wanted("zeros", True), wanted("a", False)]
    assert second == [wanted("b", True), wanted("a", False)]
    assert first[1] is second[1]  # equal texts have the same objects
    [[[alone]]] = pipe._of_stage(encoded, calls[1], (16, 24), beside, guided=False)
    assert alone == wanted("b", False)


def test_a_refiner_takes_no_images_and_the_side_is_the_encoders() -> None:
    asked: list[Any] = []
    tokens = SimpleNamespace(conditions=lambda inputs, images, encode, side, guided: asked.append((images, side)))
    unet = SimpleNamespace(inputs={"sample": 0})
    for shape, side in (((1, 3, 336, 336), 336), (("N", 3, "H", "W"), 224)):
        encoder = SimpleNamespace(inputs={"pixels": spec(*shape)})
        pipe = made(sessions={"unet": unet, IMAGE_ENCODER: encoder}, ip_adapter_tokens=tokens)
        request: Any = SimpleNamespace(ip_adapter_image=("photo",))
        pipe._image_conditions(request, True)
        assert asked.pop() == (("photo",), side)
        pipe.schedule = SimpleNamespace()  # type: ignore[assignment]
        pipe._image_conditions(request, True)
        assert asked.pop() == ((), 0)


# Opening


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    seen: list[Any] = []

    def open_or_fall_back(path: Path, component: str, provider: Any, options: Any) -> tuple[Any, str | None]:
        seen.append((path, component, provider, options))
        return SimpleNamespace(options=options, place=component), "refused" if component == ENCODER else None

    class Content:
        def __enter__(self) -> Any:
            return SimpleNamespace(reads=lambda paths: seen.append(("read", paths)))

        def __exit__(self, *_: Any) -> None:
            pass

    def checked(path: Path, check: bool) -> Content:
        seen.append(("checked", path, check))
        return Content()

    monkeypatch.setattr(module, "open_or_fall_back", open_or_fall_back)
    monkeypatch.setattr(module, "checked", checked)
    return seen


def test_only_a_unet_is_recorded_and_why_one_is_elsewhere_is_kept(opened: list[Any]) -> None:
    options = replace(OPTIONS, check=False)
    pipe = made(options=options, fallback="first")
    pipe.folder.models.update({"unet": Path("u"), ENCODER: Path("e")})
    assert pipe._opened(ENCODER) is pipe._opened(ENCODER)  # once
    assert opened == [
        ("checked", Path("pipe"), False),
        ("read", [Path("e")]),
        (Path("e"), ENCODER, ROCM, replace(options, graph=False)),
    ]
    assert pipe.fallback == "first; refused"
    pipe._open(pipe.folder, "unet", controlled=True)
    assert opened[-1] == (Path("u"), "unet", ROCM, replace(options, control_inputs=True))
    assert pipe.fallback == "first; refused"


def test_sessions_are_opened_with_what_is_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}
    names = ("text_encoder", "unet", DECODER)
    reasons = {"text_encoder": "why", "unet": None, DECODER: "why not"}

    def open_side_by_side(components: Any, provider: Any, on_open: Callable[[str], None]) -> Any:
        asked.update(components, provider=provider)
        for name in components:
            on_open(name)
        return {name: (SimpleNamespace(provider=CPU, name=name), reasons[name]) for name in components}

    monkeypatch.setattr(module, "open_side_by_side", open_side_by_side)
    monkeypatch.setattr(module, "remark_inputs", lambda session: asked.update(remarked=session.name))
    monkeypatch.setattr(module, "_load_ahead", lambda *of: ("tokenizers", *of[1:]))
    monkeypatch.setattr(module, "assemble", lambda *of: of)
    folder: Any = SimpleNamespace(needed=names, models={name: Path(name) for name in names}, denoiser="unet")
    options = replace(OPTIONS, adapters=True, device_id=3)
    opened: Any = module._open_sessions(folder, ROCM, "elsewhere", options)
    _, sessions, provider, fallback, tokenizers = opened
    assert (asked["provider"], asked["remarked"], provider) == (ROCM, "unet", CPU)  # what runs the UNet
    assert (list(sessions), fallback) == (list(names), "elsewhere; why; why not")
    assert tokenizers == ("tokenizers", ROCM, 3)
    assert {name: (asked[name][1].graph, asked[name][1].adapters) for name in names} == {
        "text_encoder": (False, True), "unet": (True, True), DECODER: (False, False),
    }  # fmt: skip
    assert asked["unet"][0] == Path("unet")
    module._open_sessions(folder, ROCM, "elsewhere", replace(options, graph=False, adapters=False))
    assert {(asked[name][1].graph, asked[name][1].adapters) for name in names} == {(False, False)}


def test_sessions_open_again_for_adapters_where_these_change_them(monkeypatch: pytest.MonkeyPatch) -> None:
    again: list[str] = []

    def open_again(place: str, options: RuntimeOptions) -> Any:
        assert options.adapters
        again.append(place)
        return SimpleNamespace(options=options, place=place)

    monkeypatch.setattr(module, "open_again", open_again)
    remarked: list[str] = []
    monkeypatch.setattr(module, "remark_inputs", lambda session: remarked.append(session.place))
    ready = replace(OPTIONS, adapters=True)
    used: list[Any] = []
    sessions = {
        name: SimpleNamespace(options=options, place=name)
        for name, options in {"text_encoder": ready, "text_encoder_2": OPTIONS, "unet": OPTIONS, DECODER: OPTIONS,
                              ENCODER: OPTIONS, IMAGE_ENCODER: OPTIONS}.items()
    }  # fmt: skip
    pipe = made(sessions=sessions, adapters=SimpleNamespace(use=used.append, forget=lambda name: None))
    nothing: Any = SimpleNamespace(choices=())
    pipe.use_adapters(nothing)
    assert (again, used) == ([], [nothing])
    plan: Any = SimpleNamespace(choices=("a",))
    pipe.use_adapters(plan)
    pipe.use_adapters(plan)
    assert (again, remarked, used) == (["text_encoder_2", "unet"], ["unet"], [nothing, plan, plan])


# The UNet with and without its inputs for images


@pytest.fixture
def unets(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A pipeline whose UNet is opened again by number; with room for two of them or not."""
    state = SimpleNamespace(room=True, opened=[], inputs=["sample", "mid_block_additional_residual"])

    def open_again(place: Any, options: RuntimeOptions) -> Any:
        state.opened.append((options.control_inputs, "unet" in state.pipe.sessions))
        return SimpleNamespace(options=options, place=place, number=len(state.opened))

    monkeypatch.setattr(module, "open_again", open_again)
    monkeypatch.setattr(module, "Loop", lambda unet: SimpleNamespace(unet=unet))
    monkeypatch.setattr(module, "has_room", lambda *_: state.room)
    unet = SimpleNamespace(options=OPTIONS, place="unet", number=0)
    pipe = state.pipe = made(sessions={"unet": unet}, loop=SimpleNamespace(unet=unet))
    pipe.folder.file = lambda _: SimpleNamespace(  # type: ignore[assignment, method-assign, return-value]
        signature=SimpleNamespace(inputs=state.inputs)
    )
    return state


def numbers(state: Any) -> tuple[int, int]:
    return state.pipe.sessions["unet"].number, state.pipe.loop.unet.number


def test_where_there_is_room_each_kind_of_request_keeps_its_unet(unets: Any) -> None:
    for steered, number in ((False, 0), (True, 1), (True, 1), (False, 0), (True, 1), (False, 0)):
        unets.pipe._use_unet(steered=steered)
        assert numbers(unets) == (number, number)
    assert unets.opened == [(True, True)]


def test_without_room_the_unet_with_inputs_stays(unets: Any) -> None:
    unets.room = False
    for steered, number in ((False, 0), (True, 1), (False, 1), (True, 1)):
        unets.pipe._use_unet(steered=steered)
        assert numbers(unets) == (number, number)
    assert unets.opened == [(True, False)]
    assert unets.pipe._set_aside is None


def test_a_unet_set_aside_in_another_precision_is_not_taken(unets: Any) -> None:
    unets.pipe.guard = SimpleNamespace(widened={}, reopened=lambda *_: None)
    unets.pipe._use_unet(steered=True)
    unets.pipe.guard.widened["unet"] = "all of it"
    unets.pipe._use_unet(steered=False)  # that one was not in fp32: it goes on with zeros
    assert numbers(unets) == (1, 1)
    del unets.pipe.guard.widened["unet"]
    unets.pipe._use_unet(steered=False)
    assert numbers(unets) == (0, 0)
    unets.pipe.guard.widened["unet"] = "its attention"
    unets.pipe._use_unet(steered=True)
    assert numbers(unets) == (2, 2)  # opened anew
    unets.pipe.guard.reopened = lambda place, options: SimpleNamespace(options=options, place=place, number=9)
    unets.pipe._set_aside = None
    unets.pipe.sessions["unet"].options = OPTIONS
    unets.pipe._use_unet(steered=True)
    assert numbers(unets) == (9, 9)


def test_a_unet_is_cut_in_its_own_place_and_serves_requests_that_want_it_whole(unets: Any) -> None:
    for cut, number in ((0, 0), (2, 1), (0, 1), (2, 1), (3, 2), (0, 2)):
        unets.pipe._use_unet(steered=False, cut=cut)
        assert numbers(unets) == (number, number)
    assert unets.opened == [(False, False)] * 2
    assert unets.pipe.options.deep_cut == unets.pipe.sessions["unet"].options.deep_cut == 3


def test_a_steered_unet_is_cut_with_its_inputs(unets: Any) -> None:
    unets.pipe._use_unet(steered=True, cut=2)
    assert unets.opened == [(True, False)]
    for steered, number in ((True, 1), (False, 1), (True, 1)):
        unets.pipe._use_unet(steered=steered, cut=2)
        assert numbers(unets) == (number, number)
    unets.pipe._use_unet(steered=False, cut=1)
    unets.pipe._use_unet(steered=True, cut=1)
    assert unets.opened == [(True, False), (False, False), (True, True)]


def test_a_unet_that_nothing_can_steer_is_one(unets: Any) -> None:
    unets.inputs = ["sample"]
    unets.pipe._use_unet(steered=True)
    assert (numbers(unets), unets.opened) == ((0, 0), [])


def test_a_unet_that_was_closed_opens_for_the_request(unets: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []

    def opening(self: Any, folder: Any, component: str, controlled: bool = False) -> Any:
        asked.append(controlled)
        return SimpleNamespace(options=replace(OPTIONS, control_inputs=controlled), place="unet", number=5)

    monkeypatch.setattr(TextToImage, "_open", opening)
    unets.pipe._set_aside = ("loop", None)
    unets.pipe._close_unet()
    assert unets.pipe._set_aside is None
    for steered in (True, False):
        unets.pipe.sessions.clear()
        unets.pipe._use_unet(steered=steered)
        assert numbers(unets) == (5, 5)
    assert asked == [True, False]
    assert unets.opened == []


# Denoising


SEEDS = [ImageSeed(3), ImageSeed(4)]


class Source:
    """Noise that counts its draws."""

    seeds = SEEDS

    def __init__(self) -> None:
        self.drawn: list[tuple[int, ...]] = []
        self.restored: list[str] = []

    def draw(self, shape: Any) -> Any:
        self.drawn.append(tuple(shape))
        return np.full((2, *shape), len(self.drawn), np.float32)

    def state(self) -> str:
        return "state"

    def restore(self, state: str) -> None:
        self.restored.append(state)


STAGE: Any = SimpleNamespace(size=(16, 48), schedule=7, part=Part(begin=Begin.NOISE), controls=("c",))


@pytest.mark.parametrize(
    ("known", "fits", "nets", "extra", "through_host"),
    [
        (True, True, False, False, False),
        (True, True, False, True, False),
        (True, True, True, False, False),
        (True, True, True, True, False),
        (True, False, False, False, True),
        (False, True, True, True, True),
        (False, True, False, False, True),
    ],
)
def test_steps_stay_on_the_device_where_they_can(
    known: bool, fits: bool, nets: bool, extra: bool, through_host: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[str, Any] = {}
    batches: list[Any] = []
    noise = np.zeros((2, 4, 2, 6), np.float32)
    given = BatchStart(noise, "image", "mask", np.zeros((2, 5, 2, 6)) if extra else None)  # type: ignore[arg-type]

    class Begins:
        def begin(self, source: Any, latent: Any, part: Any) -> BatchStart:
            seen["begin"] = latent, part
            return given

    def host(unet: Any, steps: Any, conditions: Any, *rest: Any) -> Any:
        seen["host"] = (unet, steps, *rest)
        return noise, [1.0, 2.0]

    def device(recurrence: Any, batch: Any, conditions: Any, rows: Any, *rest: Any) -> Any:
        seen["device"] = (batch, rows, *rest)
        return noise, [1.0, 2.0]

    def fitting(recurrence: Any, batch: Any) -> bool:
        batches.append(batch)
        return fits

    def bound(batch: Any, conditions: Any, steered: bool) -> Any:
        return "bound", batch.extra, steered

    told: list[Any] = []
    monkeypatch.setattr(module, "remark_on_shares", lambda *of: told.append(of))

    def decide(_: TextToImage, asked: Request, batch: Any, stage: Any) -> None:
        told.append((asked, batch.images, batch.samples, batch.extra, stage))

    monkeypatch.setattr(TextToImage, "_decide_parts", decide)
    unet = SimpleNamespace(offloaded="some")
    loop = SimpleNamespace(fits=fitting, denoise=device, buffers=bound, unet=unet)
    controls: Any = SimpleNamespace(nets=["net"]) if nets else None
    monkeypatch.setattr(module, "denoise", host)
    monkeypatch.setattr(TextToImage, "_controls", lambda *_: controls)
    monkeypatch.setattr(TextToImage, "_steps", lambda *_: "steps")
    monkeypatch.setattr(TextToImage, "_previews", lambda *of: ("previews", of[-1]))
    pipe = made(sessions={"unet": SimpleNamespace(inputs={})}, loop=loop)
    recurrence: Any = SimpleNamespace(noises=2) if known else None
    source: Any = Source()
    conditions = StepConditions.fixed([{}, {}], 7)
    request = Request("a", guidance_scale=3.0, deep_cache=4)
    advance = print
    found = pipe._denoise_batch(request, STAGE, recurrence, conditions, Begins(), source, advance)  # type: ignore[arg-type]
    assert found is noise
    assert pipe.timings.steps == [1.0, 2.0]
    assert told == [(unet, 4), (request, 2, 4, 5 if extra else 0, STAGE)]
    assert pipe.offloaded is unet.offloaded
    assert seen["begin"] == ((4, 2, 6), STAGE.part)
    assert ("host" in seen) is through_host
    guidance, previews = [-2.0, 3.0], ("previews", SEEDS)
    if through_host:
        buffers, steps, begun, draw, *rest = seen["host"]
        assert buffers == ("bound", 5 if extra else 0, nets)
        assert (steps, begun, draw) == ("steps", given, source.draw)
        assert rest == [guidance, advance, previews, controls, 4, None]
        assert source.drawn == []
    else:
        batch, rows, *rest = seen["device"]
        assert (batch.copies, batch.images, batch.latent, batch.extra) == (2, 2, (4, 2, 6), 5 if extra else 0)
        assert rows.shape == (3, 2, 4, 2, 6)
        assert [rows[number].max() for number in range(3)] == [0, 1, 2]
        assert rest == [guidance, advance, "image", "mask", given.extra, previews, controls, 4, None]
        assert source.drawn == [(4, 2, 6)] * 2
        assert batches == [batch]


def test_what_is_done_again_takes_its_steps_back_and_draws_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "Loop", lambda unet: SimpleNamespace(unet=unet))
    source: Any = Source()
    steps: list[float] = []
    pipe = made(sessions={"unet": "old"}, loop=SimpleNamespace(unet="old"))

    class Exchanging:
        def run(self, component: str, work: Callable[[], Any], problem_of: Callable[[Any], str | None]) -> Any:
            assert component == "unet"
            for _ in range(2):
                first = work()
                assert problem_of(first) == "it gave NaN or infinite values"
            pipe.sessions["unet"] = "new"  # type: ignore[assignment]
            result = work()
            assert problem_of(result) is None
            return result

    pipe.guard = Exchanging()  # type: ignore[assignment]

    def denoise_batch(advance: Callable[[float], None]) -> Any:
        for _ in range(3):
            advance(2)
        latents = np.random.default_rng(0).normal(size=(2, 4, 2, 6))
        if pipe.loop.unet == "old":  # type: ignore[comparison-overlap]
            latents[1, 0, 0, 0] = np.nan  # the second image alone
        return latents

    found = pipe._denoised(denoise_batch, source, steps.append)
    assert found.shape == (2, 4, 2, 6)
    assert steps == [2, 2, 2, -6, 2, 2, 2, -6, 2, 2, 2]
    assert source.restored == ["state"] * 3
    assert pipe.loop.unet == "new"  # type: ignore[comparison-overlap]


def test_without_a_guard_nothing_is_judged() -> None:
    pipe = made()
    assert np.isnan(pipe._guarded("unet", lambda: np.full(3, np.nan), list)).all()


@pytest.mark.parametrize("upscale", [None, "latent", "image"])
def test_a_second_pass_begins_at_its_own_height_and_width(upscale: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    pixels = np.zeros((16, 24, 3), np.uint8)
    pixels[:, :12] = 200
    taken: list[Any] = []

    def posterior(self: Any, values: Any, request: Any) -> str:
        taken.append(values)
        return "posterior"

    monkeypatch.setattr(TextToImage, "_posterior", posterior)
    monkeypatch.setattr(TextToImage, "_decode", lambda *_: iter([Generated(3, pixels, None)]))
    latents = np.random.default_rng(0).normal(size=(1, 4, 2, 3)).astype(np.float32)
    pipe = made()
    stage: Any = SimpleNamespace(size=(32, 72))
    start = pipe._larger(latents, Request("a", hires=2.0, hires_upscale=upscale), stage, SEEDS[:1])
    if upscale == "image":
        wanted = np.asarray(Image.fromarray(pixels).resize((72, 32), Image.Resampling.LANCZOS), np.float32)
        [found] = taken
        np.testing.assert_allclose(found[0].transpose(1, 2, 0), wanted / 127.5 - 1, atol=1e-6)
        assert (start.image, start.latents) == ("posterior", None)  # type: ignore[comparison-overlap]
        monkeypatch.setattr(TextToImage, "_decode", lambda *_: iter([Generated(4, pixels, "black")]))
        with pytest.raises(ParityError, match="the first image of seed 4 shows nothing: black"):
            pipe._larger(latents, Request("a", hires=2.0, hires_upscale=upscale), stage, SEEDS[:1])
        return
    exact = torch.from_numpy(latents.astype(np.float64))
    wanted_latents = torch.nn.functional.interpolate(exact, size=(4, 9), mode="bilinear").numpy()
    assert start.latents is not None
    assert start.latents.dtype == np.float32
    # Weights, products and sums of both axes round once each.
    roundings = 8 * 2**-24 * np.abs(latents).max()
    np.testing.assert_allclose(start.latents, wanted_latents, rtol=0, atol=roundings)
    assert (start.image, taken) == (None, [])


def test_images_are_encoded_by_their_own_height_and_width(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, Any] = {}

    def choose(encoder: Any, session: Any, size: Any, tiling: Any, slicing: Any) -> str:
        seen["choose"] = size, tiling, slicing
        return "plan"

    def encoder(session: Any, vae: Any, factor: int, graph_memory: Any, channels: int) -> Any:
        seen["encoder"] = factor, graph_memory, channels
        return SimpleNamespace(encode=lambda pixels, plan: (pixels.shape, plan))

    monkeypatch.setattr(module, "choose", choose)
    monkeypatch.setattr(module, "Encoder", encoder)
    monkeypatch.setattr(module, "decoder_memory", lambda file, provider, widened: (file, provider, widened))
    session = SimpleNamespace(provider=CPU)
    pipe = made(sessions={ENCODER: session})
    request = Request("a", vae_tiling=True, vae_slicing=False)
    pixels = np.zeros((2, 3, 16, 48), np.float32)
    assert pipe._posterior(pixels, request) == ((2, 3, 16, 48), "plan")  # type: ignore[comparison-overlap]
    assert seen["choose"] == ((1, 2, 6), True, True)
    assert seen["encoder"] == (8, (ENCODER, CPU, False), 4)
    for widened, wide in (({ENCODER: "all of it"}, True), ({DECODER: "all of it"}, False)):
        pipe.guard = SimpleNamespace(widened=widened, run=lambda component, work, problem: work())  # type: ignore[assignment]
        pipe._posterior(pixels, request)
        assert seen["encoder"][1] == (ENCODER, CPU, wide)


@pytest.mark.parametrize(
    ("mask", "channels", "takes", "asked"),
    [
        (False, 4, True, ["pixels"]),
        (True, 4, True, ["pixels"]),
        (True, 9, True, ["masked", "pixels"]),
        (True, 9, False, ["masked"]),
        (True, 4, False, []),
    ],
)
def test_what_a_mask_leaves_is_encoded_for_a_unet_that_takes_it(
    mask: bool, channels: int, takes: bool, asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    monkeypatch.setattr(TextToImage, "_posterior", lambda self, pixels, request: seen.append(pixels) or pixels)  # type: ignore[func-returns-value, redundant-expr]
    canvas: Any = SimpleNamespace(pixels="pixels", masked_pixels="masked", latent_mask=lambda factor: ("mask", factor))
    pipe = made()
    pipe.folder.sample_channels = channels  # type: ignore[misc]
    found = pipe._start(SimpleNamespace(mask=mask), canvas, SimpleNamespace(takes_image=takes))  # type: ignore[arg-type]
    assert seen == asked
    wanted = Start(pipe.folder, "pixels" if takes else None, mask=("mask", 8) if mask else None,  # type: ignore[arg-type]
                   masked="masked" if "masked" in asked else None)  # type: ignore[arg-type]  # fmt: skip
    assert found == wanted


def test_a_refiner_is_not_steered() -> None:
    controls = SimpleNamespace(use=lambda planned, size, unet, *, guess: (planned, size, unet, guess))
    pipe = made(sessions={"unet": "unet"}, controls=controls)
    for guess in (False, True):
        request: Any = SimpleNamespace(control=("c",), guess_mode=guess)
        assert pipe._controls(request, STAGE) == (("c",), (16, 48), "unet", guess)  # type: ignore[comparison-overlap]
    pipe.schedule = SimpleNamespace()  # type: ignore[assignment]
    assert pipe._controls(request, STAGE) is None


def test_an_image_of_a_batch_is_decoded_once_in_each_precision() -> None:
    steps: list[str] = []
    pipe = made(sessions={DECODER: "half"})

    def step(component: str, problem: str) -> bool:
        steps.append(problem)
        if len(steps) > 2:
            return False
        pipe.sessions[DECODER] = f"safer {len(steps)}"  # type: ignore[assignment]
        return True

    pipe.guard = SimpleNamespace(step=step)  # type: ignore[assignment]
    rng = np.random.default_rng(0)
    good = rng.uniform(-1, 1, (3, 8, 16)).astype(np.float32)

    class Decoder:
        plan_now = "plan"
        session: Any = "half"

        def decode(self, latents: Any, plan: str) -> Any:
            assert plan == "plan"
            yield good if self.session == "safer 2" else np.full_like(good, np.nan)

    decoder: Any = Decoder()
    black = Generated(7, np.zeros((8, 16, 3), np.uint8), "black")
    image = pipe._shown(decoder, black, np.zeros((1, 4, 1, 2)), "half")  # type: ignore[arg-type]
    assert (image.problem, image.seed, len(steps)) == (None, 7, 2)
    assert steps[0] == "the image of seed 7 shows nothing: black"
    assert steps[1] == "the image of seed 7 shows nothing: it has NaN or infinite pixels"
    # The next image of the batch was decoded before the exchange: no further step is needed.
    again = pipe._shown(decoder, black, np.zeros((1, 4, 1, 2)), "half")  # type: ignore[arg-type]
    assert (again.problem, len(steps)) == (None, 2)
    bad = pipe._shown(decoder, black, np.zeros((1, 4, 1, 2)), pipe.sessions[DECODER])
    assert (bad.problem, len(steps)) == ("black", 3)
    pipe.guard = None
    assert pipe._shown(decoder, black, np.zeros((1, 4, 1, 2)), "half") is black  # type: ignore[arg-type]


def test_decoded_images_keep_their_seeds_latents_and_the_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[Any] = []
    monkeypatch.setattr(module, "choose", lambda decoder, session, size, tiling, slicing: (size, tiling, slicing))
    monkeypatch.setattr(
        TextToImage,
        "_shown",
        lambda self, decoder, image, latents, used: shown.append((latents, used)) or image,  # type: ignore[func-returns-value, redundant-expr]
    )
    decoder = SimpleNamespace(session="s", plan_now="now", decode=lambda latents, plan: iter(latents[:, :3]))
    monkeypatch.setattr(TextToImage, "_decoder", lambda self, on_tile: decoder)
    pipe = made(sessions={DECODER: "first"})
    pipe.folder.unscaled = lambda latents: latents / 2  # type: ignore[assignment, method-assign, return-value]
    latents = np.stack([np.full((4, 2, 6), value, np.float32) for value in (0.5, 1.0)])
    seeds = [ImageSeed(3, 8), ImageSeed(3, 9)]
    images = list(pipe._decode(latents, Request("a"), seeds, lambda *_: None))
    assert [(each.seed, each.variation_seed) for each in images] == [(3, 8), (3, 9)]
    assert pipe.decoded == "now"  # type: ignore[comparison-overlap]
    for number, (own, used) in enumerate(shown):
        np.testing.assert_array_equal(own, latents[number : number + 1] / 2)
        assert used == "first"


# The guard


def session_of(component: str, options: RuntimeOptions = OPTIONS) -> Any:
    place = SimpleNamespace(path=Path("m"), component=component)
    return SimpleNamespace(place=place, options=options, component=component)


def test_a_stage_that_raises_or_is_dead_goes_on_safer_until_nothing_is(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[Any] = []

    def opening(place: Any, select: Any, options: Any) -> Any:
        opened.append((place.component, select.__name__, options))
        return session_of(place.component, replace(options, graph=False))

    monkeypatch.setattr("sdort.generation.denoising.guard._open", opening)
    sessions = {"unet": session_of("unet"), DECODER: session_of(DECODER)}
    guard = Guard(sessions)
    tries: list[int] = []

    def work() -> int:
        tries.append(len(tries))
        if len(tries) == 1:
            raise ParityError("NaN")
        return len(tries)

    assert guard.run("unet", work, lambda result: "dead" if result < 3 else None) == 3
    assert guard.widened == {"unet": "all of it"}
    names = [(component, select) for component, select, _ in opened]
    assert names == [("unet", "attention_nodes"), ("unet", "all_nodes")]
    with pytest.raises(ParityError, match="still dead") as raised:
        guard.run("unet", lambda: 0, lambda _: "still dead")
    assert raised.value.component == "unet"
    again = guard.reopened(sessions["unet"].place, replace(OPTIONS, adapters=True))
    assert again is not None
    assert opened[-1] == ("unet", "all_nodes", replace(OPTIONS, adapters=True))
    assert guard.reopened(sessions[DECODER].place, OPTIONS) is None


def test_what_steers_is_safer_before_the_unet_and_only_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "sdort.generation.denoising.guard._open", lambda place, select, options: session_of(place.component)
    )
    left = [[session_of(CONTROLNET), session_of("t2i_adapter")]]
    controls: Any = SimpleNamespace(exchange=lambda safer: left.pop() if left else [])
    guard = Guard({"unet": session_of("unet"), DECODER: session_of(DECODER)}, controls)
    assert guard.step(DECODER, "dead")
    assert guard.widened == {DECODER: "all of it"}
    assert guard.step("unet", "dead")
    assert guard.widened == {DECODER: "all of it", CONTROLNET: "all of it", "t2i_adapter": "all of it"}
    assert guard.step("unet", "dead")
    assert guard.widened["unet"] == "its attention"
    assert not guard.step(DECODER, "dead")


# Tuning of what was generated


def test_what_was_tuned_is_kept_for_every_stage_and_every_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    cases: list[Any] = []
    shapes: list[Any] = []
    monkeypatch.setattr(keep_tuning, "keep_case", lambda session, case, *sizes: cases.append((case, *sizes)))
    monkeypatch.setattr(keep_tuning, "keep_shapes", lambda session, dims: shapes.append((session.component, dims)))
    stages: list[Any] = [SimpleNamespace(size=(16, 48)), SimpleNamespace(size=(32, 96))]

    def session(component: str, *ran: Any) -> Any:
        return SimpleNamespace(component=component, inputs={"sample": spec("N", 4, "H", "W")}, ran_on=set(ran))

    pipeline: Any = SimpleNamespace(
        sessions={
            "text_encoder": session("text_encoder", (("input_ids", (1, 77)),)),
            DECODER: session(DECODER, (("x", (2, 4, 2, 6)),), (("x", (1, 4, 2, 6)),)),
            "unet": session("unet", (("sample", (9, 9)),)),
        },
        controls=SimpleNamespace(sessions=[session(CONTROLNET)]), folder=SimpleNamespace(vae_factor=8, tokens=len),
    )  # fmt: skip
    request = Request("a", num_images=2, images_at_once=3)
    keep_tuning.keep_generated(pipeline, [request, request], stages)
    assert shapes == [
        ("text_encoder", {"input_ids": (1, 77)}), (DECODER, {"x": (1, 4, 2, 6)}), (DECODER, {"x": (2, 4, 2, 6)}),
    ]  # fmt: skip
    wanted = [
        (Case("unet", batch, *size), 8, 4) for size in ((16, 48), (32, 96)) for batch in (2, 6)
    ]  # 3 images, then 1
    assert cases == wanted
    cases.clear()
    steered: Any = replace(request, control=("c",), guidance_scale=1.0)  # type: ignore[arg-type]
    keep_tuning.keep_generated(pipeline, [steered], stages)
    assert [(case.component, case.batch) for case, *_ in cases] == [("unet", 2)] * 2 + [(CONTROLNET, 2)] * 2


# Refiners


@pytest.mark.parametrize("fits", [True, False])
def test_the_refiner_is_that_of_the_request(fits: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one before stays open for the next request that names it, where memory has room for both."""
    opened: list[str] = []

    def open_one(folder: Any) -> Any:
        opened.append(folder.path.name)
        return SimpleNamespace(
            folder=folder,
            _leave_room=lambda *_: None,
            _use_unet=lambda **asked: opened.extend(
                [] if asked == {"steered": False, "cut": 0, "patches": 0} else ["asked otherwise"]
            ),
            _conditions=lambda requests, stages: [["condition"] * len(requests)],
            _recurrence=lambda *_: None,
            _denoise_batch=lambda *_: None,
            _denoised=lambda *_: np.full((1, 4, 2, 2), len(folder.path.name), np.float32),
        )

    monkeypatch.setattr(module, "open_refiner", lambda path, _: SimpleNamespace(path=path))
    monkeypatch.setattr(module, "remark_on_base", lambda *_, **__: None)
    monkeypatch.setattr(module, "fits_beside", lambda *_: fits)
    base = made(refiner=None, refined_by=None)
    base.__dict__.update(_opened_refiner=open_one, _close_unet=lambda: opened.append("closed"))
    stage: Any = SimpleNamespace(size=(16, 16), refines=True)

    def refined(name: str) -> Any:
        batch = module.DenoisedBatch([0], [], None, np.zeros((1, 4, 2, 2), np.float32))  # type: ignore[arg-type]
        request = Request("a", refiner=Path(name), refiner_start=0.8)
        [result] = list(base._refined([request], stage, iter([batch]), lambda _: None))
        assert base.refined_by is not None
        assert base.refined_by.path == Path(name)
        return result.latents[0, 0, 0, 0]

    assert [refined(name) for name in ("one", "one", "other", "one")] == [3, 3, 5, 3]
    names = ["one", "other", "one"] if fits else ["one", "one", "other", "one"]
    assert [name for name in opened if name != "closed"] == names
    assert opened.count("closed") == (0 if fits else 4)
