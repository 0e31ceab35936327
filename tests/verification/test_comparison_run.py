"""What a verification compares with what: references, recorded inputs, images, and what is said where one lacks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from sdort.errors import BadModelError, SdortError, UsageError
from sdort.families.unet import UNET
from sdort.providers import CPU
from sdort.providers.runtime_options import RuntimeOptions
from sdort.runtime.opener import NotLoadedError
from sdort.verification import pipeline_comparison, recorded_inputs
from sdort.verification.checks import precision
from sdort.verification.command_line import VerifyOptions
from sdort.verification.component_comparison import ONNX, TORCH, Comparison
from sdort.verification.limits import Tolerance
from sdort.verification.outcome import Verification
from sdort.verification.pipeline_comparison import (
    _bisect,
    _check_components,
    _find_references,
    _provenance,
    _record,
    _refuse_shortage,
    _Run,
    _verify_component,
    _verify_images,
)
from sdort.verification.recorded_inputs import RecordedRun, record_run
from sdort.verification.runners import RunConfiguration, is_emulated

Patch = pytest.MonkeyPatch
MODULE = pipeline_comparison


def folder_of(
    name: str = "fast", models: Sequence[str] = ("text_encoder", "unet", "vae_decoder"), **values: Any
) -> Any:
    """A pipeline's folder, of which only what is asked for is there."""
    given = {
        "path": Path(name),
        "given": name,
        "models": {each: Path(name) / each / "model.onnx" for each in models},
        "needed": ("text_encoder", "unet", "vae_decoder"),
        "is_complete": True,
        "manifest": {},
        "default_size": (64, 96),
        "vae_factor": 8,
        "family": SimpleNamespace(aesthetic=False, encoders=(), denoiser=UNET),
        "denoiser": "unet",
        "compared": list(values.get("models", models)),
        "file": lambda component: SimpleNamespace(
            graph=f"{name} {component}", signature=SimpleNamespace(inputs={"encoder_hidden_states": "context"})
        ),
    }
    return SimpleNamespace(**given | values)


def run_of(folder: Any = None, original: Any = None, checkpoint: Path | None = None, **options: Any) -> _Run:
    made = VerifyOptions(**options)
    configuration = RunConfiguration(CPU, made.runtime)
    result = Verification(Path("fast"), None, checkpoint, "cpu", made.steps, made)
    return _Run(folder or folder_of(), original, checkpoint, configuration, made, result)


def comparison(output: str = "y", problem: str | None = "off", against: str = ONNX, **values: Any) -> Comparison:
    feeds = values.pop("feeds", SimpleNamespace(feeds={"x": output}))
    return Comparison(
        "unet", "float16", "random", "sample 1", against, output, Tolerance(0.1, 0.1), None, problem, feeds=feeds
    )


# References


@pytest.fixture
def references(monkeypatch: Patch) -> dict[str, Any]:
    """What is found of references, by the function that finds it; an error is raised."""
    found: dict[str, Any] = {"original": Path("exported"), "checkpoint": Path("published"), "named": {}, "seen": []}

    def finding(name: str) -> Callable[..., Any]:
        @contextmanager
        def find(*arguments: Any, **_: Any) -> Iterator[Any]:
            found["seen"].append((name, *arguments))
            result = found[name]
            if isinstance(result, Exception) and arguments[1:] != (Path("weights"),):
                raise result
            yield arguments[1] if name == "named" else result

        return find

    monkeypatch.setattr(MODULE, "original_of", finding("original"))
    monkeypatch.setattr(MODULE, "checkpoint_of", finding("checkpoint"))
    monkeypatch.setattr(MODULE, "as_exported", finding("named"))
    monkeypatch.setattr(MODULE, "holds_onnx", lambda path: "published" not in path.name)
    monkeypatch.setattr(MODULE, "_open_checked", lambda path, options, stack: (f"opened {path}", None))
    monkeypatch.setattr(MODULE, "check_checkpoint", lambda path: found["seen"].append(("checked", path)))
    monkeypatch.setattr(MODULE, "unknown_original", lambda *words: UsageError(" / ".join(map(str, words))))
    return found


LOST = UsageError("it is lost", hint="look for it")
FOUND: dict[str, tuple[dict[str, Any], dict[str, Any], tuple[Any, Any, Any] | None]] = {
    "both": ({}, {"torch": True}, ("opened exported", Path("published"), None)),
    "no torch": ({}, {"torch": False}, ("opened exported", None, None)),
    "a named original": ({}, {"torch": False, "against": Path("mine")}, ("opened mine", None, None)),
    "a named original and its own checkpoint": (
        {}, {"torch": True, "against": Path("mine")}, ("opened mine", Path("published"), None),
    ),
    "a named diffusers folder": (
        {}, {"torch": True, "against": Path("published x")}, (None, Path("published"), None),
    ),
    "a named checkpoint": (
        {}, {"torch": False, "checkpoint": Path("weights")}, ("opened exported", Path("weights"), None),
    ),
    "a named checkpoint alone": (
        {"original": LOST}, {"torch": True, "checkpoint": Path("weights")},
        (None, Path("weights"), "not compared with the ONNX original: it is lost (look for it)"),
    ),
    "no original": ({"original": LOST}, {"torch": True}, None),
    "no original, not even known": ({"original": None}, {"torch": True}, (None, Path("published"), None)),
    "no checkpoint": (
        {"checkpoint": LOST}, {"torch": True},
        ("opened exported", None, "not compared with torch: it is lost (look for it)"),
    ),
    "a named original that is none": (
        {"named": LOST}, {"torch": True, "against": Path("mine"), "checkpoint": Path("weights")}, None,
    ),
    "nothing at all": ({"original": None, "checkpoint": None}, {"torch": True}, None),
}  # fmt: skip


@pytest.mark.parametrize(("finds", "asked", "result"), FOUND.values(), ids=FOUND)
def test_references_are_those_named_or_recorded(
    finds: dict[str, Any], asked: dict[str, Any], result: tuple[Any, Any, Any] | None, references: dict[str, Any]
) -> None:
    references |= finds
    options = VerifyOptions(**asked)
    with ExitStack() as stack:
        if result is None:
            with pytest.raises(UsageError) as raised:
                _find_references(Path("fast"), options, stack)
            assert ("it is lost" in raised.value.message) == (LOST in finds.values())
            return
        found: tuple[Any, ...] = _find_references(Path("fast"), options, stack)
    assert found == result
    checked = [path for name, path, *_ in references["seen"] if name == "checked"]
    assert checked == ([result[1]] if result[1] else [])
    for name, path, *_ in references["seen"]:
        if name == "checkpoint":  # what the original was made from, else the candidate itself
            known = Path("fast") if finds.get("original", 1) is None else Path("exported")
            assert path == asked.get("against", known)
        elif name in ("original", "named"):
            assert path == Path("fast")


# Components


def test_the_precision_of_every_component_that_takes_part(monkeypatch: Patch) -> None:
    dtypes = {"fast text_encoder": "float32", "fast unet": "float16", "fast vae_decoder": "bfloat16"}
    monkeypatch.setattr(MODULE, "coarsest_dtype", dtypes.__getitem__)
    monkeypatch.setattr(MODULE, "is_emulated", lambda graph, configuration: graph == "fast vae_decoder")
    every = {name.removeprefix("fast "): precision(dtype, CPU) for name, dtype in dtypes.items()}
    for components, images, named in (
        (["unet"], False, ["unet"]),
        (["unet"], True, ["unet", "text_encoder", "vae_decoder"]),
        ([], False, list(every)),
        (["vae_decoder"], False, ["vae_decoder"]),
    ):
        run = run_of(components=components, images=images)
        _check_components(run)
        assert run.result.precisions == {name: every[name] for name in named}
        assert list(run.result.precisions) == named
        assert len(run.result.notes) == ("vae_decoder" in named)
        if run.result.notes:
            assert run.result.notes[0].startswith("made for a GPU and checked on the CPU")
    with pytest.raises(UsageError) as raised:
        _check_components(run_of(components=["unet", "unett"]))
    assert raised.value.message == "there is no component 'unett'"
    assert raised.value.hint == "There are: text_encoder, unet, vae_decoder."


@pytest.mark.parametrize("complete", [True, False])
@pytest.mark.parametrize(("inputs", "images"), [("random", True), ("recorded", False), ("random", False)])
def test_memory_is_asked_for_where_images_are_made(
    inputs: str, images: bool, complete: bool, monkeypatch: Patch
) -> None:
    refused: list[tuple[Any, ...]] = []
    monkeypatch.setattr(MODULE, "refuse_generation", lambda *arguments: refused.append(arguments))
    runtime = RuntimeOptions(device_id=3)
    folder = folder_of(is_complete=complete)
    run = run_of(folder, inputs=inputs, images=images, texts=("a", "b"), seeds=3, runtime=runtime)
    _refuse_shortage(run)
    asked = complete and (images or inputs == "recorded")
    assert len(refused) == asked
    for where, request, number, provider, device in refused:
        assert (where, request.prompt, number, provider, device) == (folder, "a", 6, CPU, 3)


@pytest.mark.parametrize(
    ("optimized", "made_for", "made_in"),
    [
        (None, None, "fp32"), ("odd", None, "fp32"), ({}, None, "fp32"),
        ({"provider": "rocm", "precision": "fp16"}, "rocm", "fp16"), ({"provider": "cuda"}, "cuda", "fp32"),
    ],
)  # fmt: skip
def test_a_record_says_for_what_a_candidate_was_made(
    optimized: Any, made_for: str | None, made_in: str, monkeypatch: Patch
) -> None:
    monkeypatch.setattr(MODULE, "device_name", lambda provider, device: f"{provider.name} {device}")
    monkeypatch.setattr(MODULE, "versions", lambda: {"sdort": "1"})
    manifest = {"optimized": optimized} if optimized is not None else {}
    options = VerifyOptions(runtime=RuntimeOptions(device_id=2))
    made = _provenance(folder_of(manifest=manifest), CPU, options)
    assert (made.made_for, made.precision, made.machine, made.versions) == (made_for, made_in, "cpu 2", {"sdort": "1"})
    assert made.command == options.command_line(Path("fast"))
    assert made.date[4:5] == "-"


# One component


@pytest.fixture
def compared(monkeypatch: Patch) -> dict[str, Any]:
    """What components are compared with, and what that gives."""
    seen: dict[str, Any] = {"calls": [], "gives": ([comparison(problem=None)], ["a lack"]), "images": False}

    def compare(*arguments: Any) -> Any:
        seen["calls"].append(arguments)
        if isinstance(seen["gives"], Exception):
            raise seen["gives"]
        return seen["gives"]

    monkeypatch.setattr(MODULE, "compare_component", compare)
    monkeypatch.setattr(MODULE, "_inputs", lambda run, component, recorded: [f"inputs of {component}"])
    monkeypatch.setattr(MODULE, "_has_images", lambda run, component: seen["images"])
    return seen


@pytest.mark.parametrize("images", [False, True])
@pytest.mark.parametrize("checkpoint", [None, Path("weights")])
@pytest.mark.parametrize("original", ["none", "another", "all"])
def test_a_component_is_compared_with_what_has_it(
    original: str, checkpoint: Path | None, images: bool, compared: dict[str, Any]
) -> None:
    compared["images"] = images
    exported = {"none": None, "another": folder_of("exported", ["vae_decoder"]), "all": folder_of("exported")}[original]
    run = run_of(original=exported, checkpoint=checkpoint, bisect=False)
    run.result.precisions["unet"] = precision("float16", CPU)
    _verify_component(run, "unet", RecordedRun())
    wanted: dict[str, Path] = {}
    if original == "all":
        wanted[ONNX] = Path("exported/unet/model.onnx")
    if checkpoint and not images:
        wanted[TORCH] = checkpoint
    said = ["unet is not compared with torch, whose checkpoint has no IP-Adapter"] if images and checkpoint else []
    assert run.result.notes == said
    if wanted:
        limits = run.result.precisions["unet"]
        path = Path("fast/unet/model.onnx")
        assert compared["calls"] == [("unet", path, wanted, run.configuration, ["inputs of unet"], limits)]
        assert (len(run.result.comparisons), run.result.missing) == (1, ["a lack"])
    else:
        assert compared["calls"] == []
        assert run.result.missing == ([] if said else ["unet: the original has no such component"])


def test_a_comparison_that_cannot_be_made_is_missing_and_stops_nothing(
    compared: dict[str, Any], monkeypatch: Patch
) -> None:
    searched: list[Any] = []
    monkeypatch.setattr(MODULE, "_bisect", lambda run, comparisons: searched.append(list(comparisons)))
    for bisect in (False, True):
        run = run_of(original=folder_of("exported"), bisect=bisect)
        run.result.precisions["unet"] = precision("float16", CPU)
        _verify_component(run, "unet", RecordedRun())
    assert searched == [compared["gives"][0]]
    compared["gives"] = BadModelError("it is odd")
    _verify_component(run, "unet", RecordedRun())
    assert run.result.missing == ["a lack", "unet: it is odd"]
    assert len(searched) == 1
    compared["gives"] = NotLoadedError(CPU, "no memory")
    with pytest.raises(NotLoadedError):
        _verify_component(run, "unet", RecordedRun())


NOTHING = ["unet: nothing to bisect, it differs from torch and not from the ONNX original"]
SEARCHES: dict[str, tuple[list[Comparison], bool, list[str], list[str]]] = {
    "the first of each output": (
        [comparison("a", None), comparison("b"), comparison("a"), comparison("b"), comparison("a", "worse")],
        True, ["b", "a"], [],
    ),
    "not what torch differs in": ([comparison("a", against=TORCH), comparison("b")], True, ["b"], []),
    "torch alone": ([comparison("a", against=TORCH), comparison("b", None)], True, [], NOTHING),
    "nothing wrong": ([comparison("a", None), comparison("b", None)], True, [], []),
    "no original": (
        [comparison("a", against=TORCH)], False, [], ["unet: nothing to bisect, it has no ONNX original to search in"],
    ),
    "no inputs": ([comparison("a", feeds=None), comparison("b")], True, ["b"], []),
}  # fmt: skip


@pytest.mark.parametrize(("comparisons", "exported", "outputs", "notes"), SEARCHES.values(), ids=SEARCHES)
def test_the_search_takes_the_first_failure_of_each_output(
    comparisons: list[Comparison], exported: bool, outputs: list[str], notes: list[str], monkeypatch: Patch
) -> None:
    searched: list[tuple[Any, Comparison]] = []

    def search(graphs: Any, failed: Comparison) -> Any:
        searched.append((graphs, failed))
        if len(searched) == 2:
            raise BadModelError("it is odd")
        return f"found in {failed.output}"

    monkeypatch.setattr(MODULE, "bisect", search)
    run = run_of(original=folder_of("exported") if exported else None)
    _bisect(run, comparisons)
    assert [failed.output for _, failed in searched] == outputs
    for graphs, failed in searched:
        assert (graphs.component, graphs.configuration, graphs.feeds) == (
            "unet",
            run.configuration,
            {"x": failed.output},
        )
        assert graphs.original == Path("exported/unet/model.onnx")
        assert graphs.candidate == Path("fast/unet/model.onnx")
        assert failed is next(each for each in comparisons if each.output == failed.output and each.problem)
    assert run.result.notes == notes
    assert run.result.searched == ["unet"] * len(outputs)
    findings: list[Any] = list(run.result.findings)
    assert findings == [f"found in {output}" for output in outputs[:1]]
    assert run.result.missing == ["unet: --bisect cannot tell: it is odd"] * (len(outputs) - 1 if outputs else 0)


# Images


class Drawn(SimpleNamespace):
    """An image by its seed."""

    problem: str | None = None


@pytest.mark.parametrize("original", [True, False], ids=["an original", "a checkpoint"])
def test_images_are_compared_request_by_request(original: bool, monkeypatch: Patch) -> None:
    calls: list[tuple[Any, ...]] = []
    recorded = RecordedRun(images={("a", 0): Drawn(seed=0)})  # type: ignore[dict-item]
    torchs = {("a", 0): Drawn(seed=0, torch=True)}

    def generate(request: Any, on_step: Any) -> Iterator[Drawn]:
        yield Drawn(seed=request.seed, prompt=request.prompt)
        if request.prompt == "b":
            raise SdortError("it broke")
        yield Drawn(seed=request.seed + 1, prompt=request.prompt)

    def opening(folder: Any, configuration: Any) -> Any:
        calls.append(("opened", folder.path, configuration))
        return SimpleNamespace(generate=generate)

    def compare(images: Mapping[Any, Any], references: Any, coarsest: str) -> list[Any]:
        calls.append(("compared", sorted(images), "torch" in vars(references["a", 0]), coarsest))
        return [f"compared {len(images)}"]

    def failed(request: Any, references: Any, coarsest: str, message: str, done: int) -> list[Any]:
        calls.append(("failed", request.prompt, "torch" in vars(references["a", 0]), coarsest, message, done))
        return ["failed"]

    monkeypatch.setattr(MODULE, "open_text_to_image", opening)
    monkeypatch.setattr(MODULE, "compare_images", compare)
    monkeypatch.setattr(MODULE, "failed_images", failed)
    in_torch: list[tuple[Any, ...]] = []

    def torch(*arguments: Any) -> Any:
        in_torch.append(arguments)
        return torchs

    monkeypatch.setattr(MODULE, "generate_in_torch", torch)
    exported = folder_of("exported") if original else None
    run = run_of(original=exported, checkpoint=Path("weights"), texts=("a", "b"), seeds=2)
    for name, dtype in (("text_encoder", "float32"), ("unet", "float16"), ("vae_encoder", "bfloat16")):
        run.result.precisions[name] = precision(dtype, CPU)
    _verify_images(run, RecordedRun())
    assert (calls, in_torch, run.result.images) == ([], [], [])  # nothing was recorded: it is missing already
    _verify_images(run, recorded)
    first = calls[1][1][0][1]
    assert calls == [
        ("opened", Path("fast"), run.configuration),
        ("compared", [("a", first), ("a", first + 1)], not original, "float16"),
        ("failed", "b", not original, "float16", "it broke", 1),
        ("compared", [("b", calls[3][1][0][1])], not original, "float16"),
    ]
    images: list[Any] = list(run.result.images)
    assert images == ["compared 2", "failed", "compared 1"]
    if original:
        assert in_torch == []
    else:
        ((path, requests, context),) = in_torch
        assert (path, [request.prompt for request in requests], context) == (Path("weights"), ["a", "b"], "context")

    def refuse(*_: Any) -> Any:
        raise BadModelError("it does not open")

    monkeypatch.setattr(MODULE, "open_text_to_image", refuse)
    _verify_images(run, recorded)
    assert run.result.missing == ["images: it does not open"]


def test_what_is_recorded_is_what_was_asked_for(monkeypatch: Patch) -> None:
    calls: list[tuple[Any, ...]] = []

    def record(folder: Any, configuration: Any, requests: Any, advance: Any, *, images: bool) -> Any:
        calls.append((folder.path, configuration.options, [request.prompt for request in requests], images))
        if len(calls) > 2:
            raise error
        return "recorded"

    error: SdortError = BadModelError("it is odd")
    monkeypatch.setattr(MODULE, "record_run", record)
    runtime = RuntimeOptions(
        device_id=4, tuning=True, fallback=True, graph=True, provider_options={"a": "b"}, threads=3
    )
    given: dict[str, Any] = {"texts": ("a", "b"), "seeds": 1, "runtime": runtime}
    exported = folder_of("exported")
    asked = run_of(original=exported, inputs="random", images=False, **given)
    assert (_record(asked), calls) == (RecordedRun(), [])
    recorded: Any = _record(run_of(original=exported, inputs="recorded", images=False, **given))
    assert recorded == "recorded"
    _record(run_of(inputs="random", images=True, **given))
    plain = RuntimeOptions(device_id=4, tuning=False, fallback=None, graph=False, provider_options={}, threads=3)
    assert calls == [
        (Path("exported"), plain, ["a", "b"], False),
        (Path("fast"), plain, ["a", "b"], True),
    ]
    for inputs, images, words in (
        ("recorded", False, "recorded inputs"),
        ("random", True, "images"),
        ("all", True, "recorded inputs and images"),
    ):
        run = run_of(original=exported, inputs=inputs, images=images, **given)
        assert _record(run) == RecordedRun()
        assert run.result.missing == [f"{words}: it is odd (--inputs random --no-images asks for less)"]
    error = NotLoadedError(CPU, "no memory")
    with pytest.raises(NotLoadedError):
        _record(run)


STEPS = [{"timestep": np.array([number], np.float32), "sample": np.array([number])} for number in (90, 70, 50, 30, 10)]


@pytest.mark.parametrize("scores", [True, False])
@pytest.mark.parametrize("images", [True, False])
@pytest.mark.parametrize("negative", [True, False])
def test_recorded_inputs_are_of_some_steps_of_the_first_prompts(
    negative: bool, images: bool, scores: bool, monkeypatch: Patch
) -> None:
    texts = [{"ids": 1}, {"ids": 2}][: 1 + negative]
    fed: dict[str, Any] = {
        "unet": STEPS,
        "text_encoder": texts,
        "text_encoder_2": texts,
        "vae_decoder": [{"l": 1}, {"l": 2}],
    }
    made: list[str] = []

    class Recorder:
        def __init__(self, pipeline: Any) -> None:
            assert pipeline == ("pipeline of", Path("fast"))
            self.fed = fed

        def generate(self, request: Any, on_step: Any) -> Iterator[Any]:
            for seed in (5, 6):
                made.append(f"{request.prompt} {seed}")
                yield Drawn(seed=seed, pixels=f"drawn {seed}", problem="black" if request.prompt == "b" else None)

    def checker(checked: Any) -> Any:
        assert checked is folder
        return SimpleNamespace(feeds=lambda pixels: {"clip": pixels})

    monkeypatch.setattr(recorded_inputs, "Recording", Recorder)
    monkeypatch.setattr(recorded_inputs, "SafetyChecker", checker)
    monkeypatch.setattr(recorded_inputs, "open_text_to_image", lambda folder, _: ("pipeline of", folder.path))
    monkeypatch.setattr(recorded_inputs, "encoder_input", lambda image: f"seen {image.seed}")
    encoders = [SimpleNamespace(component=name) for name in ("text_encoder", "text_encoder_2")]
    folder = folder_of(
        models=("unet", "vae_encoder", "safety_checker"),
        compared=["unet", "vae_encoder"] + ["safety_checker"] * scores,
        family=SimpleNamespace(encoders=encoders, denoiser=UNET),
        denoiser="unet",
        file=lambda name: SimpleNamespace(signature=SimpleNamespace(inputs={"pixels": 0, "other": 0})),
    )
    requests: Any = [SimpleNamespace(prompt=prompt) for prompt in "abc"]
    run = record_run(folder, RunConfiguration(CPU, RuntimeOptions()), requests, lambda share: None, images=images)
    every = [f"{prompt} {seed}" for prompt in "abc" for seed in (5, 6)]
    assert made == (every if images else ["a 5", "b 5"])
    assert [f"{prompt} {seed}" for prompt, seed in run.images] == made
    # The first, the last, and two of the three between.
    steps = [(1, 90), (2, 70), (4, 30), (5, 10)]
    assert [(each.label, each.timestep, each.feeds["sample"][0]) for each in run.inputs["unet"]] == [
        (f"prompt {prompt}, step {step} of 5, timestep {timestep}", timestep, timestep)
        for prompt in (1, 2)
        for step, timestep in steps
    ]
    labels = {1: ", the negative one" if negative else "", 2: ""}
    for encoder in ("text_encoder", "text_encoder_2"):
        assert [(each.label, each.feeds["ids"]) for each in run.inputs[encoder]] == [  # type: ignore[comparison-overlap]
            (f"prompt {prompt}{labels[number]}", number) for prompt in (1, 2) for number in range(1, 2 + negative)
        ]
    assert [(each.label, each.feeds) for each in run.inputs["vae_decoder"]] == [  # type: ignore[comparison-overlap]
        (f"prompt {prompt}, its latent", {"l": 1}) for prompt in (1, 2)
    ]
    # An image with a problem is no input.
    assert [(each.label, each.feeds) for each in run.inputs["vae_encoder"]] == [  # type: ignore[comparison-overlap]
        ("prompt 1, its image", {"pixels": "seen 5"})
    ]
    # A safety checker that gives its decision alone is not compared.
    assert ("safety_checker" in run.inputs) == scores
    assert [(each.label, each.feeds) for each in run.inputs.get("safety_checker", [])] == [  # type: ignore[comparison-overlap]
        ("prompt 1, its image", {"clip": "drawn 5"})
    ] * scores
    assert {each.kind for inputs in run.inputs.values() for each in inputs} == {"recorded"}


@pytest.mark.parametrize("custom_ops", ["auto", "off", "library.so"])
@pytest.mark.parametrize("for_gpu", [True, False])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_a_candidate_of_a_gpu_is_emulated_on_the_cpu_without_a_library(
    dtype: str, for_gpu: bool, custom_ops: str, monkeypatch: Patch
) -> None:
    from sdort.verification import runners

    monkeypatch.setattr(runners, "stored_dtype", lambda model: dtype)
    monkeypatch.setattr(runners, "is_for_gpu", lambda model: for_gpu)
    options = RuntimeOptions(custom_ops=custom_ops)
    model: Any = None
    emulated = custom_ops != "library.so" and (dtype == "bfloat16" or (dtype == "float16" and for_gpu))
    assert is_emulated(model, RunConfiguration(CPU, options)) is emulated
    gpu: Any = SimpleNamespace(is_fallback=False)
    assert is_emulated(model, RunConfiguration(gpu, options)) is False
