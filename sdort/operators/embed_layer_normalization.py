"""com.microsoft.EmbedLayerNormalization: sums of embeddings of words, positions and segments, normalized (BERT)."""

from sdort.model.domains import MICROSOFT
from sdort.model.fact import Fact
from sdort.model.operator import Call, Category, Example, Operator, outputs_only, runs_itself
from sdort.operators.skip_layer_normalization import normalize


def infer(call: Call) -> list[Fact]:
    ids, word = call.shape("input_ids"), call.shape("word_embedding")
    dtype = call.dtype("word_embedding")
    whole = Fact(dtype, None if ids is None or word is None else (*ids, word[-1]))
    return [whole, Fact(call.dtype("input_ids"), None if ids is None else ids[:1]), whole]


def definition(call: Call) -> str | None:
    """Positions are those of the rows where none are given."""
    if call.has("mask", "mask_index"):
        return None
    places = "Identity (position_ids)" if call.has("position_ids") else "Range (none, count, step)"
    segments = "Gather (segment_embedding, segment_ids)" if call.has("segment_ids") else ""
    return f"""
      none = Constant <value_int = 0> ()
      step = Constant <value_int = 1> ()
      rows = Shape <start = 1, end = 2> (input_ids)
      count = Squeeze (rows)
      places = {places}
      words = Gather (word_embedding, input_ids)
      positions = Gather (position_embedding, places)
      placed = Add (words, positions)
      {f"segments = {segments}  sum = Add (placed, segments)" if segments else "sum = Identity (placed)"}
      {normalize(call.attributes["epsilon"], "placed", "output", "gamma", "beta")}
      {"embedding_sum = Identity (sum)" if call.has("embedding_sum") else ""}"""


OPERATOR = Operator(
    name="EmbedLayerNormalization",
    domain=MICROSOFT,
    category=Category.NORMALIZATION,
    inputs=(
        "input_ids", "segment_ids", "word_embedding", "position_embedding", "segment_embedding", "gamma", "beta",
        "mask", "position_ids",
    ),
    outputs=("output", "mask_index", "embedding_sum"),
    attributes={"epsilon": 1e-12, "mask_index_type": 0},
    infer=infer,
    definition=definition,
    on_cpu=runs_itself,
    stores_intermediates=outputs_only,
    float32_inputs=(),
    additive=True,
    factors=(),
    operations=11,
    kernels={},  # sdort takes it apart (fusions/restore_embed_layer_normalization.py)
    unserved={},
    examples=(
        Example(
            {
                "input_ids": (2, 5), "word_embedding": (3, 12), "position_embedding": (7, 12), "gamma": (12,),
                "beta": (12,),
            },
            {"epsilon": 1e-3},
            outputs=("output",),
        ),
    ),
)  # fmt: skip
