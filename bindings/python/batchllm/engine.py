"""The engine: rows in, results out.

An engine may be used from any number of threads. Calls take turns; `cancel` and `interrupt` do not wait.
Any call that waits for results advances every row in the engine, including rows that other calls added.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
import threading
import time
import weakref
from array import array
from dataclasses import dataclass
from operator import index
from typing import Any, AsyncIterator, Callable, Iterator, Mapping, Optional, Sequence, TypeVar, Union

from . import native
from .columns import Chats, Column, Rows, Sparse, Texts, Tokens, columns
from .constraints import Constraints
from .continuations import continuation_columns
from .embeddings import embedding_array, embedding_params, label_params, share_of_first
from .errors import (
    ClosedError,
    ForkError,
    InvalidArgumentError,
    RowError,
    StateError,
    StoppedError,
    UnsupportedError,
    need_directory,
)
from .logs import Log
from .params import Params, SamplingParams, params_column
from .plan import ENLARGE, ORDER, Plan, level_count, named
from .progress import Report, reporter
from .report import Report as Page
from .results import Result, Results, refuse_pickle
from .table import Frame, Table, TableSlices, null_rows, prompts_of

# A call that finds rows of other calls in the engine numbers its own from a multiple of this.
_TAGS_OF_A_CALL = 1 << 40

# Between two slices of work Python handles signals, other threads and the progress bar.
_SLICE_SECONDS = 0.05

# How the error of a conversation begins if the model has no chat template.
_NO_TEMPLATE = "the model has no chat template"

# What the value of an engine option must be, by the type of its default.
_EXPECTED = {type(None): "a text or None", int: "a whole number that fits", float: "a number"}

_engines: weakref.WeakSet[Engine] = weakref.WeakSet()


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


@dataclass(frozen=True)
class EngineInfo:
    """The engine's effective options on one of its devices, and the sizes of the model.

    device_count: how many devices the engine has.
    backend, compute_type: for example "cpu" and "f32".
    device: for display: the processor or GPU, and which features of it are used.
    device_number: its number, as in `devices`.
    vocabulary: token ids are below this.
    hidden: size of a hidden state, and so of a full embedding.
    page_tokens: positions in a KV page.
    kv_groups: groups of layers with separate KV pages.
    reproducible: as in the engine's options.
    kv_pages, kv_page_bytes: number and size of this device's KV pages.
    step_tokens: maximum tokens of a batch.
    max_request_tokens: maximum tokens of a row, prompt plus output.
    state_slots, state_slot_bytes: number and size of this device's state slots; 0 slots for a model whose layers have no state.
    head_cost: for `Plan.build`; 0: not known.
    """

    device_count: int
    backend: str
    compute_type: str
    device: str
    device_number: int
    vocabulary: int
    hidden: int
    page_tokens: int
    kv_groups: int
    reproducible: bool
    kv_pages: int
    kv_page_bytes: int
    step_tokens: int
    max_request_tokens: int
    state_slots: int
    state_slot_bytes: int
    head_cost: float


@dataclass(frozen=True)
class EngineStats:
    """Statistics of the engine so far.

    rows, rows_done, rows_failed: rows added, rows with a result, and how many of these have an error.
    rows_deduplicated: rows that got the answer of an equal greedy row.
    logical_prompt_tokens: prompt tokens of rows that have started, counting n samples as n rows.
    processed_prompt_tokens, shared_prompt_tokens: how many of these were computed, and how many were not.
    recomputed_tokens: tokens computed again after a preemption.
    completion_tokens: tokens generated.
    steps, preemptions, groups: batches that were run; how often a row was preempted; groups of rows that share a
    prefix.
    kv_pages_total, kv_pages_peak, kv_page_bytes: KV pages of all devices, the most in use at once, and the size of one.
    saving_ratio: 1 - processed / logical.
    load_seconds, tokenize_seconds, plan_seconds, schedule_seconds, backend_seconds, run_seconds: time spent loading, in
    each part of the work, in the model (on the busiest device), and in all steps.
    state_slots_total, state_slots_peak, state_slot_bytes: the same as for KV pages, for the states that some models' layers have.
    """

    rows: int
    rows_done: int
    rows_failed: int
    rows_deduplicated: int
    logical_prompt_tokens: int
    processed_prompt_tokens: int
    shared_prompt_tokens: int
    recomputed_tokens: int
    completion_tokens: int
    steps: int
    preemptions: int
    groups: int
    kv_pages_total: int
    kv_pages_peak: int
    kv_page_bytes: int
    saving_ratio: float
    load_seconds: float
    tokenize_seconds: float
    plan_seconds: float
    schedule_seconds: float
    backend_seconds: float
    run_seconds: float
    state_slots_total: int
    state_slots_peak: int
    state_slot_bytes: int


class _Job:
    """The rows of one call, identified by a range of tags."""

    def __init__(self) -> None:
        self.first_tag = 0
        self.rows = 0
        self.added = False  # every row is in the engine
        self.over = False  # the call has ended
        self.wanted = True  # keep its results after the call has ended
        self.told = False  # it was logged that this call left rows behind


class _Mail:
    """What has arrived for a job: the number of rows so far, and the results that have not been taken yet."""

    def __init__(self, done: int = 0, parts: Sequence[native.batchllm_results] = ()) -> None:
        self.done = done
        self.parts = list(parts)

    def add(self, results: native.batchllm_results) -> None:
        self.done += native.batchllm_results_rows(results)
        self.parts.append(results)


class Engine:
    """A loaded model that runs rows.

        with batchllm.Engine("path/to/model") as engine:
            for result in engine.generate(["The capital of France is"]):
                print(result.text)

    Options that are 0 or None are chosen by the library; `info` shows the values in use.

    model: a Hugging Face directory on this machine (nothing is downloaded). None is allowed with backend="sim".
    backend: "auto" (the default: a GPU if there is one), "cpu", "cuda" or "sim", which needs no model and takes rows of
        token ids.
    devices: GPU numbers: 0, "0,1" or [0, 1]. Each device holds the whole model and runs a share of the rows.
    compute_type: "auto", "bf16", "f16" or "f32".
    backend_options: options of the backend, as a dict or as "key=value,..": docs/backends.md.
    threads: CPU threads; 0: every core that this process may use.
    kv_memory_bytes: memory for keys and values, and for the states of layers that have one, on each device; 0: set by
    kv_memory_fraction.
    kv_memory_fraction: share of the memory that is free after the model is loaded; 0: 0.9 on a GPU, 0.4 on a CPU.
    step_tokens: maximum tokens computed in a step.
    max_request_tokens: longest prompt plus output; 0: what the model states.
    max_requests: maximum rows running at once; 0: limited only by memory.
    enlarge: which prefixes are shared: "optimal", "paper" (BatchLLM's Algorithm 1) or "none".
    levels: 1: each row shares one prefix; 2: prefixes may also share their beginnings (heads); "auto": those heads that
        save more than they cost with this model.
    order: order of groups: "decode_first" (groups that generate much for their prompt length go first) or "arrival".
    min_prefix_tokens: prefixes shorter than this are not shared; 0: 16.
    reproducible: a row's results are the same bits whatever rows are computed with it, shared or not, for any
        step_tokens, memory and number of threads. On "cuda" in 16 bits this holds if the row shares the same prefixes:
        docs/reproducible.md.
    seed: mixed into each row's own seed.
    timeline: a CSV file to which a line is written for each batch: docs/scheduling.md.
    logger: where log messages go; None: `logging.getLogger("batchllm")`.
    """

    def __init__(
        self,
        model: Union[str, os.PathLike[str], None] = None,
        *,
        backend: Optional[str] = None,
        devices: Union[str, int, Sequence[int], None] = None,
        compute_type: Optional[str] = None,
        backend_options: Union[str, Mapping[str, object], None] = None,
        threads: int = 0,
        kv_memory_bytes: int = 0,
        kv_memory_fraction: float = 0.0,
        step_tokens: int = 0,
        max_request_tokens: int = 0,
        max_requests: int = 0,
        enlarge: str = "optimal",
        levels: Union[int, str] = "auto",
        order: str = "decode_first",
        min_prefix_tokens: int = 0,
        reproducible: bool = False,
        seed: int = 0,
        timeline: Union[str, os.PathLike[str], None] = None,
        logger: Optional[logging.Logger] = None,
    ) -> None:
        need_directory(model)
        options = native.batchllm_engine_options()
        given: dict[str, Any] = {
            "model_dir": model,
            "backend": backend,
            "devices": _device_list(devices),
            "compute_type": compute_type,
            "backend_options": _backend_options(backend_options),
            "threads": threads,
            "kv_memory_bytes": kv_memory_bytes,
            "kv_memory_fraction": kv_memory_fraction,
            "step_tokens": step_tokens,
            "max_request_tokens": max_request_tokens,
            "max_requests": max_requests,
            "enlarge": named("enlarge", ENLARGE, enlarge),
            "levels": level_count(levels),
            "order": named("order", ORDER, order),
            "min_prefix_tokens": min_prefix_tokens,
            "reproducible": reproducible,
            "seed": seed,
            "timeline_path": timeline,
        }
        for name, value in given.items():
            kind = type(getattr(options, name))
            try:
                setattr(options, name, index(value) if kind is int else value)
            except (TypeError, OverflowError) as fault:
                raise type(fault)(f"{name} is {value!r}: {_EXPECTED[kind]} is expected") from None
        self.model_dir: Optional[str] = None if model is None else os.fspath(model)
        self.seed = seed
        self._log = Log(options, logger or logging.getLogger("batchllm"))
        self._lock = threading.RLock()
        self._constraints = Constraints()
        self._native: Optional[native.batchllm_engine] = native.batchllm_engine_create_from(options)
        self._log.check()
        self._forked = False
        self._busy = 0  # calls of the progress function, during which close() must not free the engine
        self._stop = False
        self._next_tag = 0
        self._next_call = _TAGS_OF_A_CALL
        self._jobs: list[_Job] = []
        self._ended: list[_Job] = []  # jobs whose calls ended before their rows
        self._polled: list[native.batchllm_results] = []  # not yet sorted by job
        self._mail: dict[_Job, _Mail] = {}
        self._unclaimed: list[native.batchllm_results] = []
        self._page: Optional[Page] = None  # the report that the engine writes to during a call
        self._progress = native.batchllm_progress()
        _engines.add(self)

    # ---- Whole jobs ----

    def generate(
        self,
        rows: Rows,
        params: Params = None,
        *,
        on_error: str = "return",
        progress: Union[bool, Callable[[Progress], object]] = False,
        plan: Optional[Plan] = None,
        first_row: Optional[int] = None,
        report: bool = False,
    ) -> Results:
        """Generates text for every row. Results come in the order of the rows.

        rows: a list of str, of lists of token ids, of {"prompt": ..} or of conversations; a pandas or Polars column; an
        Arrow array; or a table with one column: docs/python.md. The result of a null row is an error.
        params: one `SamplingParams` for all rows, or a list with one for each row.
        on_error: "return": a row that fails gives a result with `error`; "raise": `RowError` is raised after the last row.
        progress: True shows a bar if tqdm is installed; a function is called now and then with a `Progress`.
        plan: a saved plan. Rows that are not in it are planned now.
        first_row: number of the first row, if these rows are part of a larger job. A row's number and the seeds
        determine its random numbers.
        report: True: `Results.report()` shows what was shared and how long everything took. It covers everything that
        the engine does during the call.

        After Ctrl-C or `interrupt` the rows stay in the engine: `poll` returns those that have finished, `run`
        continues with the others, and `cancel` ends them.
        """
        _check_on_error(on_error)
        with _Active(self, first_row) as job, _Reported(self, report) as page:
            self._add_job(job, rows, params, plan)
            self._finish(job, progress)
            results = self._results(job)
        results._report = page
        return _checked(results, on_error)

    def generate_table(
        self,
        frame: Frame,
        template: Optional[str] = None,
        params: Params = None,
        *,
        fields: str = "given",
        chat: bool = False,
        system: Optional[str] = None,
        on_error: str = "return",
        progress: Union[bool, Callable[[Progress], object]] = False,
        plan: Optional[Plan] = None,
        first_row: Optional[int] = None,
        report: bool = False,
    ) -> Results:
        """Makes a prompt from each row of a table, and generates text for it. Results come in the order of the rows.

        frame: a dict of columns, a pandas or Polars DataFrame, a pyarrow Table, a DuckDB relation, or a `Table`, which
        already has a template.
        template: the prompt. {name} stands for the row's value in the column of that name; {{ and }} write a brace.
        fields: "given" keeps the template's order. "reorder" puts each row's fields in the order that lets rows share
        most: whole lines move, so each line from the first field's to the last field's must have exactly one field.
        Answers may change with the order of fields.
        chat: the prompt becomes the user's message in the model's chat template.
        system: with chat, the system message before it.

        A row in which a value is missing gives a result with `error`. params, on_error, progress, plan, first_row and
        report are as in `generate`.
        """
        prompts = prompts_of(frame, template, fields, chat, system)
        return self.generate(
            prompts, params, on_error=on_error, progress=progress, plan=plan, first_row=first_row, report=report
        )

    def score(
        self,
        rows: Rows,
        continuations: Any,
        *,
        add_special: bool = True,
        parse_special: bool = True,
        on_error: str = "return",
        progress: Union[bool, Callable[[Progress], object]] = False,
    ) -> Results:
        """Computes the log-probability of each continuation after each row: `Result.scores`, in the order given.

        rows: as in `generate`, except conversations.
        continuations: one list for all rows, or a list with such a list for each row. A continuation is a str if rows are
        text, and a list of token ids if rows are.
        add_special: whether BOS and the like are added to the prompts, as the tokenizer says.
        parse_special: whether special tokens spelled out in the prompts are parsed as special tokens.
        on_error, progress: as in `generate`.
        """
        _check_on_error(on_error)
        special = None
        if not (add_special and parse_special):
            special = params_column(SamplingParams(add_special=add_special, parse_special=parse_special), 1)
        with _Active(self) as job:
            left = 0
            for column in columns(rows):
                if len(column) == 0:
                    continue
                n = len(column)
                for part, places in _parts(column):
                    if isinstance(part, Chats):
                        raise UnsupportedError("conversations cannot be scored: apply the chat template first")
                    with self._lock:
                        engine = self._enter()
                        tags = _picked(self._tags(job, n), places)
                        if isinstance(part, Table):
                            native.batchllm_add_table_rows(engine, part._native, tags, special)
                            continue
                        scored = continuation_columns(part, continuations, job.rows, n, places)
                        left = scored.left
                        if isinstance(part, Texts):
                            native.batchllm_add_score_text_columns(
                                engine, part.data, part.offsets, scored.items, scored.offsets, scored.rows, tags, special
                            )
                        else:
                            native.batchllm_add_score_columns(
                                engine, part.tokens, part.offsets, scored.items, scored.offsets, scored.rows, tags
                            )
                if isinstance(column, Sparse) and len(column.given) == 0:
                    left = max(0, left - n)
                job.rows += n
            if left:
                raise ValueError(f"continuations of {job.rows + left} rows for {job.rows} rows")
            job.added = True
            self._finish(job, progress)
            results = self._results(job)
        return _checked(results, on_error)

    @property
    def labels(self) -> list[str]:
        """The labels of a model with a classification head, in the order of `label_logits`; empty for other models."""
        with self._lock:
            engine = self._enter()
            return [
                native.batchllm_engine_label(engine, i) for i in range(native.batchllm_engine_label_count(engine))
            ]

    def embed(
        self,
        rows: Rows,
        *,
        pooling: Optional[str] = None,
        normalize: Optional[bool] = None,
        dimensions: int = 0,
        add_special: bool = True,
        parse_special: bool = True,
        on_error: str = "raise",
        progress: Union[bool, Callable[[Progress], object]] = False,
    ) -> Any:
        """Computes a vector for each row: a NumPy array [rows, dimensions] of float32, a view of the library's memory.

        rows, progress: as in `generate`.
        pooling: "last", "mean" or "first"; None: as in the model's modules.json, or "last" if there is no such file.
        normalize: whether vectors are scaled to length 1; None: as in modules.json, or False if there is no such file.
        dimensions: keeps only this many elements of each vector, the first ones, before it is normalised; 0: all.
        add_special, parse_special: as in `score`.
        on_error: "raise": `RowError` is raised after the last row; "return": the vector of a row that failed is NaN.
        """
        _check_on_error(on_error)
        params = embedding_params(pooling, normalize, dimensions, add_special, parse_special)
        return embedding_array(_checked(self._run_task(rows, params, progress), on_error))

    def classify(
        self,
        rows: Rows,
        *,
        add_special: bool = True,
        parse_special: bool = True,
        on_error: str = "return",
        progress: Union[bool, Callable[[Progress], object]] = False,
    ) -> Results:
        """Classifies each row with a model that has a classification head: the results' columns `label_logits` and
        `label_probabilities`, in the order of `labels`."""
        _check_on_error(on_error)
        return _checked(self._run_task(rows, label_params(add_special, parse_special), progress), on_error)

    def rerank(
        self,
        rows: Rows,
        positive: Any = "yes",
        negative: Any = "no",
        *,
        add_special: bool = True,
        parse_special: bool = True,
        on_error: str = "raise",
        progress: Union[bool, Callable[[Progress], object]] = False,
    ) -> list[float]:
        """How likely each row is to continue with `positive` rather than `negative`: from 0 to 1.

        rows: whole prompts, each with a query and a document, in the wording that the reranker was trained on.
        positive, negative: the two answers: a str if rows are text, token ids if rows are. The probability of an answer
        is that of all its tokens; a warning says if one answer has more tokens than the other.
        on_error: "raise": `RowError` is raised after the last row; "return": the value of a row that failed is NaN.
        """
        results = self.score(
            rows,
            [positive, negative],
            add_special=add_special,
            parse_special=parse_special,
            on_error=on_error,
            progress=progress,
        )
        return share_of_first(results)

    def _run_task(
        self,
        rows: Rows,
        params: native.batchllm_params_column,
        progress: Union[bool, Callable[[Progress], object]],
    ) -> Results:
        with _Active(self) as job:
            self._add_job(job, rows, params, None)
            self._finish(job, progress)
            return self._results(job)

    def stream(
        self,
        rows: Rows,
        params: Params = None,
        *,
        on_error: str = "return",
        progress: Union[bool, Callable[[Progress], object]] = False,
        plan: Optional[Plan] = None,
        interval: float = _SLICE_SECONDS,
        first_row: Optional[int] = None,
    ) -> Iterator[Result]:
        """Like `generate`, but yields each result soon after it has finished. `Result.tag` is the row's number.

        rows, params, progress, plan, first_row: as in `generate`.
        interval: seconds of work between two checks for finished rows; 0: one step.
        on_error: "return": a row that fails gives a result with `error`; "raise": the first such row raises `RowError`,
        which carries the results that arrived with it.

        Leaving the loop early, or a `RowError`, cancels the rows that have not finished.
        """
        _check_on_error(on_error)
        batches = self.stream_batches(
            rows, params, progress=progress, plan=plan, interval=interval, first_row=first_row
        )
        for results in batches:
            for result in _checked(results, on_error):
                yield result

    def stream_batches(
        self,
        rows: Rows,
        params: Params = None,
        *,
        progress: Union[bool, Callable[[Progress], object]] = False,
        plan: Optional[Plan] = None,
        interval: float = _SLICE_SECONDS,
        first_row: Optional[int] = None,
    ) -> Iterator[Results]:
        """The same in batches: each `Results` holds the rows that finished since the one before."""
        with _Active(self, first_row) as job:
            self._add_job(job, rows, params, plan)
            report = reporter(progress, job.rows)
            try:
                while True:
                    complete = self._complete(job)
                    yield from self._each(job)
                    if complete:
                        return
                    self._advance_and_collect(report, interval)
            finally:
                report.close()

    async def astream(
        self,
        rows: Rows,
        params: Params = None,
        *,
        on_error: str = "return",
        progress: Union[bool, Callable[[Progress], object]] = False,
        plan: Optional[Plan] = None,
        interval: float = _SLICE_SECONDS,
        first_row: Optional[int] = None,
    ) -> AsyncIterator[Result]:
        """`stream` for asyncio. It waits for the engine in a thread of the loop's executor, so the loop is never blocked,
        even while other calls use the engine. A progress function is called in the loop's own thread, between two
        slices of work."""
        _check_on_error(on_error)
        loop = asyncio.get_running_loop()
        call = _Active(self, first_row)
        left: Optional[type[BaseException]] = GeneratorExit
        try:
            job = await loop.run_in_executor(None, call.__enter__)
            await loop.run_in_executor(None, self._add_job, job, rows, params, plan)
            report = reporter(progress, job.rows)
            try:
                complete = False
                while not complete:
                    if progress:
                        now = await loop.run_in_executor(None, self._work, job, interval)
                        if now is not None and report.wanted():
                            report.update(now)
                        found, complete = await loop.run_in_executor(None, self._arrived, job)
                    else:  # call it directly: switching to a thread and back takes time
                        found, complete = await loop.run_in_executor(None, self._turn, job, interval)
                    for results in found:
                        for result in _checked(results, on_error):
                            yield result
            finally:
                report.close()
            left = None
        except RowError:  # `left` keeps its value: a failed row ends the loop, as in `stream`
            raise
        except BaseException as error:
            left = type(error)
            raise
        finally:
            await asyncio.shield(loop.run_in_executor(None, call.__exit__, left))

    # ---- Step by step ----

    def add(self, rows: Rows, params: Params = None, *, tags: Optional[Sequence[int]] = None) -> range:
        """Adds rows, which `run` or `step` then runs and `poll` returns. Returns their tags, which continue those of
        the rows added before (an empty range if `tags` is given).

        tags: one for each row. A tag must not be the number of a row in a call that still has rows, nor 2**40 or above
        while calls overlap."""
        job = _Job()
        with self._lock:
            self._check_tags(tags)
            job.first_tag = self._new_tags() if self._jobs else self._next_tag
            self._add_job(job, rows, params, None, tags)
        return range(job.first_tag, job.first_tag + job.rows) if tags is None else range(0)

    def build_groups(self) -> None:
        """Plans all rows that have not started. `step` and `run` do this automatically."""
        with self._lock:
            native.batchllm_build_groups(self._enter())
            self._log.check()

    def step(self) -> Progress:
        """Runs one step."""
        self._advance(0.0, reporter(False, 0))
        return self._snapshot()

    def run(self, progress: Union[bool, Callable[[Progress], object]] = False) -> Progress:
        """Steps until every row has its result. An exception of the progress function stops the run and is raised."""
        with self._lock:
            rows = self.stats().rows
        report = reporter(progress, rows)
        try:
            while True:
                self._advance(_SLICE_SECONDS, report)
                if self._idle():
                    return self._snapshot()
        finally:
            report.close()

    def poll(self, max_results: int = 0) -> Results:
        """Removes and returns up to max_results finished results (0: all) that belong to no other call, in the order in
        which they finished."""
        with self._lock:
            self._enter()
            if self._jobs or self._ended or self._unclaimed:
                self._collect()
                everything = _joined(self._unclaimed)
                some = native.batchllm_results_take(everything, 0, index(max_results))
                rest = native.batchllm_results_take(everything, some.count, 0)
                self._unclaimed = [rest] if rest.count else []
                return Results(some)
            return Results(native.batchllm_poll_results(self._enter(), index(max_results)))

    def cancel(self, *tags: int) -> None:
        """Ends the unfinished rows with these tags at the next step, with what they have generated. May be called from
        any thread at any time.

        The tags of `generate`, `stream` and `score` are row numbers if the call is the engine's only one."""
        engine = self._enter()
        for tag in tags:
            native.batchllm_cancel(engine, index(tag))
        for job in list(self._ended):
            if any(0 <= tag - job.first_tag < job.rows for tag in tags):
                job.told = True

    def cancel_all(self) -> None:
        """Ends every unfinished row at the next step, with what it has generated. From any thread, at any time."""
        native.batchllm_cancel_all(self._enter())
        for job in list(self._ended):
            job.told = True

    def interrupt(self) -> None:
        """Makes the call in progress, or else the next one, raise `StoppedError` after its current step. May be called
        from any thread and from a signal handler."""
        engine = self._enter()
        self._stop = True
        native.batchllm_interrupt(engine)

    # ---- Plans, figures ----

    def use_plan(self, plan: Plan) -> None:
        """Takes the groups of the rows added since the last planning from this plan, if the plan contains the rows."""
        if not isinstance(plan, Plan):
            raise TypeError(f"plan is one {type(plan).__name__}: a batchllm.Plan is expected")
        with self._lock:
            native.batchllm_engine_use_plan(self._enter(), plan._handle())

    def get_plan(self) -> Plan:
        """The plan of the rows that were planned last, for saving."""
        with self._lock:
            return Plan(native.batchllm_engine_take_plan(self._enter()))

    def info(self, device: int = 0) -> EngineInfo:
        """The effective options, with "auto" and 0 resolved, on one device (an index in `devices`), and the model's
        sizes."""
        info = native.batchllm_info()
        native.batchllm_engine_info(self._enter(), index(device), info)
        found = {name: getattr(info, name) for name in EngineInfo.__dataclass_fields__}
        return EngineInfo(**(found | {"reproducible": bool(info.reproducible)}))

    def stats(self) -> EngineStats:
        """Statistics so far."""
        stats = native.batchllm_stats()
        with self._lock:
            native.batchllm_engine_stats(self._enter(), stats)
        return EngineStats(**{name: getattr(stats, name) for name in EngineStats.__dataclass_fields__})

    # ---- The end ----

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._native is None

    def close(self) -> None:
        """Frees the model and its memory. A call in progress in another thread ends first, with `ClosedError`.
        Results remain valid."""
        engine = self._native
        if engine is None or self._forked:
            self._native = None
            return
        native.batchllm_interrupt(engine)  # a call in progress returns after its step
        with self._lock:
            if self._busy:
                raise StateError("close() was called from the engine's own progress function")
            self._native = None
            self._jobs.clear()
        # The last reference: the engine is destroyed here, or at the end of cancel() in another thread.
        del engine
        _engines.discard(self)

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    __reduce_ex__ = refuse_pickle

    # ---- Inside ----

    def _enter(self) -> native.batchllm_engine:
        """The handle. The reference keeps it alive while the caller is in the library."""
        engine = self._native
        if self._forked:
            raise ForkError("the engine belongs to the parent of this process: after fork() make one here")
        if engine is None:
            raise ClosedError("the engine was closed")
        return engine

    def _snapshot(self) -> Progress:
        with self._lock:
            return Progress(**{name: getattr(self._progress, name) for name in Progress.__dataclass_fields__})

    def _idle(self) -> bool:
        with self._lock:
            return self._progress.rows_waiting + self._progress.rows_running == 0

    def _advance(self, seconds: float, report: Report) -> None:
        """Does a slice of work, then calls the progress function. Raises any exception that stops the run."""
        with self._lock:
            native.batchllm_advance(self._enter(), seconds, self._progress)
            self._log.check()
            if self._stop:
                self._stop = False
                raise StoppedError("stopped by interrupt()", native.BATCHLLM_ERROR_STOPPED)
            if report.wanted():
                self._busy += 1
                try:
                    report.update(self._snapshot())
                finally:
                    self._busy -= 1

    def _advance_and_collect(self, report: Report, seconds: float) -> None:
        self._advance(seconds, report)
        with self._lock:
            self._collect()

    def _finish(self, job: _Job, progress: Union[bool, Callable[[Progress], object]]) -> None:
        """Runs until the job is complete. If it is the only one, its results stay in the library until the end."""
        report = reporter(progress, job.rows)
        try:
            while not self._complete(job):
                self._advance(_SLICE_SECONDS, report)
                with self._lock:
                    if job.first_tag > 0 or len(self._jobs) > 1 or self._idle():
                        self._collect()
        finally:
            report.close()

    def _add_job(
        self,
        job: _Job,
        rows: Rows,
        params: Union[Params, native.batchllm_params_column],
        plan: Optional[Plan],
        tags: Optional[Sequence[int]] = None,
    ) -> None:
        if plan is not None:
            self.use_plan(plan)
        ready = isinstance(params, native.batchllm_params_column)
        per_row = params is not None and not ready and not isinstance(params, SamplingParams)
        if per_row and (isinstance(params, (dict, str)) or not hasattr(params, "__getitem__")):
            raise TypeError(f"params is one {type(params).__name__}: SamplingParams, or a list of them, are expected")
        shared: Optional[native.batchllm_params_column]
        shared = params if ready else None if per_row else params_column(params, 1)  # type: ignore[assignment,arg-type]
        found: Iterator[Union[Column, Table]] = iter([rows]) if isinstance(rows, Table) else iter(rows) if isinstance(rows, TableSlices) else columns(rows)
        if tags is not None:
            everything = list(found)
            if len(tags) != (n := sum(map(len, everything))):
                raise ValueError(f"{len(tags)} tags for {n} rows")
            found = iter(everything)
        for column in found:
            n = len(column)
            if n == 0:
                continue
            first = job.rows
            some: Sequence[SamplingParams] = params[first : first + n] if per_row else ()  # type: ignore[index]
            with self._lock:
                engine = self._enter()
                if job.over:  # an `astream` that was cancelled while its rows were being added
                    return
                named_tags = self._tags(job, n) if tags is None else array("Q", tags[first : first + n])
                for part, places in _parts(column):
                    own = _picked(some, places) if per_row else ()
                    native_params = params_column(own, len(part)) if per_row else shared
                    used = self._constraints.set(engine, native_params, None if ready else own if per_row else params)
                    _add(engine, part, _picked(named_tags, places), native_params)
                    del used  # rows that were added keep alive what they need
                self._log.check()
                job.rows += n
                if not per_row:
                    self._refuse_mistake(job)
        job.added = True
        if per_row and len(params) != job.rows:  # type: ignore[arg-type]
            job.added = False
            raise ValueError(f"{len(params)} params for {job.rows} rows")  # type: ignore[arg-type]

    def _refuse_mistake(self, job: _Job) -> None:
        """Raises if every row of a call failed for a reason that is not the row's: parameters, no chat template."""
        if job not in self._jobs or job.rows == 0 or self.stats().rows_failed < job.rows:
            return
        self._collect()
        if self._mail[job].done < job.rows:
            return
        mistake = mistake_of(Results(_joined(self._mail[job].parts)))
        if mistake is not None:
            raise InvalidArgumentError(mistake, native.BATCHLLM_ERROR_INVALID_ARGUMENT)

    def _check_tags(self, tags: Optional[Sequence[int]]) -> None:
        """Rejects tags of other calls' rows: a result's tag determines which call it belongs to."""
        if tags is None:
            return
        for job in self._jobs + self._ended:
            end = job.first_tag + job.rows if job.added or job.over else job.first_tag + _TAGS_OF_A_CALL
            taken = next((tag for tag in tags if job.first_tag <= tag < end), None)
            if taken is not None:
                raise StateError(f"tags: {taken} is a row of a call that has rows left")

    def _new_tags(self) -> int:
        self._next_call += _TAGS_OF_A_CALL
        return self._next_call - _TAGS_OF_A_CALL

    def _tags(self, job: _Job, n: int) -> array[int]:
        first = job.first_tag + job.rows
        if first < _TAGS_OF_A_CALL:
            self._next_tag = max(self._next_tag, first + n)
        return array("Q", range(first, first + n))

    def _collect(self) -> None:
        """Polls finished results and hands them to the calls that they belong to. Under the lock.

        Ctrl-C may arrive at any call: results are either in `_polled` or in the mail, never in both or neither. No
        Python code runs between the poll and the list, nor between the last assignments. The garbage collector may end
        the call of an abandoned stream at any point, which moves its job from `_jobs` to `_ended`.
        """
        self._polled.extend(map(native.batchllm_poll_results, (self._enter(),), (0,)))
        jobs = [job for job in self._jobs + self._ended if job in self._mail]
        mail = {job: _Mail(self._mail[job].done, self._mail[job].parts) for job in jobs}
        unclaimed = list(self._unclaimed)
        for results in self._polled:
            for job in jobs:
                if results.count and mail[job].done < job.rows:
                    mine = native.batchllm_results_of_rows(results, job.first_tag, job.rows, 1)
                    if mine.count:
                        mail[job].add(mine)
                        results = native.batchllm_results_of_rows(results, job.first_tag, job.rows, 0)
            if results.count:
                unclaimed.append(results)
        for job in jobs:
            if job.over:
                if job.wanted:
                    unclaimed.extend(mail[job].parts)
                mail[job].parts.clear()
                if mail[job].done >= job.rows:
                    del mail[job]
        self._mail = mail
        self._unclaimed = unclaimed
        self._polled = []
        for job in [job for job in self._ended if job not in mail]:
            self._ended.remove(job)

    def _tell_rows_left(self) -> None:
        """Logs that a call also runs the rows that an interrupted call left, as it may seem to hang."""
        left = 0
        for job in self._ended:
            if job.wanted and not job.told:
                left += job.rows - self._mail[job].done
                job.told = True
        if left:
            rows = "1 row" if left == 1 else f"{left:,} rows"
            self._log.write(1, f"this call also runs {rows} left by an interrupted call; cancel_all() ends them")

    def _complete(self, job: _Job) -> bool:
        """Whether every row has its result, from this call's steps or another's. Some may still be in the mail."""
        with self._lock:
            self._enter()
            return self._mail[job].done >= job.rows

    def _work(self, job: _Job, interval: float) -> Optional[Progress]:
        """Works on a job and returns the engine's progress; None if the job is complete."""
        if self._complete(job):
            return None
        self._advance_and_collect(reporter(False, 0), interval)
        return self._snapshot()

    def _arrived(self, job: _Job) -> tuple[list[Results], bool]:
        """A job's results that have not been handed out yet, and whether they are the last."""
        complete = self._complete(job)
        return list(self._each(job)), complete

    def _turn(self, job: _Job, interval: float) -> tuple[list[Results], bool]:
        self._work(job, interval)
        return self._arrived(job)

    def _results(self, job: _Job) -> Results:
        """All results of a job as one, in the order of its rows."""
        with self._lock:
            parts = list(self._mail[job].parts)
        return Results(native.batchllm_results_of_rows(_joined(parts), 0, job.rows, 1))

    def _each(self, job: _Job) -> Iterator[Results]:
        """A job's results so far. Each is dropped once the caller is done with it."""
        while True:
            with self._lock:
                if not self._mail[job].parts:
                    return
                results = Results(self._mail[job].parts[0])
            yield results
            with self._lock:
                del self._mail[job].parts[0]


class _Active:
    """The job of a call, registered with the engine while the call lasts.

    If the engine is idle, tags are row numbers, so the same call draws the same random numbers. Otherwise they start
    above those in use.
    """

    def __init__(self, engine: Engine, first_row: Optional[int] = None) -> None:
        self._engine = engine
        if first_row is not None and not 0 <= first_row < _TAGS_OF_A_CALL:
            raise ValueError(f"first_row is {first_row}: it is from 0 to below 2**40")
        self._first_row = first_row
        self._job = _Job()

    def __enter__(self) -> _Job:
        engine = self._engine
        with engine._lock:
            if self._job.over:  # an `astream` that was cancelled while it waited to begin
                return self._job
            engine._collect()
            stats = engine.stats()
            if not engine._jobs:
                engine._tell_rows_left()
            alone = not engine._jobs and stats.rows == stats.rows_done
            if self._first_row is not None and not alone:
                raise StateError("first_row: other calls' rows are in the engine")
            self._job.first_tag = (self._first_row or 0) if alone else engine._new_tags()
            engine._mail[self._job] = _Mail()
            engine._jobs.append(self._job)
            return self._job

    def __exit__(self, kind: Optional[type[BaseException]], *_: object) -> None:
        engine, job = self._engine, self._job
        with engine._lock:
            job.over = True
            if job not in engine._jobs:
                return
            engine._jobs.remove(job)
            if kind is None or engine.closed or engine._forked:
                del engine._mail[job]
                return
            engine._ended.append(job)
            job.wanted = job.added and not issubclass(kind, (GeneratorExit, asyncio.CancelledError))
            if not job.wanted:  # the caller left a stream, or adding the rows failed
                native.batchllm_cancel_rows(engine._enter(), job.first_tag, job.rows)


class _Reported:
    """A report that the engine writes to during a call; None if none was asked for."""

    def __init__(self, engine: Engine, wanted: bool) -> None:
        self._engine = engine
        self._page = Page() if wanted else None

    def __enter__(self) -> Optional[Page]:
        engine = self._engine
        if self._page is not None:
            with engine._lock:
                if engine._page is not None:
                    raise StateError("report: another call's is being written")
                native.batchllm_engine_set_report(engine._enter(), self._page._native)
                engine._page = self._page
            self._start = time.monotonic()
        return self._page

    def __exit__(self, *_: object) -> None:
        engine = self._engine
        if self._page is None:
            return
        self._page.seconds = time.monotonic() - self._start
        with engine._lock:
            engine._page = None
            if not engine.closed and not engine._forked:
                native.batchllm_engine_set_report(engine._enter(), None)


def _joined(parts: Sequence[native.batchllm_results]) -> native.batchllm_results:
    """Joins parts of results in their order."""
    parts = list(parts) or [native.batchllm_results_none()]
    while len(parts) > 1:
        pairs = [native.batchllm_results_join(a, b) for a, b in zip(parts[::2], parts[1::2])]
        parts = pairs + parts[len(pairs) * 2 :]
    return parts[0]


_Part = Union[Texts, Tokens, Chats, Table]
_Items = TypeVar("_Items", bound=Sequence[Any])


def _parts(column: Union[Column, Table]) -> Iterator[tuple[_Part, Optional[Sequence[int]]]]:
    """The parts of a column that are added in one call each, with the numbers of their rows; None: all rows."""
    if not isinstance(column, Sparse):
        yield column, None
        return
    if len(column.given):
        yield column.given, column.places()
    yield null_rows(len(column.nulls)), column.nulls


def _picked(items: _Items, places: Optional[Sequence[int]]) -> _Items:
    if places is None:
        return items
    found = [items[i] for i in places]
    return array(items.typecode, found) if isinstance(items, array) else found  # type: ignore[return-value]


def _add(
    engine: native.batchllm_engine,
    column: _Part,
    tags: array[int],
    params: Optional[native.batchllm_params_column],
) -> None:
    if isinstance(column, Table):
        native.batchllm_add_table_rows(engine, column._native, tags, params)
    elif isinstance(column, Texts):
        native.batchllm_add_text_column(engine, column.data, column.offsets, tags, params)
    elif isinstance(column, Tokens):
        native.batchllm_add_token_column(engine, column.tokens, column.offsets, tags, params)
    else:
        native.batchllm_add_chat_column(engine, column.data, column.offsets, tags, params)


def mistake_of(results: Results) -> Optional[str]:
    """The reason why no row of a job can run, if the results of all its rows give the same one; else None."""
    if len(results) == 0 or results.statuses[0] == native.BATCHLLM_OK:
        return None
    first = results.error_text(0)
    no_template = first.startswith(_NO_TEMPLATE)
    shared = results.statuses[0] == native.BATCHLLM_ERROR_ROW_INVALID_PARAMETER or no_template
    if not shared or any(results.error_text(i) != first for i in range(1, len(results))):
        return None
    return f"no row can run: {first}" + ("; pass the prompts as text, as the model was trained on them" if no_template else "")


def _checked(results: Results, on_error: str) -> Results:
    if on_error == "raise" and (failed := results.failed):
        first = results[failed[0]]
        raise RowError(f"row {first.tag}: {first.error}", first.status, first.tag, results)
    return results


def _check_on_error(on_error: str) -> None:
    if on_error not in ("return", "raise"):
        raise ValueError(f"on_error is {on_error!r}: it is 'return' or 'raise'")


def _device_list(devices: Union[str, int, Sequence[int], None]) -> Optional[str]:
    if devices is None or isinstance(devices, str):
        return devices
    return str(devices) if isinstance(devices, int) else ",".join(map(str, devices))


def _backend_options(options: Union[str, Mapping[str, object], None]) -> Optional[str]:
    if options is None or isinstance(options, str):
        return options
    return ",".join(f"{key}={int(value) if isinstance(value, bool) else value}" for key, value in options.items())


def _after_fork() -> None:
    """The child process does not have the threads that an engine needs, and must not free its copy of the handle."""
    for engine in list(_engines):
        handle = engine._native
        if handle is not None:
            handle.thisown = False
        engine._forked = True
        engine._lock = threading.RLock()


@atexit.register
def _at_exit() -> None:
    """No engine outlives the interpreter that its log messages go to."""
    try:
        for engine in list(_engines):
            if not engine._busy:
                engine.close()
    finally:
        native.batchllm_end_log()


os.register_at_fork(after_in_child=_after_fork)
