"""The parts of a family of pipelines: plain data and lookups; a file of this folder fills it in for each family."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from sdort.families.component_names import DECODER
from sdort.families.graph_tensor import GraphSignature, size_of
from sdort.families.layer_names import LayerNames

Config = Mapping[str, Any]
Shapes = Mapping[str, tuple[int, ...]]
"""Shapes of a component's tensors by diffusers' names."""

BOS, EOS = "<|startoftext|>", "<|endoftext|>"
"""CLIP's tokens before and behind a prompt."""

CHUNK = 77
"""Tokens that CLIP's text encoders read at once."""

LAST, PENULTIMATE = "last_hidden_state", "hidden_states of the last layer but one"
"""Outputs of a text encoder that follow clip skip; other ones have the name of the graph's output."""

HEIGHT, WIDTH, CROP_TOP, CROP_LEFT, AESTHETIC = "height", "width", "crop top", "crop left", "aesthetic score"
"""Numbers that condition a denoiser: of the image in pixels, of the crop's corner, and of how much people like it."""


@dataclass(frozen=True)
class Roles:
    """The names of a denoiser's inputs by what they are for."""

    sample: str = "sample"
    """The noisy latents, float [B, C, H, W]."""
    timestep: str = "timestep"
    """The timestep, one number or [B]."""
    context: str = "encoder_hidden_states"
    """The states of a prompt's tokens, float [B, tokens, width]."""
    pooled: str | None = None
    """The prompt as one vector, float [B, width]."""
    sizes: str | None = None
    """The numbers of :attr:`Family.sizes`, float [B, numbers]."""
    guidance: str | None = None
    """The guidance scale, of models that were distilled with it: its embedding, float [B, width], or itself, [B]."""

    @property
    def names(self) -> frozenset[str]:
        """All of them."""
        return frozenset(name for name in vars(self).values() if name)


@dataclass(frozen=True)
class GraphOptions:
    """Inputs of a denoiser's graph beside those that its config says.

    Attributes:
        text_embeds: the width of the pooled text embedding, if it is known.
        control: it takes the outputs of a ControlNet and of a T2I-Adapter.
        image_tokens: it attends to so many tokens of each IP-Adapter's image.
    """

    text_embeds: int | None = None
    control: bool = False
    image_tokens: tuple[int, ...] = ()


@dataclass(frozen=True)
class Denoiser:
    """The component that takes noise out of latents."""

    component: str
    """Its name: its folder in a checkpoint and in a pipeline."""
    title: str
    """Its name in messages."""
    class_name: str
    """Its class in ``library``, as ``model_index.json`` and its config name it."""
    roles: Roles
    signature: Callable[[Config, GraphOptions], GraphSignature]
    """The inputs and outputs of its graph, by its config."""
    counts: Callable[[Config], Counter[str]]
    """The operators that its config promises: :func:`sdort.optimizer.expected.architecture`."""
    output: str = "out_sample"
    """The name of its graph's output: the noise, or what it predicts in its place."""
    library: str = "diffusers"
    """The module that has its class."""
    channels: tuple[str, str] = ("in_channels", "out_channels")
    """Entries of its config: channels of the latents that it takes, and of its output."""
    required: tuple[str, ...] = ()
    """Entries that every published config of its class has."""
    without_effect: frozenset[str] = frozenset()
    """Arguments of the class that do not change the graph."""
    arguments: Mapping[str, str] = field(default_factory=dict)
    """Inputs that its torch module takes under another name, or in a dictionary: ``DICTIONARY.NAME``."""
    call: Callable[[Any, Mapping[str, Any]], Any] | None = None
    """Gives the graph's output, a torch tensor, by its class's module and the inputs by their names; None for a module
    that takes them as they are."""
    restore: Callable[[Any], None] | None = None
    """Gives its class's module, which is built without values, the buffers that it computes and no file has."""
    traced: Callable[[Any, Mapping[str, Any]], Any] | None = None
    """As ``call``, for graphs alone: where tracing the module as it is hides sizes that operators need."""
    distilled: bool = False
    """It follows prompts without a sample that has none beside: it was distilled with the guidance scale, which is an
    input of it, or to few steps."""
    guidance_base: float = 0.0
    """The difference between usual guidance scales, of which 1 is the prompt alone, and its own: 1 where 0 is that."""
    patch: int = 1
    """Latents along each side of a token: heights and widths of latents are multiples of it."""
    largest: Callable[[Config], int | None] | None = None
    """Gives by its config for how many tokens along each side of an image it has positions; None where it has any
    number."""
    packed: bool = False
    """Its config counts the channels of all latents of a token together."""
    adapter_prefixes: tuple[str, ...] = ()
    """Beginnings of the names of its modules in LoRA files, with underscores for dots."""
    layers: LayerNames | None = None
    """Names of its layers in the files of its authors; None where no table tells them."""
    config_of: Callable[[Shapes], Config] | None = None
    """Gives its config by the shapes of its tensors, which raises :class:`sdort.errors.BadModelError` where they are
    not those of its class; None where no single file of it is read by ``layers``."""

    def channels_of(self, config: Config, *, made: bool = False) -> int:
        """Channels of the latents that it takes, or of those that it makes.

        Raises:
            KeyError, ValueError: its config does not say.
        """
        return size_of(config, self.channels[made]) // (self.patch**2 if self.packed else 1)


@dataclass(frozen=True)
class PlainText:
    """How a text encoder reads prompts that is none of CLIP's: as plain text, in one row of tokens."""

    tokenizer: str
    """Its tokenizer's class in transformers."""
    limit: int
    """The most tokens of a row, with those of the template and of its end; a longer text is cut there."""
    padded: bool
    """Whether shorter rows are filled up, without a mask."""
    before: str = ""
    """The text before a prompt: its tokenizer's chat template, with a prompt for an answer."""
    after: str = ""
    """The text behind it."""
    masked: bool = False
    """Whether the encoder attends to no padding. Behind a shorter row that is not filled up stands one token of it, for
    the denoiser, which attends to all that it gets."""
    limit_of: Callable[[Config], int] | None = None
    """The most tokens by the denoiser's config, where that tells; None for ``limit``."""
    published: str = ""
    """Where its tokenizer is published, which no single file holds."""

    def of(self, config: Config) -> PlainText:
        """The same with the most tokens of a denoiser's config."""
        return replace(self, limit=self.limit_of(config)) if self.limit_of else self


@dataclass(frozen=True)
class Encoder:
    """A text encoder of a family."""

    component: str
    """Its name: its folder in a checkpoint and in a pipeline."""
    conditioning: Mapping[str, str]
    """Inputs of the denoiser -> the output that feeds each. Where several encoders feed one input, they stand side by
    side in its last dimension, or behind each other."""
    behind: bool = False
    """Its states stand behind those of the encoders before it, as more tokens; the narrower ones of both are filled up
    with zeros."""
    optional: bool = False
    """A pipeline may lack it: zeros condition in its place."""
    prefixes: tuple[str, ...] = ()
    """Beginnings of its tensors' names in single files, in the order in which they are looked for."""
    class_name: str = "CLIPTextModel"
    """Its class in transformers."""
    activation: str = "quick_gelu"
    pad: str = EOS
    """The token that fills up short prompts."""
    unused: int | None = None
    """The number of layers of the original, whose last one the family does not use; None where it uses all."""
    config: Config = field(default_factory=dict)
    """Entries of its config that no tensor tells."""
    projected: bool = True
    """Whether files have the projection of its pooled output, where it has one; else an identity takes its place."""
    plain: PlainText | None = None
    """How it reads prompts; None for CLIP's chunks of 77 tokens with weights."""

    @property
    def tokenizer(self) -> str:
        """The folder of its tokenizer."""
        return self.component.replace("text_encoder", "tokenizer")


@dataclass(frozen=True)
class Latents:
    """The format of a family's latents."""

    scaling_factor: float
    """Their scale, where no config says."""
    shift: float = 0.0
    """Their mean, where no config says."""
    channels: int = 4
    pixels: int = 8
    """Pixels a latent along each side."""
    preview_factors: tuple[tuple[float, float, float], ...] = ()
    """Red, green and blue of each channel, fitted to the decoder:
    https://github.com/comfyanonymous/ComfyUI/blob/master/comfy/latent_formats.py"""
    preview_bias: tuple[float, float, float] = (0.0, 0.0, 0.0)
    """Red, green and blue of latents of zeros."""


@dataclass(frozen=True)
class ComfyUI:
    """ComfyUI's classes for a family."""

    config: str
    """In ``comfy.supported_models``."""
    linear_config: str
    """There, of a model with matrices around its attentions in the place of 1x1 convolutions."""
    model: str = "BaseModel"
    """In ``comfy.model_base``."""


@dataclass(frozen=True)
class Family:
    """A family of pipelines."""

    name: str
    """Its name as one of checkpoints, such as ``SD 1.x``."""
    title: str
    """Its name as one of pipelines; families that run in the same way share it."""
    side: int
    """Pixels of a side of the images that it was trained on, where no config says."""
    denoiser: Denoiser
    encoders: tuple[Encoder, ...]
    latents: Latents
    context_width: int
    """The width of the states that its denoiser attends to."""
    pipelines: Mapping[str | None, str]
    """Variant of the denoiser (None: text to image) -> diffusers' class of the pipeline."""
    scheduler: Config
    """``scheduler_config.json`` of its published model."""
    vae: Config
    """Entries of the VAE's config that no tensor tells."""
    holds: Callable[[Shapes], bool]
    """Whether a denoiser with tensors of these names and shapes is of the family."""
    scheduler_of: Callable[[Config], Config] | None = None
    """Gives the scheduler's config by that of the denoiser, where releases differ; None for ``scheduler``."""
    index: Config = field(default_factory=dict)
    """Further entries of ``model_index.json``."""
    schedule: Config = field(default_factory=dict)
    """Settings of its scheduler that no config has: diffusers' pipeline gives them."""
    usual: Callable[[Config], tuple[int, float]] | None = None
    """Steps and guidance scale of a request that does not say, by its denoiser's config; None where the sampler
    tells."""
    sizes: tuple[str, ...] = ()
    """The numbers that condition its denoiser, in their order."""
    empty_is_zero: bool = False
    """An empty negative prompt conditions as zeros, unless the pipeline's index says otherwise."""
    refines: str | None = None
    """The name of the family whose latents it finishes."""
    comfyui: ComfyUI | None = None
    corrected: Callable[[Any], None] | None = None
    """Lets diffusers' pipeline, a module in torch, compute what its authors' code does, where the two differ."""
    absent: tuple[Encoder, ...] = ()
    """Optional encoders that a pipeline lacks, which are none of ``encoders``."""

    def of(self, components: Collection[str]) -> Family:
        """The family as a pipeline of these components is one: without the optional encoders that it lacks."""
        absent = tuple(each for each in self.encoders if each.optional and each.component not in components)
        if not absent:
            return self
        return replace(self, encoders=tuple(each for each in self.encoders if each not in absent), absent=absent)

    def told_by(self, config: Callable[[], Config]) -> Family:
        """The family with the numbers of tokens that its denoiser's config tells, which is asked for where it does."""
        if not any(each.plain and each.plain.limit_of for each in self.encoders):
            return self
        known = config()
        encoders = (replace(each, plain=each.plain.of(known)) if each.plain else each for each in self.encoders)
        return replace(self, encoders=tuple(encoders))

    def tokens(self, component: str, chunk: int = CHUNK) -> int:
        """The most tokens that a component takes at once of a prompt of one chunk.

        Args:
            component: a text encoder, or what attends to the tokens of all of them.
            chunk: tokens of a chunk.
        """
        encoders = (*self.encoders, *self.absent)
        rows = {each.component: each.plain.limit if each.plain else chunk for each in encoders}
        states = [each for each in encoders if self.denoiser.roles.context in each.conditioning]
        behind = sum(rows[each.component] for each in states if each.behind)
        return rows.get(component) or behind + max(rows[each.component] for each in states if not each.behind)

    @property
    def needed(self) -> tuple[str, ...]:
        """The components that text to image runs, in their order."""
        return (*(encoder.component for encoder in self.encoders), self.denoiser.component, DECODER)

    @property
    def inputs(self) -> set[str]:
        """The names of its denoiser's inputs; graphs may have more that runs need not feed."""
        roles = self.denoiser.roles
        conditioning = {name for encoder in self.encoders for name in encoder.conditioning}
        sizes = {roles.sizes} if self.sizes and roles.sizes else set()
        return {roles.sample, roles.timestep} | conditioning | sizes

    @property
    def plain(self) -> bool:
        """Whether an encoder reads prompts as plain text, so that all of them do."""
        return any(encoder.plain for encoder in (*self.encoders, *self.absent))

    @property
    def aesthetic(self) -> bool:
        """Whether an aesthetic score conditions it: a refiner, which works on an image or on what a base left."""
        return AESTHETIC in self.sizes

    @property
    def sample_size(self) -> int:
        """Latents of a side of the images that it was trained on."""
        return self.side // self.latents.pixels
