"""Tuning results that a driver carries to its workers, so that they find them before they open the pipeline."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from sdort.files.input_file import read_input
from sdort.onnx_io.model_hash import hash_model
from sdort.pipelines.folder import PipelineFolder
from sdort.tuning.archive import export_bundles, import_bundles
from sdort.tuning.bundle import MAX_BYTES, BundleError, check_files
from sdort.tuning.store import Store

_NAME = "tuning.tar"


def pack_tuning(folder: PipelineFolder) -> bytes | None:
    """An archive of all bundles of a pipeline's models; None where there are none.

    Raises:
        OutputError: there is no room for it.
    """
    store = Store()
    if not (names := [*_sound(store, folder)]):
        return None
    with TemporaryDirectory(prefix="sdort-tuning-") as place:
        export_bundles(store, names, Path(place, _NAME))
        return read_input(Path(place, _NAME), limit=MAX_BYTES)


def unpack_tuning(archive: bytes) -> None:
    """Keep the bundles of an archive in this machine's cache; no run uses those that another kind of machine made.

    Raises:
        BadModelError: it is damaged.
        OutputError: the cache cannot be written.
    """
    with TemporaryDirectory(prefix="sdort-tuning-") as place:
        Path(place, _NAME).write_bytes(archive)
        import_bundles(Store(), Path(place, _NAME), any_machine=True)


def _sound(store: Store, folder: PipelineFolder) -> Iterator[str]:
    """Names of the bundles that are whole."""
    models = {hash_model(path) for path in folder.models.values()} if store.names() else set()
    for name in store.names():
        try:
            bundle = store.read(name)
            if bundle.key.model in models:
                check_files(bundle)
                yield name
        except BundleError:
            continue
