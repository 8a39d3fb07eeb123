"""Adapters of one engine: names that rows give -> the library's adapters."""

from __future__ import annotations

import os
from array import array
from typing import Any, Iterator, Mapping, Optional, Union

from . import native
from .errors import InvalidArgumentError

Directory = Union[str, "os.PathLike[str]"]
"""A directory as PEFT writes it, with adapter_config.json and adapter_model.safetensors."""


class Adapters:
    """The adapters of one engine. Rows that have been added keep theirs."""

    def __init__(self) -> None:
        self._loaded: dict[str, native.batchllm_adapter] = {}
        self._paths: dict[str, str] = {}

    def load(self, engine: native.batchllm_engine, name: str, path: Directory) -> None:
        self._loaded[name] = native.batchllm_adapter_open(engine, name, os.fspath(path))
        self._paths[name] = os.path.abspath(path)

    def identity(self, name: str) -> str:
        """What identifies the content of an adapter."""
        self.get(name)
        return native.batchllm_adapter_identity(self._paths[name])

    def remove(self, name: str) -> None:
        self.get(name)
        del self._loaded[name], self._paths[name]

    def names(self) -> Iterator[str]:
        return iter(list(self._loaded))

    def clear(self) -> None:
        self._loaded.clear()
        self._paths.clear()

    def get(self, name: str) -> native.batchllm_adapter:
        if name not in self._loaded:
            raise InvalidArgumentError(
                f"there is no adapter {name!r}: load it with Engine(adapters=..) or load_adapter",
                native.BATCHLLM_ERROR_INVALID_ARGUMENT,
            )
        return self._loaded[name]

    def set(self, column: Optional[native.batchllm_params_column], params: Any) -> list[native.batchllm_adapter]:
        """Puts the adapters of params (one for all rows, or one for each) into their column. The returned list must live
        until the rows have been added."""
        if params is None or column is None:
            return []
        rows = params if hasattr(params, "__getitem__") else [params]
        if all(one is rows[0] for one in rows):
            rows = rows[:1]  # as in the column
        places: dict[str, array[int]] = {}
        for row, one in enumerate(rows):
            if one.adapter is not None:
                places.setdefault(one.adapter, array("q")).append(row)
        used = []
        for name, those in places.items():
            used.append(self.get(name))
            native.batchllm_params_set_adapter(column, those, used[-1])
        return used

    def of_all(
        self, column: Optional[native.batchllm_params_column], name: Optional[str]
    ) -> Optional[native.batchllm_params_column]:
        """The column with this adapter for all of its rows, or a new one."""
        if name is None:
            return column
        column = native.batchllm_params_column_create(1) if column is None else column
        native.batchllm_params_set_adapter(column, None, self.get(name))
        return column


def load_all(adapters: Adapters, engine: native.batchllm_engine, given: Optional[Mapping[str, Directory]]) -> None:
    for name, path in (given or {}).items():
        adapters.load(engine, name, path)
