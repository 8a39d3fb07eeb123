"""Exceptions by kind, one for each status number of the library.

What fails a call is raised. What fails a row is data (`Result.status`, `Result.error`), unless a
method was told `on_error="raise"`.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Type

from . import native

if TYPE_CHECKING:
    from .results import Results


class Error(Exception):
    """Any failure that the library reports. `status` is its number in batchllm.h."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (str(self), self.status)


class InvalidArgumentError(Error, ValueError):
    """An argument that cannot be used; the text names it."""


class OutOfMemoryError(Error, MemoryError):
    """Host or device memory did not suffice."""


class FileError(Error, OSError):
    """A file could not be read or written."""

    def __init__(self, message: str, status: int = 0) -> None:
        Error.__init__(self, message, status)


class StoppedError(Error):
    """`Engine.interrupt` stopped the call. What had finished can be polled; `run` goes on."""


class InternalError(Error):
    """A fault of the library: please report it."""


class UnsupportedError(Error, NotImplementedError):
    """Well-formed, but this version cannot do it; the text names what."""


class StateError(Error, RuntimeError):
    """The call does not fit the object's state."""


class ClosedError(StateError):
    """The object was closed."""


class ForkError(StateError):
    """The engine belongs to the process from which this one was forked."""


class FormatError(Error, ValueError):
    """A file is not what it should be; the text names file and key."""


class ModelFormatError(FormatError):
    """config.json, generation_config.json or safetensors."""


class TokenizerFormatError(FormatError):
    """tokenizer.json or tokenizer_config.json."""


class PlanFormatError(FormatError):
    """Not a plan file, damaged, or of a newer format."""


class PlanMismatchError(Error, ValueError):
    """A plan of another tokenizer."""


class BackendUnavailableError(Error, RuntimeError):
    """No such backend here: no driver, no device."""


class DeviceError(Error, RuntimeError):
    """The device failed. The engine stays failed; finished rows can still be polled."""


class RowError(Error):
    """A row failed and the call was told to raise. `results` holds all rows, `row` the first that failed."""

    def __init__(self, message: str, status: int = 0, row: int = 0, results: Results | None = None) -> None:
        super().__init__(message, status)
        self.row = row
        self.results = results

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (str(self), self.status, self.row)


_KINDS: dict[int, Type[Error]] = {
    1: InvalidArgumentError,
    2: OutOfMemoryError,
    3: FileError,
    4: StoppedError,
    5: InternalError,
    6: UnsupportedError,
    7: StateError,
    20: ModelFormatError,
    21: TokenizerFormatError,
    22: PlanFormatError,
    23: PlanMismatchError,
    40: BackendUnavailableError,
    41: DeviceError,
}


def error_for(status: int, message: str) -> Error:
    """The exception for a status number."""
    return _KINDS.get(status, Error)(message, status)


@lru_cache(maxsize=None)
def status_name(status: int) -> str:
    """ "BATCHLLM_ERROR_IO" for 3, and so on."""
    return native.batchllm_status_name(status)
