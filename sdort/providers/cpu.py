"""The CPU execution provider of stock ONNX Runtime: channels-first convolutions, no diffusion operators."""

from sdort.providers.kernels import unpacked_attention
from sdort.providers.provider import Provider
from sdort.providers.target import Target, any_form

TARGET = Target(
    name="cpu",
    execution_provider="CPUExecutionProvider",
    opset=18,
    ir_version=10,
    channels_last=False,
    kernels={
        "Attention": any_form,
        "BiasGelu": any_form,
        "FastGelu": any_form,
        "Gelu": any_form,
        "MultiHeadAttention": unpacked_attention,
        "QuickGelu": any_form,
        "SkipLayerNormalization": any_form,
    },
)

PROVIDER = Provider(name="cpu", ep="CPUExecutionProvider", no_graph="graphs are recorded on GPUs only")
