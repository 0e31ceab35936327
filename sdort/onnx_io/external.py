"""External data of a model: located, and checked before it is opened.

The location of external data is text from an untrusted file. It may name a regular file inside the model's own
directory, nothing else: no absolute path, no ``..``, no symbolic link that leads out, no device or pipe.
"""

from __future__ import annotations

import os
import re
from pathlib import Path, PurePosixPath

from onnx import TensorProto

from sdort.errors import BadModelError
from sdort.files.input_file import open_input
from sdort.files.model_folder import belongs
from sdort.onnx_io.check_tensors import tensor_nbytes
from sdort.onnx_io.wire import OWN_FILE

_ANOTHER_FILE = "The data file belongs to another model or is truncated; copy or download it again."


class ExternalData:
    """Resolves the external tensors of the model file ``path``."""

    def __init__(self, path: Path, component: str) -> None:
        self.component = component
        self.path = path
        self.directory = path.parent.resolve()
        self._files: dict[str, tuple[Path, int]] = {}
        if path.is_file():
            self._files[OWN_FILE] = path.resolve(), path.stat().st_size
        self._regions: dict[Path, dict[tuple[int, int], str]] = {}

    def locate(self, tensor: TensorProto) -> tuple[Path, int]:
        """The tensor's data file, and the offset in bytes at which its values begin.

        Raises:
            BadModelError: the file is missing or lies elsewhere, or its size does not fit the tensor.
        """
        entries = self._entries(tensor)
        file, size = self._file(entries.get("location", ""), tensor.name)
        offset = self._number(entries, "offset", 0, tensor.name)
        nbytes = tensor_nbytes(tensor, self.component)
        length = self._number(entries, "length", nbytes, tensor.name)
        if length != nbytes:
            raise self._bad(tensor, f"shape {list(tensor.dims)} needs {nbytes} bytes, its length says {length}")
        if offset + nbytes > size:
            text = f"its data ends at byte {offset + nbytes}, but {file.name} has {size} bytes"
            raise self._bad(tensor, text, _ANOTHER_FILE)
        self._regions.setdefault(file, {})[offset, offset + nbytes] = tensor.name
        return file, offset

    def check_overlaps(self) -> None:
        """Refuse tensors that share some of their bytes: a small file could claim to be a huge model.

        Tensors that share all of them are one tied weight.
        """
        for file, regions in self._regions.items():
            last = 0
            for (start, end), name in sorted(regions.items()):
                if start < last and end > start:
                    raise BadModelError(
                        f"its data overlaps that of another tensor in {file.name}", component=self.component, node=name
                    )
                last = max(last, end)

    def _entries(self, tensor: TensorProto) -> dict[str, str]:
        entries: dict[str, str] = {}
        for entry in tensor.external_data:
            if entry.key in entries:
                raise self._bad(tensor, f"external data has two entries {entry.key!r}")
            entries[entry.key] = entry.value
        return entries

    def _number(self, entries: dict[str, str], key: str, default: int, name: str) -> int:
        text = entries.get(key)
        if text is None:
            return default
        # int() would also take signs, spaces, underscores and other scripts' digits.
        if not re.fullmatch(r"[0-9]{1,19}", text, re.ASCII):
            raise BadModelError(f"external data's {key} is {text[:40]!r}", component=self.component, node=name)
        return int(text)

    def _file(self, location: str, name: str) -> tuple[Path, int]:
        if location not in self._files:
            self._files[location] = self._locate(location, name)
        return self._files[location]

    def _locate(self, location: str, name: str) -> tuple[Path, int]:
        parts = PurePosixPath(location).parts
        plain = location and "\0" not in location and "\\" not in location and ":" not in location
        if not plain or location.startswith("/") or ".." in parts or not parts:
            raise self._outside(location, name)
        try:
            target = self.directory.joinpath(*parts).resolve(strict=True)
        except (OSError, RuntimeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "too many links"
            raise BadModelError(
                f"external data {location[:200]!r}: {reason}",
                component=self.component,
                node=name,
                hint=f"It must lie beside {self.path.name}, in {self.directory}.",
            ) from None
        if not belongs(target, self.directory):
            raise self._outside(location, name)
        try:
            with open_input(target, "external data", links=False, component=self.component) as file:
                return target, os.fstat(file.fileno()).st_size
        except BadModelError as error:
            error.node = name
            raise

    def _outside(self, location: str, name: str) -> BadModelError:
        return BadModelError(
            f"external data {location[:200]!r} lies outside the model's directory",
            component=self.component,
            node=name,
            hint="sdort only reads files beside the model; a model from an untrusted source may try to read others.",
        )

    def _bad(self, tensor: TensorProto, message: str, hint: str | None = None) -> BadModelError:
        return BadModelError(message, component=self.component, node=tensor.name, hint=hint)
