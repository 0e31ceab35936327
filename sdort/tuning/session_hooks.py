"""Hooks around a session: kept bundles are used before it is made and after.

``prepare`` runs before the session is made, ``apply`` after. A run without ``--tuning`` uses what
is kept and writes nothing.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from sdort.console import detail, warn
from sdort.errors import BadModelError, ProviderError
from sdort.errors.plain_text import library_reason
from sdort.files.input_file import read_input
from sdort.operator_library.library import resolve, tuning_table
from sdort.operator_library.tuning_table import Entry, read_table
from sdort.providers.plugins import own_name
from sdort.providers.provider import Provider
from sdort.providers.runtime_options import RuntimeOptions
from sdort.tuning.bundle import MAX_TEXT, MIOPEN, OPS, TUNABLE, Bundle, BundleError, check_files
from sdort.tuning.key import Key, make_key
from sdort.tuning.store import Store
from sdort.tuning.working_folder import WorkingFolder, working_folder


@dataclass
class SessionTuning:
    """Tuning results for a session: ``options`` for ``create_session``, then :meth:`apply`."""

    options: RuntimeOptions
    results: dict[str, bytes] = field(default_factory=dict)
    """TunableOp's, by the bundle's name."""

    def apply(self, ort: Any) -> None:
        """Hand TunableOp's results to an ``InferenceSession``; what it refuses is a warning that says why."""
        for name, text in self.results.items():
            try:
                set_results(ort, json.loads(text))
            except (ValueError, RecursionError, ProviderError) as error:
                warn(f"the tuning bundle {name} is not used: {error}")


def prepare_tuning(path: Path, component: str, provider: Provider, options: RuntimeOptions) -> SessionTuning:
    """Look for what is kept of a model on this machine, at any shapes, and lay it out for the session to come."""
    store = Store()
    compiled = bool(provider.programs)  # in a folder that fills up later, too
    if not provider.on_gpu or not (options.tuning or compiled or store.names()):
        return SessionTuning(options)
    try:
        key = make_key(path, component, provider, options, {})
    except ProviderError as error:
        (warn if options.tuning else detail)(f"tuning results are neither used nor kept: {error.message}")
        return SessionTuning(options)
    if not options.tuning and not compiled and not any(store.of_model(key)):
        return SessionTuning(options)
    folder = working_folder()  # now: to make its folder is to write, which nobody may do while reading
    try:
        with store.reading():
            bundles = list(_sound(store, key))
            for bundle in bundles:
                detail(f"{component}: tuned before, {bundle.name}")
            options = _lay_out(folder, bundles, key, provider, options)
            results = {
                bundle.name: read_input(bundle.folder / TUNABLE, limit=MAX_TEXT, links=False)
                for bundle in bundles
                if TUNABLE in bundle.files
            }
    except (OSError, sqlite3.Error, BadModelError) as error:
        warn(f"tuning results are not used: {error}")
        return SessionTuning(options)
    return SessionTuning(options, results)


def _sound(store: Store, key: Key) -> Iterator[Bundle]:
    for bundle in store.of_model(key):
        try:
            check_files(bundle)
        except BundleError as error:
            warn(f"{error.message}; it is not used (sdort tuning prune removes it)")
            continue
        yield bundle


def _lay_out(
    folder: WorkingFolder, bundles: Sequence[Bundle], key: Key, provider: Provider, options: RuntimeOptions
) -> RuntimeOptions:
    """Point the libraries at a folder with the bundles' files."""
    if provider.uses_miopen:
        folder.use_temporary()
    if provider.uses_miopen and (options.tuning or _have(bundles, MIOPEN)):
        folder.use_miopen()
    for bundle in bundles:
        folder.take(bundle)
    if resolve(options.custom_ops) and (options.tuning or _have(bundles, OPS)):
        entries: list[Entry] = []
        for bundle in bundles:
            entries += read_table(bundle.folder / OPS)
        folder.use_ops(tuning_table(), entries, options.tuning)
    name = provider.programs
    given = {own_name(provider, each, options.ep_libraries) for each in options.provider_options}
    if not name or own_name(provider, name, options.ep_libraries) in given:
        return options
    return replace(options, provider_options={**options.provider_options, name: str(folder.programs(key.programs))})


def _have(bundles: Sequence[Bundle], what: str) -> bool:
    return any(name.partition("/")[0] == what for bundle in bundles for name in bundle.files)


def set_results(ort: Any, results: Any) -> None:
    """Give a session what an earlier one's ``get_tuning_results()`` returned.

    Raises:
        ProviderError: they are another machine's or another ONNX Runtime's; it names the validator that differs.
    """
    if not hasattr(ort, "set_tuning_results"):
        raise ProviderError("this ONNX Runtime takes no tuning results")
    here = {result["ep"]: result["validators"] for result in ort.get_tuning_results()}
    for result in _checked(results):
        ep = result["ep"]
        if ep not in here:
            raise ProviderError(f"this session takes no tuning results for {ep}")
        for name, value in {**dict.fromkeys(here[ep]), **result["validators"]}.items():
            if here[ep].get(name) != value:
                raise ProviderError(f"{name} is {value!r} there and {here[ep].get(name)!r} here")
    try:
        ort.set_tuning_results(results, error_on_invalid=True)
    except Exception as error:  # ONNX Runtime's classes share no base but Exception
        raise ProviderError(f"ONNX Runtime refuses the tuning results: {library_reason(error)}") from error


def _checked(results: Any) -> list[dict[str, Any]]:
    """The results as ONNX Runtime's Python layer takes them; anything else it would refuse with an internal error."""
    sound = isinstance(results, list) and all(
        isinstance(result, dict)
        and isinstance(result.get("ep"), str)
        and _strings(result.get("validators"), str)
        and isinstance(result.get("results"), dict)
        and all(_strings(kernels, int) for kernels in result["results"].values())
        for result in results
    )
    if not sound:
        raise ProviderError(f"{TUNABLE} holds no tuning results")
    return list(results)


def _strings(value: Any, kind: type) -> bool:
    return isinstance(value, dict) and all(isinstance(item, kind) for item in value.values())
