"""The files that a job keeps beside its output, so that it can be killed at any moment and resumed.

    OUTPUT               appears at once, when every row has its result
    OUTPUT.state         which job this is, as JSON
    OUTPUT.parts/        finished chunks (N.arrow) and results of other rows (N.RUN.rows); removed once the output exists
    OUTPUT.parts/lock    held by the run that is writing

Always: a file under its final name is complete, except N.RUN.rows, whose end may be torn and is then ignored.
"""

from __future__ import annotations

import fcntl
import json
import os
from contextlib import contextmanager, suppress
from typing import Any, BinaryIO, Iterator, Mapping, Optional, cast

from .errors import InvalidArgumentError, StateError
from .file_formats import filesystem, is_remote
from .frames import optional


class JobFiles:
    """Files beside an output on this machine."""

    remembers_rows = True
    """Whether the results of unfinished chunks are kept."""

    def __init__(self, output: str) -> None:
        self.output = output
        self.parts = output + ".parts"
        self._lock: Optional[int] = None
        self._run = 0

    # ---- What is there ----

    def output_exists(self) -> bool:
        """Whether the output exists and is not empty."""
        return os.path.exists(self.output) and os.path.getsize(self.output) > 0

    def read_state(self) -> Optional[dict[str, Any]]:
        """The state; None if there is none."""
        try:
            with open(self.output + ".state", "rb") as file:
                return _state(self.output, file.read())
        except FileNotFoundError:
            return None

    def lock(self) -> None:
        """Raises if another run is writing to the output."""
        path = os.path.join(self.parts, "lock")
        while True:
            try:
                os.mkdir(self.parts)
            except FileExistsError:
                pass
            except FileNotFoundError:
                folder = os.path.dirname(self.output)
                raise InvalidArgumentError(f"{self.output}: there is no directory {folder!r}") from None
            try:
                self._lock = os.open(path, os.O_CREAT | os.O_RDWR, 0o666)
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.stat(path).st_ino == os.fstat(self._lock).st_ino:
                    break
            except BlockingIOError:
                os.close(self._lock)  # type: ignore[arg-type]
                self._lock = None
                raise StateError(f"{self.output}: another run writes to it") from None
            except FileNotFoundError:  # removed by a run that has just ended
                pass
            if self._lock is not None:
                os.close(self._lock)
                self._lock = None
        self._run = 1 + max(
            [int(name.split(".")[1]) for name in os.listdir(self.parts) if name.endswith(".rows")], default=0
        )

    def finished(self) -> set[int]:
        """The numbers of the finished chunks."""
        names = os.listdir(self.parts) if os.path.isdir(self.parts) else []
        return {int(name[: -len(".arrow")]) for name in names if name.endswith(".arrow")}

    # ---- What is made ----

    def write_state(self, state: Mapping[str, Any]) -> None:
        """Writes the state atomically."""
        with self._replacing(self.output + ".state") as file:
            file.write(json.dumps(state, indent=1).encode())

    @contextmanager
    def part(self, chunk: int) -> Iterator[BinaryIO]:
        """A file that becomes the chunk's part when the block ends."""
        with self._replacing(self._part(chunk)) as file:
            yield file

    @contextmanager
    def whole(self) -> Iterator[BinaryIO]:
        """A file that becomes the output when the block ends."""
        with self._replacing(self.output, os.path.join(self.parts, "whole")) as file:
            yield file

    def open_part(self, chunk: int) -> BinaryIO:
        """Opens a finished chunk."""
        return open(self._part(chunk), "rb")

    def new_rows(self, chunk: int) -> BinaryIO:
        """A file for this run's results of an unfinished chunk."""
        return open(os.path.join(self.parts, f"{chunk:08}.{self._run:04}.rows"), "wb")

    def old_rows(self, chunk: int) -> list[str]:
        """The paths of such files left by other runs."""
        begin, own = f"{chunk:08}.", f".{self._run:04}.rows"
        names = sorted(name for name in os.listdir(self.parts) if name.startswith(begin) and name.endswith(".rows"))
        return [os.path.join(self.parts, name) for name in names if not name.endswith(own)]

    def drop_rows(self, chunk: int) -> None:
        """Removes such files of a chunk whose part now exists."""
        for name in os.listdir(self.parts):
            if name.startswith(f"{chunk:08}.") and name.endswith(".rows"):
                os.unlink(os.path.join(self.parts, name))

    def drop_parts(self, everything: bool) -> None:
        """Removes the parts: the output exists, or the job starts over. everything: the lock too."""
        names = os.listdir(self.parts) if os.path.isdir(self.parts) else []
        for name in names:
            if name == "whole" or name.endswith((".arrow", ".rows", ".new")):
                os.unlink(os.path.join(self.parts, name))
        if everything:
            with suppress(OSError):  # any other file there does not belong to this job
                os.unlink(os.path.join(self.parts, "lock"))
                os.rmdir(self.parts)

    def forget(self) -> None:
        """Drops a job that has no results."""
        with suppress(OSError):  # the error that ended the job is raised, not this one
            self.drop_parts(False)
            os.unlink(self.output + ".state")

    def close(self) -> None:
        """Releases the lock, and removes the folder if there is nothing else in it."""
        if self._lock is not None:
            with suppress(OSError):
                if os.listdir(self.parts) == ["lock"]:
                    os.unlink(os.path.join(self.parts, "lock"))
                    os.rmdir(self.parts)
            os.close(self._lock)
            self._lock = None

    # ---- Inside ----

    def _part(self, chunk: int) -> str:
        return os.path.join(self.parts, f"{chunk:08}.arrow")

    @contextmanager
    def _replacing(self, path: str, under: Optional[str] = None) -> Iterator[BinaryIO]:
        """A new file, renamed to its path once it is completely on disk."""
        under = under or path + ".new"
        try:
            with open(under, "wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.replace(under, path)
        except BaseException:
            with suppress(OSError):  # frees the space, which a full disk needs
                os.unlink(under)
            raise
        folder = os.open(os.path.dirname(path) or ".", os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


class RemoteJobFiles(JobFiles):
    """The same at a URL that fsspec knows: there is no lock, and only whole chunks are kept."""

    remembers_rows = False

    def __init__(self, output: str, options: Optional[Mapping[str, Any]]) -> None:
        self._system, inside = filesystem(output, options)
        super().__init__(inside)

    def output_exists(self) -> bool:
        """Whether the output exists and is not empty."""
        return bool(self._system.exists(self.output)) and bool(self._system.size(self.output))

    def read_state(self) -> Optional[dict[str, Any]]:
        """The state; None if there is none."""
        path = self.output + ".state"
        return _state(self.output, self._system.cat_file(path)) if self._system.exists(path) else None

    def lock(self) -> None:
        """Only creates the folder: URLs have no locks."""
        self._system.makedirs(self.parts, exist_ok=True)

    def finished(self) -> set[int]:
        """The numbers of the finished chunks."""
        self._system.invalidate_cache()
        names = self._system.ls(self.parts, detail=False) if self._system.exists(self.parts) else []
        ends = [str(name).rsplit("/", 1)[-1] for name in names]
        return {int(name[: -len(".arrow")]) for name in ends if name.endswith(".arrow")}

    def open_part(self, chunk: int) -> BinaryIO:
        """A finished chunk."""
        return cast(BinaryIO, self._system.open(self._part(chunk), "rb"))

    def old_rows(self, chunk: int) -> list[str]:
        """Always empty: none are kept."""
        return []

    def drop_rows(self, chunk: int) -> None:
        """Does nothing: none are kept."""

    def drop_parts(self, everything: bool) -> None:
        """Removes the parts: the output exists, or the job starts over."""
        if self._system.exists(self.parts):
            self._system.rm(self.parts, recursive=True)
        if not everything:
            self._system.makedirs(self.parts, exist_ok=True)

    def forget(self) -> None:
        """Drops a job that has no results."""
        with suppress(OSError):
            self.drop_parts(True)
            self._system.rm(self.output + ".state")

    @contextmanager
    def _replacing(self, path: str, under: Optional[str] = None) -> Iterator[BinaryIO]:
        under = under or path + ".new"
        with self._system.open(under, "wb") as file:
            yield file
        self._system.mv(under, path)


def job_files(output: str, options: Optional[Mapping[str, Any]]) -> JobFiles:
    """The files beside an output."""
    if is_remote(output):
        return RemoteJobFiles(output, options)
    if os.path.isdir(output):
        raise InvalidArgumentError(f"{output}: is a directory")
    if (os.path.exists(output) and not os.path.isfile(output)) or _is_descriptor(output):
        raise InvalidArgumentError(f"{output}: not a regular file: the output appears in one piece, under its own name")
    return JobFiles(output)


def _is_descriptor(path: str) -> bool:
    """Whether the path is, or is a link to, one of this process's open descriptors (/dev/stdout, /dev/fd/3)."""
    for _ in range(40):  # as many links as Linux follows
        folder = os.path.dirname(path)
        if os.path.realpath(folder or ".") == os.path.realpath("/proc/self/fd"):
            return True
        if not os.path.islink(path):
            break
        path = os.path.join(folder, os.readlink(path))
    return False


def rows_of(path: str, schema: Any) -> list[Any]:
    """The record batches of a file of results, up to the first incomplete one."""
    arrow = optional("pyarrow", "run_files")
    found: list[Any] = []
    with open(path, "rb") as file:
        try:
            for batch in optional("pyarrow.ipc", "run_files").open_stream(file):
                if batch.schema != schema:
                    return found
                found.append(batch)
        except (arrow.ArrowInvalid, OSError):
            pass
    return found


def refuse_another_job(output: str, was: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Raises if the jobs differ, and names what differs."""
    names = [name for name in {**was, **now} if was.get(name) != now.get(name)]
    if names:
        said = ", ".join(f"{name} was {was.get(name)!r} and is {now.get(name)!r}" for name in names)
        raise InvalidArgumentError(
            f"{output}: it was begun by another job: {said}; resume with the same, or start over with force"
        )


def _state(output: str, text: bytes) -> dict[str, Any]:
    try:
        state = json.loads(text)
        if state["version"] == 1 and isinstance(state["job"], dict):
            return dict(state)
    except (ValueError, KeyError, TypeError):
        pass
    raise InvalidArgumentError(f"{output}.state: no state file of this version; start over with force")
