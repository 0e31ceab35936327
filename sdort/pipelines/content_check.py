"""Comparison of what a command reads of a pipeline with what sdort wrote, by the list in its ``sdort.json``.

Sizes and small files are compared before anything is read, weights in a thread while they are loaded; what was compared
is remembered, by the file's identity on disk, so that the next command reads nothing twice. It finds damage and
mix-ups; against forgery there is the signature.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from itertools import islice
from pathlib import Path

from sdort.checkpoints.configs import INDEX, MANIFEST, read_manifest
from sdort.console import detail, progress, say
from sdort.errors import BadModelError, OutputError, UsageError
from sdort.families.known_families import COMPONENTS, TOKENIZERS
from sdort.files.input_file import open_input
from sdort.files.model_folder import check_own_file
from sdort.files.staging import real
from sdort.files.user_folders import models_folder
from sdort.machine.phases import phase
from sdort.onnx_io.component_file import file_identity
from sdort.pipelines.manifest import SMALL, ListedFile, listed_files
from sdort.pipelines.remembered_hashes import RememberedHashes

_CONFIGS = ("config.json", "scheduler_config.json", INDEX)
_PREPROCESSOR = Path("feature_extractor", "preprocessor_config.json")
_PARTS = (*COMPONENTS, "vae", "scheduler")


@contextmanager
def checked(path: Path, check: bool = True) -> Iterator[ContentCheck]:
    """A block that reads a pipeline's folder, or one ``.onnx`` file in it: :func:`content_check`'s."""
    content = content_check(path, check)
    with content.block():
        yield content


def content_check(path: Path, check: bool = True) -> ContentCheck:
    """The check of a pipeline's folder, or of one ``.onnx`` file in it, for blocks that read it.

    Args:
        check: False compares nothing.

    Raises:
        BadModelError: the list of files is broken.
    """
    return _open_check(Path(path)) if check else ContentCheck(Path(path), Path(path), {}, None)


def _open_check(path: Path) -> ContentCheck:
    """The check of what lies at ``path``, by the manifest in its folder, or in that of its pipeline."""
    scope = path if path.is_dir() else path.parent
    real_scope = real(scope)
    for root in (real_scope, *islice(real_scope.parents, 2)):
        manifest = read_manifest(root) if (root / MANIFEST).is_file() else {}
        listed = listed_files(root, manifest)
        if listed is not None:
            prefix = "".join(f"{part}/" for part in real_scope.relative_to(root).parts)
            inside = {place.removeprefix(prefix): each for place, each in listed.items() if place.startswith(prefix)}
            if inside:
                return ContentCheck(scope, root, inside, "optimized" in manifest)
    detail(f"{path}: no {MANIFEST} lists its files, so their content is not compared with anything")
    return ContentCheck(scope, scope, {}, None)


class ContentCheck:
    """The comparison of a folder's files with the list in a manifest; see :func:`checked`.

    Args:
        scope: the folder.
        root: the folder of the manifest: the same, or that of the whole pipeline.
        listed: the files of ``scope`` on the list, by their paths in it.
        optimized: whether ``sdort optimize`` made them, else ``sdort export``; None compares nothing.
    """

    def __init__(self, scope: Path, root: Path, listed: Mapping[str, ListedFile], optimized: bool | None) -> None:
        self._scope = scope
        self._root = root
        self._listed = listed
        self._optimized = optimized
        self._pool: ThreadPoolExecutor | None = None
        self._results: list[Future[None]] = []
        self._goes_on = True
        self._small_compared = False

    @contextmanager
    def block(self) -> Iterator[None]:
        """A block that reads the files; there may be several, one after the other.

        Where the folder has a list, sizes and small files are compared before the first one; weights, from
        :meth:`reads` on, in a thread that has ended when the block has.

        Raises:
            BadModelError: a file is not what sdort wrote, is missing, or is read and not on the list; also in place of
                an error of the block, which it explains.
        """
        self._goes_on, self._pool, self._results = True, None, []
        try:
            if not self._small_compared:
                with phase("comparison of files"):
                    self.compare_small()
                self._small_compared = True
            yield
            with phase("comparison of files"):
                self.finish()
        except (UsageError, OutputError):
            raise
        except Exception:  # damage ends in whatever error it likes
            self.finish()
            raise
        finally:
            self.close()

    def compare_small(self) -> None:
        """Compare the sizes of all files, the content of small ones, and look for what is read and not listed.

        A component of which no file is there is told, and left to those who need it.

        Raises:
            BadModelError: as :meth:`block`.
        """
        gone = {name for name in _folders(self._listed) & {*COMPONENTS} if not (self._scope / name).exists()}
        if gone:
            say(f"{self._root / MANIFEST} lists {', '.join(sorted(gone))}, of which nothing is there")
        present = [place for place in self._listed if place.split("/")[0] not in gone]
        for place in present:
            check_own_file(self._scope / place, self._root)
            self._compare_size(place)
        for place in present:
            if self._listed[place].bytes <= SMALL:
                self._compare(place)
        self._refuse_unlisted(_read_unasked(self._scope))

    def reads(self, models: Iterable[Path]) -> None:
        """Compare these models and their data, in a thread.

        Args:
            models: ``.onnx`` files below the path that :func:`content_check` got.

        Raises:
            BadModelError: one is not on the list.
        """
        if self._optimized is None:
            return
        models = list(models)
        self._refuse_unlisted(models)
        names = tuple(self._place(model) for model in models)
        large = [place for place, file in self._listed.items() if place.startswith(names) and file.bytes > SMALL]
        if large:
            self._pool = self._pool or ThreadPoolExecutor(1, "sdort-check")
            self._results.append(self._pool.submit(self._compare_large, large))

    def finish(self) -> None:
        """Wait until all is compared.

        Raises:
            BadModelError: a file is not what sdort wrote.
        """
        waiting = not all(result.done() for result in self._results)
        with progress(f"comparing with {MANIFEST}") if waiting else nullcontext():
            for result in self._results:
                result.result()

    def close(self) -> None:
        """End the thread, whether it is done or not."""
        self._goes_on = False
        if self._pool:
            self._pool.shutdown(wait=True, cancel_futures=True)

    def _place(self, path: Path) -> str:
        return path.relative_to(self._scope).as_posix()

    def _refuse_unlisted(self, files: Iterable[Path]) -> None:
        for file in files if self._optimized is not None else ():
            if self._place(file) not in self._listed:
                raise self._wrong(file, f"is not on {self._root / MANIFEST}'s list of what sdort wrote")

    def _compare_size(self, place: str) -> None:
        expected = self._listed[place].bytes
        try:
            size = (self._scope / place).stat().st_size
        except OSError as error:
            problem = "is missing" if isinstance(error, FileNotFoundError) else f"cannot be read ({error.strerror})"
            raise self._wrong(self._scope / place, problem) from error
        if size != expected:
            raise self._wrong(self._scope / place, f"has {size:,} bytes, and sdort wrote {expected:,}")

    def _compare(self, place: str) -> str | None:
        """The file's hash, which is the listed one; None where :meth:`close` ended it."""
        from sdort.onnx_io.hashing import hash_open  # xxhash: pipelines without a list run without it

        path = self._scope / place
        with open_input(path) as file:
            try:
                digest = hash_open(file.fileno(), lambda: self._goes_on)
            except OSError as error:
                raise self._wrong(path, f"cannot be read ({error.strerror})") from error
        if not self._goes_on:
            return None
        if digest != self._listed[place].xxh128:
            raise self._wrong(path, "was changed or damaged: its content is not what sdort wrote")
        return digest

    def _compare_large(self, places: Iterable[str]) -> None:
        """Compare large files but for those that are remembered, and remember them."""
        remembered = RememberedHashes(self._scope, "xxh128")
        try:
            for place in places:
                identity = file_identity(self._scope / place)
                if remembered.find(place) == self._listed[place].xxh128:
                    continue
                if digest := self._compare(place):
                    remembered.add(place, identity, digest)
        finally:
            remembered.keep()

    def _wrong(self, path: Path, problem: str) -> BadModelError:
        made = "sdort optimize" if self._optimized else "sdort export"
        hint = (
            f"Copy it again, or remove it and make it anew with {made}. If you changed it on purpose, go on with "
            "--no-check."
        )
        if self._root.is_relative_to(real(models_folder())):  # of no command: it was made on first use
            folder = shlex.quote(str(self._root.parent))
            hint = f"It is in sdort's cache. Remove it, and the next use makes it anew:\n    rm -r {folder}"
        return BadModelError(f"{path} {problem}", hint=hint)


def _folders(places: Iterable[str]) -> set[str]:
    return {place.split("/")[0] for place in places}


def _read_unasked(folder: Path) -> Iterator[Path]:
    """The files that are read wherever they lie, on the list or not: of a tokenizer all are."""
    for name in _CONFIGS:
        yield from (path for path in (folder / name, *(folder / part / name for part in _PARTS)) if path.is_file())
    if (folder / _PREPROCESSOR).is_file():
        yield folder / _PREPROCESSOR
    for part in TOKENIZERS:
        yield from (path for path in (folder / part).glob("[!.]*") if path.is_file())
