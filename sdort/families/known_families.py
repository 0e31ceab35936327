"""The families that there are: every module of this folder that has a ``FAMILY``."""

from __future__ import annotations

from collections.abc import Callable, Collection
from importlib import import_module
from pkgutil import iter_modules

from sdort import families
from sdort.families.family import Denoiser, Family, Roles
from sdort.model.component_names import CONTROLS, DECODER, ENCODER, IMAGE_ENCODER, SAFETY_CHECKER

_FIRST = "sd1"
"""What a folder is taken for that nothing tells."""


def _families() -> tuple[Family, ...]:
    names = sorted((each.name for each in iter_modules(families.__path__)), key=lambda name: (name != _FIRST, name))
    modules = [import_module(f"{families.__name__}.{name}") for name in names if name != __name__.rpartition(".")[2]]
    return tuple(module.FAMILY for module in modules if hasattr(module, "FAMILY"))


FAMILIES = {family.name: family for family in _families()}
DENOISERS = {family.denoiser.component: family.denoiser for family in FAMILIES.values()}
"""Component -> a denoiser of that name."""
_ROLES = tuple(dict.fromkeys(family.denoiser.roles for family in FAMILIES.values()))
TEXT_ENCODERS = tuple(sorted({encoder.component for family in FAMILIES.values() for encoder in family.encoders}))
COMPONENTS = (*TEXT_ENCODERS, *DENOISERS, ENCODER, DECODER, *CONTROLS, IMAGE_ENCODER, SAFETY_CHECKER)
"""Every component that a pipeline may have, in the order in which ``sdort export`` writes them."""


def family_of(components: Collection[str], class_of: Callable[[str], str | None] = lambda _: None) -> Family:
    """The family of a pipeline.

    Args:
        components: their names; some may be missing.
        class_of: gives the class of a component, None where it is not known; asked where names do not tell.
    """
    given = [family for family in FAMILIES.values() if family.denoiser.component in components]
    if len({family.denoiser.class_name for family in given}) > 1:
        name = class_of(given[0].denoiser.component)
        given = [family for family in given if family.denoiser.class_name == name] or given
    texts = set(TEXT_ENCODERS) & set(components)
    return min(given or FAMILIES.values(), key=lambda family: len(texts ^ {each.component for each in family.encoders}))


def denoiser_of(components: Collection[str]) -> str | None:
    """The name of the denoiser among components; None without one."""
    return next((name for name in components if name in DENOISERS), None)


def find_denoiser(component: str, class_name: str | None = None) -> Denoiser | None:
    """The denoiser that a component is; of several with its name that of the class; None for another component."""
    named = [family.denoiser for family in FAMILIES.values() if family.denoiser.component == component]
    return next((each for each in named if each.class_name == class_name), next(iter(named), None))


def roles_of(inputs: Collection[str]) -> Roles | None:
    """The roles of a denoiser's inputs, or of a ControlNet's, by their names; None for another component."""
    fit = [roles for roles in _ROLES if {roles.sample, roles.timestep} <= set(inputs)]
    return max(fit, key=lambda roles: len(roles.names & set(inputs)), default=None)
