"""OpenVINO's execution provider, as Intel's plugin onnxruntime-ep-openvino brings it to any ONNX Runtime.

OpenVINO compiles standard graphs itself, so nothing is fused for it, and no list says which operators it takes.
"""

import json

from sdort.providers.provider import Option, Plugin, Provider, text
from sdort.providers.target import Target

TARGET = Target(
    name="openvino",
    execution_provider="OpenVINOExecutionProvider",
    opset=20,
    ir_version=10,
    channels_last=False,
    missing=frozenset({"Attention", "GroupNormalization", "RMSNormalization", "RotaryEmbedding"}),
)


def _in_load_config(entry: str) -> Option:
    return text().owned_by(f"The plugin goes on as if it had not been given. Set load_config, in which it is {entry}.")


_ONE_DEVICE = "The plugin goes on as if it had not been given. Use --device-id."

# The names that onnxruntime-ep-openvino 1.8.1's library reads; of all but two it says in its log that it ignores them.
_OPTIONS: dict[str, Option] = {
    "load_config": text(),
    "reshape_input": text(),
    "cache_dir": _in_load_config('"CACHE_DIR": "FOLDER"'),
    "precision": _in_load_config('"INFERENCE_PRECISION_HINT": "f32"'),
    "num_of_threads": _in_load_config('"INFERENCE_NUM_THREADS": "1"'),
    "num_streams": _in_load_config('"NUM_STREAMS": "1"'),
    "model_priority": _in_load_config('"MODEL_PRIORITY": "LOW"'),
    "enable_opencl_throttling": _in_load_config('"GPU": {"PLUGIN_THROTTLE": "1"}'),
    "enable_qdq_optimizer": _in_load_config('"NPU": {"NPU_QDQ_OPTIMIZATION": "YES"}'),
    "device_type": text().owned_by(_ONE_DEVICE),
    "device_id": text().owned_by(_ONE_DEVICE),
    "device_luid": text().owned_by(_ONE_DEVICE),
}

PLUGIN = Plugin(
    package="onnxruntime-ep-openvino",
    execution_provider=TARGET.execution_provider,
    computes_on="Intel's CPUs, GPUs and NPUs",
    options=_OPTIONS,
)

PROVIDER = Provider(
    TARGET,
    rank=500,
    package=PLUGIN.package,
    plugins=(PLUGIN,),
    on_request=True,
    # By itself it computes in bf16 on CPUs that have it, with errors of 1e-2.
    options={"load_config": json.dumps({"CPU": {"INFERENCE_PRECISION_HINT": "f32"}})},
    no_graph="graphs are recorded by HIP and CUDA only",
    no_bf16="sdort has OpenVINO compute in fp32",
    needs="Install the plugin for this system, with an ONNX Runtime of at least 1.23.",
)
