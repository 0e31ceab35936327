"""The domains of operators that are not ONNX's own, and the names of those in ONNX Runtime's.

The onnx package has no schemas for these, and ONNX Runtime need not be installed to read a model. The list is
``onnxruntime.capi._pybind_state.get_all_operator_schema()`` of onnxruntime 1.31.1 and 1.32.0; a test compares it with
the installed runtime's, so that a name missing here is seen.
"""

from __future__ import annotations

MICROSOFT = "com.microsoft"
"""The domain of ONNX Runtime's own operators."""
OWN_DOMAIN = "sdort"
"""The domain of sdort's own operators, whose function bodies a model carries (:mod:`sdort.onnx_io.own_functions`)."""
IN_DEFAULT_DOMAIN = frozenset({"SimplifiedLayerNormalization"})
"""ONNX Runtime's own operators that files have in the default domain, where ONNX has none of that name. In memory they
are of :data:`MICROSOFT`, like the others."""
EARLIER_THAN_ONNX = {"LayerNormalization": 17}
"""Operators that ONNX Runtime has in the default domain of every opset, and ONNX, as the same, from this one on."""


def file_domain(domain: str, name: str) -> str:
    """The domain that a file has for an operator of ``domain``."""
    return "" if domain == MICROSOFT and name in IN_DEFAULT_DOMAIN else domain


def is_runtimes_own(domain: str, name: str, opset: int) -> bool:
    """Whether a file's operator is one that ONNX Runtime alone has in the default domain of ``opset``."""
    return not domain and (name in IN_DEFAULT_DOMAIN or opset < EARLIER_THAN_ONNX.get(name, 0))


MICROSOFT_OPERATORS = frozenset(
    """
    Attention AttnLSTM BeamSearch BiasAdd BiasDropout BiasGelu BiasSoftmax BiasSplitGelu BifurcationDetector
    BitmaskBiasDropout BitmaskDropout BranchwiseRMSNorm CDist CausalConvWithState ComplexMul ComplexMulConj
    ConvStateReplay ConvTransposeWithDynamicPads CropAndResize DecoderAttention DecoderMaskedMultiHeadAttention
    DecoderMaskedSelfAttention DequantizeBFP DequantizeLinear DequantizeWithOrder DynamicQuantizeLSTM
    DynamicQuantizeMatMul DynamicSparseAttention DynamicTimeWarping EPContext EmbedLayerNormalization EngramGate
    ExpandDims FastGelu FusedConv FusedGemm FusedMatMul FusedMatMulActivation GatedAdd GatedDeltaNet
    GatedDeltaNetStateReplay GatedRMSNorm GatedRelativePositionBias GatherBlockQuantized GatherND GatherPacked
    Gelu GemmFastGelu GemmFloat8 GemmaRotaryEmbedding GreedySearch GridSample GroupNorm GroupQueryAttention
    HyperConnectionLowRankMix HyperConnectionPostMix HyperConnectionPreMix Inverse Irfft IsAllFinite
    LinearAttention LinearAttentionGate LongformerAttention MRotaryEmbedding Mamba2Verify
    MatMulBlockQuantizedFp4Weight MatMulBlockQuantizedFp8Weight MatMulBnb4 MatMulFpQ4 MatMulInteger16
    MatMulIntegerToFloat MatMulNBits MatMulNBitsMlp MatMulNBitsQLoRA MatMulNBitsQkv MatMulPacked MaxpoolWithMask
    MoE MoEGroupRouter MoEPacked MulInteger MultiHeadAttention MurmurHash3 NGramHashMapping NGramRepeatBlock
    NhwcConv NhwcFusedConv NhwcMaxPool PackedAttention PackedMultiHeadAttention PackedSparseAttentionIndexer
    PackedSparseAttentionIndexerMerge Pad PagedAttention QAttention QEmbedLayerNormalization QGemm QLinearAdd
    QLinearAveragePool QLinearConcat QLinearConv QLinearGlobalAveragePool QLinearLeakyRelu QLinearMul
    QLinearReduceMean QLinearSigmoid QLinearSoftmax QLinearWhere QMoE QOrderedAttention QOrderedGelu
    QOrderedLayerNormalization QOrderedLongformerAttention QOrderedMatMul QuantizeBFP QuantizeLinear
    QuantizeWithOrder QuickGelu RMSNormRotary Range ReduceSumInteger RelativePositionBias RemovePadding
    RestorePadding Rfft RotaryEmbedding RouterGateUpProj SampleOp Sampling ScaledSiLU SkipGroupNorm
    SkipLayerNormalization SkipSimplifiedLayerNormalization Snpe SparseAttention SparseAttentionIndexer
    SparsePagedAttention SparseToDenseMatMul SpeculativePrefixCommit SwiGLU Tokenizer TorchEmbedding
    TransposeMatMul Trilu UnfoldTensor Unique VarlenCausalConvWithState VarlenNGramHashMapping WhisperBeamSearch
    WordConvEmbedding
    """.split()  # noqa: SIM905 - one name a line would be 136 lines
)
