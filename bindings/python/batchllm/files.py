"""Runs whole files of rows: Parquet, CSV or Arrow IPC in; the same columns and the results out."""

from __future__ import annotations

import errno
import os
from array import array
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, BinaryIO, Callable, Iterator, Mapping, Optional, Sequence, Union

from . import native
from .columns import columns as columns_of
from .embeddings import Pooling
from .engine import Engine
from .errors import Error, InvalidArgumentError, StateError
from .file_formats import Reader, Writer, check_writable, format_of, listed, open_reader
from .file_identity import identity_of
from .file_rows import Prompts, ResultColumns, check_continuations
from .frames import optional
from .job_files import JobFiles, job_files, refuse_another_job, rows_of
from .mistakes import mistake_of
from .params import SamplingParams
from .progress import Progress, reporter
from .results import Results, Samples
from .table import Fields
from .task_rows import Task, TaskName, add_scored

_SLICE_SECONDS = 0.05


@dataclass(frozen=True)
class FilesReport:
    """The outcome of a job on files."""

    rows: int
    """Rows of the input."""
    failed: int
    """How many of them have an error."""
    resumed: int
    """How many of them earlier runs answered."""


class _Chunk:
    """A chunk of the input, until all of its rows have results."""

    def __init__(self, number: int, first: int, table: Any) -> None:
        self.number = number
        self.first = first
        self.table = table
        self.results: list[Any] = []
        self.left: int = table.num_rows
        self.file: Optional[BinaryIO] = None
        self.writer: Any = None

    def close(self) -> None:
        """Closes the file with its results, if there is one."""
        if self.file is not None:
            self.file.close()
            self.file = None


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
    resume: bool = False,
    force: bool = False,
    chunk_rows: int = 65536,
    input_format: Optional[str] = None,
    output_format: Optional[str] = None,
    storage_options: Optional[Mapping[str, Any]] = None,
    progress: Union[bool, Callable[[Progress], object]] = False,
) -> FilesReport:
    """Runs every row of a file and writes its columns and the results to another: docs/files.md. Needs pyarrow.

        batchllm.run_files("path/to/model", "in.parquet", "out.parquet", prompt_column="question")

    engine: a model's directory, or an engine that has no other work.
    input, output: paths or URLs that fsspec knows, of Parquet (.parquet), CSV (.csv) or Arrow IPC (.arrow) files.
    prompt_column: the column with texts, lists of token ids or lists of chat messages; None: "prompt".
    template, fields, chat, system: build prompts from several columns, as in `Engine.generate_table`. With chat but
    without a template, prompt_column holds the user's message.
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
    resume: continues an interrupted job, or begins one if there is none. force: starts over.
    chunk_rows: how many rows are planned together, held in memory together and written as a row group.
    input_format, output_format: "parquet", "csv" or "arrow", if the file name does not say.
    storage_options: for fsspec.
    progress: as in `Engine.generate`.

    The output appears only when every row has its result. A row that fails gets an `error`, and the others continue.
    Whatever stops the run (Ctrl-C, a full disk) is raised; the results so far are kept for `resume`.
    """
    if chunk_rows < 1:
        raise InvalidArgumentError(f"chunk_rows is {chunk_rows}: it is at least 1")
    if samples not in ("rows", "lists"):
        raise ValueError(f"samples is {samples!r}: it is 'rows' or 'lists'")
    source, target = os.fspath(input), os.fspath(output)
    kinds = format_of(source, input_format), format_of(target, output_format)
    job_task = Task(task, pooling, normalize, dimensions, continuations, continuations_column)
    wanted = ResultColumns(params or SamplingParams(), result_prefix, samples == "lists", job_task, parsed)
    if wanted.lists and not job_task.generates:
        raise ValueError("samples='lists' is for rows that are continued")
    if job_task.scores and chat:
        raise ValueError("continuations: conversations cannot be scored")
    if template is not None and prompt_column is not None:
        raise ValueError("prompt_column and template both say what the prompts are")
    prompts = Prompts("prompt" if prompt_column is None else prompt_column, template, fields, chat, system)
    if source == target or (os.path.exists(source) and os.path.exists(target) and os.path.samefile(source, target)):
        raise InvalidArgumentError(f"{target}: is the input")
    files = job_files(target, storage_options)
    reader = open_reader(source, kinds[0], storage_options)
    opened: Optional[Engine] = None
    try:
        needed = prompts.check(reader)
        if continuations_column is not None:
            check_continuations(reader, continuations_column)
            needed.add(continuations_column)
        passed = list(columns) if columns is not None else list(reader.columns)
        for name in passed:
            if name not in reader.columns:
                raise InvalidArgumentError(
                    f"columns: {source} has no column {name!r}; it has {listed(reader.columns)}"
                )
            if passed.count(name) > 1:
                raise InvalidArgumentError(f"columns: {name!r} is named twice")
        schema = _output_schema(reader.schema, passed, wanted)
        check_writable(kinds[1], schema)
        read = [name for name in reader.columns if name in passed or name in needed]
        reader.close()
        reader = open_reader(source, kinds[0], storage_options, read)
        if force or not resume or not _is_done(files):
            reader.check()
        if not isinstance(engine, Engine):
            engine = opened = Engine(engine)
        job = identity_of(engine, source, kinds, prompts, wanted, passed, chunk_rows, storage_options)
        state, begun = _begin(files, target, job, resume, force)
        if state is not None:
            return FilesReport(state["rows"], state["failed"], state["rows"])
        run = _Run(engine, files, reader, prompts, wanted, passed, schema, chunk_rows)
        try:
            try:
                run.go(progress)
            except Exception:
                if not begun and not run.has_results:
                    files.forget()  # after a mistake in the job, leave nothing that would block the next try
                raise
            report = run.merge(kinds[1])
            files.write_state(
                {"version": 1, "job": job, "complete": True, "rows": report.rows, "failed": report.failed}
            )
            files.drop_parts(True)
        finally:
            run.close(opened is None)
        return report
    except OSError as fault:
        if fault.filename is None and fault.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            fault.filename = target  # a failed write does not name its file; all of them are beside this one
        raise
    finally:
        reader.close()
        files.close()
        if opened is not None:
            opened.close()


def _output_schema(schema: Any, passed: Sequence[str], wanted: ResultColumns) -> Any:
    arrow = optional("pyarrow", "run_files")
    made = wanted.fields()
    for name, _, _ in made:
        if name in passed:
            raise InvalidArgumentError(
                f"the input has a column {name!r}, and so have the results: give a result_prefix, or name the columns to pass through"
            )
    return arrow.schema([schema.field(name) for name in passed] + [(name, kind) for name, _, kind in made])


def _is_done(files: JobFiles) -> bool:
    state = files.read_state()
    return state is not None and state["complete"] and files.output_exists()


def _begin(
    files: JobFiles, target: str, job: Mapping[str, Any], resume: bool, force: bool
) -> tuple[Optional[dict[str, Any]], bool]:
    """Prepares the files beside the output. Returns the state of a job that is complete already, else None; and whether an
    earlier run began the job."""
    files.lock()
    state, exists = files.read_state() if not force else None, files.output_exists()
    if state is None and exists and resume and not force:
        raise InvalidArgumentError(f"{target} cannot be resumed: {target}.state is not there; start over with force")
    if not force and not resume and (state is not None or exists):
        raise InvalidArgumentError(f"{target} exists, or its job was begun: resume continues it, force starts over")
    if state is not None:
        refuse_another_job(target, state["job"], job)
        if state["complete"] and exists:
            files.drop_parts(True)
            return state, True
    else:
        files.drop_parts(False)
    files.write_state({"version": 1, "job": dict(job), "complete": False})
    return None, state is not None


class _Run:
    """One run of a job: all chunks that have no part yet."""

    def __init__(
        self,
        engine: Engine,
        files: JobFiles,
        reader: Reader,
        prompts: Prompts,
        wanted: ResultColumns,
        passed: Sequence[str],
        schema: Any,
        chunk_rows: int,
    ) -> None:
        self._arrow = optional("pyarrow", "run_files")
        self._engine, self._files, self._reader = engine, files, reader
        self._prompts, self._wanted, self._passed = prompts, wanted, passed
        self._schema, self._chunk_rows = schema, chunk_rows
        self._kept = wanted.schema()
        self._labels = engine.labels
        self._done = files.finished()
        self._open: dict[int, _Chunk] = {}
        self._rows = self._resumed = 0
        self.has_results = False

    def go(self, progress: Union[bool, Callable[[Progress], object]]) -> None:
        """Runs until every chunk has its part."""
        stats = self._engine.stats()
        if stats.rows > stats.rows_done:
            raise StateError("the engine has rows of other calls")
        unpolled = self._engine.poll()
        if len(unpolled):
            self._engine._calls.unclaimed.append(unpolled._native)
            raise StateError(f"the engine has {len(unpolled)} results of other calls: poll them first")
        chunks = self._chunks()
        waiting, last, ended = 0, 0, False
        report = reporter(progress, self._reader.rows or 0)
        try:
            while not ended or self._open:
                if not ended and waiting <= last // 8:
                    chunk = next(chunks, None)
                    ended = chunk is None
                    if chunk is not None:
                        last = waiting = self._add(chunk)
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

    def merge(self, format_: str) -> FilesReport:
        """Joins the parts into the output."""
        ipc = optional("pyarrow.ipc", "run_files")
        count = -(-self._rows // self._chunk_rows)
        failed = 0
        with self._files.whole() as file:
            writer = Writer(file, format_, self._schema)
            for number in range(count):
                with self._files.open_part(number) as part:
                    table = ipc.open_file(part).read_all()
                failed += int(table.schema.metadata[b"failed"])
                writer.write(table.replace_schema_metadata(None))
            writer.close()
        return FilesReport(self._rows, failed, self._resumed)

    def close(self, keep_engine: bool) -> None:
        """Closes the files, however the run ended. An engine that is kept is left without rows."""
        for chunk in self._open.values():
            with suppress(OSError):  # such as a full disk
                chunk.close()
        if self._open and keep_engine and not self._engine.closed:
            with suppress(Error):  # the error that ended the run is raised, not its consequences
                for chunk in self._open.values():
                    native.batchllm_cancel_rows(self._engine._enter(), chunk.first, chunk.table.num_rows)
                self._engine.run()
                self._engine.poll()
        self._open.clear()

    # ---- In ----

    def _chunks(self) -> Iterator[_Chunk]:
        """Yields the chunks that have no part yet, and counts the rows of all chunks."""
        size = self._chunk_rows
        pieces: list[Any] = []
        held = 0

        def wanted(first: int, end: int) -> bool:
            self._rows = max(self._rows, end)
            return any(number not in self._done for number in range(first // size, (end - 1) // size + 1))

        begin = 0
        for first, table in self._reader.pieces(wanted):
            self._rows = max(self._rows, first + table.num_rows)
            while table.num_rows:
                number = first // size
                part = table.slice(0, (number + 1) * size - first)
                table, first = table.slice(part.num_rows), first + part.num_rows
                if number in self._done:
                    continue
                if not pieces:
                    begin = number
                elif begin != number:
                    raise InvalidArgumentError(f"{self._reader.path}: it changes while it is read")
                pieces.append(part)
                held += part.num_rows
                if first == (number + 1) * size:
                    yield _Chunk(number, number * size, self._arrow.concat_tables(pieces))
                    pieces, held = [], 0
        if pieces:
            yield _Chunk(begin, begin * size, self._arrow.concat_tables(pieces))
        self._resumed += sum(min(size, self._rows - number * size) for number in self._done)

    def _add(self, chunk: _Chunk) -> int:
        """Adds the rows of a chunk that have no results yet, and returns their number."""
        for path in self._files.old_rows(chunk.number):
            chunk.results += rows_of(path, self._kept)
        known = {tag - chunk.first for batch in chunk.results for tag in batch.column("tag").to_pylist()}
        chunk.left -= len(known)
        self._resumed += len(known)
        self._open[chunk.number] = chunk
        if self._files.remembers_rows:
            chunk.file = self._files.new_rows(chunk.number)
            chunk.writer = optional("pyarrow.ipc", "run_files").new_stream(chunk.file, self._kept)
        if chunk.left == 0:
            self._finish(chunk)
            return 0
        rows = [i for i in range(chunk.table.num_rows) if i not in known] if known else None
        tags = (
            range(chunk.first, chunk.first + chunk.table.num_rows) if rows is None else [chunk.first + i for i in rows]
        )
        self._add_rows(chunk, rows, tags)
        refused = self._engine.poll()
        mistake = mistake_of(refused) if len(refused) >= len(tags) else None
        if mistake is not None and not known:
            raise InvalidArgumentError(mistake, native.BATCHLLM_ERROR_INVALID_ARGUMENT)
        self._deliver(refused)
        return len(tags)

    def _add_rows(self, chunk: _Chunk, rows: Optional[list[int]], tags: Sequence[int]) -> None:
        task = self._wanted.task
        given = self._prompts.rows(chunk.table, rows, task.scores)
        if not task.scores:
            params = task.params(self._wanted.params) or self._wanted.params
            self._engine.add(given, params, tags=tags)  # type: ignore[arg-type]
            return
        if task.continuations_column is None:
            lists = [task.continuations] * len(tags)
        else:
            column = chunk.table.column(task.continuations_column)
            lists = (column if rows is None else column.take(rows)).to_pylist()
        lists = [one if one is not None else [] for one in lists]  # a row without continuations gets an error
        first = 0
        for part in columns_of(given):
            add_scored(
                self._engine, part, lists[first : first + len(part)], array("Q", tags[first : first + len(part)]),
                self._wanted.params,
            )  # fmt: skip
            first += len(part)

    # ---- Out ----

    def _deliver(self, results: Results) -> None:
        """Keeps results, and writes the parts of chunks that are complete."""
        if not len(results):
            return
        self.has_results = True
        batch = self._wanted.batch(results, self._labels)
        rows: dict[int, list[int]] = {}
        for i, tag in enumerate(batch.column("tag").to_pylist()):
            rows.setdefault(tag // self._chunk_rows, []).append(i)
        for number, mine in rows.items():
            chunk = self._open[number]
            own = batch if len(rows) == 1 else batch.take(self._arrow.array(mine, self._arrow.int64()))
            if chunk.file is not None:
                chunk.writer.write_batch(own)
                chunk.file.flush()
            chunk.results.append(own)
            chunk.left -= len(set(own.column("tag").to_pylist()))
            if chunk.left == 0:
                self._finish(chunk)

    def _finish(self, chunk: _Chunk) -> None:
        results = self._arrow.Table.from_batches(chunk.results, self._kept)
        order = sorted(range(results.num_rows), key=results.column("tag").to_pylist().__getitem__)
        results = results.take(self._arrow.array(order, self._arrow.int64()))
        tags = results.column("tag").to_pylist()
        given = chunk.table.select(self._passed).take(
            self._arrow.array([tag - chunk.first for tag in tags], self._arrow.int64())
        )
        errors = results.column(self._wanted.prefix + "error").is_valid().to_pylist()
        failed = len({tag for tag, bad in zip(tags, errors) if bad})
        made = [results.column(name) for name in self._kept.names[1:]]
        table = self._arrow.table([*given.columns, *made], schema=self._schema.with_metadata({"failed": str(failed)}))
        with self._files.part(chunk.number) as file:
            writer = optional("pyarrow.ipc", "run_files").new_file(file, table.schema)
            writer.write_table(table)
            writer.close()
        chunk.close()
        del self._open[chunk.number]
        self._files.drop_rows(chunk.number)
