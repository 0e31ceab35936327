"""Jobs: what a caller asks for becomes requests, files and refusals, before anything is loaded."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image

from sdort.errors import OutputError, ParityError, UsageError
from sdort.families.known_families import FAMILIES
from sdort.generation import command, job
from sdort.generation.command import Pipeline
from sdort.generation.files.from_image import DrawnWith
from sdort.generation.job import Job, plan_job, plan_jobs, plan_paths
from sdort.generation.pictures.images import Generated
from sdort.generation.requests.default_sampling import Sampling
from sdort.generation.requests.request import Request
from sdort.generation.requests.typed_options import PreviewOptions
from sdort.providers.rocm import PROVIDER as ROCM
from sdort.providers.runtime_options import RuntimeOptions


def made(*requests: Request, **values: Any) -> Job:
    usual: dict[str, Any] = {
        "output": None, "overwrite": False, "on_progress": None, "cancel": None, "previews": PreviewOptions()
    }  # fmt: skip
    return Job(list(requests), **{**usual, **values})


# What is left open


@pytest.fixture
def drawn_seeds(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Random seeds, one after the other."""
    asked: list[int] = []
    monkeypatch.setattr(job.secrets, "randbelow", lambda most: asked.append(most) or 100 + len(asked))  # type: ignore[attr-defined, func-returns-value, redundant-expr]
    return asked


def test_seeds_that_are_not_given_are_random(drawn_seeds: list[int]) -> None:
    one = plan_job(["a", "b"], {})
    assert [each.seed for each in one.requests] == [101, 101]
    assert one.requests[0].variation_seed is None
    assert drawn_seeds == [1 << 32]
    assert plan_job("a", {"seed": 0}).requests[0].seed == 0
    varied = plan_job("a", {"seed": 5, "variation_strength": 0.0}).requests[0]
    assert (varied.seed, varied.variation_seed) == (5, 102)
    assert plan_job("a", {"variation_strength": 0.1, "variation_seed": 0}).requests[0].variation_seed == 0
    assert drawn_seeds == [1 << 32] * 3


def test_each_seed_is_for_each_prompt_in_the_prompts_order() -> None:
    found = plan_job(["a", "b"], {"seed": "3,7-8", "num_images": 2, "negative_prompt": ["c", "d"]})
    assert [(each.prompt, each.negative_prompt, each.seed) for each in found.requests] == [
        ("a", "c", 3), ("a", "c", 7), ("a", "c", 8), ("b", "d", 3), ("b", "d", 7), ("b", "d", 8),
    ]  # fmt: skip
    assert found.images == 12


def test_what_is_no_setting_of_a_request_is_the_jobs() -> None:
    def progress(done: float, total: float) -> None:
        pass

    cancel = Event()
    found = plan_job(
        "a",
        {
            "output": "x.png", "overwrite": True, "on_progress": progress, "cancel": cancel, "preview": True,
            "preview_every": 3, "seed": 1,
        },
    )  # fmt: skip
    assert (found.output, found.overwrite, found.on_progress) == (Path("x.png"), True, progress)
    assert (found.cancel, plan_job("a", {"seed": 1}).cancel) == (cancel, None)
    assert found.previews == PreviewOptions(preview=True, preview_every=3)
    plain = plan_job("a", {"seed": 1, "output": None, "preview_every": None})  # type: ignore[typeddict-item]
    assert (plain.output, plain.overwrite, plain.on_progress, plain.previews) == (None, False, None, PreviewOptions())
    with pytest.raises(TypeError, match="there is no option bogus, other; there are"):
        plan_job("a", {"other": 1, "bogus": 2, "seed": 1})  # type: ignore[typeddict-unknown-key]


@pytest.mark.parametrize(
    ("given", "unsaid"),
    [
        ({}, {"steps", "guidance_scale"}),
        ({"steps": 9}, {"guidance_scale"}),
        ({"guidance_scale": 0.0}, {"steps"}),
        ({"steps": None, "guidance_scale": 3.0}, {"steps"}),
        ({"steps": 9, "guidance_scale": 3.0}, set()),
    ],
)
def test_a_pipeline_says_what_the_caller_does_not(
    given: Any, unsaid: set[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[Any] = []
    usual = Sampling(4, 1.0, reason="it is quick")
    monkeypatch.setattr(job, "default_sampling", lambda folder, scheduler: asked.append(scheduler) or usual)  # type: ignore[func-returns-value, redundant-expr]
    planned = plan_job(["a", "b"], {**given, "seed": 1, "scheduler": "euler"})  # type: ignore[typeddict-item]
    assert planned.unsaid == unsaid
    folder: Any = SimpleNamespace(models={}, family=FAMILIES["SD 1.x"], scheduler={"_class_name": "Own"})
    found = planned.for_pipeline(folder)
    settings = {"steps": 4, "guidance_scale": 1.0} | {name: value for name, value in given.items() if value is not None}
    assert {(each.steps, each.guidance_scale) for each in found.requests} == {tuple(settings.values())}
    assert found.unsaid == frozenset()
    told = " ".join(capsys.readouterr().err.split())
    words = ", ".join(f"--{name.replace('_', '-')} {settings[name]:g}" for name in sorted(unsaid))
    assert asked == (["euler"] if unsaid else [])
    assert told == (f"a few-step model (it is quick): {words}, unless you say otherwise" if unsaid else "")
    usual = Sampling()
    planned.for_pipeline(folder)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("given", "exchanged", "asked"),
    [
        ({}, True, None), ({"guidance_scale": 3.0}, True, None), ({"steps": 9}, False, "Own"),
        ({"eta": 0.5}, False, "Own"), ({"timestep_spacing": "leading"}, False, "Own"),
        ({"scheduler": "ddim"}, False, "ddim"),
    ],
)  # fmt: skip
def test_the_sampler_is_exchanged_where_nothing_is_said_of_the_sampling(
    given: Any, exchanged: bool, asked: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []

    def usual(folder: object, scheduler: str | None) -> Sampling:
        seen.append(scheduler)
        return Sampling(7, 2.0, "unipc" if scheduler is None else None)

    monkeypatch.setattr(job, "default_sampling", usual)
    folder: Any = SimpleNamespace(models={}, family=FAMILIES["SD 1.x"], scheduler={"_class_name": "Own"})
    options: Any = {"seed": 1, **given}
    [request] = plan_job("a", options).for_pipeline(folder).requests
    assert seen == [asked]
    assert request.scheduler == ("unipc" if exchanged else given.get("scheduler"))
    assert request.steps == given.get("steps", 7)


def test_an_image_to_be_drawn_again_is_held_against_the_models(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Any] = []
    drawn: Any = SimpleNamespace(
        remark_on_model=lambda digest: told.append(("model", digest)),
        remark_on_refiner=lambda digest: told.append(("refiner", digest)),
    )
    monkeypatch.setattr(job, "open_refiner", lambda path, base: SimpleNamespace(model_hash=f"{path} of {base.name}"))
    folder: Any = SimpleNamespace(model_hash="00", name="base", models={}, family=FAMILIES["SD 1.x"])
    made(Request("a"), drawn=drawn).for_pipeline(folder)
    assert told == [("model", "00")]
    made(Request("a", refiner=Path("r")), drawn=drawn).for_pipeline(folder)
    assert told[1:] == [("model", "00"), ("refiner", "r of base")]


def test_the_files_of_an_image_are_held_against_those_given(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Any] = []
    drawn: Any = SimpleNamespace(
        options={"prompt": "from the image", "steps": 7},
        remark_on_image=lambda option, image: told.append((option, image)),
        remark_on_files=lambda option, records: told.append((option, records)),
    )
    seen: list[Any] = []
    monkeypatch.setattr(job, "read_image_options", lambda path, given: seen.append((path, given)) or drawn)  # type: ignore[func-returns-value, redundant-expr]
    for name in ("record_adapter", "record_control", "record_ip_adapter_image"):
        monkeypatch.setattr(job, name, lambda choice, name=name: (name, choice))
    pixels = np.full((8, 16, 3), 9, np.uint8)
    settings: Any = {"from_image": "drawn.png", "seed": 1, "steps": None, "init_image": pixels}
    found = plan_job("", settings)
    assert seen == [(Path("drawn.png"), {"seed": 1, "init_image": pixels})]
    assert (found.requests[0].prompt, found.requests[0].steps, found.drawn) == ("from the image", 7, drawn)
    [image, *files] = told
    assert (image[0], image[1].size) == ("init_image", (8, 16))
    assert files == [("lora", []), ("control", []), ("ip_adapter_image", [])]
    plan_job("mine", {"from_image": "drawn.png", "seed": 1})
    assert seen[1] == (Path("drawn.png"), {"seed": 1, "prompt": "mine"})
    assert plan_job("a", {"seed": 1}).drawn is None
    assert DrawnWith({}).images == {}


# Files and groups


def test_images_are_named_by_all_jobs_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    jobs = [made(Request("a", seed=5, num_images=2), Request("b", seed=7)), made(Request("c", seed=9))]
    assert plan_paths(jobs) == [Path(f"sdort-5-{number}.png") for number in range(1, 5)]
    named = [replace(each, output=Path("x.png")) for each in jobs]
    assert plan_paths(named) == [Path(f"x-{number}.png") for number in range(1, 5)]
    filled = [replace(each, output=Path("{index}-{seed}-{prompt}.png")) for each in jobs]
    names = ["1-5-a.png", "2-6-a.png", "3-7-b.png", "4-9-c.png"]
    assert plan_paths(filled) == [Path(name) for name in names]
    Path("3-7-b.png").touch()
    with pytest.raises(OutputError, match=r"3-7-b\.png exists"):
        plan_paths(filled)
    assert plan_paths([replace(each, overwrite=True) for each in filled]) == [Path(name) for name in names]
    with pytest.raises(UsageError, match="names two images"):
        plan_paths([replace(each, output=Path("{prompt}.png")) for each in jobs])


def test_prompts_of_the_same_weights_share_a_job_and_keep_their_order() -> None:
    prompts = ["a", "b", "c AND d", "e AND f", "g AND h:0.5", "i"]
    jobs = plan_jobs(prompts, {"seed": 1, "output": "x.png"})
    assert [[each.prompt for each in one.requests] for one in jobs] == [prompts[:2], prompts[2:4], [prompts[4]], ["i"]]
    assert {one.output for one in jobs} == {Path("x.png")}


def test_an_error_of_a_line_names_the_first_line_that_has_it(tmp_path: Path) -> None:
    file = tmp_path / "p.txt"
    file.write_text("a cat\n\na (dog:500)\na (fox:600)\n")
    with pytest.raises(UsageError, match=r"line 3 of .*p\.txt: the prompt gives 'dog' the weight 500"):
        plan_jobs((), {"prompts": file, "seed": 1})
    file.write_text("a\nb\n")
    [one] = plan_jobs((), {"prompts": file, "seed": 1})
    assert one.place == f"line 1 of {file}"
    with pytest.raises(UsageError, match=f"line 1 of {file}: wrong"), one.named():
        raise UsageError("wrong")
    with pytest.raises(UsageError) as plain, made(Request("a")).named():
        raise UsageError("wrong")
    assert plain.value.message == "wrong"
    for options in ({"from_image": "a.png"}, {}):
        with pytest.raises(UsageError, match="--prompts gives the prompts"):
            plan_jobs("" if options else "a", {"prompts": file, **options})  # type: ignore[typeddict-item]


def test_all_lines_have_one_random_seed(tmp_path: Path, drawn_seeds: list[int]) -> None:
    file = tmp_path / "p.jsonl"
    file.write_text('{"prompt": "a", "steps": 2}\n{"prompt": "b", "steps": 3}\n{"prompt": "c", "seed": 4}\n')
    jobs = plan_jobs((), {"prompts": file})
    assert [each.seed for one in jobs for each in one.requests] == [101, 101, 4]
    assert drawn_seeds == [1 << 32]


# Running them


@pytest.fixture
def pipeline(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A pipeline that generates noise, and what was asked before that."""
    asked = SimpleNamespace(refused=[], bad=set(), stages=[], kept=[], needed=iter([110, *[100] * 20]))
    rng = np.random.default_rng(0)

    def generate_all(requests: Any, on_step: Any, on_tile: Any, plan: Any) -> Any:
        assert plan.request == requests[0]
        for request in requests:
            for seed in request.seeds:
                problem = "black" if seed.number in asked.bad else None
                yield Generated(seed.number, rng.integers(0, 256, (8, 16, 3), np.uint8), problem, seed.variation)

    models: Any = SimpleNamespace(
        folder="folder", provider=ROCM, refiner=None, controls=SimpleNamespace(open_models={"net"}), fallback=None,
        closable_bytes=3,
        timings=SimpleNamespace(steps=[0.5, 0.25]), generate_all=generate_all, openings=SimpleNamespace(found=[]),
        offloaded=None,
    )  # fmt: skip
    made = Pipeline(models, RuntimeOptions("rocm", device_id=2), 1.0, SimpleNamespace(bytes=lambda: 7))  # type: ignore[arg-type]

    def refuse(
        folder: Any, request: Any, images: int, provider: Any, device_id: int, held: Any, stages: Any, **opened: Any
    ) -> int:
        assert [stage.size for stage in stages] == [(8, 8)]
        asked.refused.append((folder, request.prompt, images, provider, device_id, held, opened))
        return next(asked.needed)  # type: ignore[no-any-return]

    monkeypatch.setattr(Job, "for_pipeline", lambda self, folder: self)
    monkeypatch.setattr(command, "refuse_generation", refuse)
    stages = [SimpleNamespace(steps=2, calls=2, size=(8, 8))]

    def plan_request(folder: Any, request: Request) -> Any:
        asked.kept.append(("planned", request.prompt))
        return SimpleNamespace(request=request, stages=stages)

    def keep_generated(models: Any, requests: Any, planned: Any) -> None:
        assert planned is stages
        asked.kept.append(len(requests))

    monkeypatch.setattr(command, "plan_request", plan_request)
    monkeypatch.setattr(command, "keep_generated", keep_generated)
    monkeypatch.setattr(Pipeline, "_record", lambda self, request, plan: command_record(request))
    return SimpleNamespace(made=made, models=models, asked=asked)


def command_record(request: Request) -> Any:
    from support.infotext import record

    seconds = command.StageSeconds(1.0, 0.0, 0.0, 0.75, 0.5, 0.0)  # type: ignore[attr-defined]
    return record(prompt=request.prompt, seed=request.seed, seconds=seconds, fallback=None, decoded=None, widened={})


def test_every_job_is_refused_before_the_first_runs_and_the_largest_is_held(pipeline: Any) -> None:
    prompts: Any = ["a", "b", "c AND d"]
    found = pipeline.made.generate(prompts, seed=1, num_images=2)
    opened = {"refiner_open": False, "controls_open": {"net"}}
    assert pipeline.asked.refused == [
        ("folder", "a", 4, ROCM, 2, 3, opened), ("folder", "c AND d", 2, ROCM, 2, 3, opened),
    ]  # fmt: skip
    assert [(each.prompt, each.seed, each.path) for each in found.images] == [
        ("a", 1, None), ("a", 2, None), ("b", 1, None), ("b", 2, None), ("c AND d", 1, None), ("c AND d", 2, None),
    ]  # fmt: skip
    assert pipeline.asked.kept == [("planned", "a"), ("planned", "c AND d"), 2, 1]
    assert found.iterations_per_second == round(2 / 0.75, 4)
    pipeline.models.refiner = "open"
    pipeline.asked.needed = iter([5])
    pipeline.made.generate("a", seed=1)
    assert pipeline.asked.refused[-1][5:] == (113, opened | {"refiner_open": True})
    pipeline.asked.needed = iter([5])
    pipeline.made.generate("a", seed=1)
    assert pipeline.asked.refused[-1][5] == 113


def test_images_go_to_their_own_files_and_a_bad_one_ends_the_run_after_the_others(
    pipeline: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "{index}.png"
    found = pipeline.made.generate(["a", "b AND c"], seed=1, num_images=2, output=out)
    assert [each.path for each in found.images] == [tmp_path / f"{number}.png" for number in range(1, 5)]
    for each in found.images:
        with Image.open(each.path) as picture:
            np.testing.assert_array_equal(np.asarray(picture), each.pixels)
    pipeline.asked.bad = {2, 6}
    with pytest.raises(ParityError) as failed:
        pipeline.made.generate(["a", "b"], seed="1-2,6", output=tmp_path / "x.png")
    told = failed.value.message
    assert told.count("is not written: black") == 4
    for words in ("seed 2 of 'a'", "seed 6 of 'a'", "seed 2 of 'b'", "seed 6 of 'b'"):
        assert f"the image of {words} is not written" in told
    assert sorted(path.name for path in tmp_path.glob("x-*")) == ["x-1.png", "x-4.png"]
    written = " ".join(capsys.readouterr().err.split())
    assert [f"wrote {tmp_path}/x-{number}.png" in written for number in (1, 2, 3, 4, 5, 6)] == [True, False, False] * 2
    with pytest.raises(ParityError, match="the image of seed 2 is not written: black"):
        pipeline.made.generate("a", seed=2)
