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
from operator import index
from typing import Any, AsyncIterator, Iterable, Iterator, Literal, Mapping, Optional, Sequence, Union

from . import native
from .adapters import Adapters, Directory, directories_of
from .calls import Call, Calls, TAGS_OF_A_CALL
from .columns import Column, Rows, Sparse, Texts, columns, conversations_with
from .constraints import Constraints
from .continuations import add_scored_part, continuation_columns
from .embeddings import Pooling, embedding_array, embedding_params, label_params, share_of_first, warn_of_other_words
from .engine_options import native_options
from .errors import ClosedError, ForkError, InvalidArgumentError, StateError, StoppedError, refuse_pickle
from .figures import EngineInfo, EngineStats
from .logs import Log
from .mistakes import mistake_of
from .options import hinted
from .output_paths import check_outputs
from .params import Params, SamplingParams, asked_columns, params_column
from .parsed import parser_of
from .pictures import Images, folder_list, images_list, images_of, open_pictures, picture_column, picture_counts
from .plan import Enlarge, Levels, Plan
from .progress import Progress, ProgressOption, Reporter, reporter
from .report import Report
from .results import Result, Results, RowError
from .row_parts import Nulls, add_part, parts_of, picked
from .table import Fields, Frame, Table, TableSlices, index_of, prompts_of

OnError = Literal["return", "raise"]
"""What a call does about rows that fail."""

# Between two slices of work Python handles signals, other threads and the progress bar.
_SLICE_SECONDS = 0.05

_engines: weakref.WeakSet[Engine] = weakref.WeakSet()


class Engine:
    """A loaded model that runs rows.

        with batchllm.Engine("path/to/model") as engine:
            for result in engine.generate(["The capital of France is"]):
                print(result.text)

    Options that are 0 or None are chosen by the library; `info` shows the values in use.

    model: a Hugging Face directory on this machine (nothing is downloaded). None is allowed with backend="sim".
    backend: "auto" (the default: a GPU if there is one), "cpu", "cuda" or "sim", which needs no model and takes rows of
        token ids.
    devices: GPU numbers: 0, "0,1" or [0, 1]. Each device holds the whole model and runs a share of the rows. With
        backend_options="tensor_parallel=2" every two devices hold it together; with "tensor_parallel=auto" as few as
        leave room for keys and values.
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
    min_prefix_tokens: prefixes shorter than this are not shared; 0: 16.
    reproducible: a row's results are the same bits whatever rows are computed with it, shared or not, for any
        step_tokens, memory and number of threads. On "cuda" in 16 bits this holds if the row shares the same prefixes:
        docs/reproducible.md.
    seed: mixed into each row's own seed.
    timeline: a CSV file to which a line is written for each batch: docs/scheduling.md.
    logger: where log messages go; None: `logging.getLogger("batchllm")`.
    adapters: LoRAs that rows may name, by name: directories as PEFT writes them (docs/adapters.md). Or one directory, each
    of whose directories is an adapter that is loaded when a row first names it.
    adapter_memory_bytes: maximum memory for the adapters of running rows, on each device; 0: at most 2 GiB.
    image_folders: rows may name pictures in these folders and below them (docs/pictures.md).
    """

    @hinted
    def __init__(
        self,
        model: Union[str, os.PathLike[str], None] = None,
        *,
        backend: Optional[Literal["auto", "cpu", "cuda", "sim"]] = None,
        devices: Union[str, int, Sequence[int], None] = None,
        compute_type: Optional[Literal["auto", "bf16", "f16", "f32"]] = None,
        backend_options: Union[str, Mapping[str, object], None] = None,
        threads: int = 0,
        kv_memory_bytes: int = 0,
        kv_memory_fraction: float = 0.0,
        step_tokens: int = 0,
        max_request_tokens: int = 0,
        max_requests: int = 0,
        enlarge: Enlarge = "optimal",
        levels: Levels = "auto",
        min_prefix_tokens: int = 0,
        reproducible: bool = False,
        seed: int = 0,
        timeline: Union[str, os.PathLike[str], None] = None,
        logger: Optional[logging.Logger] = None,
        adapters: Union[Mapping[str, Directory], Directory, None] = None,
        adapter_memory_bytes: int = 0,
        image_folders: Sequence[Union[str, os.PathLike[str]]] = (),
    ) -> None:
        options = native_options(
            model_dir=model,
            backend=backend,
            devices=devices,
            compute_type=compute_type,
            backend_options=backend_options,
            threads=threads,
            kv_memory_bytes=kv_memory_bytes,
            kv_memory_fraction=kv_memory_fraction,
            step_tokens=step_tokens,
            max_request_tokens=max_request_tokens,
            max_requests=max_requests,
            enlarge=enlarge,
            levels=levels,
            min_prefix_tokens=min_prefix_tokens,
            reproducible=reproducible,
            seed=seed,
            timeline_path=timeline,
            adapter_memory_bytes=adapter_memory_bytes,
        )
        self.model_dir: Optional[str] = None if model is None else os.fspath(model)
        self.seed = seed
        self._timeline: Optional[str] = None if timeline is None else os.fspath(timeline)
        if timeline is not None:
            check_outputs({"timeline": timeline}, {}, model, directories_of(adapters))
        self._log = Log(options, logger or logging.getLogger("batchllm"))
        self._lock = threading.RLock()
        self._constraints = Constraints()
        self._adapters = Adapters(threads)
        self._image_folders = folder_list(image_folders)
        self._pictures = open_pictures(model, self._image_folders) if model is not None and image_folders else None
        native.batchllm_options_set_pictures(options, self._pictures)
        self._native: Optional[native.batchllm_engine] = native.batchllm_engine_create_from(options)
        self._adapters.open(self._native, adapters)
        self._log.check()
        self._forked = False
        self._busy = 0  # calls of the progress function, during which close() must not free the engine
        self._stop = False
        self._calls = Calls()
        self._report: Optional[Report] = None  # the report that the engine writes to during a call
        self._progress = native.batchllm_progress()
        _engines.add(self)

    # ---- Whole jobs ----

    @hinted
    def generate(
        self,
        rows: Rows,
        params: Params = None,
        *,
        on_error: OnError = "return",
        progress: ProgressOption = False,
        plan: Optional[Plan] = None,
        first_row: Optional[int] = None,
        report: bool = False,
        images: Optional[Images] = None,
    ) -> Results:
        """Generates text for every row. Results come in the order of the rows.

        rows: a list of str, of lists of token ids, of {"prompt": ..} or of conversations; a pandas or Polars column; an
        Arrow array; or a table with one column: docs/python.md. The result of a null row is an error.
        params: one `SamplingParams` for all rows, or a list with one for each row. An adapter that is unknown or cannot be
        loaded raises, with the number of the first such row, before any row is added.
        on_error: "return": a row that fails gives a result with `error`; "raise": `RowError` is raised after the last row.
        progress: True shows a bar if tqdm is installed and stderr is a terminal or a notebook's, and else prints a line
        on stderr every ten seconds; a function is called now and then with a `Progress`.
        plan: a saved plan. Rows that are not in it are planned now.
        first_row: number of the first row, if these rows are part of a larger job. A row's number and the seeds
        determine its random numbers.
        report: True: `Results.report()` shows what was shared and how long everything took. It covers everything that
        the engine does during the call.
        images: the pictures of each row: a list, or a column, with a picture, a list of pictures or None for each. A
        picture is the bytes of a file, a path below `image_folders`, an image of PIL, or an array of uint8:
        docs/pictures.md.

        After Ctrl-C or `interrupt` the rows stay in the engine: `poll` returns those that have finished, `run`
        continues with the others, and `cancel` ends them.
        """
        return self._generate(
            rows, params, on_error=on_error, progress=progress, plan=plan, first_row=first_row, report=report, images=images
        )

    @hinted
    def generate_table(
        self,
        frame: Union[Frame, Table],
        template: Optional[str] = None,
        params: Params = None,
        *,
        fields: Fields = "given",
        chat: bool = False,
        system: Optional[str] = None,
        images: Union[Images, str, None] = None,
        on_error: OnError = "return",
        progress: ProgressOption = False,
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
        images: the pictures of each row as in `generate`, or the name of the column that has them. With chat they come
        before the template's text; otherwise the template has the model's placeholder for each.

        A row in which a value is missing gives a result with `error`. params, on_error, progress, plan, first_row and
        report are as in `generate`.
        """
        given = frame[images] if isinstance(images, str) else images  # type: ignore[index]
        pictures = None if given is None else images_list(given)
        counts = None if pictures is None or not chat else picture_counts(pictures)
        prompts = prompts_of(frame, template, fields, chat, system, counts)
        return self._generate(
            prompts,
            params,
            on_error=on_error,
            progress=progress,
            plan=plan,
            first_row=first_row,
            report=report,
            images=pictures,
        )

    @hinted
    def chat(
        self,
        conversations: Rows,
        params: Params = None,
        *,
        tools: Optional[Sequence[Mapping[str, Any]]] = None,
        documents: Optional[Sequence[Mapping[str, Any]]] = None,
        chat_template_kwargs: Optional[Mapping[str, Any]] = None,
        add_generation_prompt: Optional[bool] = None,
        continue_final_message: Union[bool, str, None] = None,
        on_error: OnError = "return",
        progress: ProgressOption = False,
        plan: Optional[Plan] = None,
        first_row: Optional[int] = None,
        report: bool = False,
        images: Optional[Images] = None,
    ) -> Results:
        """Answers conversations by the model's chat template: `generate`, and it also takes a single conversation.

        conversations: lists of {"role": .., "content": ..}, or dicts with "messages" and more.
        tools, documents, chat_template_kwargs, add_generation_prompt, continue_final_message: of every conversation that
        has no own under this key (docs/chat.md).
        images: as in `generate`, for parts {"type": "image"} that name no picture.
        """
        if isinstance(conversations, dict):
            conversations = [conversations]
        elif isinstance(conversations, (list, tuple)) and conversations and isinstance(conversations[0], dict):
            if "role" in conversations[0]:
                conversations = [conversations]
        elif isinstance(conversations, (list, tuple)) and any(isinstance(row, str) for row in conversations):
            raise TypeError("conversations: texts are prompts, which generate takes; a message is a dict with a role")
        keys = {
            "tools": tools,
            "documents": documents,
            "chat_template_kwargs": chat_template_kwargs,
            "add_generation_prompt": add_generation_prompt,
            "continue_final_message": continue_final_message,
        }
        keys = {name: value for name, value in keys.items() if value is not None}
        _check_chat_keys(keys)
        if keys:
            conversations = conversations_with(conversations, keys)
        return self.generate(
            conversations,
            params,
            on_error=on_error,
            progress=progress,
            plan=plan,
            first_row=first_row,
            report=report,
            images=images,
        )

    @hinted
    def score(
        self,
        rows: Rows,
        continuations: Any,
        *,
        add_special: bool = True,
        parse_special: bool = True,
        adapter: Optional[str] = None,
        on_error: OnError = "return",
        progress: ProgressOption = False,
        images: Optional[Images] = None,
    ) -> Results:
        """Computes the log-probability of each continuation after each row: `Result.scores`, in the order given.

        rows, images: as in `generate`. A continuation of a conversation is what the assistant may answer.
        continuations: one list for all rows, or a list with such a list for each row. A continuation is a str if rows are
        texts or conversations, and a list of token ids if rows are.
        add_special: whether BOS and the like are added to the prompts, as the tokenizer says.
        parse_special: whether special tokens spelled out in the prompts are parsed as special tokens.
        adapter: the name of an adapter, for all rows.
        on_error, progress: as in `generate`.
        """
        _check_on_error(on_error)
        special = None
        if not (add_special and parse_special):
            special = params_column(SamplingParams(add_special=add_special, parse_special=parse_special), 1)
        special = self._with_adapter(special, adapter)
        pictures = None if images is None else images_list(images)
        with _Active(self) as job:
            left = 0
            for column in columns(rows):
                if len(column) == 0:
                    continue
                n = len(column)
                for part, places in parts_of(column):
                    with self._lock:
                        engine = self._enter()
                        tags = picked(self._calls.tags(job, n), places)
                        if isinstance(part, (Nulls, Table)):
                            add_part(engine, part, tags, special)
                            continue
                        scored = continuation_columns(part, continuations, job.rows, n, places)
                        left = scored.left
                        own = None
                        if pictures is not None:
                            own = picture_column(picked(images_of(pictures, job.rows, n), places))
                        add_scored_part(engine, part, tags, scored, special, own)
                if isinstance(column, Sparse) and len(column.given) == 0:
                    left = max(0, left - n)
                job.rows += n
            if left:
                raise ValueError(f"continuations of {job.rows + left} rows for {job.rows} rows")
            if pictures is not None and len(pictures) != job.rows:
                raise ValueError(f"images of {len(pictures)} rows for {job.rows} rows")
            job.added = True
            self._finish(job, progress)
            results = self._results(job, rows)
        return _checked(results, on_error)

    @property
    def labels(self) -> list[str]:
        """The labels of a model with a classification head, in the order of `label_logits`; empty for other models."""
        with self._lock:
            engine = self._enter()
            return [
                native.batchllm_engine_label(engine, i) for i in range(native.batchllm_engine_label_count(engine))
            ]

    @hinted
    def embed(
        self,
        rows: Rows,
        *,
        pooling: Optional[Pooling] = None,
        normalize: Optional[bool] = None,
        dimensions: int = 0,
        add_special: bool = True,
        parse_special: bool = True,
        adapter: Optional[str] = None,
        on_error: OnError = "raise",
        progress: ProgressOption = False,
        images: Optional[Images] = None,
    ) -> Any:
        """Computes a vector for each row: a NumPy array [rows, dimensions] of float32, a view of the library's memory.

        rows, progress, images: as in `generate`.
        pooling: "last", "mean" or "first"; None: as in the model's modules.json, or "last" if there is no such file.
        normalize: whether vectors are scaled to length 1; None: as in modules.json, or False if there is no such file.
        dimensions: keeps only this many elements of each vector, the first ones, before it is normalised; 0: all.
        add_special, parse_special, adapter: as in `score`.
        on_error: "raise": `RowError` is raised after the last row; "return": the vector of a row that failed is NaN.
        """
        _check_on_error(on_error)
        params = embedding_params(pooling, normalize, dimensions, add_special, parse_special)
        self._with_adapter(params, adapter)
        results = _checked(self._run_task(rows, params, progress, images), on_error)
        return embedding_array(results, dimensions or self.info().hidden)

    @hinted
    def classify(
        self,
        rows: Rows,
        *,
        add_special: bool = True,
        parse_special: bool = True,
        adapter: Optional[str] = None,
        on_error: OnError = "return",
        progress: ProgressOption = False,
        images: Optional[Images] = None,
    ) -> Results:
        """Classifies each row with a model that has a classification head: the results' columns `label_logits` and
        `label_probabilities`, in the order of `labels`."""
        _check_on_error(on_error)
        params = label_params(add_special, parse_special)
        self._with_adapter(params, adapter)
        return _checked(self._run_task(rows, params, progress, images), on_error)

    @hinted
    def rerank(
        self,
        rows: Rows,
        positive: Any = "yes",
        negative: Any = "no",
        *,
        add_special: bool = True,
        parse_special: bool = True,
        adapter: Optional[str] = None,
        on_error: OnError = "raise",
        progress: ProgressOption = False,
        images: Optional[Images] = None,
    ) -> list[float]:
        """How likely each row is to continue with `positive` rather than `negative`: from 0 to 1.

        rows: whole prompts, each with a query and a document, in the wording that the reranker was trained on.
        positive, negative: the two answers: a str if rows are text, token ids if rows are. The probability of an answer
        is that of all its tokens; a warning says if one answer has more tokens than the other, or if the model expects
        other words (many models need " yes" and " no").
        on_error: "raise": `RowError` is raised after the last row; "return": the value of a row that failed is NaN, and a
        warning says why.
        """
        results = self.score(
            rows,
            [positive, negative],
            add_special=add_special,
            parse_special=parse_special,
            adapter=adapter,
            on_error=on_error,
            progress=progress,
            images=images,
        )
        warn_of_other_words(results, positive, negative)
        return share_of_first(results)

    def _generate(
        self,
        rows: Union[Rows, Table, TableSlices],
        params: Params,
        *,
        on_error: OnError,
        progress: ProgressOption,
        plan: Optional[Plan],
        first_row: Optional[int],
        report: bool,
        images: Optional[Images] = None,
    ) -> Results:
        _check_on_error(on_error)
        with _Active(self, first_row) as job, _Reported(self, report) as page:
            self._add_job(job, rows, params, plan, images=images)
            self._finish(job, progress)
            results = self._results(job, rows)
        results._report = page
        results._parser = parser_of(params)
        return _checked(results, on_error)

    def _run_task(
        self,
        rows: Rows,
        params: native.batchllm_params_column,
        progress: ProgressOption,
        images: Optional[Images] = None,
    ) -> Results:
        with _Active(self) as job:
            self._add_job(job, rows, params, None, images=images)
            self._finish(job, progress)
            return self._results(job, rows)

    @hinted
    def stream(
        self,
        rows: Rows,
        params: Params = None,
        *,
        on_error: OnError = "return",
        progress: ProgressOption = False,
        plan: Optional[Plan] = None,
        interval: float = _SLICE_SECONDS,
        first_row: Optional[int] = None,
        images: Optional[Images] = None,
    ) -> Iterator[Result]:
        """Like `generate`, but yields each result soon after it has finished. `Result.tag` is the row's number.

        rows, params, progress, plan, first_row, images: as in `generate`.
        interval: seconds of work between two checks for finished rows; 0: one step.
        on_error: "return": a row that fails gives a result with `error`; "raise": the first such row raises `RowError`,
        which carries the results that arrived with it.

        Leaving the loop early, or a `RowError`, cancels the rows that have not finished.
        """
        _check_on_error(on_error)
        batches = self.stream_batches(
            rows, params, progress=progress, plan=plan, interval=interval, first_row=first_row, images=images
        )
        for results in batches:
            for result in _checked(results, on_error):
                yield result

    @hinted
    def stream_batches(
        self,
        rows: Rows,
        params: Params = None,
        *,
        progress: ProgressOption = False,
        plan: Optional[Plan] = None,
        interval: float = _SLICE_SECONDS,
        first_row: Optional[int] = None,
        images: Optional[Images] = None,
    ) -> Iterator[Results]:
        """The same in batches: each `Results` holds the rows that finished since the one before."""
        with _Active(self, first_row) as job:
            self._add_job(job, rows, params, plan, images=images)
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

    @hinted
    async def astream(
        self,
        rows: Rows,
        params: Params = None,
        *,
        on_error: OnError = "return",
        progress: ProgressOption = False,
        plan: Optional[Plan] = None,
        interval: float = _SLICE_SECONDS,
        first_row: Optional[int] = None,
        images: Optional[Images] = None,
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
            await loop.run_in_executor(None, self._add_job, job, rows, params, plan, None, images)
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

    @hinted
    def add(
        self, rows: Rows, params: Params = None, *, tags: Optional[Sequence[int]] = None, images: Optional[Images] = None
    ) -> range:
        """Adds rows, which `run` or `step` then runs and `poll` returns. Returns their tags, which continue those of
        the rows added before (an empty range if `tags` is given).

        tags: one for each row. A tag must not be the number of a row in a call that still has rows, nor 2**40 or above
        while calls overlap.
        images: as in `generate`."""
        job = Call()
        with self._lock:
            if tags is not None:
                self._calls.refuse_taken(tags)
            calls = self._calls
            job.first_tag = calls.new_first_tag() if calls.active else calls.next_tag
            self._add_job(job, rows, params, None, tags, images)
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

    @hinted
    def run(self, progress: ProgressOption = False) -> Progress:
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
            if self._calls.active or self._calls.ended or self._calls.unclaimed:
                self._collect()
                return Results(self._calls.take_unclaimed(index(max_results)))
            return Results(native.batchllm_poll_results(self._enter(), index(max_results)))

    def cancel(self, *tags: int) -> None:
        """Ends the unfinished rows with these tags at the next step, with what they have generated. May be called from
        any thread at any time.

        The tags of `generate`, `stream` and `score` are row numbers if the call is the engine's only one."""
        engine = self._enter()
        for tag in tags:
            native.batchllm_cancel(engine, index(tag))
        for job in list(self._calls.ended):
            if any(map(job.has, tags)):
                job.told = True

    def cancel_all(self) -> None:
        """Ends every unfinished row at the next step, with what it has generated. From any thread, at any time."""
        native.batchllm_cancel_all(self._enter())
        for job in list(self._calls.ended):
            job.told = True

    def interrupt(self) -> None:
        """Makes the call in progress, or else the next one, raise `StoppedError` after its current step. May be called
        from any thread and from a signal handler."""
        engine = self._enter()
        self._stop = True
        native.batchllm_interrupt(engine)

    # ---- Adapters ----

    def load_adapter(self, name: str, path: Directory) -> None:
        """Rows added from now on may name this adapter: a directory as PEFT writes it, with adapter_config.json and
        adapter_model.safetensors. It must stay as it is until the rows that name it have finished. If there is an adapter
        of this name (see `adapters`), the new one takes its place without a warning; rows added before keep the old one."""
        with self._lock:
            self._adapters.add(self._enter(), name, path)

    def remove_adapter(self, name: str) -> None:
        """Rows added from now on cannot name the adapter. Those that do already keep it."""
        with self._lock:
            self._adapters.remove(name)

    @property
    def adapters(self) -> list[str]:
        """The names of the adapters that rows may name."""
        with self._lock:
            return self._adapters.names()

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
            self._calls.active.clear()
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

    def _load_adapters(self, names: Iterable[str]) -> None:
        """Those of these that are in the engine's directory and not loaded yet; errors are left to their rows."""
        with self._lock:
            self._adapters.load_listed(self._enter(), names)

    def _why_no_adapter(self, name: Optional[str]) -> Optional[str]:
        """Why rows cannot have this adapter, as their error; None: they can."""
        with self._lock:
            return self._adapters.why_not(self._enter(), name)

    def _with_adapter(
        self, params: Optional[native.batchllm_params_column], name: Optional[str]
    ) -> Optional[native.batchllm_params_column]:
        with self._lock:
            return self._adapters.of_all(self._enter(), params, name)

    def _snapshot(self) -> Progress:
        with self._lock:
            return Progress(**{name: getattr(self._progress, name) for name in Progress.__dataclass_fields__})

    def _idle(self) -> bool:
        with self._lock:
            return self._progress.rows_waiting + self._progress.rows_running == 0

    def _advance(self, seconds: float, report: Reporter) -> None:
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

    def _advance_and_collect(self, report: Reporter, seconds: float) -> None:
        self._advance(seconds, report)
        with self._lock:
            self._collect()

    def _finish(self, job: Call, progress: ProgressOption) -> None:
        """Runs until the job is complete. If it is the only one, its results stay in the library until the end."""
        report = reporter(progress, job.rows)
        try:
            while not self._complete(job):
                self._advance(_SLICE_SECONDS, report)
                with self._lock:
                    if job.first_tag > 0 or len(self._calls.active) > 1 or self._idle():
                        self._collect()
        finally:
            report.close()

    def _add_job(
        self,
        job: Call,
        rows: Union[Rows, Table, TableSlices],
        params: Union[Params, native.batchllm_params_column],
        plan: Optional[Plan],
        tags: Optional[Sequence[int]] = None,
        images: Optional[Images] = None,
    ) -> None:
        pictures = None if images is None else images_list(images)
        if plan is not None:
            self.use_plan(plan)
        ready = isinstance(params, native.batchllm_params_column)
        per_row = params is not None and not ready and not isinstance(params, SamplingParams)
        if per_row and (isinstance(params, (dict, str)) or not hasattr(params, "__getitem__")):
            raise TypeError(f"params is one {type(params).__name__}: SamplingParams, or a list of them, are expected")
        if per_row:
            with self._lock:
                self._adapters.check(self._enter(), params)  # type: ignore[arg-type]
        shared: Optional[native.batchllm_params_column]
        shared = params if ready else None if per_row else params_column(params, 1)  # type: ignore[assignment,arg-type]
        if not per_row:
            with self._lock:
                engine = self._enter()
                if not ready:
                    self._constraints.set(engine, shared, params)  # type: ignore[arg-type]
                    self._adapters.set(engine, shared, params)  # type: ignore[arg-type]
                native.batchllm_check_params(engine, shared)
            if not ready:
                job.asked = asked_columns(params)  # type: ignore[arg-type]
        found: Iterator[Union[Column, Table]] = iter([rows]) if isinstance(rows, Table) else iter(rows) if isinstance(rows, TableSlices) else columns(rows)
        if tags is not None:
            everything = list(found)
            if len(tags) != (n := sum(map(len, everything))):
                raise ValueError(f"{len(tags)} tags for {n} rows")
            found = iter(everything)
        only_nulls = True  # so far; they tell nothing of the job
        for column in found:
            n = len(column)
            if n == 0:
                continue
            first = job.rows
            some: Sequence[SamplingParams] = params[first : first + n] if per_row else ()  # type: ignore[index]
            if per_row and len(some) < n:
                raise ValueError(f"{len(params)} params for {first + n + sum(map(len, found))} rows")  # type: ignore[arg-type]
            with self._lock:
                engine = self._enter()
                if job.over:  # an `astream` that was cancelled while its rows were being added
                    return
                named_tags = self._calls.tags(job, n) if tags is None else array("Q", tags[first : first + n])
                for part, places in parts_of(column):
                    native_params = shared
                    if per_row:
                        own = picked(some, places)
                        native_params = params_column(own, len(part))
                        job.asked |= asked_columns(own)
                        self._constraints.set(engine, native_params, own)
                        self._adapters.set(engine, native_params, own)
                    own_pictures = None
                    if pictures is not None:
                        own_pictures = picture_column(picked(images_of(pictures, first, n), places))
                    add_part(engine, part, picked(named_tags, places), native_params, own_pictures)
                self._log.check()
                job.rows += n
                only_nulls &= isinstance(column, Sparse) and len(column.nulls) == n
                if not per_row and not only_nulls:
                    self._refuse_mistake(job)
        job.added = True
        if pictures is not None and len(pictures) != job.rows:
            job.added = False
            raise ValueError(f"images of {len(pictures)} rows for {job.rows} rows")
        if per_row and len(params) != job.rows:  # type: ignore[arg-type]
            job.added = False
            raise ValueError(f"{len(params)} params for {job.rows} rows")  # type: ignore[arg-type]

    def _refuse_mistake(self, job: Call) -> None:
        """Raises if every row of a call failed for a reason that is not the row's, such as a missing chat template."""
        if job not in self._calls.active or job.rows == 0 or self.stats().rows_failed < job.rows:
            return
        self._collect()
        if not self._calls.complete(job):
            return
        mistake = mistake_of(Results(self._calls.so_far(job)))
        if mistake is not None:
            raise InvalidArgumentError(mistake, native.BATCHLLM_ERROR_INVALID_ARGUMENT)

    def _collect(self) -> None:
        """Hands finished results to the calls that they belong to. Under the lock."""
        self._calls.collect(self._enter())

    def _tell_rows_left(self) -> None:
        """Logs that a call also runs the rows that an interrupted call left, as it may seem to hang."""
        left = self._calls.left_behind()
        if left:
            rows = "1 row" if left == 1 else f"{left:,} rows"
            self._log.write(1, f"this call also runs {rows} left by an interrupted call; cancel_all() ends them")

    def _complete(self, job: Call) -> bool:
        """Whether every row has its result, from this call's steps or another's. Some may still be in the mail."""
        with self._lock:
            self._enter()
            return self._calls.complete(job)

    def _work(self, job: Call, interval: float) -> Optional[Progress]:
        """Works on a job and returns the engine's progress; None if the job is complete."""
        if self._complete(job):
            return None
        self._advance_and_collect(reporter(False, 0), interval)
        return self._snapshot()

    def _arrived(self, job: Call) -> tuple[list[Results], bool]:
        """A job's results that have not been handed out yet, and whether they are the last."""
        complete = self._complete(job)
        return list(self._each(job)), complete

    def _turn(self, job: Call, interval: float) -> tuple[list[Results], bool]:
        self._work(job, interval)
        return self._arrived(job)

    def _results(self, job: Call, rows: Any = None) -> Results:
        """All results of a job as one, in the order of its rows. rows: what the caller gave, for the index it has."""
        with self._lock:
            return Results(self._calls.results(job), index_of(rows), job.asked)

    def _each(self, job: Call) -> Iterator[Results]:
        """A job's results so far. Each is dropped once the caller is done with it."""
        while True:
            with self._lock:
                part = self._calls.first_part(job)
            if part is None:
                return
            yield Results(part, asked=job.asked)
            with self._lock:
                self._calls.drop_first_part(job)


class _Active:
    """The job of a call, registered with the engine while the call lasts.

    If the engine is idle, tags are row numbers, so the same call draws the same random numbers. Otherwise they start
    above those in use.
    """

    def __init__(self, engine: Engine, first_row: Optional[int] = None) -> None:
        self._engine = engine
        if first_row is not None and not 0 <= first_row < TAGS_OF_A_CALL:
            raise ValueError(f"first_row is {first_row}: it is from 0 to below 2**40")
        self._first_row = first_row
        self._job = Call()

    def __enter__(self) -> Call:
        engine = self._engine
        with engine._lock:
            if self._job.over:  # an `astream` that was cancelled while it waited to begin
                return self._job
            engine._collect()
            stats = engine.stats()
            calls = engine._calls
            if not calls.active:
                engine._tell_rows_left()
            alone = not calls.active and stats.rows == stats.rows_done
            if self._first_row is not None and not alone:
                raise StateError("first_row: other calls' rows are in the engine")
            calls.begin(self._job, (self._first_row or 0) if alone else calls.new_first_tag())
            return self._job

    def __exit__(self, kind: Optional[type[BaseException]], *_: object) -> None:
        engine, job = self._engine, self._job
        with engine._lock:
            gone = kind is None or engine.closed or engine._forked
            if not engine._calls.leave(job, gone):
                return
            job.wanted = job.added and kind is not None and not issubclass(kind, (GeneratorExit, asyncio.CancelledError))
            if not job.wanted:  # the caller left a stream, or adding the rows failed
                native.batchllm_cancel_rows(engine._enter(), job.first_tag, job.rows)


class _Reported:
    """A report that the engine writes to during a call; None if none was asked for."""

    def __init__(self, engine: Engine, wanted: bool) -> None:
        self._engine = engine
        self._made = Report() if wanted else None

    def __enter__(self) -> Optional[Report]:
        engine = self._engine
        if self._made is not None:
            with engine._lock:
                if engine._report is not None:
                    raise StateError("report: another call's is being written")
                native.batchllm_engine_set_report(engine._enter(), self._made._native)
                engine._report = self._made
            self._start = time.monotonic()
        return self._made

    def __exit__(self, *_: object) -> None:
        engine = self._engine
        if self._made is None:
            return
        self._made.seconds = time.monotonic() - self._start
        with engine._lock:
            engine._report = None
            if not engine.closed and not engine._forked:
                native.batchllm_engine_set_report(engine._enter(), None)


def _checked(results: Results, on_error: OnError) -> Results:
    if on_error == "raise" and (failed := results.failed):
        first = results[failed[0]]
        raise RowError(f"row {first.tag}: {first.error}", first.status, first.tag, results)
    return results


def _check_on_error(on_error: OnError) -> None:
    if on_error not in ("return", "raise"):
        raise ValueError(f"on_error is {on_error!r}: it is 'return' or 'raise'")


def _check_chat_keys(keys: Mapping[str, Any]) -> None:
    """Raises if what `chat` gives to every conversation has the wrong type, which would fail each of them."""
    for name in ("tools", "documents"):
        given = keys.get(name, ())
        a_list = isinstance(given, Sequence) and not isinstance(given, (str, bytes))
        if not a_list or not all(isinstance(one, Mapping) for one in given):
            raise TypeError(f"{name}: a list of dicts is expected, not {given!r}")
    if not isinstance(keys.get("chat_template_kwargs", {}), Mapping):
        raise TypeError(f"chat_template_kwargs: a dict is expected, not {keys['chat_template_kwargs']!r}")
    if not isinstance(keys.get("add_generation_prompt", True), bool):
        raise TypeError(f"add_generation_prompt: True or False is expected, not {keys['add_generation_prompt']!r}")
    if not isinstance(keys.get("continue_final_message", True), (bool, str)):
        raise TypeError(f"continue_final_message: True, False or a name is expected, not {keys['continue_final_message']!r}")


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
