"""Where a job on files keeps its results until every row has one: beside an output on this machine in a journal, row by
row; beside an output at a URL in whole chunks.

Results are record batches of one schema, with the number of the row in the column `tag`. A row's results come together.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from typing import Any, BinaryIO, Mapping, Optional, Protocol, Sequence, cast

from .errors import JournalExistsError, JournalFormatError
from .file_formats import filesystem, is_remote
from .frames import optional
from .journal import Journal


class FileResults(Protocol):
    """What a run asks of them."""

    def complete(self) -> Optional[tuple[int, int]]:
        """If an earlier run has finished the output: its rows, and how many of them failed."""

    def use_pictures(self, pictures: Any) -> None:
        """What reads the rows' pictures. Raises if one at a path has changed since an earlier run."""

    def is_done(self, chunk: int, first: int, end: int) -> bool:
        """Whether all rows of a chunk, [first, end), have results."""

    def left(self, first: int, end: int) -> list[int]:
        """The rows of [first, end) that have none."""

    def rows_done(self, rows: int) -> int:
        """How many of all rows earlier runs have done."""

    def keep(self, chunk: int, batch: Any, failed: Mapping[int, bool]) -> None:
        """Keeps results of rows of one chunk. failed: these rows, and which of them have an error."""

    def close_chunk(self, chunk: int) -> None:
        """Every row of a chunk has its result."""

    def read(self, chunk: int) -> Any:
        """The results of a chunk, as a table."""

    def new_output(self) -> BinaryIO:
        """A file for the output, which gets its name by `finish`."""

    def drop_output(self) -> None:
        """Removes that file, which could not be written."""

    def finish(self, rows: int, failed: int) -> None:
        """The output is written and closed. The results are removed."""

    def close(self) -> None:
        """Releases the output."""


class Format:
    """Results as bytes, with their schema."""

    def __init__(self, schema: Any) -> None:
        self.schema = schema
        self._arrow, self._ipc = optional("pyarrow", "run_files"), optional("pyarrow.ipc", "run_files")

    def bytes_of(self, batches: Sequence[Any]) -> Any:
        sink = self._arrow.BufferOutputStream()
        with self._ipc.new_stream(sink, self.schema) as writer:
            for batch in batches:
                writer.write_batch(batch)
        return sink.getvalue()

    def table_of(self, found: Sequence[bytes]) -> Any:
        tables = [self._ipc.open_stream(one).read_all() for one in found]
        return self._arrow.concat_tables(tables) if tables else self.schema.empty_table()


class _Local:
    def __init__(
        self, output: str, chunk_rows: int, schema: Any, resume: bool, force: bool, retry_failed: bool, job: Mapping[str, Any]
    ) -> None:
        self._new, self._format = output + ".new", Format(schema)
        self._journal = Journal(output, kind="blocks", resume=resume, force=force, retry_failed=retry_failed, **job)
        self._blocks: dict[int, list[int]] = {}  # of each chunk
        for block in range(self._journal.blocks):
            self._blocks.setdefault(self._journal.block_rows(block)[0] // chunk_rows, []).append(block)

    def complete(self) -> Optional[tuple[int, int]]:
        return (self._journal.rows_done, self._journal.failed) if self._journal.complete else None

    def use_pictures(self, pictures: Any) -> None:
        self._journal.use_pictures(pictures)

    def is_done(self, chunk: int, first: int, end: int) -> bool:
        return self._journal.count_done(first, end) == end - first

    def left(self, first: int, end: int) -> list[int]:
        return self._journal.left(first, end)

    def rows_done(self, rows: int) -> int:
        return self._journal.rows_done

    def keep(self, chunk: int, batch: Any, failed: Mapping[int, bool]) -> None:
        self._journal.append_block(list(failed), self._format.bytes_of([batch]), list(failed.values()))
        self._blocks.setdefault(chunk, []).append(self._journal.blocks - 1)

    def close_chunk(self, chunk: int) -> None:
        self._journal.sync()

    def read(self, chunk: int) -> Any:
        return self._format.table_of([self._journal.read_block(block) for block in self._blocks.get(chunk, ())])

    def new_output(self) -> BinaryIO:
        return open(self._new, "wb")

    def drop_output(self) -> None:
        with suppress(OSError):  # frees the space, which a full disk needs
            os.unlink(self._new)

    def finish(self, rows: int, failed: int) -> None:
        self._journal.finish(self._new)

    def close(self) -> None:
        self._journal.close()


class _Remote:
    """At a URL that fsspec knows, without a lock.

    OUTPUT.state         the journal's line; when the output is complete, a second line with its counts
    OUTPUT.parts/        a file for each finished chunk; removed once the output exists
    """

    def __init__(
        self, output: str, options: Optional[Mapping[str, Any]], chunk_rows: int, schema: Any, resume: bool, force: bool,
        job: Mapping[str, Any],
    ) -> None:  # fmt: skip
        self._system, self._output = filesystem(output, options)
        self._parts, self._state = self._output + ".parts", self._output + ".state"
        self._chunk_rows, self._format = chunk_rows, Format(schema)
        self._open: dict[int, list[Any]] = {}
        self._begun = False
        exists = bool(self._system.exists(self._output)) and bool(self._system.size(self._output))
        lines: Optional[list[str]] = None
        if not force and self._system.exists(self._state):
            lines = self._system.cat_file(self._state).decode("utf-8", "replace").split("\n")
        if lines is None and exists and resume:
            raise JournalFormatError(
                f"{output}.state: not found, so it is not known which rows are done; force starts over", 24
            )
        if not force and not resume and (lines is not None or exists):
            raise JournalExistsError(f"{output}: exists, or its job was begun; resume continues it, force starts over", 26)
        journal = Journal(None, resume=resume, force=force, earlier_state=lines[0] if lines else None, **job)
        self._line = journal.state.rstrip("\n")
        self._done = self._finished() if lines is not None else set()
        self._ended: Optional[tuple[int, int]] = None
        if lines is not None and exists and len(lines) > 1 and lines[1]:
            counts = json.loads(lines[1])
            self._ended = int(counts["rows"]), int(counts["failed"])

    def _finished(self) -> set[int]:
        self._system.invalidate_cache()
        names = self._system.ls(self._parts, detail=False) if self._system.exists(self._parts) else []
        ends = [str(name).rsplit("/", 1)[-1] for name in names]
        return {int(name[: -len(".arrow")]) for name in ends if name.endswith(".arrow")}

    def complete(self) -> Optional[tuple[int, int]]:
        return self._ended

    def use_pictures(self, pictures: Any) -> None:
        """Beside an output at a URL nothing is known of pictures."""

    def is_done(self, chunk: int, first: int, end: int) -> bool:
        return chunk in self._done

    def left(self, first: int, end: int) -> list[int]:
        return list(range(first, end))

    def rows_done(self, rows: int) -> int:
        return sum(min(self._chunk_rows, rows - chunk * self._chunk_rows) for chunk in self._done)

    def keep(self, chunk: int, batch: Any, failed: Mapping[int, bool]) -> None:
        self._open.setdefault(chunk, []).append(batch)

    def close_chunk(self, chunk: int) -> None:
        if not self._begun:
            if not self._done and self._system.exists(self._parts):
                self._system.rm(self._parts, recursive=True)
            self._system.makedirs(self._parts, exist_ok=True)
            self._write(self._state, self._line.encode())
            self._begun = True
        self._write(self._part(chunk), self._format.bytes_of(self._open.pop(chunk, [])))

    def read(self, chunk: int) -> Any:
        path = self._part(chunk)
        return self._format.table_of([self._system.cat_file(path)] if self._system.exists(path) else [])

    def new_output(self) -> BinaryIO:
        return cast(BinaryIO, self._system.open(self._output + ".new", "wb"))

    def drop_output(self) -> None:
        with suppress(OSError):
            self._system.rm(self._output + ".new")

    def finish(self, rows: int, failed: int) -> None:
        self._system.mv(self._output + ".new", self._output)
        self._write(self._state, f"{self._line}\n{json.dumps({'rows': rows, 'failed': failed})}\n".encode())
        if self._system.exists(self._parts):
            self._system.rm(self._parts, recursive=True)

    def close(self) -> None:
        """There is nothing to release."""

    def _part(self, chunk: int) -> str:
        return f"{self._parts}/{chunk:08}.arrow"

    def _write(self, path: str, data: Any) -> None:
        with self._system.open(path + ".new", "wb") as file:
            file.write(data)
        self._system.mv(path + ".new", path)


def open_results(
    output: str,
    options: Optional[Mapping[str, Any]],
    chunk_rows: int,
    schema: Any,
    resume: bool,
    force: bool,
    retry_failed: bool,
    job: Mapping[str, Any],
) -> FileResults:
    """job: what identifies it, as arguments of `Journal`, as are resume, force and retry_failed."""
    if is_remote(output):
        return _Remote(output, options, chunk_rows, schema, resume, force, job)
    return _Local(output, chunk_rows, schema, resume, force, retry_failed, job)
