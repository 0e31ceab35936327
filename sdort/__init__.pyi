"""The public names of sdort with their types; sdort/__init__.py imports each when it is first asked for."""

from sdort import errors as errors
from sdort.console import set_verbosity as set_verbosity
from sdort.console import to_json as to_json
from sdort.exporter.command import export as export
from sdort.optimizer.command import optimize as optimize

__version__: str
