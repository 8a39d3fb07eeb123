"""Progress during a call, and what shows it: a bar by tqdm, plain lines, a function, or nothing."""

from __future__ import annotations

import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Callable, Optional, Union

_LINE_SECONDS = 10.0


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
"""What `progress=` takes: True shows a bar by tqdm on a terminal or in a notebook, and else prints plain lines on stderr; a
function is called now and then."""


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
    """A bar by tqdm."""

    def __init__(self, bar: Any, counter: _Counter) -> None:
        self._bar, self._counter = bar, counter

    def wanted(self) -> bool:
        return True

    def update(self, progress: Progress) -> None:
        self._bar.n = self._counter.done(progress)
        self._bar.set_postfix(running=progress.rows_running, left=f"{progress.tokens_left:,} tokens", refresh=False)
        self._bar.refresh()

    def close(self) -> None:
        self._bar.close()


class _Lines(Reporter):
    """Where there is no bar: a line on stderr every ten seconds, and one at the end."""

    def __init__(self, counter: _Counter) -> None:
        self._counter = counter
        self._start = time.monotonic()
        self._next = self._start + _LINE_SECONDS
        self._last: Optional[Progress] = None

    def wanted(self) -> bool:
        return True

    def update(self, progress: Progress) -> None:
        self._last = progress
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + _LINE_SECONDS
            self._print(progress)

    def close(self) -> None:
        if self._last is not None:
            self._print(self._last)

    def _print(self, progress: Progress) -> None:
        done, rows = self._counter.done(progress), self._counter.rows
        share = f"{100 * done // rows:3}%  " if rows else ""
        of = f"/{rows:,}" if rows else ""
        text = f"{share}{done:,}{of} rows  {progress.rows_running:,} running  {progress.tokens_left:,} tokens left"
        with suppress(OSError, ValueError, AttributeError):  # a closed stderr is no reason to stop
            print(f"{text}  {duration(time.monotonic() - self._start)}", file=sys.stderr, flush=True)


class _Counter:
    """The rows of one call among those of its engine. rows: 0: not known. kept: those that earlier runs have done.
    before: the engine's rows that were done before the call; None: as far as the first update tells."""

    def __init__(self, rows: int, kept: int, before: Optional[int]) -> None:
        self.rows = rows
        self._kept, self._before = kept, before

    def done(self, progress: Progress) -> int:
        """How many rows of the call are done. Rows of other calls that run now make it advance too fast."""
        if self._before is None:
            all_rows = progress.rows_waiting + progress.rows_running + progress.rows_done
            self._before = max(0, all_rows - self.rows)
        done = self._kept + max(0, progress.rows_done - self._before)
        return min(self.rows, done) if self.rows else done


def duration(seconds: float) -> str:
    """Seconds as the program writes them: 1h02m, 3m05s, 12s."""
    whole = round(seconds)
    if whole >= 3600:
        return f"{whole // 3600}h{whole // 60 % 60:02}m"
    return f"{whole // 60}m{whole % 60:02}s" if whole >= 60 else f"{whole}s"


def _bar_class() -> Any:
    """tqdm's bar, if it is installed and stderr is a terminal or a notebook shows it; else None."""
    try:
        bar = import_module("tqdm.auto").tqdm
    except ImportError:
        return None
    shown = any(kind.__name__ == "tqdm_notebook" for kind in bar.__mro__)
    try:
        return bar if shown or sys.stderr.isatty() else None
    except (AttributeError, ValueError):  # there is no stderr, or it is closed
        return None


def reporter(progress: ProgressOption, rows: int, kept: int = 0, before: Optional[int] = None) -> Reporter:
    """What `progress=` asks for. The others are as in `_Counter`."""
    if callable(progress):
        return _Function(progress)
    if not progress:
        return Reporter()
    counter = _Counter(rows, kept, before)
    bar = _bar_class()
    if bar is None:
        return _Lines(counter)
    return _Bar(bar(total=rows or None, initial=kept, unit=" rows"), counter)
