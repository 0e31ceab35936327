"""The adapters of a UNet's graph, by diffusers' methods: a drawn sequence of calls, held to a model of its own.

No session: what would be merged into the weights is recorded instead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from sdort.adapters.adapter_choice import AdapterChoice
from sdort.errors import BadModelError, UsageError
from sdort.integrations.torch import unet_adapters
from sdort.integrations.torch.tensor_session import TensorSession
from sdort.integrations.torch.unet_adapters import AdapterMethods, UnetAdapters
from sdort.pipelines.folder import PipelineFolder

Q = "unet.mid_block.attentions.0.transformer_blocks.0.attn1.to_q"
CALLS = ("load", "swap", "set", "delete", "disable", "enable", "unload")
SHARES = (0.35, 0.15, 0.2, 0.15, 0.05, 0.05, 0.05)
"""How often each of them is drawn."""


class Merged:
    """As RunningAdapters: what the weights have, the value in each file and its scale."""

    def __init__(self, sessions: Any) -> None:
        self.now: list[tuple[float, float]] = []
        self.fails = False
        self.uses = 0

    def use(self, choices: Sequence[AdapterChoice]) -> None:
        self.uses += 1
        if self.fails:
            raise BadModelError("a test")
        self.now = [(float(load_file(c.path)[f"{Q}.lora_A.weight"][0, 0]), round(c.scale, 6)) for c in choices]


class Unet(AdapterMethods):
    def __init__(self) -> None:
        session = SimpleNamespace(session=None, synchronize=lambda: None)
        self.adapters = UnetAdapters(cast(TensorSession, session), cast(PipelineFolder, None))

    @property
    def merged(self) -> Merged:
        assert self.adapters
        return cast(Merged, self.adapters._running)

    def at(self, scale: float = 1.0) -> list[tuple[float, float]]:
        """What the weights have in a step whose adapters are all scaled."""
        assert self.adapters
        self.adapters.apply(scale)
        return self.merged.now


@pytest.fixture
def unet(monkeypatch: pytest.MonkeyPatch) -> Unet:
    monkeypatch.setattr(unet_adapters, "RunningAdapters", Merged)
    monkeypatch.setattr(unet_adapters, "plan_adapters", lambda _, choices: choices)
    return Unet()


def tensors(value: float, prefix: str = "unet.") -> dict[str, torch.Tensor]:
    """An adapter that is told by its value."""
    stem = prefix + Q.removeprefix("unet.")
    return {f"{stem}.lora_A.weight": torch.full((2, 4), value), f"{stem}.lora_B.weight": torch.ones(4, 2)}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("seed", range(10))
def test_any_sequence_of_calls_leaves_what_peft_would_have(seed: int, unet: Unet) -> None:
    random = np.random.default_rng(seed)
    loaded: dict[str, float] = {}
    active: dict[str, float] = {}
    enabled, names = True, ("a", "b", "c")
    for step in range(60):
        name = str(random.choice(names))
        match random.choice(CALLS, p=SHARES):
            case "load" | "swap" as how:
                value, swap = float(step + 1), how == "swap"
                if (name in loaded) != swap:
                    with pytest.raises(UsageError, match="by the name"):
                        unet.load_lora_adapter(tensors(value), adapter_name=name, hotswap=swap)
                    continue
                unet.load_lora_adapter(tensors(value), adapter_name=name, hotswap=swap)
                loaded[name], active = value, {name: 1.0}
            case "set":
                chosen = [each for each in names if each in loaded and random.random() < 0.7]
                weights = [float(random.choice([0.5, -1.0, 2.0])) for _ in chosen]
                unet.set_adapters(chosen, weights)
                active = dict(zip(chosen, weights, strict=True))
            case "delete" if name in loaded:
                unet.delete_adapters(name)
                del loaded[name]
                if active.pop(name, None) is not None and not active and loaded:
                    active = {next(iter(loaded)): 1.0}
            case "disable":
                unet.disable_lora()
                enabled = False
            case "enable":
                unet.enable_lora()
                enabled = True
            case "unload":
                unet.unload_lora()
                loaded, active = {}, {}
        assert list(unet.peft_config) == list(loaded)
        scale = float(random.choice([1.0, 0.25]))
        expected = [(loaded[each], round(weight * scale, 6)) for each, weight in active.items()] if enabled else []
        assert unet.at(scale) == expected
        assert len(list(unet.adapters._place.iterdir())) == len(loaded)  # type: ignore[union-attr]


def test_the_same_is_not_merged_again_and_a_failure_is_not_taken_for_done(unet: Unet) -> None:
    unet.load_lora_adapter(tensors(3), adapter_name="a")
    assert unet.at() == unet.at() == [(3, 1)]
    assert unet.merged.uses == 1
    assert unet.at(0.5) == [(3, 0.5)]
    assert unet.merged.uses == 2
    unet.load_lora_adapter(tensors(4), adapter_name="a", hotswap=True)  # of the same name and scale
    unet.merged.fails = True
    with pytest.raises(BadModelError):
        unet.at(0.5)
    unet.merged.fails = False
    unet.set_adapters("a")
    assert unet.at(0.5) == [(4, 0.5)]
    unet.merged.fails = True
    with pytest.raises(BadModelError):
        unet.at(1)
    unet.merged.fails = False
    assert unet.at(0.5) == [(4, 0.5)]  # what it had before is written again
    assert unet.merged.uses == 6


def test_an_adapter_that_does_not_fit_leaves_the_others(unet: Unet, monkeypatch: pytest.MonkeyPatch) -> None:
    unet.load_lora_adapter(tensors(3), adapter_name="a")

    def refuse(*_: object) -> None:
        raise BadModelError("a test")

    with monkeypatch.context() as patch:
        patch.setattr(unet_adapters, "plan_adapters", refuse)
        for name, swap in (("a", True), ("b", False)):
            with pytest.raises(BadModelError):
                unet.load_lora_adapter(tensors(9), adapter_name=name, hotswap=swap)
    assert list(unet.peft_config) == ["a"]
    assert unet.at() == [(3, 1)]
    assert unet.adapters
    assert len(list(unet.adapters._place.iterdir())) == 1


def test_a_file_has_the_prefixs_tensors_its_alphas_and_its_settings(unet: Unet) -> None:
    state = {**tensors(2), **tensors(7, "text_encoder.")}
    alphas = {f"{Q}.lora_A.weight.alpha": 3.0, "text_encoder.x.lora_A.weight.alpha": 5.0}
    unet.load_lora_adapter(state, network_alphas=alphas, metadata={"lora_alpha": 4})
    assert unet.adapters
    ((name, path),) = unet.adapters.files.items()
    assert name == "default_0"
    found = load_file(path)
    assert found.pop(f"{Q}.alpha").item() == 3
    assert found.keys() == tensors(2).keys()
    with safe_open(path, "pt") as file:
        assert file.metadata() == {"lora_adapter_metadata": '{"lora_alpha": 4}'}
    unet.load_lora_adapter(tensors(2))
    assert list(unet.peft_config) == ["default_0", "default_1"]


@pytest.mark.parametrize("metadata", [None, {}, {"lora_alpha": 4}], ids=["no settings", "empty settings", "settings"])
@pytest.mark.parametrize("alphas", [None, {}, {f"{Q}.lora_A.weight.alpha": 3.0}], ids=["no alphas", "{}", "alphas"])
def test_alphas_and_settings_are_kept_each_without_the_other(
    alphas: dict[str, float] | None, metadata: dict[str, int] | None, unet: Unet
) -> None:
    """peft's files have settings and no alphas, kohya's the other way round."""
    unet.load_lora_adapter(tensors(2), network_alphas=alphas, metadata=metadata)
    assert unet.adapters
    (path,) = unet.adapters.files.values()
    assert {name: value.item() for name, value in load_file(path).items() if name.endswith("alpha")} == (
        {f"{Q}.alpha": 3} if alphas else {}
    )
    with safe_open(path, "pt") as file:
        assert (file.metadata() or {}) == ({"lora_adapter_metadata": '{"lora_alpha": 4}'} if metadata else {})


def test_weights_are_one_for_all_or_one_for_each(unet: Unet) -> None:
    for value, name in enumerate("abc", 1):
        unet.load_lora_adapter(tensors(value), adapter_name=name)
    unet.set_adapters(["c", "a"], 0.5)
    assert unet.at() == [(3, 0.5), (1, 0.5)]
    unet.set_adapters(["c", "a"], [2.0, None])
    assert unet.at() == [(3, 2), (1, 1)]
    unet.set_adapters("b", 0.0)
    assert unet.at() == [(2, 0)]
    for names, weights in ((["a", "b"], [1.0]), (["a", "x"], None), ("x", 1.0), ("a", {"down": 1.0}), (["a"], [{}])):
        with pytest.raises(UsageError):
            unet.set_adapters(names, weights)
    assert unet.at() == [(2, 0)]


def test_names_are_no_paths(unet: Unet) -> None:
    unet.load_lora_adapter(tensors(1), adapter_name="../../x/" + "y" * 300)
    assert unet.adapters
    (path,) = unet.adapters.files.values()
    assert path.parent.parent == unet.adapters._place
    assert len(path.name) < 120
    assert unet.at() == [(1, 1)]


def test_a_unet_without_adapters_refuses_them_and_takes_unload(unet: Unet) -> None:
    unet.adapters = None
    assert unet.peft_config == {}
    unet.unload_lora()
    calls: list[Callable[[], None]] = [lambda: unet.load_lora_adapter(tensors(1)), lambda: unet.set_adapters("a")]
    for call in (unet.disable_lora, unet.enable_lora, *calls):
        with pytest.raises(UsageError, match="loaded so that its weights stay"):
            call()
    with pytest.raises(UsageError, match="nothing to fuse"):
        unet.fuse_lora()


def test_unloading_all_says_nothing_and_unloading_the_active_one_which_is_now(
    unet: Unet, capsys: pytest.CaptureFixture[str]
) -> None:
    for value, name in enumerate("ab", 1):
        unet.load_lora_adapter(tensors(value), adapter_name=name)
    unet.delete_adapters("b")
    assert "the adapter 'b' was active; now 'a' is" in " ".join(capsys.readouterr().err.split())
    unet.load_lora_adapter(tensors(2), adapter_name="b")
    unet.set_adapters("a")
    unet.unload_lora()
    assert capsys.readouterr().err == ""
    assert unet.at() == []


def test_the_place_of_the_files_is_gone_with_the_unet(unet: Unet) -> None:
    import gc

    unet.load_lora_adapter(tensors(1))
    assert unet.adapters
    place: Path = unet.adapters._place
    assert place.is_dir()
    unet.adapters = None
    gc.collect()
    assert not place.exists()
