"""batchllm: runs a language model over a whole data set at once.

    import batchllm

    with batchllm.Engine("path/to/model") as engine:
        results = engine.generate(["The capital of France is", "The capital of Peru is"])
        print(results.texts)

Pass all rows at once: what rows share is computed once. See docs/python.md.
"""

from importlib import import_module as _import_module
from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

from .columns import Texts, Tokens
from .demo import demo_model
from .engine import Engine
from .errors import (
    BackendUnavailableError,
    ClosedError,
    DeniedFileError,
    DeviceError,
    Error,
    FileError,
    ForkError,
    FormatError,
    InternalError,
    InvalidArgumentError,
    JournalExistsError,
    JournalFormatError,
    JournalMismatchError,
    MissingFileError,
    ModelFormatError,
    OutOfMemoryError,
    PlanFormatError,
    PlanMismatchError,
    StateError,
    StoppedError,
    TokenizerFormatError,
    UnsupportedError,
)
from .figures import EngineInfo, EngineStats
from .files import FilesReport, run_files
from .jars import spark_jars
from .journal import Journal
from .native import batchllm_version as _version
from .params import SamplingParams
from .plan import Group, Groups, Plan, PlanStats
from .predictions import Prediction
from .progress import Progress
from .report import Report
from .results import Result, Results, RowError
from .table import Table
from .tokenizer import Decoded, Encoded, Tokenizer

if _TYPE_CHECKING:
    from . import ray as ray
    from . import spark as spark

__version__ = ".".join(str(_version() >> shift & 255) for shift in (16, 8, 0))

__all__ = [
    "BackendUnavailableError",
    "ClosedError",
    "Decoded",
    "DeniedFileError",
    "DeviceError",
    "Encoded",
    "Engine",
    "EngineInfo",
    "EngineStats",
    "Error",
    "FileError",
    "FilesReport",
    "ForkError",
    "FormatError",
    "Group",
    "Groups",
    "InternalError",
    "InvalidArgumentError",
    "Journal",
    "JournalExistsError",
    "JournalFormatError",
    "JournalMismatchError",
    "MissingFileError",
    "ModelFormatError",
    "OutOfMemoryError",
    "Plan",
    "PlanFormatError",
    "PlanMismatchError",
    "PlanStats",
    "Prediction",
    "Progress",
    "Report",
    "Result",
    "Results",
    "RowError",
    "SamplingParams",
    "StateError",
    "StoppedError",
    "Table",
    "Texts",
    "TokenizerFormatError",
    "Tokenizer",
    "Tokens",
    "UnsupportedError",
    "__version__",
    "demo_model",
    "run_files",
    "spark_jars",
]


def __getattr__(name: str) -> _Any:
    """`batchllm.spark` and `batchllm.ray`, which are imported when they are used."""
    if name in ("ray", "spark"):
        return _import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
