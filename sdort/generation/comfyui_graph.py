"""ComfyUI's ``prompt``, the graph of nodes that an image was made by, as options of a generation.

Plain graphs alone are read: one KSampler from an empty latent image, prompts as text, a checkpoint and LoRAs. Others
say in one reason why they are not.

https://docs.comfy.org/specs/workflow_json, and https://github.com/comfyanonymous/ComfyUI, nodes.py
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from sdort.errors import SdortError
from sdort.errors.number_ranges import CLIP_SKIP, GUIDANCE, HEIGHT, SEED, STEPS, WIDTH, Range
from sdort.errors.plain_text import cut, one_line
from sdort.generation.infotext import Infotext
from sdort.machine.json_text import parse_json
from sdort.pipelines.scheduler_names import find_scheduler

_Node = Mapping[str, Any]
_LORAS = ("LoraLoader", "LoraLoaderModelOnly")
_CHECKPOINT = "CheckpointLoaderSimple"


def read_comfyui_graph(text: str) -> Infotext:
    """The options in a graph.

    Raises:
        ValueError: why it is not read, to be put behind the program's name.
    """
    graph = _Graph(text)
    sampler = graph.sampler()
    size = graph.source(sampler, "latent_image", ("EmptyLatentImage",))
    positive = graph.prompts(sampler, "positive")
    negative = graph.prompts(sampler, "negative")
    info = Infotext({"prompt": positive[0], "negative_prompt": negative[0], "prompt_weighting": "comfyui"})
    for name, (first, second) in {"prompt_2": positive, "negative_prompt_2": negative}.items():
        if second not in ("", first):
            info.options[name] = second
    numbers: list[tuple[Range[int] | Range[float], _Node, str]] = [
        (SEED, sampler, "seed"), (STEPS, sampler, "steps"), (GUIDANCE, sampler, "cfg"), (WIDTH, size, "width"),
        (HEIGHT, size, "height"),
    ]  # fmt: skip
    for limits, node, name in numbers:
        _take(info, limits, graph.value(node, name, (int, float)))
    _take(info, CLIP_SKIP, -graph.last_layer(sampler))
    _take_sampler(info, *(str(graph.value(sampler, name, str)) for name in ("sampler_name", "scheduler")))
    for node in graph.chain(sampler, "model", (*_LORAS, _CHECKPOINT)):
        if node["class_type"] in _LORAS:
            named = graph.value(node, "lora_name", str), graph.value(node, "strength_model", (int, float))
            info.left.append(f"LoRA {one_line(str(named[0]))}:{named[1]:g}")
        else:
            info.model = one_line(str(graph.value(node, "ckpt_name", str)))
    return info


def _take(info: Infotext, limits: Range[int] | Range[float], value: Any) -> None:
    if limits.problem(value):
        info.left.append(f"{limits.name} {cut(one_line(str(value)), 40)}")
    else:
        info.options[limits.name] = limits.check(value)


def _take_sampler(info: Infotext, sampler: str, spacing: str) -> None:
    for name in (f"{sampler}_{spacing}", sampler):
        try:
            find_scheduler(name)
        except SdortError:
            info.left.append(f"sampler {cut(one_line(name), 40)}")
            continue
        info.options["scheduler"] = name
        return


class _Graph:
    """The nodes of a graph, by their ids."""

    def __init__(self, text: str) -> None:
        try:
            nodes = parse_json(text.encode())
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

    def sampler(self) -> _Node:
        """The one KSampler, which makes a whole image of noise."""
        samplers = [node for node in self.nodes.values() if "sampler" in node["class_type"].lower()]
        if len(samplers) != 1 or samplers[0]["class_type"] != "KSampler":
            kinds = ", ".join(one_line(node["class_type"]) for node in samplers) or "none"
            raise ValueError(f"its samplers are {cut(kinds, 60)}, not one KSampler")
        if self.value(samplers[0], "denoise", (int, float)) != 1:
            raise ValueError("it begins with an image")
        return samplers[0]

    def value(self, node: _Node, name: str, kind: Any) -> Any:
        """A value that stands in a node itself."""
        value = node["inputs"].get(name)
        if not isinstance(value, kind) or isinstance(value, bool):
            raise ValueError(f"the {name} of its {one_line(node['class_type'])} comes from another node")
        return value

    def source(self, node: _Node, name: str, kinds: tuple[str, ...]) -> _Node:
        """The node that an input comes from."""
        link = node["inputs"].get(name)
        found = self.nodes.get(str(link[0])) if isinstance(link, list) and link else None
        if found is None or found["class_type"] not in kinds:
            kind = one_line(found["class_type"]) if found else "nothing"
            raise ValueError(f"the {name} of its {one_line(node['class_type'])} comes from {cut(kind, 60)}")
        return found

    def chain(self, node: _Node, name: str, kinds: tuple[str, ...]) -> Iterator[_Node]:
        """The nodes that an input passes through, up to a checkpoint."""
        for _ in range(len(self.nodes)):
            node = self.source(node, name, kinds)
            yield node
            if node["class_type"] == _CHECKPOINT:
                return
        raise ValueError("its nodes go round in a circle")

    def prompts(self, sampler: _Node, name: str) -> tuple[str, str]:
        """A prompt for each text encoder; the second is empty where it is the same."""
        node = self.source(sampler, name, ("CLIPTextEncode", "CLIPTextEncodeSDXL"))
        if node["class_type"] == "CLIPTextEncode":
            return str(self.value(node, "text", str)), ""
        return str(self.value(node, "text_l", str)), str(self.value(node, "text_g", str))

    def last_layer(self, sampler: _Node) -> int:
        """The text encoder's layer that conditions, counted from the last one, which is -1."""
        encode = self.source(sampler, "positive", ("CLIPTextEncode", "CLIPTextEncodeSDXL"))
        layers = [
            node
            for node in self.chain(encode, "clip", ("CLIPSetLastLayer", "LoraLoader", _CHECKPOINT))
            if node["class_type"] == "CLIPSetLastLayer"
        ]
        return int(self.value(layers[0], "stop_at_clip_layer", int)) if layers else -1
