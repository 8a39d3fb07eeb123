"""Runs whole files of rows: Parquet, CSV or Arrow IPC in; the same columns and the results out."""

from __future__ import annotations

import errno
import os
import sys
from array import array
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any, Callable, Iterator, Mapping, Optional, Sequence, Union

from . import native
from .adapters import Directory, adapter_name, directories_of
from .columns import columns as columns_of
from .embeddings import Pooling
from .engine import Engine, _Reported
from .errors import (
    Error,
    InvalidArgumentError,
    StateError,
    StoppedError,
    check_existing,
    file_error,
)
from .file_figures import Figures
from .file_formats import (
    Reader,
    Writer,
    as_written,
    can_write,
    check_writable,
    format_of,
    is_remote,
    listed,
    open_reader,
    source_of,
    taken,
    written_type,
)
from .file_identity import identity_of
from .file_results import FileResults, open_results
from .file_retry import begin_again, check_retry, remove_left
from .file_rows import Prompts, ResultColumns, check_adapters, check_continuations
from .frames import optional
from .mistakes import mistake_of
from .options import hinted
from .output_paths import check_outputs, files_of_output, files_of_plan
from .params import SamplingParams
from .plan import Plan
from .progress import Progress, reporter
from .report import Report
from .results import Results, Samples
from .table import Fields
from .task_rows import Task, TaskName, add_scored

_SLICE_SECONDS = 0.05

OUTPUT_IS_COMPLETE = "; the output is complete"


@dataclass(frozen=True)
class FilesReport:
    """The outcome of a job on files."""

    rows: int
    """Rows of the input."""
    failed: int
    """How many of them have an error."""
    resumed: int
    """How many of them earlier runs answered."""
    cut_off: Optional[int] = 0
    """How many of them have a constraint and an answer that max_tokens cut off; None: not counted, since an earlier run
    had finished the output."""
    summary: str = field(default="", compare=False)
    """What this run did, in one line; "" if there was nothing to do."""


@hinted
def run_files(
    engine: Union[Engine, str, os.PathLike[str]],
    input: Union[str, os.PathLike[str]],
    output: Union[str, os.PathLike[str]],
    *,
    prompt_column: Optional[str] = None,
    template: Optional[str] = None,
    fields: Fields = "given",
    chat: bool = False,
    system: Optional[str] = None,
    image_column: Optional[str] = None,
    params: Optional[SamplingParams] = None,
    columns: Optional[Sequence[str]] = None,
    result_prefix: str = "",
    samples: Samples = "rows",
    parsed: bool = False,
    task: TaskName = "generate",
    pooling: Optional[Pooling] = None,
    normalize: Optional[bool] = None,
    dimensions: int = 0,
    continuations: Optional[Sequence[Any]] = None,
    continuations_column: Optional[str] = None,
    adapter_column: Optional[str] = None,
    adapters: Union[Mapping[str, Directory], Directory, None] = None,
    resume: bool = False,
    force: bool = False,
    retry_failed: bool = False,
    chunk_rows: int = 65536,
    input_format: Optional[str] = None,
    output_format: Optional[str] = None,
    storage_options: Optional[Mapping[str, Any]] = None,
    progress: Union[bool, Callable[[Progress], object]] = False,
    plan: Union[Plan, str, os.PathLike[str], None] = None,
    report: Union[str, os.PathLike[str], None] = None,
    stats: Union[str, os.PathLike[str], None] = None,
    engine_options: Optional[Mapping[str, Any]] = None,
) -> FilesReport:
    """Runs every row of a file and writes its columns and the results to another: docs/files.md. Needs pyarrow.

        batchllm.run_files("path/to/model", "in.parquet", "out.parquet", prompt_column="question")

    engine: a model's directory, or an engine that has no other work.
    input, output: one path or URL that fsspec knows for each, of Parquet (.parquet), CSV (.csv) or Arrow IPC (.arrow) files.
    prompt_column: the column with texts, lists of token ids or lists of chat messages; None: "prompt".
    template, fields, chat, system: build prompts from several columns, as in `Engine.generate_table`. With chat but
    without a template, prompt_column holds the user's message.
    image_column: the column of pictures: bytes of files, paths, structs with `bytes` (as Hugging Face's datasets store
    pictures), or lists of these. With chat they come before the text; otherwise the prompt has the model's placeholder
    for each. Paths lead to files in the engine's image_folders; by default those of a new engine are the input's folder.
    params: for all rows.
    columns: the input's columns to pass through; None: all.
    result_prefix: put before the names of the results' columns: text, finish_reason, error, prompt_tokens,
    shared_tokens, completion_tokens, and if asked for sample, logprobs, top_logprobs, prompt_logprobs,
    prompt_top_logprobs.
    samples: with params.n above 1: "rows" writes a row for each sample; "lists" writes a row for each prompt, with
    lists.
    parsed: adds a column `parsed` with the values of answers, as the struct that the params' json_schema gives; null for
    rows that failed or were cut off.
    task: "generate"; "embed": a column `embedding` instead of text, with pooling, normalize and dimensions as in
    `Engine.embed`; "classify": `label`, `score` (its probability) and the `probabilities` of all labels.
    continuations: scores rows as `Engine.score` does: a column `scores` instead of text, with a number for each of
    these. continuations_column: the column that holds each row's own continuations.
    adapter_column: the column that names each row's adapter. Null: params.adapter, "": none. A row whose adapter is unknown
    or cannot be loaded gets the error ROW_ADAPTER. adapters: as in `Engine`, if engine is a model's directory.
    resume: continues an interrupted job, or begins one if there is none. force: starts over. Not both.
    retry_failed: with resume, the rows of a finished job that failed run again, whatever their error. The output is
    replaced when they are done. Not for CSV and URLs.
    chunk_rows: how many rows are planned together, held in memory together and written as a row group.
    input_format, output_format: "parquet", "csv" or "arrow", if the file name does not say.
    storage_options: for fsspec.
    progress: as in `Engine.generate`; True also prints the report's summary.
    plan: a plan whose groups rows take, or its file, as the program's --plan: chunk k takes them from FILE.k if there
    is one.
    report: a file for the page of `Report`. stats: a file for the program's stats.json. Both tell what this run did.
    engine_options: options of the engine, as in `Engine`, if engine is a model's directory.

    The output appears only when every row has its result. A row that fails gets an `error`, and the others continue.
    Whatever stops the run (Ctrl-C, a full disk) is raised; the results so far are kept for `resume`.
    """
    check_existing(resume, force)
    if retry_failed and not resume:
        raise ValueError("retry_failed is for a job that continues: give resume=True too")
    if params is not None and not isinstance(params, SamplingParams):
        raise TypeError(f"params is one {type(params).__name__}: SamplingParams are expected, the same for all rows")
    if engine_options and isinstance(engine, Engine):
        raise ValueError("engine_options: the engine has its options already")
    if adapters is not None and isinstance(engine, Engine):
        raise ValueError("adapters: the engine has its adapters already: Engine(adapters=..) or load_adapter")
    own_adapter = None if params is None else adapter_name(params.adapter)
    if adapters and adapter_column is None and own_adapter is None:
        raise ValueError("adapters: no row can name one: give adapter_column, or params with an adapter")
    if chunk_rows < 1:
        raise InvalidArgumentError(f"chunk_rows is {chunk_rows}: it is at least 1")
    if samples not in ("rows", "lists"):
        raise ValueError(f"samples is {samples!r}: it is 'rows' or 'lists'")
    source, target = source_of(input), os.fspath(output)
    kinds = format_of(source, input_format, "input_format"), format_of(target, output_format, "output_format")
    if retry_failed:
        check_retry(target, kinds[1])
    job_task = Task(task, pooling, normalize, dimensions, continuations, continuations_column)
    wanted = ResultColumns(params or SamplingParams(), result_prefix, samples == "lists", job_task, parsed)
    if wanted.lists and not job_task.generates:
        raise ValueError("samples='lists' is for rows that are continued")
    if template is not None and prompt_column is not None:
        raise ValueError("prompt_column and template both say what the prompts are")
    prompts = Prompts("prompt" if prompt_column is None else prompt_column, template, fields, chat, system, image_column)
    folder = os.path.dirname(target)
    if not is_remote(target) and folder and not os.path.isdir(folder):
        raise InvalidArgumentError(f"{target}: there is no directory {folder!r}")
    given_options = dict(engine_options or {})
    if adapters is not None:
        given_options["adapters"] = adapters
    check_outputs(
        {"the output": files_of_output(target, retry_failed), "report": report, "stats": stats, "timeline": given_options.get("timeline")},
        {"the input": source, "the plan": files_of_plan(os.fspath(plan)) if isinstance(plan, (str, os.PathLike)) else None,
         "the timeline": engine._timeline if isinstance(engine, Engine) else None},
        engine.model_dir if isinstance(engine, Engine) else engine if isinstance(engine, (str, os.PathLike)) else None,
        engine._adapters.directories() if isinstance(engine, Engine) else directories_of(given_options.get("adapters")),
    )  # fmt: skip
    plans = _Plans(plan)
    reader = open_reader(source, kinds[0], storage_options)
    opened: Optional[Engine] = None
    results: Optional[FileResults] = None
    try:
        needed = prompts.check(reader)
        if continuations_column is not None:
            check_continuations(reader, continuations_column)
            needed.add(continuations_column)
        if adapter_column is not None:
            check_adapters(reader, adapter_column)
            needed.add(adapter_column)
        passed = list(columns) if columns is not None else list(reader.columns)
        for name in passed:
            if name not in reader.columns:
                raise InvalidArgumentError(
                    f"columns: {source} has no column {name!r}; it has {listed(reader.columns)}"
                )
            if passed.count(name) > 1:
                raise InvalidArgumentError(f"columns: {name!r} is named twice")
        schema = _output_schema(reader, passed, wanted, kinds[1])
        check_writable(kinds[1], schema)
        reader.select([name for name in reader.columns if name in passed or name in needed])
        # That takes long, and a job that is done needs none of it.
        check_later = resume and (is_remote(target) or os.path.exists(target))
        if not check_later:
            reader.check()
        if not isinstance(engine, Engine):
            if image_column is not None and not is_remote(source):
                given_options.setdefault("image_folders", [os.path.dirname(source) or "."])
            engine = opened = Engine(engine, **given_options)
        job = identity_of(engine, source, kinds, prompts, wanted, passed, chunk_rows, adapter_column, storage_options)
        results = open_results(target, storage_options, chunk_rows, wanted.schema(), resume, force, retry_failed, job)
        if not is_remote(target):
            remove_left(target, job)
        if retry_failed and (results.complete() or (0, 0))[1] > 0:
            begin_again(target, kinds[1], wanted, chunk_rows, job)  # under the lock of these results
            results.close()
            results = open_results(target, storage_options, chunk_rows, wanted.schema(), resume, force, False, job)
        if engine._pictures is not None:  # messages may name pictures too
            results.use_pictures(engine._pictures)
        complete = results.complete()
        if complete is not None:
            return FilesReport(complete[0], complete[1], complete[0], None)
        if check_later:
            reader.check()
        figures = Figures(engine, opened is not None)
        run = _Run(engine, results, reader, prompts, wanted, passed, chunk_rows, adapter_column, plans, figures)
        with _Reported(engine, report is not None) as page:
            try:
                try:
                    run.go(progress)
                finally:
                    run.close(opened is None)
            except (KeyboardInterrupt, StoppedError):
                with suppress(Error, OSError):
                    run.write_figures(page, report, stats, target, True)
                raise
        reader.select(passed or reader.columns)
        done = run.write(kinds[1], schema)
        run.write_figures(page, report, stats, target, False)
        if progress is True:
            print(done.summary, file=sys.stderr)
        return done
    except OSError as fault:
        if fault.filename is None and fault.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            fault.filename = target  # a failed write does not name its file; all of them are beside this one
        raise
    finally:
        reader.close()
        if results is not None:
            results.close()
        if opened is not None:
            opened.close()


def _output_schema(reader: Reader, passed: Sequence[str], wanted: ResultColumns, format_: str) -> Any:
    """Columns that pass through have the input's types and metadata, where the format can write them."""
    arrow = optional("pyarrow", "run_files")
    made = wanted.fields()
    for name, _, _ in made:
        if name in passed:
            raise InvalidArgumentError(
                f"the input has a column {name!r}, and so have the results: give a result_prefix, or name the columns to pass through"
            )
    own = [reader.given.field(name) for name in passed]
    own = [one if can_write(format_, one) else reader.schema.field(one.name) for one in own]
    results = [arrow.field(name, written_type(format_, kind)) for name, _, kind in made]
    return arrow.schema([*own, *results], reader.given.metadata)


class _Plans:
    """The plan of each chunk: an object, or a file as of the program's --plan."""

    def __init__(self, plan: Union[Plan, str, os.PathLike[str], None]) -> None:
        if plan is not None and not isinstance(plan, (Plan, str, os.PathLike)):
            raise TypeError(f"plan is one {type(plan).__name__}: a batchllm.Plan or a path is expected")
        self._path = None if plan is None or isinstance(plan, Plan) else os.fspath(plan)
        self._plan = plan if isinstance(plan, Plan) else Plan.load(self._path) if self._path is not None else None

    def of_chunk(self, number: int) -> Optional[Plan]:
        own = f"{self._path}.{number + 1}"
        return Plan.load(own) if self._path is not None and os.path.exists(own) else self._plan


class _Run:
    """One run of a job: all rows that have no result yet."""

    def __init__(
        self,
        engine: Engine,
        results: FileResults,
        reader: Reader,
        prompts: Prompts,
        wanted: ResultColumns,
        passed: Sequence[str],
        chunk_rows: int,
        adapter_column: Optional[str],
        plans: _Plans,
        figures: Figures,
    ) -> None:
        self._plans, self._figures = plans, figures
        self._failed_now, self._written = 0, 0
        self._arrow = optional("pyarrow", "run_files")
        self._engine, self._results, self._reader = engine, results, reader
        self._prompts, self._wanted, self._passed, self._chunk_rows = prompts, wanted, passed, chunk_rows
        self._labels = engine.labels
        self._adapter_column = adapter_column
        self._without_adapter: dict[str, str] = {}  # why rows with these adapters cannot run
        self._left: dict[int, set[int]] = {}  # of each chunk in the engine, the rows without a result
        self._rows = 0

    def go(self, progress: Union[bool, Callable[[Progress], object]]) -> None:
        """Runs until every row has its result."""
        stats = self._engine.stats()
        if stats.rows > stats.rows_done:
            raise StateError("the engine has rows of other calls")
        unpolled = self._engine.poll()
        if len(unpolled):
            self._engine._calls.unclaimed.append(unpolled._native)
            raise StateError(f"the engine has {len(unpolled)} results of other calls: poll them first")
        chunks = self._chunks()
        waiting, last, ended = 0, 0, False
        rows = self._reader.rows or 0
        report = reporter(progress, rows, self._results.rows_done(rows), stats.rows_done)
        try:
            while not ended or self._left:
                if not ended and waiting <= last // 8:
                    chunk = next(chunks, None)
                    ended = chunk is None
                    if chunk is not None:
                        last = waiting = self._add(*chunk)
                    continue
                self._engine._advance(_SLICE_SECONDS, report)
                waiting = self._engine._snapshot().rows_waiting
                self._deliver(self._engine.poll())
        except OSError:  # such as a full disk: results could not be written either
            raise
        except BaseException:
            if not self._engine.closed:
                with suppress(Error, OSError):
                    self._deliver(self._engine.poll())
            raise
        finally:
            report.close()

    def write(self, format_: str, schema: Any) -> FilesReport:
        """Makes the output: the columns that pass through, and the results."""
        failed = cut_off = 0
        try:
            with self._results.new_output() as file:
                writer = Writer(file, format_, schema)
                for number, given in _chunks(self._reader, self._chunk_rows, lambda *_: False):
                    table, bad, cut = self._joined(number, given, schema)
                    writer.write(table)
                    failed, cut_off = failed + bad, cut_off + cut
                writer.close()
        except BaseException:
            self._results.drop_output()
            raise
        kept = self._results.rows_done(self._rows)
        self._results.finish(self._rows, failed)
        return FilesReport(self._rows, failed, kept, cut_off, self._figures.summary(self._written, self._failed_now, kept))

    def write_figures(
        self,
        page: Optional[Report],
        report: Union[str, os.PathLike[str], None],
        stats: Union[str, os.PathLike[str], None],
        target: str,
        interrupted: bool,
    ) -> None:
        """Writes the files of `report` and `stats`."""
        kept = self._results.rows_done(self._rows)
        try:
            if stats is not None:
                with _named_file("stats", stats):
                    rows = self._reader.rows if interrupted else self._rows
                    self._figures.write_stats(os.fspath(stats), rows, self._written, self._failed_now, kept)
        finally:
            if page is not None and report is not None:
                with _named_file("report", report):
                    self._figures.write_report(page, os.fspath(report), self._reader.path, target, kept, interrupted)

    def _joined(self, number: int, given: Any, schema: Any) -> tuple[Any, int, int]:
        """A chunk's rows with their results, in the order of the rows; how many of them failed, and how many were cut
        off."""
        results = self._results.read(number)
        order = sorted(range(results.num_rows), key=results.column("tag").to_pylist().__getitem__)
        results = results.take(self._arrow.array(order, self._arrow.int64()))
        tags = results.column("tag").to_pylist()
        if set(tags) != set(range(number * self._chunk_rows, number * self._chunk_rows + given.num_rows)):
            raise InvalidArgumentError(f"{self._reader.path}: it has changed since its rows ran")
        rows = self._arrow.array([tag - number * self._chunk_rows for tag in tags], self._arrow.int64())
        own = [taken(given.column(name), rows, schema.field(name).type) for name in self._passed]
        errors = results.column(self._wanted.prefix + "error").is_valid().to_pylist()
        failed = len({tag for tag, bad in zip(tags, errors) if bad})
        made = [as_written(column, schema.field(name).type) for name, column in zip(results.column_names[1:], results.columns[1:])]
        table = self._arrow.table([*own, *made], schema=schema)
        if not self._wanted.constrained:
            return table, failed, 0
        reasons = results.column(self._wanted.prefix + "finish_reason").to_pylist()
        cut = {tag for tag, reason in zip(tags, reasons) if "length" in ([reason] if isinstance(reason, str) else reason or ())}
        return table, failed, len(cut)

    def close(self, keep_engine: bool) -> None:
        """However the run ended, an engine that is kept is left without rows."""
        if self._left and keep_engine and not self._engine.closed:
            with suppress(Error):  # the error that ended the run is raised, not its consequences
                for number in self._left:
                    native.batchllm_cancel_rows(self._engine._enter(), number * self._chunk_rows, self._chunk_rows)
                self._engine.run()
                self._engine.poll()
        self._left.clear()

    # ---- In ----

    def _is_done(self, number: int) -> bool:
        first, end = number * self._chunk_rows, (number + 1) * self._chunk_rows
        return self._results.is_done(number, first, end if self._reader.rows is None else min(end, self._reader.rows))

    def _chunks(self) -> Iterator[tuple[int, Any]]:
        """Yields the chunks that are not done yet, and counts the rows of all chunks."""

        def skipped(number: int, end: int) -> bool:
            self._rows = max(self._rows, end)
            return self._is_done(number)

        yield from _chunks(self._reader, self._chunk_rows, skipped)

    def _add(self, number: int, table: Any) -> int:
        """Adds the rows of a chunk that have no results yet, and returns their number."""
        first, end = number * self._chunk_rows, number * self._chunk_rows + table.num_rows
        tags = self._results.left(first, end)
        self._left[number] = set(tags)
        self._figures.chunks += 1
        if not tags:
            self._close_chunk(number)
            return 0
        plan = self._plans.of_chunk(number)
        if plan is not None:
            self._engine.use_plan(plan)
        rows = None if len(tags) == table.num_rows else [tag - first for tag in tags]
        if self._adapter_column is None:
            self._add_rows(table, rows, tags, self._wanted.params)
        else:
            self._add_by_adapter(table, rows, tags)
            if number not in self._left:
                return 0
        refused = self._engine.poll()
        mistake = mistake_of(refused) if len(refused) >= len(tags) else None
        if mistake is not None and len(tags) == table.num_rows:
            raise InvalidArgumentError(mistake, native.BATCHLLM_ERROR_INVALID_ARGUMENT)
        self._deliver(refused)
        return len(tags)

    def _add_by_adapter(self, table: Any, rows: Optional[list[int]], tags: Sequence[int]) -> None:
        """Adds rows of one adapter after another. Those whose adapter cannot be used are answered."""
        names = table.column(self._adapter_column).to_pylist()
        of_name: dict[Optional[str], tuple[list[int], list[int]]] = {}
        for row, tag in zip(range(table.num_rows) if rows is None else rows, tags):
            own = names[row] if isinstance(names[row], (str, type(None))) else names[row].decode(errors="replace")
            mine, theirs = of_name.setdefault(self._wanted.params.adapter if own is None else own or None, ([], []))
            mine.append(row)
            theirs.append(tag)
        self._engine._load_adapters(name for name in of_name if name is not None and name not in self._without_adapter)
        for name, (mine, theirs) in of_name.items():
            reason = None if name is None else self._why_not(name)
            if reason is None:
                some = None if len(mine) == table.num_rows else mine
                self._add_rows(table, some, theirs, replace(self._wanted.params, adapter=name))
            else:
                self._keep(self._wanted.failed(theirs, reason))

    def _why_not(self, name: str) -> Optional[str]:
        """Why rows cannot have this adapter, as their error; None: they can."""
        if name not in self._without_adapter:
            reason = self._engine._why_no_adapter(name)
            if reason is None:
                return None
            self._without_adapter[name] = reason
        return self._without_adapter[name]

    def _add_rows(
        self, table: Any, rows: Optional[list[int]], tags: Sequence[int], given_params: SamplingParams
    ) -> None:
        task = self._wanted.task
        given = self._prompts.rows(table, rows, task.scores)
        images = self._prompts.images_of(table, rows)
        if not task.scores:
            params = task.params(self._engine, given_params) or given_params
            self._engine.add(given, params, tags=tags, images=images)  # type: ignore[arg-type]
            return
        if task.continuations_column is None:
            lists = [task.continuations] * len(tags)
        else:
            column = table.column(task.continuations_column)
            lists = (column if rows is None else column.take(rows)).to_pylist()
        lists = [one if one is not None else [] for one in lists]  # a row without continuations gets an error
        first = 0
        for part in columns_of(given):
            last = first + len(part)
            add_scored(
                self._engine, part, lists[first:last], array("Q", tags[first:last]), given_params,
                None if images is None else images[first:last],
            )  # fmt: skip
            first = last

    # ---- Out ----

    def _deliver(self, results: Results) -> None:
        """Keeps results."""
        if not len(results):
            return
        self._keep(self._wanted.batch(results, self._labels))

    def _keep(self, batch: Any) -> None:
        tags = batch.column("tag").to_pylist()
        errors = batch.column(batch.schema.get_field_index(self._wanted.prefix + "error")).is_valid().to_pylist()
        places: dict[int, list[int]] = {}
        for i, tag in enumerate(tags):
            places.setdefault(tag // self._chunk_rows, []).append(i)
        for number, mine in places.items():
            failed: dict[int, bool] = {}
            for i in mine:
                failed[tags[i]] = failed.get(tags[i], False) or errors[i]
            own = batch if len(places) == 1 else batch.take(self._arrow.array(mine, self._arrow.int64()))
            self._results.keep(number, own, failed)
            self._written += len(failed)
            self._failed_now += sum(failed.values())
            self._left[number] -= failed.keys()
            if not self._left[number]:
                self._close_chunk(number)

    def _close_chunk(self, number: int) -> None:
        self._results.close_chunk(number)
        del self._left[number]


@contextmanager
def _named_file(argument: str, path: Union[str, os.PathLike[str]]) -> Iterator[None]:
    """Makes an error about a file that is written when the output is complete say so."""
    try:
        yield
    except OSError as fault:
        name = os.fspath(path)
        raise file_error(fault.errno or errno.EIO, name, f"{argument}: {name}: cannot write", OUTPUT_IS_COMPLETE) from None


def _chunks(reader: Reader, size: int, skipped: Callable[[int, int], bool]) -> Iterator[tuple[int, Any]]:
    """Yields (number, table) of each chunk of a file. skipped: whether a chunk is left out, of which rows up to the given
    one are known to exist; then its rows need not be read."""
    arrow = optional("pyarrow", "run_files")
    pieces: list[Any] = []
    begin = 0

    def wanted(first: int, end: int) -> bool:
        numbers = range(first // size, (end - 1) // size + 1)
        return not all([skipped(number, min(end, (number + 1) * size)) for number in numbers])

    for first, table in reader.pieces(wanted):
        while table.num_rows:
            number = first // size
            part = table.slice(0, (number + 1) * size - first)
            table, first = table.slice(part.num_rows), first + part.num_rows
            if skipped(number, first):
                continue
            if not pieces:
                begin = number
            elif begin != number:
                raise InvalidArgumentError(f"{reader.path}: it changes while it is read")
            pieces.append(part)
            if first == (number + 1) * size:
                yield number, arrow.concat_tables(pieces)
                pieces = []
    if pieces:
        yield begin, arrow.concat_tables(pieces)
