"""A finished job on a file begins again, to run the rows that failed: all other results are taken from its output."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Any, Iterator, Mapping

from .errors import Error, InvalidArgumentError, JournalExistsError
from .file_formats import is_remote, open_reader
from .file_results import Format
from .file_rows import ResultColumns
from .frames import optional
from .journal import Journal

_MADE = (".blocks", ".state")  # in this order: with its state, the job is no longer finished


def check_retry(output: str, format_: str) -> None:
    """Raises if results cannot be taken from such an output."""
    if is_remote(output):
        raise InvalidArgumentError(f"retry_failed: {output}: needs an output on this machine")
    if format_ == "csv":
        raise InvalidArgumentError(f"retry_failed: {output}: needs an output of Parquet or Arrow: CSV does not keep null and empty texts apart")


def begin_again(output: str, format_: str, wanted: ResultColumns, chunk_rows: int, job: Mapping[str, Any]) -> None:
    """Makes the journal of a job of which the rows that failed are not done. It appears at once: a run that is killed leaves
    a job that is finished, or one with all of these results. The output stays until the job is finished again.

    The caller has checked that the output is what the job wrote, and keeps its lock."""
    made, form = output + ".retry", Format(wanted.schema())
    try:
        journal = Journal(made, kind="blocks", **job)
    except JournalExistsError as fault:
        raise JournalExistsError(
            f"retry_failed: {made}.blocks and {made}.state hold results until {output} can be replaced, and they or {made} are there"
            " already, of another job: move them away", fault.status,
        ) from None  # fmt: skip
    with journal:
        try:
            for table in _by_chunk(output, format_, wanted, chunk_rows):
                good = _without_failed(table, wanted.prefix + "error")
                tags = list(dict.fromkeys(good.column("tag").to_pylist()))
                if tags:
                    journal.append_block(tags, form.bytes_of(good.to_batches()), [False] * len(tags))
            journal.sync()
            for ending in _MADE:  # the lock moves with the blocks
                os.replace(made + ending, output + ending)
                folder = os.open(os.path.dirname(os.path.abspath(output)), os.O_RDONLY)
                try:
                    os.fsync(folder)
                finally:
                    os.close(folder)
        except BaseException:
            _remove(made)
            raise


def remove_left(output: str, job: Mapping[str, Any]) -> None:
    """Removes what `begin_again` has left in a run that was killed, if it is this job's and no run is there now."""
    made = output + ".retry"
    if any(os.path.exists(made + ending) for ending in _MADE):
        with suppress(Error), Journal(made, kind="blocks", resume=True, **job) as journal:
            journal.sync()  # removes temporary files of its state too
            _remove(made)


def _remove(made: str) -> None:
    for ending in _MADE:
        with suppress(OSError):
            os.unlink(made + ending)


def _by_chunk(output: str, format_: str, wanted: ResultColumns, chunk_rows: int) -> Iterator[Any]:
    """The output's results in the schema of those that are kept, a table for each chunk of rows."""
    arrow = optional("pyarrow", "run_files")
    schema, sample = wanted.schema(), wanted.prefix + "sample"
    reader = open_reader(output, format_, None, schema.names[1:])
    rows, left = 0, schema.empty_table()
    try:
        for _, piece in reader.pieces(lambda *_: True):
            tags = []
            for first in [True] * len(piece) if sample not in piece.column_names else [one == 0 for one in piece.column(sample).to_pylist()]:
                rows += first
                tags.append(rows - 1)
            columns = [arrow.array(tags, arrow.int64()), *(piece.column(one.name).cast(one.type) for one in list(schema)[1:])]
            left = arrow.concat_tables([left, arrow.table(columns, schema=schema)])
            chunks = [tag // chunk_rows for tag in left.column("tag").to_pylist()]
            while chunks and chunks[0] != chunks[-1]:  # the last one may go on
                end = chunks.index(chunks[0] + 1)
                yield left.slice(0, end)
                left, chunks = left.slice(end), chunks[end:]
        if len(left):
            yield left
    finally:
        reader.close()


def _without_failed(table: Any, error: str) -> Any:
    """Without the rows of which any sample failed."""
    tags = table.column("tag").to_pylist()
    failed = {tag for tag, bad in zip(tags, table.column(error).is_valid().to_pylist()) if bad}
    arrow = optional("pyarrow", "run_files")
    return table.take(arrow.array([i for i, tag in enumerate(tags) if tag not in failed], arrow.int64()))
