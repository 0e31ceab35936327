"""The families that there are: those of the modules in ``data``; and look-ups over all of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from importlib import import_module
from pkgutil import iter_modules

from sdort.families import data
from sdort.families.component_names import CONTROLS, DECODER, ENCODER, IMAGE_ENCODER, SAFETY_CHECKER
from sdort.families.family import Denoiser, Family, Roles

_FIRST = "sd1"
"""The family of a folder that nothing tells."""


def _families() -> tuple[Family, ...]:
    names = sorted((each.name for each in iter_modules(data.__path__)), key=lambda name: (name != _FIRST, name))
    return tuple(import_module(f"{data.__name__}.{name}").FAMILY for name in names)


FAMILIES = {family.name: family for family in _families()}
_denoisers = [family.denoiser for family in FAMILIES.values()]
DENOISERS = {each.component: each for each in _denoisers}
"""Component -> a denoiser of that name."""
DENOISER_CLASSES = {
    name: tuple(
        dict.fromkeys(each.denoiser.class_name for each in FAMILIES.values() if each.denoiser.component == name)
    )
    for name in DENOISERS
}
"""Component -> its classes that are exported."""
_ROLES = tuple(dict.fromkeys(each.roles for each in _denoisers))
TEXT_ENCODERS = tuple(sorted({encoder.component for family in FAMILIES.values() for encoder in family.encoders}))
TOKENIZERS = tuple(sorted({encoder.tokenizer for family in FAMILIES.values() for encoder in family.encoders}))
COMPONENTS = (*TEXT_ENCODERS, *DENOISERS, ENCODER, DECODER, *CONTROLS, IMAGE_ENCODER, SAFETY_CHECKER)
"""Every component that a pipeline may have, in the order in which ``sdort export`` writes them."""


def family_of(components: Collection[str], class_of: Callable[[str], str | None] = lambda _: None) -> Family:
    """The family of a pipeline, without optional encoders that are not among its components.

    Args:
        components: their names; some may be missing.
        class_of: gives the class of a component, None where it is not known; asked where names do not tell.
    """
    given = [family for family in FAMILIES.values() if family.denoiser.component in components]
    if len({family.denoiser.class_name for family in given}) > 1:
        name = class_of(given[0].denoiser.component)
        given = [family for family in given if family.denoiser.class_name == name] or given
    texts = set(TEXT_ENCODERS) & set(components)
    first = next(iter(FAMILIES.values())).denoiser

    def distance(family: Family) -> tuple[int, bool]:
        return len(texts ^ {each.component for each in family.encoders}), family.denoiser is not first

    return min(given or FAMILIES.values(), key=distance).of(components)


def family_of_class(pipeline: str) -> Family | None:
    """The family of diffusers' class of a pipeline, whatever its task; None for a class of no family."""
    begins = {str(family.pipelines[None]).removesuffix("Pipeline"): family for family in reversed(FAMILIES.values())}
    return begins.get(max(filter(pipeline.startswith, begins), key=len, default=""))


def find_denoiser(component: str, class_name: str | None = None) -> Denoiser | None:
    """The denoiser that a component is; of several with its name that of the class; None for another component."""
    named = [each for each in _denoisers if each.component == component]
    return next((each for each in named if each.class_name == class_name), next(iter(named), None))


def find_roles(inputs: Collection[str]) -> Roles | None:
    """The roles of a denoiser's inputs, or of a ControlNet's, by their names; None for another component."""
    fit = [roles for roles in _ROLES if {roles.sample, roles.timestep} <= set(inputs)]
    return max(fit, key=lambda roles: len(roles.names & set(inputs)), default=None)


def find_text_encoder(hints: Collection[str], *, pooled: bool) -> str:
    """The name of a text encoder.

    Args:
        hints: what it may be called; the first family's is meant where none is a text encoder's name.
        pooled: whether it has a pooled output first, as few encoders have: by another name it is what most families
            call theirs.
    """
    every = [(family.denoiser.roles.pooled, encoder) for family in FAMILIES.values() for encoder in family.encoders]
    named = [encoder.component for _, encoder in every if encoder.component in hints]
    pooling = [encoder.component for role, encoder in every if role in encoder.conditioning]
    if pooled:
        called = [name for name in pooling if name in hints]
        return (called or [Counter(pooling).most_common(1)[0][0]])[0]
    return (named or [every[0][1].component])[0]


def role_names(role: str) -> frozenset[str]:
    """The names that inputs of a role have in some family.

    Args:
        role: an attribute of :class:`sdort.families.family.Roles`.
    """
    return frozenset(name for roles in _ROLES if (name := getattr(roles, role)))


def roles_of(inputs: Collection[str]) -> Roles:
    """:func:`find_roles` of what is taken for a denoiser: the usual ones where the names do not tell."""
    return find_roles(inputs) or _ROLES[0]
