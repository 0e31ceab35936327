"""Runs with ``--offload``: a denoiser in pieces whose weights take turns draws what the whole one draws."""

from __future__ import annotations

import itertools
import json
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser
from support import rocm_stub
from support.pipelines import export_family, trace_folder
from support.tiny_pipeline import Tiny

import sdort
from sdort.errors import ParityError, UsageError
from sdort.generation import low_memory, memory_need
from sdort.generation.low_memory import refuse_offload
from sdort.generation.request_plan import plan_request
from sdort.generation.requests.request import Request
from sdort.onnx_io.check_tensors import tensor_nbytes
from sdort.pipelines.folder import open_folder
from sdort.providers import CPU, PROVIDERS
from sdort.providers.cuda import PROVIDER as CUDA
from sdort.providers.runtime_options import RuntimeOptions
from sdort.runtime import activations, placed_weights
from sdort.runtime import session as session_module
from sdort.runtime.device_block import ALIGNMENT
from sdort.runtime.piecewise_ort import PiecewiseOrt
from sdort.runtime.step.pieces import plan_pieces
from sdort.runtime.step.prepared_tensors import split_file
from sdort.runtime.streamed_weights import StreamedWeights
from sdort.workload.samples import Sample

Array = np.ndarray[Any, Any]

DRAWN: dict[str, Any] = {"steps": 3, "seed": 5, "height": 64, "width": 96}
PROMPT = "a red cat"


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """The weights of small models are placed too."""
    monkeypatch.setattr(placed_weights, "LEAST", 1 << 8)


@pytest.fixture(scope="module")
def folders(tiny: Tiny, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> dict[str, Path]:
    """A UNet, a transformer, and the same with linear layers in 4 bits, all as sdort optimizes them."""
    folder = tmp_path_factory.mktemp("offloaded")
    flux = export_family("flux-schnell", folder, trace_folder(request.config))
    sdort.optimize(tiny.onnx, folder / "unet", provider="cpu")
    sdort.optimize(flux.out, folder / "transformer", provider="cpu")
    sdort.optimize(flux.out, folder / "int4", provider="cpu", weights="int4", group=16)
    return {name: folder / name for name in ("unet", "transformer", "int4")}


@pytest.fixture(scope="module")
def expected(folders: dict[str, Path]) -> dict[str, Array]:
    """What each draws with all weights in memory."""
    found = {}
    for name, folder in folders.items():
        with sdort.load(folder, provider="cpu", check=False) as pipeline:
            found[name] = pipeline.generate(PROMPT, **DRAWN).images[0].pixels
    return found


def opened(monkeypatch: pytest.MonkeyPatch, share: float, count: int) -> list[PiecewiseOrt]:
    """The sessions of steps that are opened from now on, in so many pieces that take turns.

    Args:
        share: of the weights that there is room for.
    """
    found: list[PiecewiseOrt] = []

    def planned(graph: Any, sizes: Any, *_: Any) -> Any:
        return plan_pieces(graph, sizes, int(share * sum(sizes.values())), counts=[count])

    begin = PiecewiseOrt.__init__

    def made(self: PiecewiseOrt, *given: Any) -> None:
        begin(self, *given)
        found.append(self)

    monkeypatch.setattr(session_module, "plan_pieces", planned)
    monkeypatch.setattr(PiecewiseOrt, "__init__", made)
    return found


@pytest.mark.parametrize(
    ("kind", "share", "count"),
    [
        *[(kind, 0, count) for kind in ("unet", "transformer", "int4") for count in (2, 3)],
        ("unet", 0.97, 4),
        ("transformer", 0.97, 4),
    ],
)
def test_a_denoiser_in_pieces_draws_the_same(
    kind: str,
    share: float,
    count: int,
    folders: dict[str, Path],
    expected: dict[str, Array],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    orts = opened(monkeypatch, share, count)
    with sdort.load(folders[kind], provider="cpu", check=False, offload=True) as pipeline:
        found = pipeline.generate(PROMPT, **DRAWN)
    np.testing.assert_array_equal(found.images[0].pixels, expected[kind])
    step = orts[-1]
    assert len(step.streamed.sizes) == count
    assert (len(step.sessions) > count) is (share > 0)
    assert found.offloaded == step.offloaded
    assert step.offloaded.pieces == count
    assert 0 < step.offloaded.streamed <= sum(step.streamed.sizes)
    assert step.streamed.block.nbytes == 2 * max(step.streamed.sizes)
    assert found.memory == "low"


def test_no_slot_stays_when_images_are_done(folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    orts = opened(monkeypatch, 0, 4)
    with sdort.load(folders["unet"], provider="cpu", check=False, offload=True) as pipeline:
        pipeline.generate(PROMPT, **DRAWN)
        blocks = [weakref.ref(each.streamed.block) for each in orts]
        assert len(blocks) == 3  # of the prompt, of timesteps, and of the step
        orts.clear()
        assert [block() for block in blocks] == [None] * 3


@pytest.mark.parametrize("kind", ["unet", "transformer", "int4"])
def test_without_copies_something_else_is_drawn(
    kind: str, folders: dict[str, Path], expected: dict[str, Array], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened(monkeypatch, 0, 3)
    monkeypatch.setattr(StreamedWeights, "begin", lambda *_: None)
    monkeypatch.setattr(StreamedWeights, "end", lambda *_: None)
    with sdort.load(folders[kind], provider="cpu", check=False, offload=True) as pipeline:
        try:
            found = pipeline.generate(PROMPT, **DRAWN).images[0].pixels
        except ParityError:  # numbers of other weights may be anything
            return
    assert not np.array_equal(found, expected[kind])


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"memory": "normal"}, "--memory normal loads all models together"),
        ({"graph": True}, "--graph records a step that is one graph"),
        ({"adapters": True}, "weights that adapters change stay"),
        ({"devices": "0,1"}, "--devices has each of several GPUs hold the denoiser"),
        ({"deep_cut": 1}, "--deep-cache runs a part"),
        ({"patch_cut": 2}, "--patches has each"),
    ],
)
def test_what_needs_all_weights_at_once_is_refused(options: dict[str, Any], reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        RuntimeOptions(provider="cpu", offload=True, **options)


def test_a_provider_whose_sessions_hold_weights_is_refused() -> None:
    taken = {"cpu", "cuda", "rocm"}
    for provider in PROVIDERS.values():
        refuse_offload(provider, RuntimeOptions())
        if provider.name in taken:
            refuse_offload(provider, RuntimeOptions(offload=True))
        else:
            with pytest.raises(
                UsageError, match=f"--offload is not for {provider.name}, whose sessions hold all weights"
            ):
                refuse_offload(provider, RuntimeOptions(offload=True))
    assert {"migraphx", "openvino"} <= PROVIDERS.keys() - taken


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"deep_cache": 2, "deep_cache_depth": 1}, "--deep-cache runs a part"),
        ({"placement": True}, "--placement looks at sessions that hold all weights"),
    ],
)
def test_a_run_that_needs_all_weights_at_once_is_refused(
    options: dict[str, Any], reason: str, folders: dict[str, Path], tmp_path: Path
) -> None:
    given = {**DRAWN, **options, "output": tmp_path / "a.png", "check": False}
    with pytest.raises(UsageError, match=reason):
        sdort.run(folders["unet"], PROMPT, provider="cpu", offload=True, **given)
    assert not (tmp_path / "a.png").exists()


# The estimate


@pytest.mark.parametrize("kind", ["unet", "transformer"])
def test_what_lives_between_pieces_is_counted(
    kind: str, folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """At most: a plan with another number of pieces ends elsewhere."""
    folder, most, kept = open_folder(folders[kind]), [0], PiecewiseOrt.needed
    file, count = folder.file(folder.denoiser), 6
    plan = plan_pieces(activations.step_graph(file), memory_need._step_weights(file), 0, counts=[count])
    assert plan is not None

    def seen(ort: PiecewiseOrt, values: dict[str, Any], number: int) -> dict[str, Any]:
        found = kept(ort, values, number)
        if ort is orts[-1]:
            most.append(sum(value.numpy().nbytes for value in found.values()))
        return found

    orts = opened(monkeypatch, 0, count)
    monkeypatch.setattr(PiecewiseOrt, "needed", seen)
    with sdort.load(folders[kind], provider="cpu", check=False, offload=True) as pipeline:
        pipeline.generate(PROMPT, **DRAWN)
    samples = len(Request(PROMPT, **DRAWN).guidance()) if kind == "unet" else 1
    sample = Sample(samples, 64 // folder.vae_factor, 96 // folder.vae_factor, folder.tokens(folder.denoiser))
    counted = activations.between_bytes(file, sample, CPU, plan.ends)
    assert max(most) <= counted <= 1.3 * max(most)


@pytest.mark.parametrize("kind", ["unet", "transformer"])
def test_weights_that_take_turns_spare_what_is_lacking(kind: str, folders: dict[str, Path]) -> None:
    folder = open_folder(folders[kind])
    total = sum(memory_need._step_weights(folder.file(folder.denoiser)).values())
    assert memory_need.spared_bytes(folder, CPU, -1) == memory_need.spared_bytes(folder, CPU, 0) == 0
    most = memory_need.spared_bytes(folder, CPU, total)
    assert 0.5 * total < most < total
    for lacking in range(1, most // 2, most // 20):
        assert lacking <= memory_need.spared_bytes(folder, CPU, lacking) <= most
    # Each piece has a session: that more of them take more than they spare is seen.
    heavy = replace(CUDA, session_bytes=total // 100)
    assert memory_need.spared_bytes(folder, heavy, total - session_module.spare_bytes(CUDA)) < most


def test_as_much_stays_free_as_images_take(
    folders: dict[str, Path], expected: dict[str, Array], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = open_folder(folders["unet"])
    weights = memory_need._step_weights(folder.file("unet"))
    total, largest = sum(weights.values()), max(weights.values())
    request = Request(PROMPT, **DRAWN)
    taken = low_memory.step_bytes(folder, request, plan_request(folder, request).stages, 1, CPU)
    split = folder.file("unet").derived(lambda file: split_file(file))
    assert split is not None
    small = sum(tensor_nbytes(each, "unet") for each in split.step.graph.initializer if each.name not in weights)
    free, orts = taken + small + int(0.9 * total), list[PiecewiseOrt]()
    begin = PiecewiseOrt.__init__

    def made(self: PiecewiseOrt, *given: Any) -> None:
        begin(self, *given)
        orts.append(self)

    monkeypatch.setattr(PiecewiseOrt, "__init__", made)
    monkeypatch.setattr(session_module, "free_memory", lambda *_: free)
    with sdort.load(folders["unet"], provider="cpu", check=False, offload=True) as pipeline:
        found = pipeline.generate(PROMPT, **DRAWN)
        again = pipeline.generate(PROMPT, **{**DRAWN, "width": 64})
    np.testing.assert_array_equal(found.images[0].pixels, expected["unet"])
    assert found.offloaded is not None
    held = found.offloaded.resident + orts[0].streamed.block.nbytes
    assert 0.9 * total - 4 * largest < held <= 0.9 * total + ALIGNMENT * len(weights)
    assert again.offloaded is None, "a smaller image leaves more room"


ON_ROCM = """
import json, pathlib, sys, numpy
from sdort.generation.denoising.device_loop import Loop
from sdort.generation.schedules.recurrence import Recurrence
from sdort.providers.rocm import PROVIDER as ROCM
from sdort.providers.runtime_options import RuntimeOptions
from sdort.runtime import session as sessions
from sdort.runtime.step.bound_unet import Batch
from sdort.runtime.step.pieces import plan_pieces
from sdort.runtime.step.prepared_tensors import split_file
from sdort.runtime.step.step_conditions import StepConditions

path, log = map(pathlib.Path, sys.argv[1:])
sessions.plan_pieces = lambda graph, sizes, *_: plan_pieces(graph, sizes, 0, counts=[4])
sessions.free_memory = lambda *_: 1 << 30
packs, create = [], sessions.create_session

def created(model, *given, **named):
    packs.append(named["packs"])
    return create(model, *given, **named)

sessions.create_session = created
session = sessions.open_session(path, "unet", ROCM, RuntimeOptions("rocm", custom_ops="off", offload=True, pool=1))
table = numpy.random.default_rng(0).normal(size=(3, 3))
conditions = StepConditions.fixed([{"encoder_hidden_states": numpy.ones((1, 5, 6), "f")}], 99)
noise = numpy.ones((1, 1, 4, 2, 128), "f")

def asked(step, binding, options=None, run=sessions.PiecewiseOrt.run_with_iobinding):
    with log.open("a") as file:
        file.write('{"call": "step"}\\n')
    run(step, binding, options)

sessions.PiecewiseOrt.run_with_iobinding = asked
recurrence = Recurrence(numpy.arange(2), table[:-1], table[-1])
Loop(session).denoise(recurrence, Batch(1, 1, (4, 2, 128)), conditions, noise, [1.0], lambda _: None)
providers = [each.get_providers()[0] for each in session.ort.opened.sessions]
print(json.dumps([session.offloaded.pieces, providers, session.offloaded.resident, packs]))
"""
WIDTHS = [128, 160, 192, 224, 128]


def test_on_rocm_the_next_weights_are_asked_for_behind_each_piece(tmp_path: Path) -> None:
    """Its real provider, on a stub of HIP: which copies there are, and in which order. GPUs' kernels are asked to pack
    weights as those of other sessions are: CUDA's NhwcConv learns there how its weights lie."""
    model = parser.parse_model(
        """<ir_version: 8, opset_import: ["": 17]>
        g (float[N, 4, H, 128] sample, float timestep, float[N, T, 6] encoder_hidden_states)
        => (float[N, 4, H, 128] out) {
            text = ReduceMean <axes = [1, 2], keepdims = 0> (encoder_hidden_states)
            axes = Constant <value_ints = [1, 2, 3]> ()
            each = Unsqueeze (text, axes)
            x0 = Add (sample, each)
            x1 = MatMul (x0, w0)
            x2 = MatMul (x1, w1)
            x3 = MatMul (x2, w2)
            out = MatMul (x3, w3)
        }"""
    )
    rng = np.random.default_rng(0)
    for number, shape in enumerate(itertools.pairwise(WIDTHS)):
        model.graph.initializer.append(
            numpy_helper.from_array(rng.standard_normal(shape).astype(np.float32), f"w{number}")
        )
    place, log = tmp_path / "model.onnx", tmp_path / "log"
    onnx.save_model(model, place, save_as_external_data=True, location="weights", size_threshold=0)
    root = str(Path(__file__).parents[2])
    done = rocm_stub.runtime().run(ON_ROCM, str(place), str(log), copies=str(log), PYTHONPATH=root)
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout.splitlines()[-1]) == [4, ["ROCMExecutionProvider"] * 4, 0, [True] * 5]
    sizes = {4 * first * second: number for number, (first, second) in enumerate(itertools.pairwise(WIDTHS))}
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    seen = [sizes.get(line.get("bytes"), line["call"]) for line in lines]
    opened, first, second = ([each for each in part if isinstance(each, int)] for part in _divided(seen, "step"))
    assert opened == [0, 1, 2, 3]
    assert first == [0, 2, 1, 3, 0, 1]
    assert second == [2, 3, 0, 1]


def _divided(values: list[Any], at: str) -> list[list[Any]]:
    """Parts of a list between those that are ``at``."""
    parts: list[list[Any]] = [[]]
    for value in values:
        if value == at:
            parts.append([])
        else:
            parts[-1].append(value)
    return parts
