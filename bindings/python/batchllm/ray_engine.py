"""An engine in a Ray actor: blocks of rows in, blocks of answers out."""

from __future__ import annotations

import threading
from array import array
from collections import deque
from typing import Any, Deque, Iterator, Mapping, Optional, Sequence

from . import native
from .constraints import constraint_key
from .engine import Engine
from .errors import InvalidArgumentError, StateError, UnsupportedError
from .file_rows import Images
from .mistakes import mistake_of
from .params import SamplingParams
from .prefix_ranges import windows
from .progress import reporter
from .ray_rows import RayRows, arrow, identities, sort_keys
from .results import Results
from .task_rows import Task, add_scored

_SLICE_SECONDS = 0.05

_Rows = Sequence[Optional[bytes]]


class _Row:
    """A row in the engine, and the equal rows that take its answer."""

    def __init__(
        self, prompt: Optional[bytes], params: SamplingParams, continuations: Any, images: Optional[Images]
    ) -> None:
        self.what = prompt, params, continuations, images
        self.wanted: list[tuple[_Window, int]] = []


class _Window:
    """Rows of a block that are planned together."""

    def __init__(
        self,
        block: Any,
        prompts: _Rows,
        tags: Sequence[int],
        params: Sequence[SamplingParams],
        scored: Any,
        images: Optional[Sequence[Images]],
    ) -> None:
        self.block = block
        self.prompts = prompts
        self.tags = tags
        self.params = params
        self.scored = scored
        self.images = images
        self.left = len(tags)
        self.waiting: list[int] = []  # rows whose tags are taken by other rows in the engine
        self.answers: list[Any] = []  # batches
        self.places: list[tuple[int, int, int]] = []  # row, sample, number in the batches

    def row(self, at: int) -> _Row:
        scored = None if self.scored is None else self.scored[at]
        return _Row(self.prompts[at], self.params[at], scored, None if self.images is None else self.images[at])

    def take(self, batch: Any, found: Sequence[tuple[int, int, int]]) -> None:
        """Adds answers of some rows: (row, sample, number in the batch)."""
        first = sum(one.num_rows for one in self.answers)
        self.answers.append(batch.take(arrow().array([at for _, _, at in found], arrow().int64())))
        self.places += [(row, sample, first + i) for i, (row, sample, _) in enumerate(found)]
        self.left -= sum(sample == 0 for _, sample, _ in found)

    def table(self) -> Any:
        """Rows and their answers, in an order that is the same whenever they are computed."""
        pa = arrow()
        self.places.sort()
        answers = pa.Table.from_batches(self.answers).take(pa.array([at for _, _, at in self.places], pa.int64()))
        table = self.block.take(pa.array([row for row, _, _ in self.places], pa.int64()))
        for name in answers.schema.names:
            table = table.append_column(answers.schema.field(name), answers.column(name))
        return table


class RowEngine:
    """The class that Ray's actors run. Calls in several threads, one for each block, share the engine: together their
    rows fill its steps.

    A row's tag determines its random numbers, so its answer is the same wherever, and however often, it runs. The engine
    has at most one row of a tag at a time. An equal row takes its answer; a different one waits.
    """

    def __init__(
        self,
        rows: RayRows,
        model: Optional[str],
        options: Mapping[str, Any],
        task: Mapping[str, Any],
        repeated: bool,
        dropped: Sequence[str],
        limits: tuple[int, int],
        metrics: Any,
    ) -> None:
        self._rows = rows
        self._repeated = repeated
        self._dropped = list(dropped)
        self._limits = limits
        self._metrics = metrics
        # As the rows name them, so that a bad one is an error of its rows.
        self._engine = Engine(model, **{name: value for name, value in options.items() if name != "adapters"})
        self._engine._adapters.list_all(options.get("adapters"))
        self._labels = self._engine.labels
        self._lock = threading.Lock()
        self._running: dict[int, _Row] = {}
        self._processed = self._cut_off = 0
        self._refusals: dict[int, tuple[SamplingParams, Optional[str]]] = {}
        self._without_adapter: dict[str, str] = {}  # why rows with these adapters cannot run
        if (refused := self._refusal(rows.params)) is not None:
            raise InvalidArgumentError(refused.partition(": ")[2], native.BATCHLLM_ERROR_INVALID_ARGUMENT)
        self._task = Task(rows.task, **task).params(self._engine, rows.params)

    def __call__(self, block: Any) -> Iterator[Any]:
        ahead = self._windows(block)
        following: Optional[_Window] = next(ahead, None)
        if following is None:
            yield self._empty(block)
        open_windows: Deque[_Window] = deque()
        while following is not None or open_windows:
            last = len(open_windows[-1].tags) if open_windows else 0
            if following is not None and sum(one.left for one in open_windows) * 2 <= last:
                with self._lock:
                    self._start(following, range(len(following.tags)))
                open_windows.append(following)
                following = next(ahead, None)
            while open_windows and open_windows[0].left == 0:
                yield open_windows.popleft().table()
            if open_windows:
                self._turn(open_windows)

    # ---- In ----

    def _windows(self, block: Any) -> Iterator[_Window]:
        prompts = self._rows.bytes_of(block)
        images = self._rows.images_of(block)
        sorted_by = sort_keys(prompts, images)
        tags = identities(self._rows.keys_of(block), sorted_by, self._repeated)
        params = self._rows.params_of(block)
        scored = self._rows.continuations_of(block)
        order = sorted(range(len(prompts)), key=lambda i: (sorted_by[i] or b"", tags[i]))
        block = block.drop_columns(self._dropped)
        for part in windows([sorted_by[i] for i in order], *self._limits):
            rows = [order[i] for i in part]
            yield _Window(
                block.take(arrow().array(rows, arrow().int64())),
                [prompts[i] for i in rows],
                [tags[i] for i in rows],
                [params[i] for i in rows],
                None if scored is None else [scored[i] for i in rows],
                None if images is None else [images[i] for i in rows],
            )

    def _empty(self, block: Any) -> Any:
        table = block.drop_columns(self._dropped)
        for name, kind in self._rows.result_fields():
            table = table.append_column(name, arrow().array([], kind))
        return table

    def _start(self, window: _Window, rows: Sequence[int]) -> None:
        """Adds the rows whose tags are free. Under the lock."""
        window.waiting = []
        free = []
        failed: dict[str, list[int]] = {}
        named = {adapter for at in rows if (adapter := window.params[at].adapter)}
        self._engine._load_adapters(named - self._without_adapter.keys())
        for at in rows:
            row = window.row(at)
            reason = self._refusal(row.what[1])
            if reason is None and row.what[2] is None and self._rows.continuations_column is not None:
                reason = "ROW_EMPTY: no continuations"
            if reason is not None:
                failed.setdefault(reason, []).append(at)
                continue
            running = self._running.setdefault(window.tags[at], row)
            if running is row:
                free.append(at)
            elif running.what != row.what:
                window.waiting.append(at)
                continue
            running.wanted.append((window, at))
        for reason, those in failed.items():
            self._fail(window, those, reason)
        if free:
            self._add(window, free)
            refused = self._engine.poll()
            mistake = mistake_of(refused) if len(refused) >= len(free) else None
            if mistake is not None:
                raise InvalidArgumentError(mistake, native.BATCHLLM_ERROR_INVALID_ARGUMENT)
            self._deliver(refused)

    def _add(self, window: _Window, rows: Sequence[int]) -> None:
        column = self._rows.column_of([window.prompts[at] for at in rows])
        tags = array("Q", (window.tags[at] for at in rows))
        images = None if window.images is None else [window.images[at] for at in rows]
        if window.scored is not None:
            add_scored(self._engine, column, [window.scored[at] for at in rows], tags, self._rows.params, images)
        elif self._task is not None:
            self._engine.add(column, self._task, tags=tags, images=images)  # type: ignore[arg-type]
        else:
            params = [window.params[at] for at in rows]
            same = all(one is params[0] for one in params)
            self._engine.add(column, params[0] if same else params, tags=tags, images=images)

    def _refusal(self, params: SamplingParams) -> Optional[str]:
        """Why the constraint or the adapter of these parameters cannot be used, as a row's error; None if they can."""
        known = self._refusals.get(id(params))
        if known is None:
            reason = None
            try:
                key = constraint_key(params)
                if key is not None:
                    self._engine._constraints.prepare(self._engine._enter(), key)
            # A failure of the process, such as a lack of memory, is never a row's result.
            except (InvalidArgumentError, UnsupportedError, StateError, ValueError, TypeError) as error:
                reason = f"ROW_CONSTRAINT: {error}"
            if reason is None and params.adapter:
                reason = self._why_no_adapter(params.adapter)
            if len(self._refusals) >= 4096:
                self._refusals.clear()
            known = self._refusals[id(params)] = params, reason
        return known[1]

    def _why_no_adapter(self, name: str) -> Optional[str]:
        """Why rows cannot have this adapter, as their error; None: they can. One that is refused is not read again."""
        if name not in self._engine.adapters:
            return f"ROW_ADAPTER: there is no adapter {name!r}; name it in adapters="
        if name in self._without_adapter:
            return self._without_adapter[name]
        reason = self._engine._why_no_adapter(name)
        if reason is not None:
            self._without_adapter[name] = reason
        return reason

    # ---- Out ----

    def _turn(self, open_windows: Deque[_Window]) -> None:
        """Does a slice of work in any thread. Rows of any thread may finish."""
        with self._lock:
            if all(window.left == 0 for window in open_windows):
                return
            self._engine._advance(_SLICE_SECONDS, reporter(False, 0))
            results = self._engine.poll()
            self._deliver(results)
            for window in open_windows:
                if window.waiting:
                    self._start(window, window.waiting)
                elif window.left and len(results) == 0 and self._engine._idle():
                    raise StateError("rows without results: another block of this engine has failed")

    def _deliver(self, results: Results) -> None:
        if len(results) == 0:
            return
        batch = self._rows.batch(results, self._labels)
        tags, samples = results.tags.tolist(), results.samples.tolist()
        found: dict[_Window, list[tuple[int, int, int]]] = {}
        for i, (tag, sample) in enumerate(zip(tags, samples)):
            for window, at in self._running[tag].wanted:
                found.setdefault(window, []).append((at, sample, i))
        for tag in set(tags):  # the samples of a row arrive together
            del self._running[tag]
        for window, those in found.items():
            window.take(batch, those)
        self._count([i for those in found.values() for _, _, i in those], batch)

    def _fail(self, window: _Window, rows: Sequence[int], error: str) -> None:
        pa = arrow()
        values: dict[str, Any] = {"finish_reason": "error", "error": error}
        columns = []
        for name, kind in self._rows.result_fields():
            value = values.get(name[len(self._rows.prefix) :], 0 if pa.types.is_integer(kind) else None)
            columns.append(pa.array([value] * len(rows), kind))
        batch = pa.record_batch(columns, schema=pa.schema(self._rows.result_fields()))
        window.take(batch, [(at, 0, i) for i, at in enumerate(rows)])
        self._count(range(len(rows)), batch)

    def _count(self, answers: Sequence[int], batch: Any) -> None:
        if self._metrics is None:
            return
        prefix = self._rows.prefix
        errors = batch.column(prefix + "error").is_valid().to_pylist()
        prompts = batch.column(prefix + "prompt_tokens").to_pylist()
        completions = batch.column(prefix + "completion_tokens").to_pylist()
        now = self._engine.stats()
        self._metrics.add.remote(
            rows=len(answers),
            errors=sum(errors[i] for i in answers),
            prompt_tokens=sum(prompts[i] for i in answers),
            processed_prompt_tokens=now.processed_prompt_tokens - self._processed,
            cut_off_results=now.cut_off_results - self._cut_off,
            completion_tokens=sum(completions[i] or 0 for i in answers),
        )
        self._processed, self._cut_off = now.processed_prompt_tokens, now.cut_off_results
