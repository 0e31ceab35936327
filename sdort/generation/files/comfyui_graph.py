"""ComfyUI's ``prompt``, the graph of nodes that an image was made by, as options of a generation.

Plain graphs alone are read: one KSampler from an empty latent image, prompts as text, a checkpoint and LoRAs. Others
say in one reason why they are not. All that such a graph has beside, on the way to the image, is told: every value that
was read is noted, and what is left over changes the image or is not known not to.

https://docs.comfy.org/specs/workflow_json, and https://github.com/comfyanonymous/ComfyUI, nodes.py
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from sdort.errors.plain_text import cut, one_line
from sdort.files.json_text import parse_json
from sdort.generation.files.infotext import Infotext, take, take_scheduler
from sdort.generation.requests.typed_options import DrawnOptions
from sdort.options.declared_options import Option, declared

_Node = Mapping[str, Any]
_Number = (int, float)
_OPTIONS = declared(DrawnOptions)
_LORAS = ("LoraLoader", "LoraLoaderModelOnly")
_CHECKPOINT, _LAYER = "CheckpointLoaderSimple", "CLIPSetLastLayer"
_ENCODE, _ENCODE_SDXL = "CLIPTextEncode", "CLIPTextEncodeSDXL"
_SIZES = {"width": "width", "height": "height", "target_width": "width", "target_height": "height", "crop_w": None,
          "crop_h": None}  # fmt: skip
"""SDXL's size conditioning -> the side of the image that it is here, None for 0."""
_SHOW = ("SaveImage", "PreviewImage")
"""Nodes that change nothing of an image."""
_MOST = 200
"""Nodes that are told; a usual graph has 10 to 50."""


def read_comfyui_graph(text: str) -> Infotext:
    """The options in a graph.

    Raises:
        ValueError: why it is not read, to be put behind the program's name.
    """
    graph = _Graph(text)
    sampler = graph.sampler()
    size = graph.source(sampler, "latent_image", ("EmptyLatentImage",))
    positive, negative = (_Prompt(graph, sampler, name) for name in ("positive", "negative"))
    info = Infotext({"prompt": positive.first, "negative_prompt": negative.first, "prompt_weighting": "comfyui"})
    _take_second(info, "prompt_2", positive)
    _take_second(info, "negative_prompt_2", negative)
    nodes = {"KSampler": sampler, "EmptyLatentImage": size}
    for option in _OPTIONS.values():
        node, _, name = option.comfyui.partition(".")
        if name:
            _take(info, option, graph.value(nodes[node], name, _Number))
    _take(info, _OPTIONS["clip_skip"], -positive.clip.layer)
    sampler_name, spacing = (str(graph.value(sampler, name, str)) for name in ("sampler_name", "scheduler"))
    take_scheduler(info, "sampler ", [f"{sampler_name}_{spacing}", sampler_name])
    model = _Way(graph, sampler, "model", (*_LORAS, _CHECKPOINT))
    info.model = one_line(model.checkpoint)
    _tell_clips(info, model, positive.clip, negative.clip)
    for prompt in (positive, negative):
        _tell_sizes(info, graph, prompt, size)
    _tell_batch(info, graph, size)
    _tell_decoding(info, graph, sampler, model.checkpoint)
    info.left += graph.unread(sampler)
    return info


def _take(info: Infotext, option: Option, value: Any) -> None:
    take(info, option, value, f"{option.name} {cut(one_line(str(value)), 40)}")


def _take_second(info: Infotext, option: str, prompt: _Prompt) -> None:
    """The prompt of SDXL's second text encoder: an empty option is the first one's text, an empty ``text_g`` is not."""
    if prompt.second in (None, prompt.first):
        return
    if prompt.second:
        info.options[option] = prompt.second
    else:
        info.left.append(f"the empty text_g of its {prompt.name} prompt")


def _tell_clips(info: Infotext, model: _Way, positive: _Way, negative: _Way) -> None:
    """LoRAs, and where the text encoder of a prompt is another one than the model's own with the same LoRAs."""
    ways = (model, positive, negative)
    for key in dict.fromkeys(key for way in ways for key in way.loras):
        strengths = [way.loras.get(key, 0.0) for way in ways]
        texts = f" (strength_clip {strengths[1]:g}" + (
            f", {strengths[2]:g} for the negative prompt)" if strengths[2] != strengths[1] else ")"
        )
        name = cut(one_line(key[1]), 60)
        info.left.append(f"LoRA {name}:{strengths[0]:g}{texts if len(set(strengths)) > 1 else ''}")
    if negative.layer != positive.layer:
        info.left.append(f"clip layer {negative.layer} of its negative prompt")
    for way, what in ((positive, "positive"), (negative, "negative")):
        if way.checkpoint != model.checkpoint:
            info.left.append(f"the text encoder of {cut(one_line(way.checkpoint), 60)} for its {what} prompt")


def _tell_sizes(info: Infotext, graph: _Graph, prompt: _Prompt, size: _Node) -> None:
    """The size conditioning of a prompt, where it is not the image's own without a crop."""
    if prompt.node["class_type"] != _ENCODE_SDXL:
        return
    for name, side in _SIZES.items():
        value = graph.value(prompt.node, name, _Number) if name in prompt.node["inputs"] else None
        usual = graph.value(size, side, _Number) if side else 0
        if value not in (None, usual):
            info.left.append(f"{name} {value} of its {prompt.name} prompt")


def _tell_batch(info: Infotext, graph: _Graph, size: _Node) -> None:
    count = graph.value(size, "batch_size", _Number) if "batch_size" in size["inputs"] else 1
    if count != 1:
        info.left.append(f"batch_size {count:g} (which of its images this one is, it does not say)")


def _tell_decoding(info: Infotext, graph: _Graph, sampler: _Node, checkpoint: str) -> None:
    """The VAE, where it is not the checkpoint's own."""
    for node in graph.behind(sampler):
        if node["class_type"] != "VAEDecode" or graph.linked(node, "samples") is not sampler:
            continue
        vae = graph.linked(node, "vae")
        if vae is None:
            info.left.append("the vae of its VAEDecode")
        elif vae["class_type"] == "VAELoader":
            info.left.append(f"VAE {cut(one_line(str(graph.value(vae, 'vae_name', str))), 60)}")
        elif vae["class_type"] == _CHECKPOINT:
            own = str(graph.value(vae, "ckpt_name", str))
            info.left += [] if own == checkpoint else [f"VAE of {cut(one_line(own), 60)}"]


class _Graph:
    """The nodes of a graph, by their ids; it notes which of their inputs were read."""

    def __init__(self, text: str) -> None:
        try:
            nodes = parse_json(text.encode(), constants=True)
        except ValueError as error:
            raise ValueError(f"its graph {error}") from None
        nodes = nodes if isinstance(nodes, dict) else {}
        self.nodes: dict[str, _Node] = {
            name: node
            for name, node in nodes.items()
            if isinstance(node, dict)
            and isinstance(node.get("class_type"), str)
            and isinstance(node.get("inputs"), dict)
        }
        self._read: set[tuple[int, str]] = set()
        self._ends: dict[int, _Node | None] = {}

    def sampler(self) -> _Node:
        """The one KSampler, which makes a whole image of noise."""
        samplers = [node for node in self.nodes.values() if "sampler" in node["class_type"].lower()]
        if len(samplers) != 1 or samplers[0]["class_type"] != "KSampler":
            kinds = ", ".join(one_line(node["class_type"]) for node in samplers) or "none"
            raise ValueError(f"its samplers are {cut(kinds, 60)}, not one KSampler")
        if self.value(samplers[0], "denoise", _Number) != 1:
            raise ValueError("it begins with an image")
        return samplers[0]

    def value(self, node: _Node, name: str, kind: Any) -> Any:
        """A value that stands in a node itself, or in one that holds nothing else."""
        self._read.add((id(node), name))
        value, held = node["inputs"].get(name), self.linked(node, name)
        if held is not None and held["class_type"].startswith("Primitive"):
            self._read |= {(id(held), each) for each in held["inputs"]}
            value = held["inputs"].get("value")
        if not isinstance(value, kind) or isinstance(value, bool):
            raise ValueError(f"the {name} of its {cut(one_line(node['class_type']), 60)} comes from another node")
        return value

    def linked(self, node: _Node, name: str) -> _Node | None:
        """The node that an input comes from, through those that only hand it on."""
        self._read.add((id(node), name))
        return self._end(self._at(node["inputs"].get(name)))

    def _end(self, node: _Node | None) -> _Node | None:
        """The node behind those that only hand on, each of which is passed once; None where they go round."""
        passed: list[_Node] = []
        while node is not None and _hands_on(node) and id(node) not in self._ends:
            self._ends[id(node)] = None
            passed.append(node)
            node = self._at(next(iter(node["inputs"].values())))
        end = self._ends[id(node)] if node is not None and _hands_on(node) else node
        self._ends.update(dict.fromkeys(map(id, passed), end))
        return end

    def source(self, node: _Node, name: str, kinds: tuple[str, ...]) -> _Node:
        """The node that an input comes from, if it is one of these."""
        found = self.linked(node, name)
        if found is None or found["class_type"] not in kinds:
            kind = one_line(found["class_type"]) if found else "nothing"
            whose = cut(one_line(node["class_type"]), 60)
            raise ValueError(f"the {name} of its {whose} comes from {cut(kind, 60)}")
        return found

    def chain(self, node: _Node, name: str, kinds: tuple[str, ...]) -> Iterator[_Node]:
        """The nodes that an input passes through, up to a checkpoint."""
        passed: set[int] = set()
        while id(node) not in passed:
            passed.add(id(node))
            node = self.source(node, name, kinds)
            yield node
            if node["class_type"] == _CHECKPOINT:
                return
        raise ValueError("its nodes go round in a circle")

    def behind(self, node: _Node) -> list[_Node]:
        """All nodes whose results depend on a node's, without itself, in the graph's order."""
        readers: dict[int, list[_Node]] = {}
        for each in self.nodes.values():
            for source in self._sources(each):
                readers.setdefault(id(source), []).append(each)
        found = _reached([node], lambda each: readers.get(id(each), []))
        return [each for each in self.nodes.values() if id(each) in found and each is not node]

    def unread(self, sampler: _Node) -> list[str]:
        """Parts of the graph that the image depends on and nobody has read: nodes, and values of nodes that were
        read in part."""
        used = _reached([sampler, *self.behind(sampler)], self._sources)
        known = {key for key, _ in self._read}
        told: dict[str, None] = {}
        for node in self.nodes.values():
            if id(node) in used and node["class_type"] not in _SHOW and not _hands_on(node):
                left = {name: value for name, value in node["inputs"].items() if (id(node), name) not in self._read}
                told |= dict.fromkeys(_values(node, left) if id(node) in known else [_node(node)])
        listed = list(told)
        return listed[:_MOST] + [f"{len(listed) - _MOST} more"] * (len(listed) > _MOST)

    def _sources(self, node: _Node) -> list[_Node]:
        found = (self._at(value) for value in node["inputs"].values())
        return [each for each in found if each is not None]

    def _at(self, link: Any) -> _Node | None:
        return self.nodes.get(str(link[0])) if isinstance(link, list) and link else None


def _reached(starts: Sequence[_Node], beside: Callable[[_Node], Sequence[_Node]]) -> set[int]:
    """The nodes that one comes to from others, themselves too, by their identity."""
    found: set[int] = set()
    waiting = list(starts)
    while waiting:
        node = waiting.pop()
        if id(node) not in found:
            found.add(id(node))
            waiting += beside(node)
    return found


def _hands_on(node: _Node) -> bool:
    """Whether a node gives what it gets."""
    return node["class_type"].startswith("Reroute") and len(node["inputs"]) == 1


def _node(node: _Node) -> str:
    """A node that was not read, with the file that it names."""
    words = [value for value in node["inputs"].values() if isinstance(value, str)]
    return " ".join(cut(one_line(word), 60) for word in (node["class_type"], *words[:1]))


def _values(node: _Node, left: Mapping[str, Any]) -> list[str]:
    kind = cut(one_line(node["class_type"]), 60)
    return [f"{cut(one_line(name), 40)} {cut(one_line(str(value)), 40)} of its {kind}" for name, value in left.items()]


class _Way:
    """The way from an input to its checkpoint.

    Attributes:
        loras: on it -> their strength there.
        layer: of the text encoder, counted from the last one, which is -1.
        checkpoint: the file's name.
    """

    def __init__(self, graph: _Graph, node: _Node, name: str, kinds: tuple[str, ...]) -> None:
        self.loras: dict[tuple[int, str], float] = {}
        layers = []
        for each in graph.chain(node, name, kinds):
            if each["class_type"] in _LORAS:
                file = str(graph.value(each, "lora_name", str))
                self.loras[id(each), file] = graph.value(each, f"strength_{name}", _Number)
            elif each["class_type"] == _LAYER:
                layers.append(int(graph.value(each, "stop_at_clip_layer", int)))
            else:
                self.checkpoint = str(graph.value(each, "ckpt_name", str))
        self.layer = layers[0] if layers else -1


class _Prompt:
    """A prompt of a sampler.

    Attributes:
        name: ``positive`` or ``negative``.
        node: that encodes it.
        first, second: texts for each text encoder; ``second`` is None where it is not given on its own.
        clip: the way to its text encoder.
    """

    def __init__(self, graph: _Graph, sampler: _Node, name: str) -> None:
        self.name = name
        self.node = graph.source(sampler, name, (_ENCODE, _ENCODE_SDXL))
        plain = self.node["class_type"] == _ENCODE
        self.first = str(graph.value(self.node, "text" if plain else "text_l", str))
        self.second = None if plain else str(graph.value(self.node, "text_g", str))
        self.clip = _Way(graph, self.node, "clip", (_LAYER, "LoraLoader", _CHECKPOINT))
