"""Journals: what makes a job of your own resumable."""

from __future__ import annotations

import json
import os
from array import array
from typing import Any, Iterable, Mapping, Optional, Sequence, Union

from . import native
from .columns import from_texts
from .errors import ClosedError, JournalExistsError, JournalFormatError, JournalMismatchError, check_existing, refuse_pickle
from .output_paths import check_outputs, files_of_output

_KINDS = {"lines": native.BATCHLLM_JOURNAL_LINES, "blocks": native.BATCHLLM_JOURNAL_BLOCKS}


class Journal:
    """Says which rows of a job are done, refuses to continue another job, keeps other runs away from the output, and keeps
    results so that the process may be killed at any moment.

        with batchllm.Journal("answers.jsonl", input="questions.jsonl", model=folder, resume=True) as journal:
            rows = [row for row in range(len(questions)) if not journal.is_done(row)]
            ... and with each batch of results:
            journal.append_lines(rows, lines)

    output: a path. None: there are no files, and the caller keeps `state`.
    input, model: a file and a model's directory. Both identify the job by their content.
    parts: whatever else changes results. A job cannot be resumed if any of this differs; the error names it.
    kind: "lines": the output is a file of lines, one for each row, in the order in which rows finish. "blocks": the
    journal keeps blocks of bytes in OUTPUT.blocks; when all rows are done, make the output from them and call `finish`.
    resume: continues the job, or begins it if there is no output. force: starts over. Not both.
    retry_failed: with resume, rows that failed are not done. The first append or sync replaces the output by a file
    without their lines. With blocks they are done, but the output of a complete job of which rows failed must be what was
    finished, and is locked: a job that begins again may take the other rows' results from it.

    Rows are numbered from 0, in any way that stays the same. Used by one thread at a time.
    """

    def __init__(
        self,
        output: Union[str, os.PathLike[str], None],
        *,
        input: Union[str, os.PathLike[str], None] = None,
        model: Union[str, os.PathLike[str], None] = None,
        parts: Optional[Mapping[str, object]] = None,
        kind: str = "lines",
        resume: bool = False,
        force: bool = False,
        retry_failed: bool = False,
        earlier_state: Optional[str] = None,
    ) -> None:
        check_existing(resume, force)
        if retry_failed and not resume:
            raise ValueError("retry_failed is for a job that continues: give resume=True too")
        if kind not in _KINDS:
            raise ValueError(f"kind is {kind!r}: it is 'lines' or 'blocks'")
        if output is not None:
            check_outputs({"the output": files_of_output(os.fspath(output), retry_failed)}, {}, model, ())
        named = [text for name, value in (parts or {}).items() for text in (name, _shown(value))]
        existing = (
            native.BATCHLLM_JOURNAL_OVERWRITE
            if force
            else native.BATCHLLM_JOURNAL_RETRY
            if retry_failed
            else native.BATCHLLM_JOURNAL_RESUME if resume else native.BATCHLLM_JOURNAL_REFUSE
        )
        self._native: Any = None
        try:
            self._native = native.batchllm_journal_open_from(
                None if output is None else os.fspath(output),
                None if input is None else os.fspath(input),
                None if model is None else os.fspath(model),
                _KINDS[kind],
                existing,
                "".join(text + "\0" for text in named).encode("utf-8", "backslashreplace"),
                earlier_state,
            )
        except JournalExistsError as fault:
            raise JournalExistsError(f"{fault}; resume continues it, force starts over", fault.status) from None
        except (JournalFormatError, JournalMismatchError) as fault:
            raise type(fault)(f"{fault}; force starts over", fault.status) from None
        self._done = native.batchllm_journal_column_done(self._native)

    # ---- What is done ----

    def is_done(self, row: int) -> bool:
        """Whether an earlier run has done the row."""
        self._open()
        return row >> 3 < len(self._done) and bool(self._done[row >> 3] >> (row & 7) & 1)

    def left(self, first: int, end: int) -> list[int]:
        """The rows of [first, end) that earlier runs have not done."""
        return [row for row in range(first, end) if not self.is_done(row)]

    def count_done(self, first: int, end: int) -> int:
        """How many rows of [first, end) earlier runs have done."""
        bits = int.from_bytes(self._done[first >> 3 : (end + 7) >> 3], "little") >> (first & 7)
        return bin(bits & ((1 << max(end - first, 0)) - 1)).count("1")

    @property
    def rows_done(self) -> int:
        """How many rows earlier runs have done."""
        return int(self._info().rows_done)

    @property
    def rows_written(self) -> int:
        """How many rows this run has done."""
        return int(self._info().rows_written)

    @property
    def failed(self) -> int:
        """How many rows of all runs have failed."""
        info = self._info()
        return int(info.failed_done + info.failed_written)

    @property
    def complete(self) -> bool:
        """Whether the output was finished, by an earlier run or this one."""
        return bool(self._info().complete)

    @property
    def state(self) -> str:
        """One line that identifies the job: the first of OUTPUT.state, or what the caller keeps without an output."""
        return str(self._info().state)

    # ---- Results ----

    def use_pictures(self, pictures: Any) -> None:
        """pictures: an engine with image_folders. The files that it reads for rows are listed beside the output, so that
        the job is not resumed after one of them has changed. Raises JournalMismatchError if one has."""
        handle = getattr(pictures, "_pictures", pictures)
        if handle is None:
            raise ValueError("pictures: the engine has no image_folders")
        try:
            native.batchllm_journal_use_pictures(self._open(), handle)
        except JournalMismatchError as fault:
            raise JournalMismatchError(f"{fault}; force starts over", fault.status) from None

    def append_lines(
        self, rows: Sequence[int], lines: Iterable[str], failed: Optional[Sequence[bool]] = None
    ) -> None:
        """Appends a line for each row. failed: which of the rows have failed. A line's end may be left out.

        When this returns, the lines survive the process; after `sync`, they survive the machine."""
        column = from_texts([line if line.endswith("\n") else line + "\n" for line in lines])
        native.batchllm_journal_append_line_column(
            self._open(), array("q", rows), _flags(failed), column.data, column.offsets
        )

    def append_block(self, rows: Sequence[int], block: Any, failed: Optional[Sequence[bool]] = None) -> None:
        """Appends the results of rows as one block of bytes, or, if this raises, nothing of it."""
        native.batchllm_journal_append_block_of(self._open(), array("q", rows), _flags(failed), memoryview(block))

    @property
    def blocks(self) -> int:
        """How many blocks there are, of all runs."""
        return int(self._info().blocks)

    def block_rows(self, block: int) -> list[int]:
        """The rows of a block."""
        return list(native.batchllm_journal_column_block_rows(self._open(), block))

    def read_block(self, block: int) -> bytes:
        """The bytes of a block."""
        return bytes(native.batchllm_journal_column_block(self._open(), block))

    def sync(self) -> None:
        """Syncs to disk: what was appended survives a crash of the machine."""
        native.batchllm_journal_sync(self._open())

    def finish(self, path: Union[str, os.PathLike[str], None] = None) -> None:
        """For blocks, when the output has been made from them. path: where it is, in the folder of the output, whose name
        it gets once it is on disk; None: it is in its place. The blocks are removed."""
        native.batchllm_journal_finish(self._open(), None if path is None else os.fspath(path))

    def close(self) -> None:
        """Releases the output. A journal that was not written to leaves nothing behind."""
        self._done, self._native = memoryview(b""), None

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open(self) -> Any:
        if self._native is None:
            raise ClosedError("the journal was closed")
        return self._native

    def _info(self) -> Any:
        info = native.batchllm_journal_info()
        native.batchllm_journal_get_info(self._open(), info)
        return info

    __reduce_ex__ = refuse_pickle


def _shown(value: object) -> str:
    return value if isinstance(value, str) and "\0" not in value else json.dumps(value, sort_keys=True, default=repr)


def _flags(failed: Optional[Sequence[bool]]) -> Optional[bytes]:
    return None if failed is None else bytes(map(bool, failed))
