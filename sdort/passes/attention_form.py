"""ONNX's Attention in one form, the only one that the fusions and lowerings after it know.

The form: query, key and value of [batch, rows, heads * size] with as many heads in all of them; of the rest of the
operator (https://onnx.ai/onnx/operators/onnx__Attention.html) either ``is_causal`` where there are as many keys as
queries, or a float mask of four axes, [1 or batch, 1 or heads, 1 or queries, keys]; ``scale``, ``softcap``, and
``softmax_precision`` where it is wider than the inputs. Everything else is said by operators around it:

* heads of their own axis, or merged into the batch, by Reshape and Transpose, which cancel against the exporter's;
* a past by Concat, key and value heads that several query heads share by Expand;
* masks of booleans or of fewer axes, and causal ones that are not square, by a mask as above;
* rows without any open key, whose result is 0 by definition, by a Where behind the attention;
* the scores as a second result by a product of their own.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_graphsurgeon as gs
from onnx import TensorProto, helper

from sdort.errors import BadModelError
from sdort.graph import float16
from sdort.graph.symbolic import Dim, Shape
from sdort.rewrite.causal_masks import is_causal
from sdort.rewrite.editor import Editor, producer
from sdort.rewrite.masks import closes_keys, extremes

_KNOWN = frozenset({"scale", "is_causal", "softcap", "softmax_precision", "q_num_heads", "kv_num_heads"})
_KNOWN |= {"qk_matmul_output_mode"}
MASK, PAST_KEY, PAST_VALUE = 3, 4, 5
"""Inputs by position."""
PRESENT_KEY, PRESENT_VALUE, SCORES = 1, 2, 3
"""Outputs by position."""


def run(editor: Editor) -> int:
    """Bring every Attention to the form; returns how many were not in it.

    Raises:
        BadModelError: one has inputs or attributes that contradict each other or that are not known here.
    """
    changes = 0
    for node in [n for n in editor.graph.nodes if n.op == "Attention" and not n.domain and n.outputs]:
        earlier, count = editor.origins.get(node.name, ()), len(editor.graph.nodes)
        before = _described(node)
        _Rewrite(editor, _heads_from_batch(editor, node)).apply()
        made = editor.graph.nodes[count:]
        changes += [_described(new) for new in made] != [before]
        for new in made:
            editor.origins[new.name] = tuple(dict.fromkeys((*earlier, editor.step)))
    editor.finish()
    return changes


def _described(node: gs.Node) -> tuple[str, list[str], dict[str, Any]]:
    """All that is to be seen of a node but for its name and outputs."""
    return node.op, [tensor.name for tensor in node.inputs], dict(node.attrs)


class _Rewrite:
    """One node on its way to the form."""

    def __init__(self, editor: Editor, node: gs.Node) -> None:
        self.editor, self.node = editor, node
        self.outputs = list(node.outputs)  # the node loses them one by one
        self.dtype = editor.dtype(node.inputs[0]) or np.dtype(np.float32)
        self._check_known()
        shapes = [
            self._shape(tensor, name) for tensor, name in zip(node.inputs, ("query", "key", "value"), strict=False)
        ]
        self.apart = len(shapes[0]) == 4
        if {len(shape) for shape in shapes} not in ({3}, {4}):
            raise self._error(f"its inputs are {', '.join(map(_show, shapes))}; three or four axes are expected")
        self.heads = self._head_count("q_num_heads", shapes[0])
        self.kv_heads = self._head_count("kv_num_heads", shapes[1])
        if self.heads % self.kv_heads:
            raise self._error(f"{self.heads} query heads cannot share {self.kv_heads} key heads")
        self.size, key_size = self._size(shapes[0], self.heads), self._size(shapes[1], self.kv_heads)
        self.value_size = self._size(shapes[2], self.kv_heads)
        mask = self._input(MASK)
        masked = () if mask is None else self._shape(mask, "mask")
        self.masks_heads = len(masked) > 2 and masked[-3] != 1
        """Whether heads may have masks of their own."""
        if self.size != key_size:
            raise self._error(f"query heads of {self.size} do not fit key heads of {key_size}")

    # --- what it is ---

    def _error(self, what: str) -> BadModelError:
        return BadModelError(
            f"this Attention cannot be expressed: {what}",
            component=self.editor.model.component,
            node=self.node.name,
            hint="Check the model with onnx.checker, or export it again.",
        )

    def _check_known(self) -> None:
        strange = [
            k for k, v in self.node.attrs.items() if k not in _KNOWN and not (k.endswith("_window_size") and v == -1)
        ]
        if strange or any(t.name for t in self.node.inputs[6:]):
            raise self._error(f"sdort does not know its {strange[0] if strange else 'input nonpad_kv_seqlen'}")
        if (self._input(PAST_KEY) is None) != (self._input(PAST_VALUE) is None):
            raise self._error("past_key and past_value have to come together")
        scale = self.node.attrs.get("scale")
        if scale is not None and not scale > 0:
            raise self._error(f"its scale has to be positive, it is {scale:g}")

    def _input(self, index: int) -> gs.Tensor | None:
        return self.node.inputs[index] if index < len(self.node.inputs) and self.node.inputs[index].name else None

    def _output(self, index: int) -> gs.Tensor | None:
        """An output that somebody reads."""
        tensor = self.outputs[index] if index < len(self.outputs) else None
        is_read = tensor is not None and tensor.name and (tensor.outputs or self.editor.is_output(tensor))
        return tensor if is_read else None

    def _shape(self, tensor: gs.Tensor, name: str) -> Shape:
        shape = self.editor.shape(tensor)
        if shape is None:
            raise self._error(f"the shape of its {name} is not known")
        return shape

    def _head_count(self, attribute: str, shape: Shape) -> int:
        count: Dim | None = shape[1] if self.apart else self.node.attrs.get(attribute)
        if not isinstance(count, int) or count < 1:
            raise self._error(f"the number of its heads is not fixed ({attribute})")
        return count

    def _size(self, shape: Shape, heads: int) -> int:
        size = shape[-1]
        if not isinstance(size, int) or (not self.apart and size % heads):
            raise self._error(f"{heads} heads do not divide a width of {size}")
        return size if self.apart else size // heads

    # --- the rewrite ---

    def apply(self) -> None:
        node, editor = self.node, self.editor
        query = self._flat(node.inputs[0], self.heads, self.size)
        key, offset = self._with_past(node.inputs[1], PAST_KEY, PRESENT_KEY, self.size)
        value, _ = self._with_past(node.inputs[2], PAST_VALUE, PRESENT_VALUE, self.value_size)
        key, value = self._repeated(key, self.size), self._repeated(value, self.value_size)
        if editor.dtype(value) != self.dtype:
            value = self._cast(value)
        explicit = self._explicit_mask(key)
        causal = self._is_causal(query, key, explicit, offset)
        mask = None if causal else self._mask(query, key, explicit, offset)
        open_rows = None if causal or explicit is None or mask is None else self._open_rows(explicit, mask)
        scores, result = self._output(SCORES), self.outputs[0]
        if scores is not None:
            self._scores(query, key, self._mask(query, key, explicit, offset) if causal else mask, open_rows, scores)
        attrs = {
            "q_num_heads": self.heads, "kv_num_heads": self.heads, "is_causal": int(causal) or None,
            "scale": node.attrs.get("scale"), "softcap": node.attrs.get("softcap") or None,
            "softmax_precision": self._precision(),
        }  # fmt: skip
        node.inputs.clear()
        node.outputs.clear()
        plain = not self.apart and open_rows is None
        inputs = [query, key, value, *([] if mask is None else [mask])]
        core = editor.node(
            "Attention", inputs, {k: v for k, v in attrs.items() if v is not None}, outputs=[result] if plain else 1
        ).outputs[0]
        if not plain:
            self._finish(core, open_rows, result)

    def _finish(self, core: gs.Tensor, open_rows: gs.Tensor | None, result: gs.Tensor) -> None:
        """Rows that are closed become 0, and heads get their own axis again."""
        if open_rows is not None and not self.masks_heads:
            outputs: Any = 1 if self.apart else [result]
            core = self.editor.op("Where", [open_rows, core, self._number(0.0)], outputs=outputs)
            if not self.apart:
                return
        rows = self.editor.op("Reshape", [core, self.editor.ints([0, 0, self.heads, self.value_size])])
        if open_rows is not None and self.masks_heads:
            rows = self.editor.op("Where", [open_rows, rows, self._number(0.0)])
        if self.apart:
            self.editor.node("Transpose", [rows], {"perm": [0, 2, 1, 3]}, outputs=[result])
        else:
            width = self.editor.ints([0, 0, self.heads * self.value_size])
            self.editor.node("Reshape", [rows, width], outputs=[result])

    def _flat(self, tensor: gs.Tensor, heads: int, size: int) -> gs.Tensor:
        """[batch, rows, heads * size]."""
        if len(self.editor.shape(tensor) or ()) == 3:
            return tensor
        rows = self.editor.op("Transpose", [tensor], {"perm": [0, 2, 1, 3]})
        return self.editor.op("Reshape", [rows, self.editor.ints([0, 0, heads * size])])

    def _split(self, tensor: gs.Tensor, heads: int, size: int, perm: tuple[int, ...] = (0, 2, 1, 3)) -> gs.Tensor:
        """[batch, heads, rows, size], or as ``perm`` says."""
        rows = self.editor.op("Reshape", [tensor, self.editor.ints([0, 0, heads, size])])
        return self.editor.op("Transpose", [rows], {"perm": list(perm)})

    def _with_past(self, tensor: gs.Tensor, past: int, present: int, size: int) -> tuple[gs.Tensor, gs.Tensor | int]:
        """Key or value with what was before it, flat, and how many rows that are."""
        earlier, whole = self._input(past), self._output(present)
        if earlier is None and whole is None:
            return self._flat(tensor, self.kv_heads, size), 0
        heads = tensor if self.apart else self._split(tensor, self.kv_heads, size)
        outputs: Any = 1 if whole is None else [whole]
        if earlier is None:
            heads = self.editor.op("Identity", [heads], outputs=outputs)
            return self._flat(heads, self.kv_heads, size), 0
        heads = self.editor.op("Concat", [earlier, heads], {"axis": 2}, outputs=outputs)
        return self._flat(heads, self.kv_heads, size), self._count(earlier, 2)

    def _repeated(self, tensor: gs.Tensor, size: int) -> gs.Tensor:
        """Every head as often as query heads share it: [h0, h0, h1, h1]."""
        times = self.heads // self.kv_heads
        if times == 1:
            return tensor
        apart = self.editor.op("Reshape", [tensor, self.editor.ints([0, 0, self.kv_heads, 1, size])])
        wide = self.editor.op("Expand", [apart, self.editor.ints([1, 1, 1, times, 1])])
        return self.editor.op("Reshape", [wide, self.editor.ints([0, 0, self.heads * size])])

    def _precision(self) -> int | None:
        """The softmax's precision where it is wider than the inputs: less than asked for is never computed in."""
        precision = self.node.attrs.get("softmax_precision")
        if not precision or np.dtype(helper.tensor_dtype_to_np_dtype(precision)).itemsize <= self.dtype.itemsize:
            return None
        return int(precision)

    # --- masks ---

    def _is_causal(self, query: gs.Tensor, key: gs.Tensor, explicit: gs.Tensor | None, offset: gs.Tensor | int) -> bool:
        """Whether the attribute alone says what is open: no kernel agrees with another on what is not square."""
        rows, keys = self._shape(query, "query")[1], self._shape(key, "key")[1]
        if rows != keys or not isinstance(offset, int):
            return False
        causal = bool(self.node.attrs.get("is_causal"))
        return causal if explicit is None else is_causal(self.editor, explicit, rows)

    def _explicit_mask(self, key: gs.Tensor) -> gs.Tensor | None:
        """The mask as it is added to the scores, with four axes."""
        mask = self._input(MASK)
        if mask is None:
            return None
        shape = self._shape(mask, "mask")
        if self.editor.dtype(mask) == np.bool_:
            mask = self.editor.op("Where", [mask, self._number(0.0), self._number(-np.inf)])
        elif self.editor.dtype(mask) != self.dtype:
            mask = self._cast(mask)
        if len(shape) > 4:
            raise self._error(f"its mask is {_show(shape)}")
        mask = self._reaching(mask, shape, key)
        if len(shape) < 4:
            mask = self.editor.op("Unsqueeze", [mask, self.editor.ints(range(4 - len(shape)))])
        return self._held(mask)

    def _held(self, mask: gs.Tensor) -> gs.Tensor:
        """The mask as fp16 holds it, where the numbers beyond that close keys for all queries alike: fp16 models close
        with the lowest number of fp16 themselves. Only where no key at all is open, which no prompt has, it differs.
        """
        if not self.editor.half or not extremes(self.editor, mask).beyond_half or not closes_keys(self.editor, mask):
            return mask
        bounds = [self._number(-float16.LARGEST), self._number(float16.LARGEST)]
        return self.editor.op("Clip", [mask, *bounds])

    def _reaching(self, mask: gs.Tensor, shape: Shape, key: gs.Tensor) -> gs.Tensor:
        """Keys behind the mask's end are closed."""
        length, keys = shape[-1] if shape else 1, self._shape(key, "key")[1]
        if length == keys:
            return mask
        if length == 1:
            raise self._error(f"whether its mask of one key ({_show(shape)}) stands for all {keys} is not defined")
        if isinstance(length, int) and isinstance(keys, int):
            if length > keys:
                raise self._error(f"its mask is for {length} keys, there are {keys}")
            pads: gs.Tensor = self.editor.ints([0] * (2 * len(shape) - 1) + [keys - length])
        else:
            missing = self.editor.op("Sub", [self._count(key, 1), self._count(mask, len(shape) - 1)])
            last = self.editor.op("Unsqueeze", [missing, self.editor.ints([0])])
            pads = self.editor.op("Concat", [self.editor.ints([0] * (2 * len(shape) - 1)), last], {"axis": 0})
        return self.editor.op("Pad", [mask, pads, self._number(-np.inf)])

    def _mask(
        self, query: gs.Tensor, key: gs.Tensor, explicit: gs.Tensor | None, offset: gs.Tensor | int
    ) -> gs.Tensor | None:
        """The mask and the causal one in one."""
        if not self.node.attrs.get("is_causal"):
            return explicit
        editor = self.editor
        first, step = editor.constant(np.array(0, np.int64)), editor.constant(np.array(1, np.int64))
        rows = editor.op("Range", [first, self._count(query, 1), step])
        columns = editor.op("Range", [first, self._count(key, 1), step])
        if not isinstance(offset, int):
            rows = editor.op("Add", [rows, offset])
        last = editor.op("Unsqueeze", [rows, editor.ints([1])])
        seen = editor.op("Unsqueeze", [editor.op("LessOrEqual", [columns, last]), editor.ints([0, 1])])
        return editor.op("Where", [seen, self._number(0.0) if explicit is None else explicit, self._number(-np.inf)])

    def _open_rows(self, explicit: gs.Tensor, mask: gs.Tensor) -> gs.Tensor | None:
        """Which rows have an open key, [batch, rows, 1], of a mask of each head [batch, rows, heads, 1]; None where all
        have. A causal mask closes no row.

        Counted in integers: CUDA's ReduceMax of nothing but minus infinities is the lowest finite number.
        """
        editor = self.editor
        if not extremes(editor, explicit).infinite:
            return None
        keys = editor.op("Cast", [editor.op("Greater", [mask, self._number(-np.inf)])], {"to": TensorProto.INT32})
        some = editor.op("ReduceMax", [keys, editor.ints([-1])], {"keepdims": 1})
        rows = (
            editor.op("Transpose", [some], {"perm": [0, 2, 1, 3]})
            if self.masks_heads
            else editor.op("Squeeze", [some, editor.ints([1])])
        )
        return editor.op("Cast", [rows], {"to": TensorProto.BOOL})

    # --- the second result ---

    def _scores(
        self, query: gs.Tensor, key: gs.Tensor, mask: gs.Tensor | None, open_rows: gs.Tensor | None, result: gs.Tensor
    ) -> None:
        """``qk_matmul_output``: scores as they are, capped, masked, or as shares."""
        editor, attrs = self.editor, self.node.attrs
        mode, cap = attrs.get("qk_matmul_output_mode", 0), attrs.get("softcap", 0.0)
        keys = self._split(key, self.heads, self.size, (0, 2, 3, 1))
        scores = editor.op("MatMul", [self._split(query, self.heads, self.size), keys])
        scores = editor.op("Mul", [scores, self._number(attrs.get("scale") or self.size**-0.5)])
        if mode >= 1 and cap:
            bent = editor.op("Tanh", [editor.op("Mul", [scores, self._number(1 / cap)])])
            scores = editor.op("Mul", [bent, self._number(cap)])
        if mode >= 2 and mask is not None:
            scores = editor.op("Add", [scores, mask])
        if mode == 3:
            scores = self._shares(scores, open_rows)
        editor.node("Identity", [scores], outputs=[result])

    def _shares(self, scores: gs.Tensor, open_rows: gs.Tensor | None) -> gs.Tensor:
        precision = self._precision()
        if precision:
            scores = self.editor.op("Cast", [scores], {"to": precision})
        shares = self.editor.op("Softmax", [scores], {"axis": -1})
        if precision:
            shares = self._cast(shares)
        if open_rows is None:
            return shares
        by_head = (
            self.editor.op("Transpose", [open_rows], {"perm": [0, 2, 1, 3]})
            if self.masks_heads
            else self.editor.op("Unsqueeze", [open_rows, self.editor.ints([1])])
        )
        return self.editor.op("Where", [by_head, shares, self._number(0.0)])

    # --- small things ---

    def _number(self, value: float) -> gs.Constant:
        return self.editor.constant(np.array(value, self.dtype), "number")

    def _cast(self, tensor: gs.Tensor) -> gs.Tensor:
        return self.editor.op("Cast", [tensor], {"to": helper.np_dtype_to_tensor_dtype(self.dtype)})

    def _count(self, tensor: gs.Tensor, axis: int) -> gs.Tensor:
        """A size as a scalar."""
        size = self._shape(tensor, "past")[axis]
        if isinstance(size, int):
            return self.editor.constant(np.array(size, np.int64), "size")
        sizes = self.editor.op("Shape", [tensor], {"start": axis, "end": axis + 1})
        return self.editor.op("Squeeze", [sizes, self.editor.ints([0])])


def _show(shape: Shape) -> str:
    return f"[{', '.join(map(str, shape))}]"


def _heads_from_batch(editor: Editor, node: gs.Node) -> gs.Node:
    """An attention of one head over [batch * heads, rows, size] -> the same over [batch, heads, rows, size].

    Key, query and value were merged by Reshapes; where they were not, the node stays.
    """
    if (node.attrs.get("q_num_heads"), node.attrs.get("kv_num_heads")) != (1, 1) or len(node.outputs) > 1:
        return node
    inner = [_before_merge(editor, tensor) for tensor in node.inputs[:3]]
    shapes = [editor.shape(tensor) for tensor in inner if tensor is not None]
    if len({shape[:2] for shape in shapes if shape}) != 1 or len(shapes) != 3 or any(t.name for t in node.inputs[4:]):
        return node
    query, value = shapes[0], shapes[2]
    if query is None or value is None or not isinstance(query[1], int) or not isinstance(value[3], int):
        return node
    inputs: list[gs.Tensor] = [tensor for tensor in inner if tensor is not None]
    if len(node.inputs) > MASK and node.inputs[MASK].name:
        mask = _mask_before_merge(editor, node.inputs[MASK], query[1])
        if mask is None:
            return node
        inputs.append(mask)
    attrs = {k: v for k, v in node.attrs.items() if k not in ("q_num_heads", "kv_num_heads")}
    (result,) = node.outputs
    node.inputs.clear()
    node.outputs.clear()
    made = editor.node("Attention", inputs, attrs)
    editor.node("Reshape", [made.outputs[0], _sizes(editor, query, value[3], inputs[0])], outputs=[result])
    return made


def _before_merge(editor: Editor, tensor: gs.Tensor) -> gs.Tensor | None:
    """[batch, heads, rows, size] behind a Reshape to [batch * heads, rows, size]."""
    node, shape = producer(tensor, "Reshape"), editor.shape(tensor)
    before = None if node is None else editor.shape(node.inputs[0])
    if node is None or shape is None or before is None or len(before) != 4 or len(shape) != 3:
        return None
    return node.inputs[0] if before[2:] == shape[1:] else None


def _mask_before_merge(editor: Editor, mask: gs.Tensor, heads: int) -> gs.Tensor | None:
    """[1 or batch * heads, 1, rows, keys] -> [1 or batch, 1 or heads, rows, keys]."""
    shape = editor.shape(mask)
    if shape is None or len(shape) != 4 or shape[1] != 1:
        return None
    return mask if shape[0] == 1 else editor.op("Reshape", [mask, editor.ints([-1, heads, 0, 0])])


def _sizes(editor: Editor, query: Shape, size: int, source: gs.Tensor) -> gs.Tensor:
    """The target [-1, rows, size]."""
    rows = query[2]
    if isinstance(rows, int):
        return editor.ints([-1, rows, size])
    counted = editor.op("Shape", [source], {"start": 2, "end": 3})
    return editor.op("Concat", [editor.ints([-1]), counted, editor.ints([size])], {"axis": 0})
