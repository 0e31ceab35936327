"""The UNet's graph as a torch module: diffusers' numbers, whatever comes in, and torch's manners."""

from __future__ import annotations

import pickle
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from support import tiny_pipeline
from support.tiny_pipeline import Tiny
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from sdort.errors import BadModelError, UsageError
from sdort.integrations.torch import GraphUNet, load_controlnet, load_unet, load_vae

TOLERANCE = 1e-4
"""fp32 on both sides, outputs of about 1: 3e-6 is seen, and a wrong tensor gives 0.01 and more."""


@pytest.fixture(scope="module")
def unet(tiny: Tiny) -> GraphUNet:
    return load_unet(tiny.onnx, provider="cpu")


@pytest.fixture(autouse=True)
def _no_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


def prompts(batch: int = 2, seed: int = 0, tokens: int = 77) -> torch.Tensor:
    return torch.randn(batch, tokens, 32, generator=torch.Generator().manual_seed(seed))


def latents(batch: int = 2, height: int = 16, width: int = 16) -> torch.Tensor:
    return torch.randn(batch, 4, height, width, generator=torch.Generator().manual_seed(9))


def assert_same(ours: GraphUNet, theirs: torch.nn.Module, *inputs: Any) -> None:
    torch.testing.assert_close(ours(*inputs).sample, theirs(*inputs).sample, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize(
    ("sample", "timestep", "context"),
    [
        pytest.param(latents(), 999, prompts(), id="integer"),
        pytest.param(latents(), torch.tensor(3.5), prompts(), id="fraction"),
        pytest.param(latents(), torch.tensor([7, 7]), prompts(), id="one each"),
        pytest.param(latents(1, 16, 24), 20, prompts(1), id="another size"),
        pytest.param(latents(3), 20, prompts(3, tokens=154), id="long prompts"),
        pytest.param(latents().transpose(2, 3), 20, prompts(), id="not contiguous"),
        pytest.param(torch._neg_view(latents()), 20, prompts(), id="negated when read"),
        pytest.param(latents().double(), 20, prompts().double(), id="another dtype"),
        pytest.param((3 * latents()).int(), 20, prompts(), id="integers"),
    ],
)
def test_the_numbers_are_diffusers(
    unet: GraphUNet, tiny: Tiny, sample: torch.Tensor, timestep: Any, context: torch.Tensor
) -> None:
    made = unet(sample, timestep, context, return_dict=False)[0]
    expected = tiny.pipeline.unet(sample.float(), timestep, context.float()).sample
    dtype = sample.dtype if sample.is_floating_point() else torch.float32
    torch.testing.assert_close(made, expected.to(dtype), atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_a_prompt_that_changed_in_place_is_another_one(unet: GraphUNet, tiny: Tiny, mode: Callable[[], Any]) -> None:
    with mode():
        sample, context = latents(), prompts(seed=1)
        assert_same(unet, tiny.pipeline.unet, sample, 5, context)
        context[0].mul_(2)
        assert_same(unet, tiny.pipeline.unet, sample, 5, context)
        context.copy_(prompts(seed=2))
        assert_same(unet, tiny.pipeline.unet, sample, 6, context)


def test_what_a_prompt_decides_is_computed_once(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    unet = load_unet(tiny.onnx, provider="cpu")
    preparation = unet.session.session.preparation
    assert preparation is not None
    assert preparation.prompt is not None
    part, runs = preparation.prompt, []
    run = part.run_bound

    def counted(*args: Any) -> None:
        runs.append(args)
        run(*args)

    monkeypatch.setattr(part, "run_bound", counted)
    one, other = prompts(seed=1), prompts(seed=2)
    for step, context in enumerate([one, one, other, one, other, one.clone()]):
        unet(latents(), step, context)
    assert len(runs) == 2


def test_a_call_like_the_one_before_takes_nothing_from_it(unet: GraphUNet, tiny: Tiny) -> None:
    """Of the same sizes and types, but of another layout, place, timestep or mode, or with changed values."""
    sample, context = latents(), prompts(seed=1)
    timesteps = torch.tensor([7.0, 300.0, 900.0])
    assert_same(unet, tiny.pipeline.unet, sample, 5, context)
    assert_same(unet, tiny.pipeline.unet, sample.transpose(2, 3), 5, context)
    assert_same(unet, tiny.pipeline.unet, torch._neg_view(sample), 5, context)
    assert_same(unet, tiny.pipeline.unet, sample[:1].expand(2, -1, -1, -1), 5, context)
    for timestep in (6, 6.5, timesteps[1], timesteps[2], timesteps[1:2], timesteps[1].expand(2), torch.tensor([7, 7])):
        assert_same(unet, tiny.pipeline.unet, sample, timestep, context)
    timesteps[1] = 40  # in place, where it was read before
    assert_same(unet, tiny.pipeline.unet, sample, timesteps[1], context)
    sample.numpy()[0] *= 2  # which torch does not count
    context.numpy()[1] *= 2
    assert_same(unet, tiny.pipeline.unet, sample, timesteps[1], context)
    expected = unet(sample, 5, context).sample
    for mode in (torch.enable_grad, torch.inference_mode, lambda: torch.autocast("cpu", torch.bfloat16), torch.no_grad):
        with mode():
            made = unet(sample, 5, context).sample
            assert not made.requires_grad
            assert not made.is_inference()
            torch.testing.assert_close(made, expected, atol=0, rtol=0)
    for seed in range(8):  # torch gives memory that is free to the next tensor of its size
        assert_same(unet, tiny.pipeline.unet, latents(), 5, prompts(seed=seed))


def test_outputs_are_memory_of_their_own(unet: GraphUNet) -> None:
    first = unet(latents(), 5, prompts()).sample
    kept = first.clone()
    second = unet(latents(), 900, prompts()).sample
    assert first.data_ptr() != second.data_ptr()
    torch.testing.assert_close(first, kept, atol=0, rtol=0)


def test_threads_take_turns(unet: GraphUNet) -> None:
    calls = [(latents() * number, number, prompts(seed=number)) for number in range(1, 9)]
    expected = [unet(*call).sample for call in calls]

    def run(call: tuple[Any, ...]) -> torch.Tensor:
        with torch.no_grad():
            made: torch.Tensor = unet(*call).sample
            return made

    with ThreadPoolExecutor(4) as pool:
        for made, one in zip(pool.map(run, calls), expected, strict=True):
            torch.testing.assert_close(made, one, atol=0, rtol=0)


def test_torch_compile_leaves_a_graph_alone(unet: GraphUNet) -> None:
    torch._dynamo.reset()
    seen: list[str] = []

    def backend(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        seen.extend(str(node.target) for node in graph.graph.nodes if node.op.startswith("call"))
        return graph.forward

    made = torch.compile(lambda sample: unet(sample * 2, 5, prompts()).sample + 1, backend=backend)(latents())
    torch.testing.assert_close(made, unet(latents() * 2, 5, prompts()).sample + 1, atol=0, rtol=0)
    assert not {"data_ptr", "empty", "expand"} & set(seen), seen
    torch._dynamo.reset()


def test_a_module_is_pickled_by_its_path(unet: GraphUNet, tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    text = pickle.dumps(unet)
    assert len(text) < 1000
    monkeypatch.chdir("/")
    assert_same(pickle.loads(text), tiny.pipeline.unet, latents(), 5, prompts())


def test_a_module_that_is_dropped_frees_its_sessions(tiny: Tiny) -> None:
    unet = load_unet(tiny.onnx, provider="cpu")
    unet(latents(), 5, prompts())
    session = unet.session.session
    parts = [session, *session.preparation.parts] if session.preparation else []
    assert len(parts) == 3
    freed = [weakref.ref(part.ort) for part in parts]
    del session, parts, unet
    assert [ort() for ort in freed] == [None] * 3


def test_it_is_where_it_is_and_says_so(unet: GraphUNet) -> None:
    assert len(list(unet.parameters())) == 1
    assert (unet.dtype, unet.device) == (torch.float32, torch.device("cpu"))
    assert unet.to("cpu") is unet
    assert unet.to("cpu", torch.float32) is unet.float()
    assert unet.config.in_channels == 4
    assert unet.config.time_cond_proj_dim is None
    for move in (unet.half, lambda: torch.nn.Sequential(unet).to(torch.float16)):
        with pytest.raises(UsageError, match=r"takes torch\.float32 and cannot become torch\.float16"):
            move()
    with pytest.raises(UsageError, match="runs on cpu and cannot be moved to meta"):
        unet.to("meta")
    if not torch.backends.cuda.is_built():
        with pytest.raises(UsageError, match="runs on cpu and cannot be moved: Torch not compiled with CUDA"):
            torch.nn.Sequential(unet).to("cuda")
    with pytest.raises(UsageError, match="Copy the folder"):
        unet.save_pretrained("there")
    with pytest.raises(AttributeError, match="runs as an ONNX graph and has no 'enable_freeu'"):
        unet.enable_freeu(s1=1, s2=1, b1=1, b2=1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        pytest.param({"timestep": torch.tensor([1, 2])}, "one timestep for all samples", id="timesteps"),
        pytest.param({"timestep": torch.ones(3)}, "got 3 timesteps for 2 samples", id="more timesteps"),
        pytest.param({"timestep": torch.ones(0)}, "got 0 timesteps for 2 samples", id="no timestep"),
        pytest.param({"timestep": None}, "the timestep is a NoneType, and no number", id="nothing"),
        pytest.param({"encoder_hidden_states": None}, "'encoder_hidden_states' is a NoneType", id="no prompt"),
        pytest.param({"class_labels": torch.zeros(2)}, "does not take class_labels", id="labels"),
        pytest.param({"added_cond_kwargs": {"image_embeds": torch.zeros(2)}}, "take image_embeds", id="image"),
        pytest.param({"cross_attention_kwargs": {"gligen": {}}}, "gligen would change the inside", id="attention"),
        pytest.param(
            {"mid_block_additional_residual": torch.zeros(2)}, "sdort export MODEL OUT --control", id="control"
        ),
        pytest.param({"sample": latents()[0]}, "any x 4 x any x any, and not of 4 x 16 x 16", id="rank"),
        pytest.param({"sample": torch.tensor(1.0)}, "any x 4 x any x any, and not of one number", id="no tensor"),
        pytest.param({"sample": latents().to("meta")}, "'sample' is a tensor without values", id="meta"),
        pytest.param({"sample": latents().to_sparse()}, r"'sample' is a tensor of torch\.sparse_coo", id="sparse"),
        pytest.param(
            {"sample": latents().to(torch.complex64)}, r"'sample' is a tensor of torch\.complex64", id="complex"
        ),
        pytest.param({"sample": latents(0)}, "any x 4 x any x any, and not of 0 x 4 x 16 x 16", id="empty"),
        pytest.param(
            {"encoder_hidden_states": prompts(3)},
            "'encoder_hidden_states' of 2 x any x 32, and not of 3 x 77 x 32(.|\n)*'sample' is 2 x 4 x 16 x 16",
            id="another batch",
        ),
        pytest.param(
            {"encoder_hidden_states": prompts()[..., :24]},
            "of 2 x any x 32, and not of 2 x 77 x 24(.|\n)*is for another model",
            id="another width",
        ),
        pytest.param({"encoder_hidden_states": prompts(tokens=0)}, "and not of 2 x 0 x 32", id="no tokens"),
    ],
)
def test_what_a_graph_cannot_do_is_refused(unet: GraphUNet, arguments: dict[str, Any], message: str) -> None:
    usual = {"sample": latents(), "timestep": 1, "encoder_hidden_states": prompts()}
    with pytest.raises(UsageError, match=message):
        unet(**{**usual, **arguments})


def test_a_component_that_is_not_there_is_named(tiny: Tiny) -> None:
    with pytest.raises(BadModelError, match=r"has no controlnet(.|\n)*Export the checkpoint that has it"):
        load_controlnet(tiny.onnx, provider="cpu")


def test_a_gradient_is_refused(unet: GraphUNet) -> None:
    with torch.enable_grad(), pytest.raises(UsageError, match="'sample' wants a gradient"):
        unet(latents().requires_grad_(), 1, prompts())


def dual(run: Callable[[torch.Tensor], torch.Tensor], sample: torch.Tensor) -> torch.Tensor:
    with torch.autograd.forward_ad.dual_level():
        return run(torch.autograd.forward_ad.make_dual(sample, sample))


def fake(run: Callable[[torch.Tensor], torch.Tensor], sample: torch.Tensor) -> torch.Tensor:
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        return run(mode.from_tensor(sample))


@pytest.mark.parametrize(
    ("transform", "message"),
    [
        pytest.param(lambda run, sample: make_fx(run)(sample), "cannot record", id="make_fx"),
        pytest.param(fake, "cannot record", id="fake tensors"),
        pytest.param(
            torch.jit.trace,
            "cannot record",
            id="jit.trace",
            marks=pytest.mark.filterwarnings("ignore:`torch.jit.trace", "ignore::torch.jit.TracerWarning"),
        ),
        pytest.param(
            lambda run, sample: FakeTensorMode().from_tensor(sample),
            "'sample' is a tensor without memory",
            id="one fake tensor",
            marks=pytest.mark.filterwarnings("ignore:Accessing the data pointer of FakeTensor:UserWarning"),
        ),
        pytest.param(lambda run, sample: torch.func.functionalize(run)(sample), "without memory", id="functionalize"),
        pytest.param(lambda run, sample: torch.func.vmap(run)(sample[None]), "without memory", id="vmap"),
        pytest.param(lambda run, sample: torch.func.jvp(run, (sample,), (sample,)), "without memory", id="jvp"),
        pytest.param(dual, "'sample' wants a gradient", id="forward gradient"),
    ],
)
@pytest.mark.filterwarnings("ignore:`torch.jit.script")  # torch's own, at its first transform
@pytest.mark.parametrize("warm", [False, True])
def test_what_looks_into_a_module_is_refused_and_leaves_nothing(
    transform: Callable[..., Any], message: str, warm: bool, tiny: Tiny
) -> None:
    """ONNX Runtime reads where tensors say that they are, and kept inputs outlive the call."""
    unet, context = load_unet(tiny.onnx, provider="cpu"), prompts()

    def run(sample: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = unet(sample, 5, context).sample
        return made

    if warm:
        run(latents())
    with pytest.raises(UsageError, match=message):
        run(transform(run, latents()))
    assert_same(unet, tiny.pipeline.unet, latents(), 5, context)


def test_torch_export_is_refused(tiny: Tiny) -> None:
    unet = load_unet(tiny.onnx, provider="cpu")
    arguments = latents(), torch.tensor(5), prompts()
    with pytest.raises(UsageError, match=r"torch\.export, torch\.fx and torch\.jit cannot record"):
        torch.export.export(unet, arguments, strict=False)
    assert_same(unet, tiny.pipeline.unet, *arguments)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda unet: unet.enable_xformers_memory_efficient_attention(), "xFormers' attention"),
        (lambda unet: unet.enable_npu_flash_attention(), "flash attention for NPUs"),
        (lambda unet: unet.enable_xla_flash_attention(), "flash attention for XLA"),
        (lambda unet: unet.set_attn_processor(None), "set_attn_processor"),
        (lambda unet: unet.fuse_qkv_projections(), "fuse_qkv_projections"),
        (lambda unet: unet.set_attention_backend("native"), "set_attention_backend"),
        (lambda unet: unet.enable_layerwise_casting(storage_dtype=torch.float8_e4m3fn), "enable_layerwise_casting"),
        (lambda unet: unet.enable_group_offload(onload_device=torch.device("cpu")), "enable_group_offload"),
        (lambda unet: unet.enable_parallelism(config=None), "enable_parallelism"),
        (lambda unet: unet.enable_gradient_checkpointing(), "enable_gradient_checkpointing"),
    ],
)
@pytest.mark.parametrize("load", [load_unet, load_vae])
def test_what_would_do_nothing_is_not_passed_over(
    call: Callable[[Any], None], message: str, load: Callable[..., Any], tiny: Tiny
) -> None:
    module = load(tiny.onnx, provider="cpu")
    with pytest.raises(UsageError, match=f"runs as an ONNX graph, on which {message} has no effect"):
        call(module)
    module.disable_xformers_memory_efficient_attention()
    module.disable_npu_flash_attention()


@pytest.mark.parametrize("load", [load_unet, load_vae])
@pytest.mark.parametrize("name", ["from_config", "from_pretrained"])
def test_the_class_makes_no_module(load: Callable[..., Any], name: str, tiny: Tiny) -> None:
    module = load(tiny.onnx, provider="cpu")
    with pytest.raises(UsageError, match=rf"{type(module).__name__} is not made by {name}.*\n.*load_unet, load_vae"):
        getattr(type(module), name)(module.config)


def test_a_static_graph_says_which_sizes_it_has(tiny: Tiny, tmp_path: Path) -> None:
    tiny_pipeline.export_onnx(tiny.pipeline, tmp_path / "onnx", batch=2)
    unet = load_unet(tmp_path / "onnx", provider="cpu")
    assert_same(unet, tiny.pipeline.unet, latents(), 5, prompts())
    with pytest.raises(UsageError, match="takes 'sample' of 2 x 4 x 16 x 16, and not of 3 x 4 x 16 x 16"):
        unet(latents(3), 5, prompts(3))
