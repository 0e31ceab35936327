"""An optimized UNet in the place of ComfyUI's: what its samplers call in every step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch

from sdort.console import progress
from sdort.errors import SdortError, UsageError
from sdort.integrations.comfyui.control_residuals import Residuals, residual_feeds
from sdort.integrations.comfyui.size_conditioning import WIDTH, split_condition
from sdort.integrations.comfyui.weight_patches import PatchedWeights, Patches
from sdort.integrations.torch.tensor_session import TensorSession
from sdort.workload.steering_inputs import residual_inputs

_CHANGES = {
    "patches": "patches inside of the UNet (of attention, of blocks)",
    "patches_replace": "replaced attention",
    "wrappers.diffusion_model": "a wrapper around the UNet",
}
"""Places in ``transformer_options`` where nodes leave changes of what a UNet computes -> what they are."""

PIXELS, TOKENS = 8, 77
"""Pixels a latent along each side and tokens of a prompt, of all models of these families."""

_BLOCKS = ("time_embed", "label_emb", "input_blocks", "middle_block", "output_blocks", "out")
"""Modules of ComfyUI's own UNet."""


class OpenSession(Protocol):
    """A function that opens a UNet."""

    def __call__(self, *, control: bool, adapters: bool) -> TensorSession: ...


class Tune(Protocol):
    """A function that tunes a UNet for images of a height and width in pixels, and keeps what it finds."""

    def __call__(self, images: int, height: int, width: int) -> None: ...


class Denoiser(torch.nn.Module):  # type: ignore[misc]  # torch is not followed
    """ComfyUI's ``diffusion_model`` on a session of sdort's.

    Inputs for residuals and weights that may change cost memory and time, so the UNet is opened without them, and again
    with them when a workflow first asks for them.

    Args:
        open_session: opens the UNet; ``control`` with its inputs for residuals, ``adapters`` with weights that may
            change.
        config: the UNet's.
        sizes: how many sizes SDXL's UNet takes behind the pooled text; 0 for none.
        parameters: tensors without values by original names, for the nodes that look for them (LoRA).
        patched: puts patches into the weights.
        tune: None where the provider has nothing to tune.
    """

    def __init__(
        self,
        open_session: OpenSession,
        config: Mapping[str, Any],
        sizes: int,
        parameters: Mapping[str, torch.Tensor],
        patched: PatchedWeights,
        tune: Tune | None,
    ) -> None:
        super().__init__()
        self._open = open_session
        self._opened_with = {"control": False, "adapters": False}
        self._session = open_session(**self._opened_with)
        self._config = config
        self._sizes = sizes
        self._parameters_by_name = parameters
        self._patched = patched
        self._tune = tune
        self._patches: Patches = {}
        self._patches_id: object = None
        self._numbers: tuple[torch.Tensor, torch.Tensor] | None = None
        self.dtype = self._session.dtype

    def __getattr__(self, name: str) -> Any:
        if name in _BLOCKS:
            raise AttributeError(
                f"sdort's optimized UNet has no module {name!r}: nodes that read or merge its weights need ComfyUI's "
                "own loader"
            )
        return super().__getattr__(name)

    @property
    def session(self) -> TensorSession:
        """The open UNet."""
        return self._session

    def warm_up(self, images: int, height: int, width: int) -> None:
        """Tune for images of a height and width in pixels, where there is something to tune, and run once on a batch of
        zeros: each image with and without a prompt, of 77 tokens.

        Raises:
            UsageError: a size that the UNet cannot do.
            BadModelError, ProviderError: as :meth:`TensorSession.run`.
            OutputError: what was found cannot be kept.
        """
        if self._tune:
            del self._session  # before another one is there: two need the memory of two
            try:
                self._tune(images, height, width)
            finally:
                self._session = self._open(**self._opened_with)
                if self._patches:
                    self._patched.use(self._patches, self._session)
        samples = 2 * images
        shape = (samples, self._config["in_channels"], height // PIXELS, width // PIXELS)
        feeds = {
            "sample": torch.zeros(shape),
            "timestep": torch.zeros(samples),
            "encoder_hidden_states": torch.zeros(samples, TOKENS, self._config["cross_attention_dim"]),
        }
        if self._sizes:
            pooled = self._config["projection_class_embeddings_input_dim"] - WIDTH * self._sizes
            feeds |= {"text_embeds": torch.zeros(samples, pooled), "time_ids": torch.zeros(samples, self._sizes)}
        with progress("warming up"):
            self._session.run(feeds)

    def use_patches(self, patches: Patches, patches_id: object) -> None:
        """Let the weights have these patches and no others.

        Args:
            patches: ``ModelPatcher.patches``.
            patches_id: differs where they differ.

        Raises:
            UsageError, ParityError: as :meth:`PatchedWeights.use`.
        """
        if patches_id == self._patches_id or not (patches or self._patches):
            return
        self._patches_id = None  # half of it, until all is done
        self._patches = dict(patches)
        self._open_with(adapters=True)
        self._patched.use(patches, self._session)
        self._patches_id = patches_id

    def _open_with(self, **needed: bool) -> None:
        """Have the UNet opened with what is needed, and with what it was opened with before."""
        asked = {name: self._opened_with[name] or needed.get(name, False) for name in self._opened_with}
        if asked == self._opened_with:
            return
        del self._session  # before the other one is there: two need the memory of two
        try:
            self._session = self._open(**asked)
        except SdortError:
            self._patches_id = None
            self._session = self._open(**self._opened_with)  # for workflows that ask for less
            raise
        self._opened_with = asked
        if self._patches and "adapters" not in needed:
            self._patched.use(self._patches, self._session)

    def state_dict(self, *args: Any, destination: Any = None, prefix: str = "", keep_vars: bool = False) -> Any:
        """The parameters by their original names: tensors on the ``meta`` device."""
        found = {} if destination is None else destination
        found.update({f"{prefix}{name}": tensor for name, tensor in self._parameters_by_name.items()})
        return found

    def forward(
        self,
        x: torch.Tensor,
        timesteps: torch.Tensor,
        context: torch.Tensor | None = None,
        y: torch.Tensor | None = None,
        control: Residuals | None = None,
        transformer_options: Mapping[str, Any] | None = None,
        **_: Any,
    ) -> torch.Tensor:
        """The prediction of the UNet.

        Args:
            x: latents [samples, channels, height, width], scaled.
            timesteps: [samples].
            context: the encoded prompts [samples, tokens, width].
            y: SDXL's pooled text and embedded sizes [samples, ...].
            control: residuals of ControlNets (:mod:`sdort.integrations.comfyui.control_residuals`).
            transformer_options: ComfyUI's; what changes the UNet inside is refused.
            _: what ComfyUI's UNet of these families takes and does not read.

        Returns:
            A tensor of the shape of ``x``.

        Raises:
            UsageError: a node asks for what an exported graph does not do, or the prompt is of another family.
            BadModelError, ProviderError: as :meth:`TensorSession.run`.
        """
        _refuse_changes(transformer_options or {})
        feeds = {"sample": x, "timestep": timesteps, "encoder_hidden_states": self._checked(context)}
        feeds |= self._condition(y)
        if control is not None:
            feeds |= self._residuals(control)
        (output,) = self._session.run(feeds).values()
        return output.to(x.device, x.dtype)

    def _checked(self, context: torch.Tensor | None) -> torch.Tensor:
        width = self._config["cross_attention_dim"]
        if context is None or context.shape[-1] != width:
            found = "no encoded prompt" if context is None else f"prompts {context.shape[-1]} numbers wide"
            raise UsageError(
                f"the UNet takes prompts {width} numbers wide, and there are {found}: of another family of models",
                hint="Encode them with the CLIP of the same checkpoint (Load Checkpoint).",
            )
        return context

    def _condition(self, y: torch.Tensor | None) -> dict[str, torch.Tensor]:
        """SDXL's inputs beside the prompt."""
        if not self._sizes:
            return {}
        if y is None:
            raise UsageError("the UNet takes SDXL's pooled text and sizes, and the prompt comes without them")
        # Steps of one prompt have one condition: its sizes are looked for once.
        if self._numbers is None or not _same(self._numbers[0], y):
            self._numbers = y.clone(), split_condition(y, self._sizes)[1]
        return {"text_embeds": y[:, : y.shape[1] - WIDTH * self._sizes], "time_ids": self._numbers[1]}

    def _residuals(self, control: Residuals) -> dict[str, torch.Tensor]:
        self._open_with(control=True)
        return residual_feeds(control, residual_inputs(self._session.inputs), self._config)


def _refuse_changes(options: Mapping[str, Any]) -> None:
    for place, change in _CHANGES.items():
        value: Any = options
        for name in place.split("."):
            value = (value or {}).get(name)
        if _is_set(value):
            raise UsageError(
                f"a node of the workflow asks for {change}, which an exported graph does not do",
                hint="Take the node out, or load the model with ComfyUI's own loader.",
            )


def _is_set(value: Any) -> bool:
    """Whether an entry of ``transformer_options`` asks for something: nested empty ones do not."""
    if isinstance(value, Mapping):
        return any(_is_set(each) for each in value.values())
    if isinstance(value, Sequence) and not isinstance(value, str):
        return any(_is_set(each) for each in value)
    return value is not None


def _same(first: torch.Tensor, second: torch.Tensor) -> bool:
    return first.dtype == second.dtype and bool(torch.equal(first, second))
