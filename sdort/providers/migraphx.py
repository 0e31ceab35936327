"""onnxruntime-migraphx 1.27.1: the operators on its execution provider's own list.

MIGraphX fuses standard graphs itself, so what its list lacks (SkipGroupNorm, BiasSplitGelu, BiasAdd) stays in standard
operators, in channels-first.
"""

from sdort.providers.provider import NO_LIMIT, Option, Plugin, Provider, address, flag, number, one_of, text
from sdort.providers.target import Target

STANDARD = """
Abs Acos Acosh Add And ArgMax ArgMin Asin Asinh Atan Atanh AveragePool BatchNormalization Cast Ceil Celu Clip
Concat Constant ConstantOfShape Conv ConvInteger ConvTranspose Cos Cosh CumSum DepthToSpace DequantizeLinear
Div Dropout Einsum Elu Equal Erf Exp Expand EyeLike Flatten Floor Gather GatherElements GatherND Gemm
GlobalAveragePool GlobalMaxPool Greater GreaterOrEqual HardSigmoid HardSwish Identity InstanceNormalization
IsNaN LayerNormalization LeakyRelu Less LessOrEqual Log LogSoftmax LpNormalization MatMul MatMulInteger Max
MaxPool Mean Min Mod Mul Multinomial Neg Not OneHot Or Pad Pow PRelu QuantizeLinear Range Reciprocal ReduceL1
ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum ReduceSumSquare Relu
Reshape Resize ReverseSequence Round ScatterElements ScatterND Selu Shape Sigmoid Sign Sin Sinh Slice Softmax
Softplus Softsign SpaceToDepth Split Sqrt Squeeze Sub Sum Tan Tanh ThresholdedRelu Tile TopK Transpose Trilu
Unsqueeze Where Xor
"""
"""The execution provider's own list of standard operators."""

TARGET = Target(
    name="migraphx",
    execution_provider="MIGraphXExecutionProvider",
    opset=18,
    ir_version=10,
    channels_last=False,
    only=frozenset(STANDARD.split()),
    explicit_inputs={"Resize": (1, 2)},  # its region and its scales, where it has sizes
)

_IGNORED = (
    "onnxruntime-migraphx 1.27.1 takes it and goes on as if it had not: get_provider_options() shows the default."
)

# What onnxruntime-migraphx 1.27.1's own get_provider_options() returns.
_OPTIONS: dict[str, Option] = {
    "device_id": number(0).owned_by("Use --device-id."),
    "migraphx_arena_extend_strategy": one_of("kNextPowerOfTwo", "kSameAsRequested").owned_by(_IGNORED),
    "migraphx_bf16_enable": flag(False),
    "migraphx_exhaustive_tune": flag(False),
    "migraphx_external_alloc": address(),
    "migraphx_external_empty_cache": address(),
    "migraphx_external_free": address(),
    "migraphx_fp16_enable": flag(False),
    "migraphx_fp8_enable": flag(False),
    "migraphx_int8_calibration_table_name": text(),
    "migraphx_int8_enable": flag(False),
    "migraphx_int8_use_native_calibration_table": flag(False),
    "migraphx_mem_limit": number(NO_LIMIT).owned_by(_IGNORED),
    "migraphx_model_cache_dir": text(),
}

_SAME = (
    "fp16_enable", "bf16_enable", "fp8_enable", "int8_enable", "int8_calibration_table_name",
    "int8_use_native_calibration_table", "exhaustive_tune",
)  # fmt: skip
"""Options that the plugin has too, without the prefix ``migraphx_``, with which it takes them as well."""

_PLUGIN_ALONE = (
    "disable_caching", "force_recompile", "compute_mode", "dump_subgraphs", "hip_graph_enable", "max_dynamic_batch",
    "compile_batches", "coalesce_io", "mlss_use_specific_ops", "cpu_control_flow", "model_arch", "static_pad_seq",
    "static_pad_seq_len", "static_pad_inputs", "static_pad_outputs",
)  # fmt: skip

# Read out of the library of onnxruntime-migraphx 1.27.1, and of the plugin's source
# (onnxruntime/onnxruntime-ep-amdgpu, src/migraphx/mgx_ep.h).
_SUPERSEDING = {
    **{f"ORT_MIGRAPHX_{name.upper()}": f"migraphx_{name}" for name in _SAME},
    **{f"ORT_MIGRAPHX_{name.upper()}": name for name in _PLUGIN_ALONE if name != "disable_caching"},
    "ORT_MIGRAPHX_DISABLE_COMPILED_MODEL_CACHING": "disable_caching",
    "ORT_MIGRAPHX_MODEL_CACHE_PATH": "migraphx_model_cache_dir",
    "ORT_MIGRAPHX_CACHE_DIR": "migraphx_model_cache_dir",
    "ORT_MIGRAPHX_CACHE_PATH": "",
    "ORT_MIGRAPHX_DUMP_MODEL_OPS": "",
    "ORT_MIGRAPHX_DUMP_EP_CONTEXT_MODEL": "",
}

_KEPT = "sdort keeps what is compiled, so that nothing compiles a second time. sdort tuning prune removes it."
_BY_THE_PLUGIN = "The plugin's devices have numbers of their own: use --device-id."
_PADDING = {
    "static_pad_seq": flag(False),
    "static_pad_seq_len": number(0),
    "static_pad_inputs": text(),
    "static_pad_outputs": text(),
}
_SHARED: dict[str, Option] = {
    "device_id": number(0).owned_by(_BY_THE_PLUGIN),
    "cache_dir": text(),
    "cpu_control_flow": flag(False),
    "disable_caching": flag(False).owned_by(_KEPT),
    "exhaustive_tune": flag(False),
    "force_recompile": flag(False).owned_by(_KEPT),
    "hip_graph_enable": flag(False),
    "mlss_use_specific_ops": text(),
    "model_arch": text(),
    **_PADDING,
}
_CACHE = {"migraphx_model_cache_dir": "cache_dir"}
"""Not an alias of the plugins: sdort says it to them in their own words."""

# What both read (onnxruntime/onnxruntime-ep-amdgpu, src/migraphx/mgx_options.h and src/amdgpu/gpu_options.h).
PLUGIN = Plugin(
    package="onnxruntime-ep-migraphx",
    execution_provider=TARGET.execution_provider,
    computes_on="AMD GPUs that ROCm knows",
    options={
        **_SHARED,
        **{f"{name}_enable": flag(False) for name in ("fp16", "bf16", "fp8", "int8")},
        "coalesce_io": flag(False),
        "compile_batches": Option("", r"(\d+(,\d+)*)?", "numbers with commas, as 1,4,8"),
        "compute_mode": one_of("eager", "balanced", "maximum", "0", "50", "100"),
        "dump_subgraphs": flag(False),
        "int8_calibration_table_name": text(),
        "int8_use_native_calibration_table": flag(False),
        "max_dynamic_batch": number(0),
    },
    own_names={**{f"migraphx_{name}": name for name in _SAME}, **_CACHE},
)
UMBRELLA = Plugin(
    package="onnxruntime-ep-amdgpu",
    execution_provider="AMDGPUExecutionProvider",
    computes_on="AMD GPUs: by MIGraphX those of RDNA 3 and later",
    options={**_SHARED, "model_fw": text(), "profile": text().owned_by("sdort asks for MIGraphX.")},
    # By itself it takes older cards to DirectX, which no program of MIGraphX is for.
    sets={"profile": "migraphx"},
    own_names={"migraphx_exhaustive_tune": "exhaustive_tune", **_CACHE},
)

PROVIDER = Provider(
    TARGET,
    rank=20,
    library="libonnxruntime_providers_migraphx.so",
    # Its memory belongs to vendor AMD, which IOBinding.bind_output cannot name, so tensors pass through host memory.
    device=None,
    tuning={"migraphx_exhaustive_tune": "1"},
    searched="exhaustive tuning",
    programs="migraphx_model_cache_dir",
    superseding=_SUPERSEDING,
    uses_miopen=True,
    bf16={"migraphx_bf16_enable": "1"},
    precisions=frozenset(f"migraphx_{name}_enable" for name in ("bf16", "fp16", "fp8", "int8")),
    no_graph="MIGraphX runs its compiled program itself and has no option for a graph",
    vendor="amd",
    needs="Install ROCm 7 with MIGraphX or add its lib folder to LD_LIBRARY_PATH; "
    "check with rocminfo that the GPU is visible.",
    # The library's NEEDED entries, and the packages of AMD's repository.
    libraries={"libmigraphx_c.so.3": "migraphx", "libamdhip64.so.7": "hip-runtime-amd"},
    releases={"1.27": _OPTIONS},
    plugins=(PLUGIN, UMBRELLA),
)
