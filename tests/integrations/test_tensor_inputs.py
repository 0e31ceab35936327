"""What sessions on torch tensors take, complete and keep, without a graph: shapes, timesteps, prompts, tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from transformers import CLIPTextConfig

from sdort.errors import BadModelError, ProviderError, UsageError
from sdort.families.component_names import CONTROLNET, T2I_ADAPTER
from sdort.graph.signature import TensorSpec
from sdort.integrations.torch import GraphUNet, prompt_tensors, tensor_session
from sdort.integrations.torch.graph_module import as_timestep, known_inputs, like
from sdort.integrations.torch.prompt_tensors import PromptTensors
from sdort.integrations.torch.tensor_binding import PreparedInputs, TensorBinding, torch_dtype
from sdort.integrations.torch.tensor_session import TensorSession, _check_sizes, _check_tensors
from sdort.integrations.torch.text_module import GraphTextEncoder, SkippedStates
from sdort.integrations.torch.torch_place import StreamOrder, TorchPlace
from sdort.integrations.torch.unet_adapters import _refuse_text_encoders
from sdort.runtime.step.step_caches import PromptCache

CPU = TorchPlace(torch.device("cpu"))
MID, DOWN, SCALE, TOKENS = (
    "mid_block_additional_residual", "down_block_additional_residuals.0", "image_scale.0", "image_tokens.0"
)  # fmt: skip


def spec(name: str, *shape: int | str | None, dtype: Any = np.float32) -> TensorSpec:
    return TensorSpec(name, np.dtype(dtype), shape)


SAMPLE = spec("sample", "N", 4, "H", "W")
STATES = spec("encoder_hidden_states", "N", "L", 5, dtype=np.float16)


def session(*specs: TensorSpec, preparation: Any = None, graph: bool = False) -> Any:
    return SimpleNamespace(
        inputs={each.name: each for each in specs}, outputs=[spec("out", "N", dtype=np.float16)],
        preparation=preparation, component="unet", options=SimpleNamespace(graph=graph),
        provider=SimpleNamespace(name="cuda"), weights=SimpleNamespace(version=7),
    )  # fmt: skip


@pytest.fixture(autouse=True)
def _without_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensor_session, "_leave_uncompiled", lambda: None)


# Kinds of tensors


def dual(value: torch.Tensor) -> torch.Tensor:
    return torch.autograd.forward_ad.make_dual(value, value)


@pytest.mark.parametrize(
    ("made", "refused"),
    [
        (lambda: torch.zeros(2), ""), (lambda: torch.zeros(2, dtype=torch.bool), ""),
        (lambda: torch.zeros(2, dtype=torch.int8), ""), (lambda: torch.zeros(0), ""),
        (lambda: torch.zeros(4, 3).T[1:], ""), (lambda: torch.tensor(1.0), ""),
        (lambda: np.zeros(2), "is a ndarray, and no tensor"), (lambda: [1.0], "is a list"),
        (lambda: None, "is a NoneType"), (lambda: torch.zeros(2, device="meta"), "is a tensor without values"),
        (lambda: torch.zeros(2, dtype=torch.complex64), r"is a tensor of torch\.complex64"),
        (lambda: torch.zeros(2, 2).to_sparse(), r"is a tensor of torch\.sparse_coo"),
        (lambda: torch.zeros(2, requires_grad=True), "wants a gradient"),
        (lambda: torch.zeros(2, requires_grad=True) * 2, "wants a gradient"),
    ],
)  # fmt: skip
def test_inputs_are_dense_tensors_of_real_numbers(made: Any, refused: str) -> None:
    with torch.enable_grad():
        feeds = {"fine": torch.zeros(1), "odd": made()}
        if refused:
            with pytest.raises(UsageError, match=f"^the input 'odd' {refused}"):
                _check_tensors(feeds)
        else:
            _check_tensors(feeds)


@pytest.mark.filterwarnings("ignore:`torch.jit.script")  # torch's own, at its first transform
def test_a_gradient_counts_where_one_is_asked_for() -> None:
    value = torch.zeros(2, requires_grad=True)
    with torch.no_grad():
        _check_tensors({"sample": value})
        with torch.autograd.forward_ad.dual_level(), pytest.raises(UsageError, match="wants a gradient"):
            _check_tensors({"sample": dual(torch.zeros(2))})
    with torch.inference_mode():
        _check_tensors({"sample": torch.zeros(2)})


@pytest.mark.parametrize(
    ("change", "are"),
    [
        ({}, True), ({"b": torch.ones(3).half()}, True), ({"b": torch.ones(6).half()[::2]}, True),
        ({"b": torch.ones(3)}, False), ({"b": torch.ones(4).half()}, False), ({"b": torch.ones(1, 3).half()}, False),
        ({"c": torch.ones(3)}, False), ({"b": torch.ones(3, device="meta").half()}, False), ({"b": None}, False),
        ({"b": torch.ones(3).half().to_sparse()}, False), ({"b": torch.nn.Parameter(torch.ones(3).half())}, False),
    ],
)  # fmt: skip
def test_what_is_given_is_like_what_was_given_before(change: dict[str, Any], are: bool) -> None:
    """Also of another stride, which is read anew in each call; what is no plain tensor is looked at again."""
    usual = {"a": torch.zeros(2, 2), "b": torch.zeros(3).half()}
    kinds = {name: tensor_session._Kind.of(value) for name, value in usual.items()}
    given = {**usual, **change}
    with torch.no_grad():
        assert tensor_session._are(given, kinds) is are
        assert not tensor_session._are({"a": usual["a"]}, kinds)
        with torch.autograd.forward_ad.dual_level():
            assert not tensor_session._are(usual, kinds)
    with torch.inference_mode():
        assert tensor_session._are(given, kinds) is are
    with torch.enable_grad():  # where some may ask for a gradient
        assert not tensor_session._are(given, kinds)
    fake = torch.func.functionalize(lambda value: torch.tensor(tensor_session._are({**usual, "b": value}, kinds)))
    with torch.no_grad():
        assert not bool(fake(usual["b"]))


# Sizes

INPUTS = {each.name: each for each in (SAMPLE, STATES, spec("fixed", 2, 3), spec("half", "N", "2*H"))}


@pytest.mark.parametrize(
    ("shapes", "words", "hint"),
    [
        ({"sample": (2, 4, 8, 6), "encoder_hidden_states": (2, 7, 5), "half": (2, 16)}, "", ""),
        ({"encoder_hidden_states": (9, 7, 5)}, "", ""),  # the first one says how many there are
        ({"fixed": (2, 3)}, "", ""),
        ({"fixed": (2, 4)}, "takes 'fixed' of 2 x 3, and not of 2 x 4", "--static"),
        ({"fixed": (2,)}, "of 2 x 3, and not of 2", "--static"),
        ({"sample": (2, 3, 8, 6)}, "any x 4 x any x any, and not of 2 x 3 x 8 x 6",
         "It is N x 4 x H x W: this tensor is for another model"),
        ({"sample": (2, 4, 8)}, "and not of 2 x 4 x 8", "is for another model"),
        ({"sample": (0, 4, 8, 6)}, "and not of 0 x 4 x 8 x 6", "It is N x 4 x H x W, each at least 1; 'sample' is 0 x"),
        ({"sample": (2, 4, 8, 6), "encoder_hidden_states": (3, 7, 5)}, "of 2 x any x 5, and not of 3 x 7 x 5",
         "It is N x L x 5, each at least 1; 'sample' is 2 x 4 x 8 x 6."),
        ({"sample": (2, 4, 8, 6), "half": (2, 8)}, "of 2 x 16, and not of 2 x 8", "It is N x 2*H, each at least 1"),
        ({"sample": ()}, "and not of one number", "is for another model"),
    ],
)  # fmt: skip
def test_sizes_are_the_graphs_and_go_together(shapes: Mapping[str, tuple[int, ...]], words: str, hint: str) -> None:
    if not words:
        _check_sizes("unet", INPUTS, shapes)
        return
    with pytest.raises(UsageError) as caught:
        _check_sizes("unet", INPUTS, shapes)
    assert words in caught.value.message
    assert caught.value.message.startswith("unet takes '")
    assert hint in str(caught.value.hint)


@pytest.mark.parametrize(
    ("declared", "given", "taken"),
    [
        ((), 5.0, 5.0), ((), [5.0], 5.0), ((), [5.0, 5.0, 5.0], 5.0), ((), [[5.0]], 5.0),
        ((), [5.0, 6.0, 5.0], "takes one timestep for all samples"), ((), [5.0, 5.0], "got 2 timesteps for 3 samples"),
        ((), [], "got 0 timesteps for 3 samples"), ((1,), 5.0, [5.0]), ((1,), [5.0] * 3, [5.0]),
        ((1,), [5.0, 5.0, 6.0], "takes one timestep for all samples"), (("N",), 5.0, [5.0] * 3),
        (("N",), [5.0], [5.0] * 3), (("N",), [5.0, 6.0, 7.0], [5.0, 6.0, 7.0]),
        (("N",), [5.0, 6.0], "got 2 timesteps for 3 samples"), (("T",), [5.0] * 3, [5.0]),
        (("T",), [5.0, 6.0, 5.0], "takes one timestep"), ((None,), 5.0, [5.0]),
        ((3,), [5.0, 6.0, 7.0], [5.0, 6.0, 7.0]), ((3,), 5.0, [5.0] * 3),
    ],
)  # fmt: skip
def test_a_timestep_has_the_shape_that_the_graph_takes(declared: Any, given: Any, taken: Any) -> None:
    made = TensorSession(session(SAMPLE, spec("timestep", *declared)), CPU)
    if isinstance(taken, str):
        with pytest.raises(UsageError, match=f"unet .*{taken}|{taken}"):
            made._timesteps(torch.tensor(given), 3)
    else:
        assert made._timesteps(torch.tensor(given), 3).tolist() == taken


@pytest.mark.parametrize("value", [None, "now", [[1.0], [1.0, 2.0]]])
def test_a_timestep_is_a_number_or_numbers(value: Any) -> None:
    with pytest.raises(UsageError, match=f"the timestep is a {type(value).__name__}, and no number"):
        as_timestep(value)
    assert [as_timestep(each).tolist() for each in (1, 2.5, [3], np.float32(4), torch.tensor(5))] == [1, 2.5, [3], 4, 5]


# What a run gets


STEERED = (
    SAMPLE, spec("timestep"), spec(MID, "N", 3, "H", "W", dtype=np.float16), spec(DOWN, "N", 2, "2*H", "W"),
    spec(TOKENS, "N", 6, 7), spec(SCALE, "N", None, dtype=np.float16), spec("controlnet_cond", "N", 3, "8*H", "8*W"),
)  # fmt: skip


def feeds(samples: int, height: int, width: int, **more: torch.Tensor) -> dict[str, torch.Tensor]:
    image = torch.rand(1, 3, 8 * height, 8 * width)
    sample = torch.rand(samples, 4, height, width)
    return {"sample": sample, "timestep": torch.tensor([5.0]), "controlnet_cond": image, "unknown": image, **more}


def test_what_steers_is_zeros_where_it_is_not_given_and_one_for_all_is_for_each() -> None:
    made = TensorSession(session(*STEERED), CPU)
    residual = torch.rand(1, 2, 8, 6)
    for samples, height, width in ((2, 4, 6), (3, 4, 6), (3, 5, 6), (2, 4, 6)):
        given = feeds(samples, height, width)
        found = made._complete(given)
        assert [*found] == [each.name for each in STEERED]
        assert {name: (tuple(value.shape), value.dtype) for name, value in found.items() if not bool(value.any())} == {
            MID: ((samples, 3, height, width), torch.float16), DOWN: ((samples, 2, 2 * height, width), torch.float32),
            TOKENS: ((samples, 6, 7), torch.float32), SCALE: ((samples, 1), torch.float16),
        }  # fmt: skip
        assert torch.equal(found["sample"], given["sample"])
        assert found["timestep"].tolist() == 5.0
        assert torch.equal(found["controlnet_cond"], given["controlnet_cond"].expand(samples, -1, -1, -1))
        again = made._complete(feeds(samples, height, width))
        assert again[MID] is found[MID]  # zeros are made once
    given = feeds(3, 4, 6, **{DOWN: residual})
    assert torch.equal(made._complete(given)[DOWN], residual.expand(3, -1, -1, -1))
    each = torch.rand(3, 2, 8, 6)
    assert torch.equal(made._complete(feeds(3, 4, 6, **{DOWN: each}))[DOWN], each)
    assert given[DOWN] is residual  # the caller's own is left as it is
    with pytest.raises(UsageError, match=f"'{DOWN}' of 3 x 2 x 8 x 6, and not of 2 x 2 x 8 x 6"):
        made._complete(feeds(3, 4, 6, **{DOWN: each[:2]}))
    with pytest.raises(UsageError, match="'controlnet_cond' of 3 x 3 x 32 x 48, and not of 3 x 3 x 40 x 48"):
        made._complete({**feeds(3, 4, 6), "controlnet_cond": torch.rand(1, 3, 40, 48)})
    with pytest.raises(UsageError, match="'sample' of"):
        made._complete({**feeds(3, 4, 6), "sample": torch.tensor(1.0)})


def test_an_input_that_nothing_stands_in_for_is_missing() -> None:
    made = TensorSession(session(SAMPLE, spec("timestep"), STATES), CPU)
    with pytest.raises(BadModelError, match="wants the inputs timestep, encoder_hidden_states"):
        made._complete({"sample": torch.rand(2, 4, 8, 6)})
    with pytest.raises(BadModelError, match="wants the inputs sample"):
        made._complete({"timestep": torch.tensor(1.0), STATES.name: torch.rand(2, 7, 5)})


def test_a_graph_of_the_device_needs_tensors_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "Event", object)  # torch for the CPU has none
    with pytest.raises(UsageError, match="have to be on the GPU of cuda"):
        TensorSession(session(SAMPLE, graph=True), CPU)
    place: Any = SimpleNamespace(stream="a stream", device=torch.device("cpu"))
    made = TensorSession(session(SAMPLE, graph=True), place)
    assert made._step._graph.recorded
    assert not TensorSession(session(SAMPLE), place)._step._graph.recorded
    assert (made.dtype, made.device, list(made.inputs)) == (torch.float16, torch.device("cpu"), ["sample"])


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.enable_grad, torch.no_grad])
def test_a_run_is_ordered_with_torchs_stream(mode: Any) -> None:
    order: list[Any] = []
    place: Any = SimpleNamespace(device=torch.device("cpu"), stream=None)
    made = TensorSession(session(SAMPLE), place)
    made._order = SimpleNamespace(  # type: ignore[assignment]
        begin=lambda: order.append("begin"), end=lambda: order.append("end")
    )
    outputs = {"a": torch.zeros(1), "b": torch.zeros(2)}

    def run(values: Mapping[str, torch.Tensor], *prepared: Any) -> dict[str, torch.Tensor]:
        assert not torch.is_grad_enabled()
        assert not torch.is_inference_mode_enabled()
        order.append([*values])
        if len(order) > 3:
            raise ProviderError("broken")
        return outputs

    made._step.run = run  # type: ignore[method-assign, assignment]
    with mode():
        given = {"sample": torch.rand(2, 4, 8, 6), "unknown": torch.zeros(1)}
        assert made.run(given) is outputs
        with pytest.raises(ProviderError):
            made.run(given)
    assert "sample" in order[1]
    assert [order[0], order[2], order[3], order[5]] == ["begin", "end"] * 2
    place.stream = SimpleNamespace(synchronize=lambda: order.append("waited"))
    made.synchronize()
    assert order[-1] == "waited"


@pytest.mark.parametrize("prompt", [False, True])
@pytest.mark.parametrize("time", [False, True])
@pytest.mark.parametrize("for_time", [(), ("p",), ("p", "b")])
def test_a_step_gets_what_is_prepared_for_it(prompt: bool, time: bool, for_time: Sequence[str]) -> None:
    """The prompt's part first, and of the timesteps' part what the prompt's has not made comes from the caller."""
    made_step, made_time = PreparedInputs({"s": torch.zeros(1)}, False), PreparedInputs(
        {name: torch.zeros(1) for name in for_time}, False
    )  # fmt: skip
    made_of_prompt, rows = SimpleNamespace(step=made_step, time=made_time), PreparedInputs({}, True)
    asked: Any = []
    parts: Any = SimpleNamespace(step=["sample", "timestep"], beside=["p", "b"])
    own: Any = session(SAMPLE, spec("timestep"))
    made = TensorSession(own, CPU)
    own.preparation = parts
    given = {name: torch.rand(3 if name == "sample" else 1, 4) for name in ("sample", "timestep", "p", "b", "q")}
    if prompt:
        made._prompts = SimpleNamespace(  # type: ignore[assignment]
            of=lambda values, version: asked.append(([*values], version)) or made_of_prompt
        )
    if time:
        made._rows = SimpleNamespace(of=lambda *given: asked.append(given) or rows)  # type: ignore[assignment]
    made._step.run = lambda *ran: ran  # type: ignore[assignment, method-assign]
    ran: Any = made._outputs(given)
    assert {name: id(value) for name, value in ran[0].items()} == {name: id(given[name]) for name in parts.step}
    assert [*map(id, ran[1:])] == [*map(id, [made_step] * prompt + [rows] * time)]
    if prompt:
        assert asked.pop(0) == ([*given], 7)
    if time:
        (timestep, samples, beside, prepared, version) = asked.pop(0)
        known = for_time if prompt else ()
        assert timestep is given["timestep"]
        assert (samples, version) == (3, 7)
        assert [*beside] == [name for name in ("p", "b") if name not in known]
        assert all(beside[name] is given[name] for name in beside)
        assert prepared is (made_time if known else None)
    assert asked == []


@pytest.mark.parametrize("has", [(), ("time",), ("prompt",), ("prompt", "time")])
def test_each_part_of_a_session_is_bound_where_torch_meets_it(
    has: Sequence[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        tensor_session, "TensorBinding", lambda part, inputs, order, graph: (part, *inputs, order.place, graph)
    )
    monkeypatch.setattr(torch.cuda, "Event", object)  # torch for the CPU has none
    monkeypatch.setattr(tensor_session, "TimestepCache", lambda *given: ("rows", *given))
    monkeypatch.setattr(tensor_session, "PromptTensors", lambda *given: ("prompts", *given))
    monkeypatch.setattr(tensor_session, "PromptCache", lambda part: part)
    parts: Any = {name: SimpleNamespace(inputs={"x": f"spec of {name}"}, outputs=[]) for name in has}
    split: Any = SimpleNamespace(
        time=parts.get("time"), prompt=parts.get("prompt"), parts=[*parts.values()], each_sample={"each"},
        taken=["sample"], beside=["beside"],
    )  # fmt: skip
    whole = session(SAMPLE, STATES, preparation=split, graph=True)
    place: Any = SimpleNamespace(stream="a stream")
    made: Any = TensorSession(whole, place)
    assert made._step == (whole, SAMPLE, place, True)
    time = ("rows", (split.time, "spec of time", place, False), {"each"}, "timestep")
    prompt = ("prompts", (split.prompt, "spec of prompt", place, False), ["sample"], ["beside"], "sample")
    assert (made._rows, made._prompts) == (time if "time" in has else None, prompt if "prompt" in has else None)


def test_a_step_s_inputs_are_the_models_and_what_parts_make_for_it() -> None:
    made = spec("made", "N", 9, dtype=np.float16)
    parts: Any = SimpleNamespace(
        parts=[SimpleNamespace(outputs=[made, spec("other", 1)]), SimpleNamespace(outputs=[spec("rows", "N", 2)])],
        taken=["rows", "sample", "made"],
    )
    whole = session(SAMPLE, STATES)
    assert tensor_session._step_inputs(whole) == [SAMPLE, STATES]
    whole.preparation = parts
    assert tensor_session._step_inputs(whole) == [spec("rows", "N", 2), SAMPLE, made]


@pytest.mark.parametrize("names", [{}, {"a": None}, {"a": 1, "b": None}, {"a": 1, "c": 1, "d": 1}])
def test_optional_inputs_are_those_that_are_there(names: Any) -> None:
    made: Any = SimpleNamespace(inputs={"a": 1, "b": 1}, session=SimpleNamespace(component="vae"))
    if "c" in names:
        with pytest.raises(UsageError, match="the graph of vae does not take c, d") as caught:
            known_inputs(made, names)
        assert caught.value.hint == "It takes a, b."
    else:
        assert known_inputs(made, names) == ({"a": 1} if names.get("a") else {})


def test_an_output_has_the_type_of_what_it_belongs_to() -> None:
    value = torch.ones(2, dtype=torch.float32)
    assert like(value, torch.ones(1, dtype=torch.float16)).dtype == torch.float16
    assert like(value, torch.ones(1, dtype=torch.int64)) is value


# What the graph reads


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.int64, np.int32, np.bool_])
def test_an_input_is_read_as_the_graph_declares_it(dtype: Any) -> None:
    binding = TensorBinding(session(), [spec("x", "N", dtype=dtype)], StreamOrder(CPU), graph=False)
    own = torch.zeros(3, dtype=torch_dtype(np.dtype(dtype)))
    assert binding.fitted("x", own) is own
    fitted = binding.fitted("x", torch.tensor([0.9999, 998.9999, 0.0]))
    assert fitted.dtype == own.dtype
    if np.dtype(dtype).kind == "i":
        assert fitted.tolist() == [1, 999, 0]
    turned = torch.zeros(2, 3, dtype=own.dtype).T
    assert binding.fitted("x", turned).is_contiguous()
    negated = torch.tensor([1 + 2j]).conj().imag
    assert negated.is_neg()
    if np.dtype(dtype).kind == "f":
        assert binding.fitted("x", negated).tolist() == [-2.0]
        assert not binding.fitted("x", negated.to(own.dtype)).is_neg()


def test_memory_for_outputs_has_each_one_s_type_and_size() -> None:
    own = session()
    own.outputs = [spec("a", "N", dtype=np.float16), spec("b", "N", "M", dtype=np.int64)]
    made = TensorBinding(own, [], StreamOrder(CPU), graph=False)._graph.allocated(((3,), (2, 5)))
    assert {name: (tuple(value.shape), value.dtype) for name, value in made.items()} == {
        "a": ((3,), torch.float16), "b": ((2, 5), torch.int64)
    }  # fmt: skip


# Prompts


class Binding:
    """The graph of prompts, which counts its runs."""

    inputs = ("text", "size")
    order = StreamOrder(CPU)

    def __init__(self) -> None:
        self.runs = 0

    def fitted(self, name: str, value: torch.Tensor) -> torch.Tensor:
        return value.to(torch.float32)

    def run(self, values: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        self.runs += 1
        return {name: torch.tensor(self.runs) for name in ("s", "t", "both", "neither")}


def test_the_last_prompts_are_known_by_their_values_and_weights() -> None:
    binding: Any = Binding()
    kept = PromptCache(PromptTensors(binding, ("s", "both"), ("t", "both"), "sample"))

    def made(text: float, size: float = 0.0, version: int = 1) -> int:
        found = kept.of({"text": torch.tensor([text]), "size": torch.tensor([size]), "more": torch.zeros(1)}, version)
        assert (set(found.step.values), set(found.time.values)) == ({"s", "both"}, {"t", "both"})
        assert [found.step.fixed, found.time.fixed] == [False, False]
        return int(found.step.values["s"])

    assert [made(1), made(1), made(1, 2), made(1)] == [1, 1, 2, 1]
    assert [made(3), made(4), made(1), made(5)] == [3, 4, 1, 5]  # five prompts: the one that was used longest ago goes
    assert [made(1), made(4), made(3)] == [1, 4, 3]
    assert made(1, 2) == 6
    assert [made(1, 2, version=2), made(1, 2, version=1)] == [7, 8]  # of other weights, nothing is kept
    assert made(1, 2, version=1) == 8


def test_a_prompt_that_was_changed_in_place_is_another_one_and_the_first_is_still_known() -> None:
    binding: Any = Binding()
    kept = PromptCache(PromptTensors(binding, ("s",), (), "sample"))
    value, other = torch.zeros(2), torch.zeros(2)
    first = kept.of({"text": value, "size": other}, 1)
    value += 1
    second = kept.of({"text": value, "size": other}, 1)
    assert second is not first
    assert kept.of({"text": torch.zeros(2, dtype=torch.float64), "size": other}, 1) is first
    assert binding.runs == 2


def test_a_tensor_on_the_cpu_is_compared_as_numpy_may_have_changed_it() -> None:
    binding: Any = Binding()
    kept = PromptCache(PromptTensors(binding, ("s",), (), "sample"))
    values = {"text": torch.zeros(2), "size": torch.zeros(2)}
    first = kept.of(values, 1)
    assert kept.of(values, 1) is first
    for name, runs in (("text", 2), ("size", 3)):
        values[name].numpy()[1] = 5
        assert kept.of(values, 1) is not first
        assert binding.runs == runs


class OnGpu:
    """As much of a tensor on a GPU as is asked; to compare it by value would wait for the GPU."""

    def __init__(self, kind: str = "cuda") -> None:
        self.is_cpu = kind == "cpu"
        self._version, self.address, self.inference = 3, 64, False

    def is_inference(self) -> bool:
        return self.inference

    def data_ptr(self) -> int:
        return self.address

    def clone(self) -> Any:
        return "a copy"


@pytest.mark.parametrize(
    ("change", "waits"),
    [({}, False), ({"_version": 4}, True), ({"address": 128}, True), ({"inference": True}, True), (None, True)],
)
@pytest.mark.parametrize("changed", ["text", "size"])
def test_a_tensor_on_a_gpu_is_known_by_its_count_of_changes(
    change: dict[str, Any] | None, waits: bool, changed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    binding: Any = Binding()
    binding.fitted = lambda name, value: value
    compared: Any = []
    monkeypatch.setattr(prompt_tensors, "torch", SimpleNamespace(equal=lambda *pair: compared.append(pair) or True))
    kept = PromptCache(PromptTensors(binding, ("s",), (), "sample"))
    values: dict[str, Any] = {"text": OnGpu(), "size": OnGpu()}
    first = kept.of(values, 1)
    for name, value in (change or {}).items():
        setattr(values[changed], name, value)
    if change is None:
        values[changed] = OnGpu()  # another one at the same address
    assert kept.of(values, 1) is first
    assert bool(compared) is waits
    if "inference" not in (change or {}):
        compared.clear()  # what had the values is known from now on
        assert kept.of(values, 1) is first
        assert compared == []
        compared.append(("a copy", values))
    assert all(pair[0] == "a copy" for pair in compared)
    kept.of({**values, changed: OnGpu("cpu")}, 1)
    assert compared


def test_a_tensor_of_inference_mode_counts_no_changes() -> None:
    with torch.inference_mode():
        value = torch.zeros(1)
    seen = prompt_tensors.SeenTensor.of(value)
    assert seen.changes is None
    assert not seen.is_of(value)


# Text encoders


def encoder(outputs: Mapping[str, torch.Tensor]) -> Any:
    made: Any = GraphTextEncoder(
        "text_encoder", CLIPTextConfig(max_position_embeddings=7, vocab_size=9, num_hidden_layers=3)
    )
    made.sessions = {"text_encoder": SimpleNamespace(inputs={"ids": None}, run=lambda feeds: asked(feeds, outputs))}
    return made


def asked(given: Mapping[str, torch.Tensor], outputs: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
    assert [*given] == ["ids"]
    return outputs


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([[0, 8]], ""), ([[0] * 7], ""), ([0] * 8, ""), ([[[8]]], ""), ([[0] * 8], "at most 7 tokens, and these are 8"),
        ([[0, 9]], "knows the tokens 0 to 8, and not 9"), ([[-1, 5]], "knows the tokens 0 to 8, and not -1"),
        ([[-2, 12]], "knows the tokens 0 to 8, and not -2"),
    ],
)  # fmt: skip
def test_tokens_are_those_of_the_tables(ids: Any, message: str) -> None:
    made = encoder({})
    if message:
        with pytest.raises(UsageError, match=f"^text_encoder .*{message}\n"):
            made._check_tokens(torch.tensor(ids))
    else:
        made._check_tokens(torch.tensor(ids))
    made._check_tokens(torch.zeros(1, 0, dtype=torch.long))
    made._check_tokens(None)  # which the session refuses


IDS = torch.zeros(1, 2, dtype=torch.long)
LAST, POOLED, EMBEDS = torch.full((1,), 1.0), torch.full((1,), 2.0), torch.full((1,), 3.0)
STATES_OUT = {f"hidden_states.{n}": torch.full((1,), 10.0 + n) for n in (2, 0, 3, 1)}


def test_outputs_are_those_of_transformers() -> None:
    plain = encoder({"pooler_output": POOLED, "last_hidden_state": LAST})
    made = plain(IDS)
    assert (made.last_hidden_state, made.pooler_output, made.hidden_states) == (LAST, POOLED, None)
    assert plain(IDS, return_dict=False) == (LAST, POOLED)
    assert plain(IDS, return_dict=True).last_hidden_state is LAST
    projecting = encoder({"text_embeds": EMBEDS, "last_hidden_state": LAST, **STATES_OUT})
    made = projecting(IDS, output_hidden_states=True)
    assert (made.text_embeds, made.last_hidden_state) == (EMBEDS, LAST)
    assert [float(state) for state in made.hidden_states] == [10, 11, 12, 13]  # in the order of the layers
    assert projecting(IDS).hidden_states is None
    other = encoder({"whatever": LAST, "pooled": POOLED})(IDS)
    assert (other.last_hidden_state, other.pooler_output) == (LAST, None)
    for asked_for in ("attention_mask", "position_ids"):
        with pytest.raises(UsageError, match=f"takes no {asked_for}\n"):
            plain(IDS, **{asked_for: IDS})
    with pytest.raises(UsageError, match="takes no output_attentions\n"):
        plain(IDS, output_attentions=True)
    assert plain(IDS, output_attentions=False).pooler_output is POOLED


def test_states_are_counted_from_the_end() -> None:
    outputs = {"last_hidden_state": LAST, "clip_skip.2": POOLED, "clip_skip.3": EMBEDS}
    states = encoder(outputs)(IDS, output_hidden_states=True).hidden_states
    assert isinstance(states, SkippedStates)
    assert len(states) == 4
    assert (states[-1], states[-2], states[-3]) == (LAST, POOLED, EMBEDS)
    for index in (-4, 0, 1):
        with pytest.raises(UsageError, match=f"without the hidden state {index}\n"):
            states[index]


@pytest.mark.parametrize("encoders", [(), ("text_encoder",), ("text_encoder_2",), ("text_encoder", "text_encoder_2")])
@pytest.mark.parametrize("key", ["unet.a", "text_encoder.a", "text_encoder_2.a"])
@pytest.mark.parametrize("is_graph", [False, True])
def test_an_adapter_for_a_text_encoder_that_is_a_graph_is_refused(
    encoders: Sequence[str], key: str, is_graph: bool
) -> None:
    refused: list[str] = []
    graph = {"sessions": 1} if is_graph else {}
    pipeline = SimpleNamespace(**{
        name: SimpleNamespace(load_adapter=lambda name=name: refused.append(name), **graph) for name in encoders
    })  # fmt: skip
    _refuse_text_encoders({"unet.b": torch.zeros(1), key: torch.zeros(1)}, pipeline)
    assert refused == [name for name in encoders if is_graph and key == f"{name}.a"]
    _refuse_text_encoders({key: torch.zeros(1)}, None)


def test_a_step_has_the_weights_of_its_own_scale(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of scale 1 behind another one."""
    events: list[Any] = []

    @contextmanager
    def lock() -> Any:
        events.append("locked")
        yield
        events.append("free")

    unet = GraphUNet.__new__(GraphUNet)
    torch.nn.Module.__init__(unet)
    unet.adapters = SimpleNamespace(apply=events.append)  # type: ignore[assignment]

    def run(feeds: Any) -> Any:
        events.append(feeds)
        return {"y": feeds}

    session: Any = SimpleNamespace(run=run, lock=lock())
    monkeypatch.setattr(GraphUNet, "session", session, raising=False)
    for scale in (0.5, 1.0, 1.0, 0.0):
        session.lock = lock()
        assert unet._run({"x": scale}, scale) == {"y": {"x": scale}}
    assert events == [each for scale in (0.5, 1.0, 1.0, 0.0) for each in ("locked", scale, {"x": scale}, "free")]
    events.clear()
    unet.adapters = None
    assert unet._run({"x": 2}, 1.0) == {"y": {"x": 2}}
    assert events == [{"x": 2}]


@pytest.mark.parametrize("given", range(1, 5))
@pytest.mark.parametrize("kind", [CONTROLNET, T2I_ADAPTER])
def test_a_controlnet_has_a_tensor_for_each_input_and_an_adapter_may_have_fewer(kind: str, given: int) -> None:
    """diffusers' UNet takes an adapter's features level by level, as many as there are."""
    names = {CONTROLNET: ["c0", "c1", MID], T2I_ADAPTER: ["a0", "a1", "a2"]}
    unet: Any = SimpleNamespace(
        _exported_residuals=names, session=SimpleNamespace(inputs=dict.fromkeys([*names[CONTROLNET], "a0", "a1", "a2"]))
    )
    tensors: list[Any] = [*range(given)]
    if given == 3 or (kind == T2I_ADAPTER and given < 3):
        expected = dict(zip(names[kind], tensors, strict=False))
        assert GraphUNet._residuals(unet, kind, tensors) == expected
    else:
        with pytest.raises(UsageError, match=f"a control of {given} tensors does not fit this UNet, which takes 3"):
            GraphUNet._residuals(unet, kind, tensors)
