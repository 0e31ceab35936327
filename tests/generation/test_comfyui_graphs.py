"""Random graphs of ComfyUI, written here and read back: nothing that changes an image is lost without a word."""

from __future__ import annotations

import copy
import json
import math
import random
from typing import Any

import pytest

from sdort.generation.files.comfyui_graph import _Graph, read_comfyui_graph
from sdort.generation.files.infotext import Infotext

Graph = dict[str, dict[str, Any]]
Place = tuple[str, str]
"""A node and one of its inputs."""


class Writer:
    """Writes a plain graph, and knows what an image of it was drawn with."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.nodes: Graph = {}
        self.sdxl = self.random.random() < 0.5
        self.options: dict[str, Any] = {
            "prompt": self.random.choice(["a (red:1.2) star", "星 :)", "x" * 50]), "negative_prompt": "fog",
            "prompt_weighting": "comfyui", "seed": self.random.randrange(1 << 32),
            "width": 64 * self.random.randint(2, 9),
            "height": 64 * self.random.randint(2, 9), "steps": self.random.randint(1, 50),
            "guidance_scale": self.random.choice([1.0, 4.5, 7.0]), "clip_skip": self.random.randint(1, 3),
            "scheduler": self.random.choice(["euler_normal", "dpmpp_2m_karras", "euler_ancestral_normal"]),
        }  # fmt: skip
        self.loras = [(f"style{number}.safetensors", round(self.random.uniform(0.1, 1.5), 3))
                      for number in range(self.random.randint(0, 3))]  # fmt: skip
        self._write()

    def node(self, kind: str, **inputs: Any) -> str:
        name = str(len(self.nodes) + 1) if self.random.random() < 0.7 else f"{len(self.nodes) + 1}:{kind[:2]}"
        self.nodes[name] = {"class_type": kind, "inputs": inputs}
        return name

    def link(self, name: str, output: int = 0) -> list[Any]:
        """A link, now and then through nodes that only hand it on."""
        return (
            [self.node("Reroute", **{"": self.link(name, output)}), 0] if self.random.random() < 0.2 else [name, output]
        )

    def held(self, value: Any) -> Any:
        """A value, now and then in a node of its own."""
        kind = {int: "PrimitiveInt", float: "PrimitiveFloat", str: "PrimitiveStringMultiline"}[type(value)]
        return [self.node(kind, value=value), 0] if self.random.random() < 0.2 else value

    def _write(self) -> None:
        options, held = self.options, self.held
        file = self.node("CheckpointLoaderSimple", ckpt_name="base.safetensors")
        model, clip = (file, 0), (file, 1)
        for name, strength in self.loras:
            lora = self.node("LoraLoader", lora_name=name, strength_model=strength, strength_clip=strength,
                             model=self.link(*model), clip=self.link(*clip))  # fmt: skip
            model, clip = (lora, 0), (lora, 1)
        if options["clip_skip"] > 1:
            layer = self.node("CLIPSetLastLayer", stop_at_clip_layer=-options["clip_skip"], clip=self.link(*clip))
            clip = (layer, 0)
        texts = {}
        for option in ("prompt", "negative_prompt"):
            text = held(options[option])
            if self.sdxl:
                sizes = {"width": options["width"], "height": options["height"], "target_width": options["width"],
                         "target_height": options["height"], "crop_w": 0, "crop_h": 0}  # fmt: skip
                given = {"text_l": text, "text_g": text, **sizes}
            else:
                given = {"text": text}
            texts[option] = self.node("CLIPTextEncode" + "SDXL" * self.sdxl, clip=self.link(*clip), **given)
        size = self.node("EmptyLatentImage", width=held(options["width"]), height=held(options["height"]), batch_size=1)
        sampler, _, spacing = options["scheduler"].rpartition("_")
        self.sampler = self.node(
            "KSampler", seed=held(options["seed"]), steps=held(options["steps"]), cfg=held(options["guidance_scale"]),
            sampler_name=sampler, scheduler=spacing, denoise=1.0, model=self.link(*model),
            positive=self.link(texts["prompt"]), negative=self.link(texts["negative_prompt"]),
            latent_image=self.link(size),
        )  # fmt: skip
        self.decode = self.node("VAEDecode", samples=self.link(self.sampler), vae=self.link(file, 2))
        self.save = self.node("SaveImage", images=self.link(self.decode), filename_prefix="C")


def outcome(graph: Graph) -> str:
    """All that a reader of the graph gets to know: its options, what is left, or why it is refused."""
    try:
        info = read_comfyui_graph(json.dumps(graph))
    except ValueError as error:
        return f"refused: {error}"
    return json.dumps([info.options, info.model, info.left])


def read(graph: Graph) -> Infotext:
    return read_comfyui_graph(json.dumps(graph))


@pytest.mark.parametrize("seed", range(40))
def test_a_random_plain_graph_is_read_back(seed: int) -> None:
    written = Writer(seed)
    info = read(written.nodes)
    assert info.options == written.options
    assert info.model == "base.safetensors"
    assert info.left == [f"LoRA {name}:{strength:g}" for name, strength in reversed(written.loras)]


@pytest.mark.parametrize("seed", range(20))
def test_the_layer_that_is_set_last_counts(seed: int) -> None:
    """``CLIPSetLastLayer`` sets the layer of a copy, whatever was set on the way from the checkpoint to it."""
    written = Writer(seed)
    graph = written.nodes
    is_set = written.options["clip_skip"] > 1
    file = next(name for name, node in graph.items() if node["class_type"] == "CheckpointLoaderSimple")
    for node in graph.values():
        node["inputs"] |= {key: ["early", 0] for key, link in node["inputs"].items() if link == [file, 1]}
    graph["early"] = {"class_type": "CLIPSetLastLayer", "inputs": {"stop_at_clip_layer": -7, "clip": [file, 1]}}
    assert read(graph).options["clip_skip"] == (written.options["clip_skip"] if is_set else 7)


def changed(value: Any) -> Any:
    return value + "x" if isinstance(value, str) else value + 64 if isinstance(value, int) else value + 0.125


@pytest.mark.parametrize("seed", range(20))
def test_no_value_of_a_graph_is_lost(seed: int) -> None:
    """Each other value of each node is another option, is told, or is a reason to refuse; and so is each new input."""
    graph = Writer(seed).nodes
    before, lost = outcome(graph), []
    for name, node in graph.items():
        values = {key: changed(value) for key, value in node["inputs"].items() if not isinstance(value, list)}
        added = {"a_new_option": 0.77} if node["class_type"][:7] not in ("Reroute", "Primiti") else {}
        for key, value in (values | added).items():
            other = copy.deepcopy(graph)
            other[name]["inputs"][key] = value
            if node["class_type"] != "SaveImage" and outcome(other) == before:
                lost.append(f"{node['class_type']}.{key}")
    assert not lost


@pytest.mark.parametrize("seed", range(20))
def test_no_node_on_the_way_is_lost(seed: int) -> None:
    """A node that is put between two others is told by name, or a reason to refuse that has its name."""
    graph, lost = Writer(seed).nodes, []
    for name, node in graph.items():
        for key, link in node["inputs"].items():
            if not isinstance(link, list):
                continue
            other = copy.deepcopy(graph)
            other["new"] = {"class_type": "NovelPatch", "inputs": {"input": link, "amount": 0.5}}
            other[name]["inputs"][key] = ["new", 0]
            said = outcome(other)
            # A value that another node makes is refused by the name of its input.
            if "NovelPatch" not in said and "comes from another node" not in said:
                lost.append(f"{node['class_type']}.{key}")
    assert not lost


@pytest.mark.parametrize("seed", range(10))
def test_another_file_on_one_of_the_ways_is_told(seed: int) -> None:
    """Text encoders and VAE of another checkpoint than the UNet's."""
    written = Writer(seed)
    graph = written.nodes
    file = next(name for name, node in graph.items() if node["class_type"] == "CheckpointLoaderSimple")
    for node in graph.values():
        for key, link in node["inputs"].items():
            if isinstance(link, list) and link[0] == file and link[1] > 0:
                kept, node["inputs"][key] = link, ["other", link[1]]
                other = {**graph, "other": {"class_type": "CheckpointLoaderSimple", "inputs": {"ckpt_name": "two.pt"}}}
                assert "two.pt" in outcome(other)
                node["inputs"][key] = kept


def told(**changes: Any) -> str:
    """What is said of a plain graph to which nodes are added and in which inputs are changed."""
    written = Writer(3)
    graph = {**written.nodes, **changes.pop("more", {})}
    for name, inputs in changes.items():
        graph[getattr(written, name)]["inputs"] |= inputs
    return outcome(graph)


def test_what_becomes_of_the_image_behind_the_sampler_is_told() -> None:
    written = Writer(3)
    upscaled = {
        "u": {"class_type": "UpscaleModelLoader", "inputs": {"model_name": "esrgan.pth"}},
        "i": {"class_type": "ImageUpscaleWithModel", "inputs": {"upscale_model": ["u", 0],
                                                                "image": [written.decode, 0]}},
    }  # fmt: skip
    said = told(more=upscaled, save={"images": ["i", 0]})
    assert "ImageUpscaleWithModel" in said
    assert "UpscaleModelLoader esrgan.pth" in said
    vae = {"v": {"class_type": "VAELoader", "inputs": {"vae_name": "ft-mse.pt"}}}
    assert "VAE ft-mse.pt" in told(more=vae, decode={"vae": ["v", 0]})
    latent = {"l": {"class_type": "LatentFromBatch", "inputs": {"samples": [written.sampler, 0], "batch_index": 2}}}
    assert "LatentFromBatch" in told(more=latent, decode={"samples": ["l", 0]})
    assert "FaceDetailer" not in told(more={"f": {"class_type": "FaceDetailer", "inputs": {}}})  # on no way to it


def test_an_empty_text_of_the_second_encoder_is_not_the_first_ones() -> None:
    for seed in range(20):
        written = Writer(seed)
        for node in written.nodes.values():
            if node["class_type"] == "CLIPTextEncodeSDXL" and written.options["prompt"] == node["inputs"]["text_l"]:
                node["inputs"]["text_g"] = ""
                assert "the empty text_g of its positive prompt" in outcome(written.nodes)
                return
    raise AssertionError("no graph of SDXL was written")


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_numbers_that_json_has_not_are_no_reason_to_refuse(value: float) -> None:
    written = Writer(5)
    before = read(written.nodes)
    written.nodes[written.save]["is_changed"] = [value]
    assert read(written.nodes) == before
    written.nodes[written.sampler]["inputs"]["cfg"] = value
    info = read(written.nodes)
    assert "guidance_scale" not in info.options
    assert f"guidance_scale {value}" in info.left


def test_a_circle_of_nodes_ends() -> None:
    written = Writer(1)
    graph = written.nodes
    graph |= {
        "a": {"class_type": "Reroute", "inputs": {"": ["b", 0]}},
        "b": {"class_type": "Reroute", "inputs": {"": ["a", 0]}},
    }
    graph[written.sampler]["inputs"]["model"] = ["a", 0]
    assert outcome(graph).startswith("refused")


def test_nodes_that_hand_on_are_passed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many nodes read from one chain of them: counted in steps, of graphs of two sizes."""
    followed = 0

    def count(graph: _Graph, link: Any) -> Any:
        nonlocal followed
        followed += 1
        return at(graph, link)

    at = _Graph._at
    monkeypatch.setattr(_Graph, "_at", count)
    steps = []
    for size in (200, 400):
        writer = Writer(1)
        nodes, last = dict(writer.nodes), [writer.sampler, 0]
        for number in range(size):
            nodes[f"r{number}"] = {"class_type": "Reroute", "inputs": {"": last}}
            last = [f"r{number}", 0]
        loader = next(name for name, node in nodes.items() if node["class_type"] == "CheckpointLoaderSimple")
        for number in range(size):
            nodes[f"d{number}"] = {"class_type": "VAEDecode", "inputs": {"samples": last, "vae": [loader, 2]}}
        followed = 0
        read_comfyui_graph(json.dumps(nodes))
        steps.append(followed)
    assert steps[1] < 2.5 * steps[0]
