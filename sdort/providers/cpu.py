"""The CPU execution provider of stock ONNX Runtime: channels-first convolutions, no diffusion operators."""

from sdort.providers.provider import Provider
from sdort.providers.target import Target

TARGET = Target(
    name="cpu",
    execution_provider="CPUExecutionProvider",
    opset=18,
    ir_version=10,
    channels_last=False,
)

PROVIDER = Provider(name="cpu", ep="CPUExecutionProvider", no_graph="graphs are recorded on GPUs only")
