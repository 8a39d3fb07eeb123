"""Adapters of one engine: names that rows give -> the library's adapters."""

from __future__ import annotations

import os
from operator import attrgetter
from typing import Optional, Union

from . import native
from .errors import InvalidArgumentError
from .params import Params, rows_of

Directory = Union[str, "os.PathLike[str]"]
"""A directory as PEFT writes it, with adapter_config.json and adapter_model.safetensors."""


class Adapters:
    """The adapters of one engine. A column of parameters keeps its adapters alive until the rows have been added, and
    rows keep theirs."""

    def __init__(self) -> None:
        self._loaded: dict[str, native.batchllm_adapter] = {}

    def load(self, engine: native.batchllm_engine, name: str, path: Directory) -> None:
        self._loaded[name] = native.batchllm_adapter_open(engine, name, os.fspath(path))

    def remove(self, name: str) -> None:
        self.get(name)
        del self._loaded[name]

    def names(self) -> list[str]:
        return list(self._loaded)

    def identity(self, name: str) -> str:
        """Identifies the content of an adapter."""
        return native.batchllm_adapter_identity(self.get(name))

    def get(self, name: str) -> native.batchllm_adapter:
        if name not in self._loaded:
            raise InvalidArgumentError(
                f"there is no adapter {name!r}: load it with Engine(adapters=..) or load_adapter",
                native.BATCHLLM_ERROR_INVALID_ARGUMENT,
            )
        return self._loaded[name]

    def set(self, column: Optional[native.batchllm_params_column], params: Params) -> None:
        """Puts the adapters of params (one for all rows, or one for each) into their column."""
        if params is None or column is None:
            return
        column.adapters = []
        for name, rows in rows_of(params, attrgetter("adapter")).items():
            column.adapters.append(self.get(name))
            native.batchllm_params_set_adapter(column, rows, column.adapters[-1])

    def of_all(
        self, column: Optional[native.batchllm_params_column], name: Optional[str]
    ) -> Optional[native.batchllm_params_column]:
        """The column with this adapter for all of its rows, or a new one."""
        if name is None:
            return column
        column = native.batchllm_params_column_create(1) if column is None else column
        column.adapters = [self.get(name)]
        native.batchllm_params_set_adapter(column, None, column.adapters[0])
        return column
