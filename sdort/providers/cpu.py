"""The CPU execution provider of stock ONNX Runtime: channels-first convolutions, no diffusion operators."""

from sdort.machine.distributions import FALLBACK
from sdort.providers.provider import LAST, Provider
from sdort.providers.target import Target

TARGET = Target(
    name="cpu",
    execution_provider=FALLBACK,
    opset=18,
    ir_version=10,
    channels_last=False,
)

PROVIDER = Provider(
    TARGET,
    rank=LAST,
    no_graph="graphs are recorded on GPUs only",
    no_bf16="ONNX Runtime's CPU provider has no bf16 arithmetic",
)
