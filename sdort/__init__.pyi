"""The public names of sdort with their types; sdort/__init__.py imports each when it is first asked for."""

from sdort import errors as errors
from sdort.benchmark.ablation import Ablation as Ablation
from sdort.benchmark.command import bench as bench
from sdort.benchmark.measure import Measurement as Measurement
from sdort.console import set_verbosity as set_verbosity
from sdort.console import to_json as to_json
from sdort.doctor.caches import clean_cache as clean_cache
from sdort.doctor.caches import list_cache as list_cache
from sdort.doctor.command import diagnose as diagnose
from sdort.doctor.diagnosis import Diagnosis as Diagnosis
from sdort.exporter.command import export as export
from sdort.exporter.command import plan_export as plan_export
from sdort.exporter.manifest import ExportReport as ExportReport
from sdort.generation.command import Pipeline as Pipeline
from sdort.generation.command import load as load
from sdort.generation.command import run as run
from sdort.generation.result import Generation as Generation
from sdort.generation.result import Image as Image
from sdort.generation.typed_options import GenerationOptions as GenerationOptions
from sdort.inspection.command import compare as compare
from sdort.inspection.command import inspect as inspect
from sdort.inspection.command import placement as placement
from sdort.machine.version import __version__ as __version__
from sdort.ops.command import build_ops as build_ops
from sdort.ops.command import list_ops as list_ops
from sdort.ops.command import tuned_ops as tuned_ops
from sdort.optimizer.command import optimize as optimize
from sdort.optimizer.command import plan_optimize as plan_optimize
from sdort.optimizer.fusion_list import FusionList as FusionList
from sdort.optimizer.fusion_list import list_fusions as list_fusions
from sdort.optimizer.report import OptimizeReport as OptimizeReport
from sdort.pipelines.folder_signature import verify_signature as verify_signature
from sdort.tuning.command import export_tuning as export_tuning
from sdort.tuning.command import import_tuning as import_tuning
from sdort.tuning.command import list_tuning as list_tuning
from sdort.tuning.command import prune_tuning as prune_tuning
from sdort.tuning.command import verify_tuning as verify_tuning
from sdort.verification.command import verify as verify
from sdort.verification.outcome import Verification as Verification
from sdort.verification.report.json_report import report_of as report_of
from sdort.warmup.command import plan_warm as plan_warm
from sdort.warmup.command import warm as warm
from sdort.warmup.tune_ops import tune_ops as tune_ops
from sdort.warmup.warm_report import Warmup as Warmup

__all__: list[str]
