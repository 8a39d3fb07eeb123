"""Progress during a call: a bar by tqdm, a function, or nothing."""

from __future__ import annotations

import logging
import time
from importlib import import_module
from typing import TYPE_CHECKING, Any, Callable, Union

if TYPE_CHECKING:
    from .engine import Progress


class Report:
    """Reports nothing."""

    def wanted(self) -> bool:
        """Whether an update is due."""
        return False

    def update(self, progress: Progress) -> None:
        """Reports the engine's progress."""

    def close(self) -> None:
        """Ends the display when the call ends."""


class _Function(Report):
    def __init__(self, function: Callable[[Progress], object]) -> None:
        self._function = function

    def wanted(self) -> bool:
        return True

    def update(self, progress: Progress) -> None:
        self._function(progress)


class _Bar(Report):
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


class _Lines(Report):
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


def reporter(progress: Union[bool, Callable[[Progress], object]], rows: int) -> Report:
    """What `progress=` asks for."""
    if callable(progress):
        return _Function(progress)
    if not progress:
        return Report()
    try:
        bar = import_module("tqdm.auto").tqdm
    except ImportError:
        return _Lines()
    return _Bar(bar(total=rows, unit=" rows"), rows)
