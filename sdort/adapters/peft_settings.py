"""The alpha of adapters that peft and diffusers wrote, which stands in a config and not among the tensors.

diffusers (from 0.34) writes its settings into the file's metadata, as ``lora_adapter_metadata``; peft into
``adapter_config.json`` beside ``adapter_model.safetensors``. Without either alpha is the rank.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sdort.adapters.module_index import component_of, without_component
from sdort.checkpoints.configs import optional_config
from sdort.errors import BadModelError
from sdort.files.json_text import parse_json

SETTINGS_KEY = "lora_adapter_metadata"
_WEIGHTS, _CONFIG = "adapter_model.safetensors", "adapter_config.json"


@dataclass(frozen=True)
class PeftSettings:
    """peft's configs by component; that of a file for one component stands under an empty name."""

    configs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def factor(self, module: str, rank: int | None) -> float:
        """The factor of a module's change: ``alpha / rank``, or rank-stabilised ``alpha / sqrt(rank)``.

        Args:
            rank: as the tensors have it; None where they are whole, for which peft's config has one all the same.
        """
        config = self.configs.get(component_of(module) or "", self.configs.get("", {}))
        alpha = _by_pattern(config, "alpha_pattern", module, config.get("lora_alpha", config.get("alpha")))
        rank = rank or _by_pattern(config, "rank_pattern", module, config.get("r"))
        if alpha is None or not rank:
            return 1.0
        return float(alpha) / (math.sqrt(rank) if config.get("use_rslora") else rank)


def read_settings(path: Path, notes: Mapping[str, str]) -> PeftSettings:
    """The settings that belong to an adapter's file; empty where it has none.

    Args:
        notes: the file's metadata.

    Raises:
        BadModelError: they are damaged.
    """
    if SETTINGS_KEY in notes:
        try:
            config = parse_json(notes[SETTINGS_KEY].encode())
        except ValueError as error:
            raise _damaged(path, f"its {SETTINGS_KEY} {error}") from error
        return PeftSettings(_by_component(path, config))
    if path.name == _WEIGHTS:
        return PeftSettings({"": _checked(path, optional_config(path.with_name(_CONFIG)))})
    return PeftSettings()


def _by_component(path: Path, config: Any) -> dict[str, dict[str, Any]]:
    if not isinstance(config, dict):
        raise _damaged(path, f"its {SETTINGS_KEY} is no JSON object")
    configs: dict[str, dict[str, Any]] = {}
    for key, value in config.items():
        component, _, name = key.rpartition(".")
        configs.setdefault(component, {})[name] = value
    return {component: _checked(path, settings) for component, settings in configs.items()}


def _checked(path: Path, config: Mapping[str, Any]) -> dict[str, Any]:
    tables = [config.get(name) or {} for name in ("alpha_pattern", "rank_pattern")]
    numbers = [config.get(name, 1) for name in ("lora_alpha", "alpha", "r")]
    numbers += [number for table in tables for number in (table.values() if isinstance(table, dict) else [None])]
    if not all(isinstance(number, int | float) and math.isfinite(number) for number in numbers):
        raise _damaged(path, "its settings have an alpha or a rank that is no number")
    return dict(config)


def _by_pattern(config: Mapping[str, Any], table: str, module: str, default: Any) -> Any:
    """A setting of a module: that of the first name in a table which its name ends with.

    peft takes these names for regular expressions; here they are only text: a stranger's may take hours to match.
    """
    name = without_component(module)
    fitting = (value for end, value in (config.get(table) or {}).items() if f".{name}".endswith(f".{end}"))
    return next(fitting, default)


def _damaged(path: Path, problem: str) -> BadModelError:
    return BadModelError(f"{path} is damaged: {problem}", hint="Copy or download it again.")
