"""Progress during a call, and what shows it: a bar by tqdm, a function, or nothing."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Callable, Union


@dataclass(frozen=True)
class Progress:
    """The engine's progress.

    rows_waiting, rows_running, rows_done: rows by state. Finished rows count as done even before they are polled.
    decode_tokens, own_tokens, prefix_tokens: tokens of the last step: generated, prompt tokens of a single row, prompt
    tokens that rows share.
    pages_used, pages_total: KV pages of all devices.
    tokens_left: prompt tokens still to compute plus the maximum tokens still to generate.
    tokens_done: prompt tokens computed plus tokens generated so far.
    seconds: since the first step.
    """

    rows_waiting: int
    rows_running: int
    rows_done: int
    decode_tokens: int
    own_tokens: int
    prefix_tokens: int
    pages_used: int
    pages_total: int
    tokens_left: int
    tokens_done: int
    seconds: float

    @property
    def idle(self) -> bool:
        """Whether nothing is left to do."""
        return self.rows_waiting + self.rows_running == 0


ProgressOption = Union[bool, Callable[[Progress], object]]
"""What `progress=` takes: True shows a bar if tqdm is installed; a function is called now and then."""


class Reporter:
    """Reports nothing."""

    def wanted(self) -> bool:
        """Whether an update is due."""
        return False

    def update(self, progress: Progress) -> None:
        """Reports the engine's progress."""

    def close(self) -> None:
        """Ends the display when the call ends."""


class _Function(Reporter):
    def __init__(self, function: Callable[[Progress], object]) -> None:
        self._function = function

    def wanted(self) -> bool:
        return True

    def update(self, progress: Progress) -> None:
        self._function(progress)


class _Bar(Reporter):
    def __init__(self, bar: Any, rows: int) -> None:
        self._bar = bar
        self._rows = rows
        self._start = -1

    def wanted(self) -> bool:
        return True

    def update(self, progress: Progress) -> None:
        # Rows of earlier calls are done already; rows of other calls that run now make the bar advance too fast.
        if self._start < 0:
            all_rows = progress.rows_waiting + progress.rows_running + progress.rows_done
            self._start = max(0, all_rows - self._rows)
        self._bar.n = min(self._rows, max(0, progress.rows_done - self._start))
        self._bar.set_postfix(running=progress.rows_running, left=f"{progress.tokens_left:,} tokens", refresh=False)
        self._bar.refresh()

    def close(self) -> None:
        self._bar.close()


class _Lines(Reporter):
    """Without tqdm: a line of `logging` every five seconds."""

    def __init__(self) -> None:
        self._next = time.monotonic() + 5

    def wanted(self) -> bool:
        return time.monotonic() >= self._next

    def update(self, progress: Progress) -> None:
        self._next = time.monotonic() + 5
        logging.getLogger("batchllm").info(
            "%d rows done, %d running, %d waiting", progress.rows_done, progress.rows_running, progress.rows_waiting
        )


def reporter(progress: ProgressOption, rows: int) -> Reporter:
    """What `progress=` asks for."""
    if callable(progress):
        return _Function(progress)
    if not progress:
        return Reporter()
    try:
        bar = import_module("tqdm.auto").tqdm
    except ImportError:
        return _Lines()
    return _Bar(bar(total=rows, unit=" rows"), rows)
