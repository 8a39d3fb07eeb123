"""Exceptions by kind, one for each status number of the library.

A failed call raises. A failed row is data (`Result.status`, `Result.error`), unless a
method was told `on_error="raise"`.
"""

from __future__ import annotations

import errno
import os
import re
from functools import lru_cache
from typing import NoReturn, Sequence, Type

from . import native


class Error(Exception):
    """Any failure that the library reports. `status` is its number in batchllm.h."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (str(self), self.status)


class InvalidArgumentError(Error, ValueError):
    """An argument is not valid; the message names it."""


class OutOfMemoryError(Error, MemoryError):
    """Host or device memory ran out."""


class FileError(Error, OSError):
    """A file could not be read or written. `errno`, `strerror` and `filename` are those of the system call that failed,
    or None if no system call failed (for example, if the path is a directory)."""

    errno: int | None
    strerror: str | None
    filename: str | None

    def __init__(self, message: str, status: int = 0) -> None:
        Error.__init__(self, message, status)
        self.errno, self.strerror, self.filename = _system_error(message)

    def __reduce__(self) -> tuple[object, ...]:
        return *Error.__reduce__(self), {"errno": self.errno, "strerror": self.strerror, "filename": self.filename}

    def __str__(self) -> str:
        # Not OSError's, which builds a text from the three and drops the library's message.
        return str(self.args[0])


class MissingFileError(FileError, FileNotFoundError):
    """The file does not exist, or the folder to write it to does not."""


class DeniedFileError(FileError, PermissionError):
    """No permission to read or write the file."""


class StoppedError(Error):
    """`Engine.interrupt` stopped the call. Finished rows can be polled; `run` continues."""


class InternalError(Error):
    """A bug in the library: please report it."""


class UnsupportedError(Error, NotImplementedError):
    """Well-formed, but not supported; the message says what."""


class StateError(Error, RuntimeError):
    """The call is not valid in the object's current state."""


class ClosedError(StateError):
    """The object was closed."""


class ForkError(StateError):
    """The engine belongs to the process from which this one was forked."""


class FormatError(Error, ValueError):
    """A file is invalid; the message names the file and the key."""


class ModelFormatError(FormatError):
    """config.json, generation_config.json or a safetensors file is invalid."""


class TokenizerFormatError(FormatError):
    """tokenizer.json or tokenizer_config.json is invalid."""


class PlanFormatError(FormatError):
    """The file is not a plan, is damaged, or has a newer format."""


class PlanMismatchError(Error, ValueError):
    """The plan was made with another tokenizer."""


class JournalFormatError(FormatError):
    """What resuming needs is damaged, was edited, or is missing."""


class JournalMismatchError(InvalidArgumentError):
    """The journal is another job's; the message names the difference."""


class JournalExistsError(InvalidArgumentError):
    """There is an output already, which is to be neither resumed nor replaced."""


class AdapterFormatError(FormatError):
    """An adapter's files are damaged, or do not fit the model."""


class BackendUnavailableError(Error, RuntimeError):
    """The backend is not available on this machine: no driver, or no device."""


class DeviceError(Error, RuntimeError):
    """The device failed. The engine stays failed; finished rows can still be polled."""


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
    24: JournalFormatError,
    25: JournalMismatchError,
    26: JournalExistsError,
    27: AdapterFormatError,
    40: BackendUnavailableError,
    41: DeviceError,
}


_FILE_KINDS: dict[int | None, Type[FileError]] = {
    errno.ENOENT: MissingFileError,
    errno.EACCES: DeniedFileError,
    errno.EPERM: DeniedFileError,
}


def error_for(status: int, message: str) -> Error:
    """The exception for a status number."""
    kind = _KINDS.get(status, Error)
    if kind is FileError:
        kind = _FILE_KINDS.get(_system_error(message)[0], FileError)
    return kind(message, status)


def file_error(number: int, path: str, before: str, after: str = "") -> FileError:
    """The exception for an errno and a path, with words before and after what the system says."""
    made = _FILE_KINDS.get(number, FileError)(f"{before}: {os.strerror(number)}{after}", native.BATCHLLM_ERROR_IO)
    made.errno, made.strerror, made.filename = number, os.strerror(number), path
    return made


def _system_error(message: str) -> tuple[int | None, str | None, str | None]:
    """errno, strerror and path of a text "path: cannot open: No such file or directory".

    The library does not pass the number. If a system call failed, the text has this form, with a reason from strerror()
    in this process. Other texts have no number.
    """
    found = re.fullmatch(r"(.+): cannot [a-z ]+: (.+?)(?:\n.*)?", message, re.DOTALL)
    if found is None:
        return None, None, None
    path, reason = found.groups()
    number = next((number for number in errno.errorcode if os.strerror(number) == reason), None)
    if number is None:
        return None, None, None
    return number, reason, None if "\ufffd" in path else path  # a name that is not UTF-8 is not in the text


def need_directory(model: object) -> None:
    """Raises for a Hugging Face Hub name instead of a directory."""
    if not isinstance(model, str) or os.path.exists(model):
        return
    if re.fullmatch(r"[\w-][\w.-]*/[\w-][\w.-]*", model) and not os.path.exists(model.split("/")[0]):
        raise MissingFileError(
            f"{model}: cannot open: {os.strerror(errno.ENOENT)}\nThis is no directory here. If it is a name on the Hugging"
            f" Face Hub: nothing is downloaded by this library; get it by `hf download {model} --local-dir FOLDER`, and"
            " give FOLDER.",
            3,
        )


@lru_cache(maxsize=None)
def status_name(status: int) -> str:
    """ "IO" for BATCHLLM_ERROR_IO, "ROW_NULL", and so on: as the program's rows and Spark's columns have them."""
    return native.batchllm_status_name(status).removeprefix("BATCHLLM_ERROR_")


def no_column(name: str, columns: Sequence[str], where: str = "the table") -> InvalidArgumentError:
    """The error for a template's field that is no column."""
    field, mark, _ = name.partition(":" if ":" in name else "!")
    hint = f"; it has {', '.join(map(repr, columns))}"
    if mark and field in columns:
        hint = f"; {{{field}{name[len(field):]}}} asks for a format, which templates do not have: format the column {field!r} first"
    return InvalidArgumentError(f"template: {where} has no column {name!r}{hint}", native.BATCHLLM_ERROR_INVALID_ARGUMENT)


def check_existing(resume: bool, force: bool) -> None:
    """What a job does about its output: to continue it and to start over exclude each other."""
    if resume and force:
        raise ValueError("resume and force exclude each other: resume continues the job, force drops its results and starts over")


def refuse_pickle(self: object, protocol: object = None) -> NoReturn:
    """Objects that refer to the library's memory cannot be sent to another process."""
    raise TypeError(
        f"{type(self).__module__}.{type(self).__name__} holds memory of the native library and cannot be pickled; "
        + ("results.to_pylist() can" if hasattr(self, "finish_reasons") or hasattr(self, "finish_reason") else "make one in each process")
    )
