"""Passes the library's log lines on to `logging`."""

from __future__ import annotations

import itertools
import logging
import weakref
from typing import Optional

from . import native

_LEVELS = {0: logging.ERROR, 1: logging.WARNING, 2: logging.INFO, 3: logging.DEBUG}
_numbers = itertools.count(1)
_logs: weakref.WeakValueDictionary[int, Log] = weakref.WeakValueDictionary()


class Log:
    """The log of one engine. An exception of a handler is kept until the engine's next call."""

    def __init__(self, options: native.batchllm_engine_options, logger: logging.Logger) -> None:
        self._logger = logger
        self._error: Optional[BaseException] = None
        number = next(_numbers)
        _logs[number] = self
        options.log_level = max(
            (level for level, python_level in _LEVELS.items() if logger.isEnabledFor(python_level)), default=0
        )
        native.batchllm_set_log(options, number)

    def write(self, level: int, message: str) -> None:
        try:
            self._logger.log(_LEVELS.get(level, logging.DEBUG), "%s", message)
        except BaseException as error:
            self._error = error

    def check(self) -> None:
        """Raises the exception that a handler has raised, if any."""
        error, self._error = self._error, None
        if error is not None:
            raise error


def _on_log(number: int, level: int, message: str) -> None:
    log = _logs.get(number)
    if log is not None:
        log.write(level, message)


native.batchllm_on_log(_on_log)
