"""Adapters of one engine: names that rows give -> the library's adapters."""

from __future__ import annotations

import hashlib
import os
import pathlib
from concurrent.futures import ThreadPoolExecutor
from typing import Iterable, Mapping, Optional, Sequence, Union

from . import native
from .errors import AdapterFormatError, Error, FileError, InvalidArgumentError, OutOfMemoryError, UnsupportedError
from .params import Params, SamplingParams, rows_of

Directory = Union[str, "os.PathLike[str]"]
"""A directory as PEFT writes it, with adapter_config.json and adapter_model.safetensors."""

_CONFIG, _WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_SAMPLES, _SAMPLE_BYTES = 16, 4096
_MOST_THREADS = 16


class Adapters:
    """The adapters of one engine. A column of parameters keeps its adapters alive until the rows have been added, and
    rows keep theirs."""

    def __init__(self, threads: int = 0) -> None:
        self._threads = min(threads or _cores(), _MOST_THREADS)
        self._loaded: dict[str, native.batchllm_adapter] = {}
        self._listed: dict[str, str] = {}  # by name: loaded when a row first names one
        self._directories: dict[str, None] = {}  # of all that were ever given, in order
        self._folder: Optional[str] = None  # whose directories are listed
        self.options = ""  # of the command line that name adapters, for errors

    def open(self, engine: Optional[native.batchllm_engine], given: Union[Mapping[str, Directory], Directory, None]) -> None:
        """Loads adapters by name, or lists a directory of them."""
        paths = adapters_by_name(given)
        self._directories.update(dict.fromkeys(directories_of(given)))
        if isinstance(given, (str, os.PathLike)):
            self._listed, self._folder = paths, os.fspath(given)
            return
        for name, adapter in zip(paths, self._opened(engine, paths)):
            if adapter is None:
                self.load(engine, name, paths[name])  # for its error
            else:
                self._loaded[name] = adapter

    def list_all(self, given: Union[Mapping[str, Directory], Directory, None]) -> None:
        """Each is loaded when a row first names it."""
        self._listed = adapters_by_name(given)

    def load(self, engine: Optional[native.batchllm_engine], name: str, path: Directory) -> None:
        self._loaded[name] = native.batchllm_adapter_open(engine, name, os.fspath(path))
        self._directories[os.fspath(path)] = None

    def add(self, engine: native.batchllm_engine, name: str, path: Directory) -> None:
        """Loads an adapter, in place of one of that name."""
        self.load(engine, name, path)
        self._listed.pop(name, None)

    def load_listed(self, engine: Optional[native.batchllm_engine], names: Iterable[str]) -> None:
        """Loads those of these that are not loaded yet, several at a time. Errors are left to get()."""
        coming = {name: self._listed[name] for name in names if name not in self._loaded and name in self._listed}
        for name, adapter in zip(coming, self._opened(engine, coming)):
            if adapter is not None:
                self._loaded[name] = adapter

    def remove(self, name: str) -> None:
        if name not in self.names():
            raise self._unknown(name)
        self._loaded.pop(name, None)
        self._listed.pop(name, None)

    def names(self) -> list[str]:
        return list({**self._loaded, **self._listed})

    def directories(self) -> list[str]:
        """Directories of adapters, and of directories of these: those that rows may still read."""
        return list(self._directories)

    def identity(self, engine: native.batchllm_engine, name: str) -> str:
        """Identifies the content of an adapter."""
        return native.batchllm_adapter_identity(self.get(engine, name))

    def identities(self, engine: native.batchllm_engine) -> dict[str, str]:
        """Identifies the contents of all; of those in a directory, by samples of the weights."""
        loaded = {name: self.identity(engine, name) for name in self._loaded if name not in self._listed}
        return loaded | {name: _samples(path) for name, path in self._listed.items()}

    def get(self, engine: Optional[native.batchllm_engine], name: str) -> native.batchllm_adapter:
        if name not in self._loaded and name in self._listed:
            self.load(engine, name, self._listed[name])
        if name not in self._loaded:
            raise self._unknown(name)
        return self._loaded[name]

    def why_not(self, engine: native.batchllm_engine, name: Optional[str]) -> Optional[str]:
        """Why rows cannot have this adapter, as their error; None: they can."""
        try:
            if name:
                self.get(engine, name)
        except (InvalidArgumentError, UnsupportedError, AdapterFormatError, FileError, OutOfMemoryError) as error:
            # Not the row's fault: no memory, rather than an adapter that is too large; or the disk fails.
            if str(error) == "out of memory" or isinstance(error, FileError) and _readable(self._listed.get(name or "", "")):
                raise
            return f"ROW_ADAPTER: {error}"
        return None

    def _opened(self, engine: Optional[native.batchllm_engine], paths: Mapping[str, Directory]) -> list[Optional[native.batchllm_adapter]]:
        """Loads adapters, several at a time. None: that one has an error, which loading it again gives."""

        def attempt(name: str) -> Optional[native.batchllm_adapter]:
            try:
                return native.batchllm_adapter_open(engine, name, os.fspath(paths[name]))
            except Error:
                return None

        if len(paths) > 1:
            try:
                with ThreadPoolExecutor(min(self._threads, len(paths))) as pool:
                    return list(pool.map(attempt, paths))
            except RuntimeError:  # no thread can be started
                pass
        return [attempt(name) for name in paths]

    def _unknown(self, name: str) -> InvalidArgumentError:
        text = f"there is no adapter {name!r}" + (f" in {self._folder}" if self._folder is not None else "")
        if self._folder is not None and os.path.basename(name) == name and os.path.isdir(own := os.path.join(self._folder, name)):
            there = os.path.exists(os.path.join(own, _CONFIG))
            text += f": {own} " + ("came after the engine was made, or was removed from it" if there else f"has no {_CONFIG}")
        elif self.options:
            text += f" ({self.options})"
        else:
            text += ": load it with " + ("load_adapter" if self._folder is not None else "Engine(adapters=..) or load_adapter")
        return InvalidArgumentError(text, native.BATCHLLM_ERROR_INVALID_ARGUMENT)

    def check(self, engine: Optional[native.batchllm_engine], params: Sequence[SamplingParams]) -> None:
        """Raises for the first row that cannot have its adapter, before any row is added."""
        named = rows_of(list(params), lambda one: adapter_name(getattr(one, "adapter", None)))
        self.load_listed(engine, named)
        for name, rows in named.items():
            try:
                self.get(engine, name)
            except Error as error:
                error.args = (f"row {rows[0]}: {error}",)
                raise

    def set(self, engine: Optional[native.batchllm_engine], column: Optional[native.batchllm_params_column], params: Params) -> None:
        """Puts the adapters of params (one for all rows, or one for each) into their column."""
        if params is None or column is None:
            return
        column.adapters = []
        named = rows_of(params, lambda one: adapter_name(one.adapter))
        self.load_listed(engine, named)
        for name, rows in named.items():
            column.adapters.append(self.get(engine, name))
            native.batchllm_params_set_adapter(column, rows, column.adapters[-1])

    def of_all(
        self, engine: native.batchllm_engine, column: Optional[native.batchllm_params_column], name: Optional[str]
    ) -> Optional[native.batchllm_params_column]:
        """The column with this adapter for all of its rows, or a new one."""
        name = adapter_name(name)
        if name is None:
            return column
        column = native.batchllm_params_column_create(1) if column is None else column
        column.adapters = [self.get(engine, name)]
        native.batchllm_params_set_adapter(column, None, column.adapters[0])
        return column


def adapters_by_name(given: Union[Mapping[str, Directory], Directory, None]) -> dict[str, str]:
    """The directories of adapters, by name. Of a directory of adapters, those that it has now: what comes into it later is not found."""
    if isinstance(given, (str, os.PathLike)):
        found = {one.name: str(one) for one in sorted(pathlib.Path(given).iterdir()) if not one.name.startswith(".") and _may_be_adapter(one)}
        if not found and _may_be_adapter(pathlib.Path(given)):
            raise ValueError(f"adapters: {os.fspath(given)} is an adapter itself: give it a name, as in {{'name': {os.fspath(given)!r}}}")
        return found
    if given is not None and not isinstance(given, Mapping):
        raise TypeError(f"adapters: {type(given).__name__}: a directory of adapters, or a dict of names and directories, is expected")
    return {name: os.fspath(path) for name, path in (given or {}).items()}


def directories_of(given: Union[Mapping[str, Directory], Directory, None]) -> list[str]:
    """Directories of adapters, or of directories of these."""
    if isinstance(given, (str, os.PathLike)):
        return [os.fspath(given)]
    return [os.fspath(path) for path in given.values()] if isinstance(given, Mapping) else []


def _may_be_adapter(directory: pathlib.Path) -> bool:
    """Whether it has an adapter's files, or cannot be looked into: then its rows have that error."""
    try:
        return (directory / _CONFIG).exists()
    except OSError:
        return True


def _readable(path: str) -> bool:
    """Whether an adapter's files are there for this process to read."""
    files = [os.path.join(path, name) for name in (_CONFIG, _WEIGHTS)]
    return all(os.path.isfile(file) and os.access(file, os.R_OK) for file in files)


def adapter_name(given: object) -> Optional[str]:
    """None: the row has no adapter. In a column of pandas, a missing name is NaN or NA."""
    if given is None or isinstance(given, float) and given != given or type(given).__name__ == "NAType":
        return None
    if not isinstance(given, str):
        raise TypeError(
            f"adapter is one {type(given).__name__}: the name of one adapter is expected; for rows with different ones, generate takes a"
            " list of SamplingParams, one for each row, and run_files an adapter_column"
        )
    return given or None


def _cores() -> int:
    """That this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def adapters_column(paths: Sequence[Optional[Directory]]) -> native.batchllm_params_column:
    """Parameters of rows with these adapters, for plans: they are of no engine."""
    names = [None if path is None else os.fspath(path) for path in paths]
    known = Adapters()
    known.open(None, {name: name for name in names if name is not None})
    params = {name: SamplingParams(adapter=name) for name in names}
    column = native.batchllm_params_column_create(len(names))
    known.set(None, column, [params[name] for name in names])
    return column


def _samples(path: str) -> str:
    """Identifies an adapter by its configuration's and its weights' sizes, and a hash of parts of them; "none": it cannot be read."""
    digest = hashlib.sha256()
    for name in (_CONFIG, _WEIGHTS):
        try:
            whole = os.path.join(path, name)
            if not os.path.isfile(whole):  # a pipe, for instance, which cannot be opened without waiting
                raise FileNotFoundError(whole)
            with open(whole, "rb") as file:
                size = file.seek(0, os.SEEK_END)
                digest.update(b"%d" % size)
                for i in range(_SAMPLES):
                    file.seek(max(0, size - _SAMPLE_BYTES) * i // (_SAMPLES - 1))
                    digest.update(file.read(_SAMPLE_BYTES))
        except OSError:
            return "none"  # rows that name it get an error
    return digest.hexdigest()[:16]
