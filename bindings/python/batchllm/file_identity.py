"""What identifies a job on files: everything that must be the same when it is resumed."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from typing import Any, Mapping, Optional, Sequence

from .constraints import schema_of
from .engine import Engine
from .file_formats import open_input
from .file_rows import Prompts, ResultColumns
from .sampling_params import LATER

_HASHED_BYTES = 1 << 20  # of each sample of a large file
_HASHED_PIECES = 64


def identity_of(
    engine: Engine,
    source: str,
    kinds: tuple[str, str],
    prompts: Prompts,
    wanted: ResultColumns,
    passed: Sequence[str],
    chunk_rows: int,
    options: Optional[Mapping[str, Any]],
) -> dict[str, Any]:
    """Everything that changes the output, under names that users know."""
    found: dict[str, Any] = {
        "model": _model_hash(engine.model_dir),
        "input": _file_hash(source, options),
        "engine seed": engine.seed,
    }
    info = engine.info()
    found |= {"backend": info.backend, "compute_type": info.compute_type, "max_request_tokens": info.max_request_tokens}
    if info.reproducible:  # left out otherwise, so that jobs begun before this mode existed can be resumed
        found |= {"reproducible": True}
    found |= {"input_format": kinds[0], "output_format": kinds[1], "chunk_rows": chunk_rows, "columns": list(passed)}
    found |= {"samples": "lists" if wanted.lists else "rows", "result_prefix": wanted.prefix}
    found |= {"prompt_column": prompts.column, "template": prompts.template, "fields": prompts.fields}
    found |= {"chat": prompts.chat, "system": prompts.system}
    task = wanted.task
    if not task.generates:  # left out otherwise, for the same reason
        found |= {"task": task.name, "pooling": task.pooling, "normalize": task.normalize}
        found |= {"dimensions": task.dimensions, "continuations_column": task.continuations_column}
        found |= {"continuations": _as_kept(task.continuations)}
    for field in dataclasses.fields(wanted.params):
        if field.name in LATER and getattr(wanted.params, field.name) == LATER[field.name]:
            continue  # so that jobs begun before there was this parameter can be resumed
        value = getattr(wanted.params, field.name)
        if field.name == "json_schema" and value is not None:
            value = schema_of(value)  # a class may have changed without changing its name
        found["samples of a row" if field.name == "samples" else field.name] = _as_kept(value)
    return found


def _as_kept(value: Any) -> Any:
    """The value as it is read back from the state's JSON."""
    return json.loads(json.dumps(value, sort_keys=True, default=repr))


def _model_hash(model: Optional[str]) -> Optional[str]:
    """A hash of a directory: of all its JSON files and templates, and of samples of its weights."""
    if model is None:
        return None
    digest = hashlib.sha256()
    for name in sorted(os.listdir(model)):
        path = os.path.join(model, name)
        if name.endswith((".json", ".jinja", ".safetensors")) and os.path.isfile(path):
            digest.update(name.encode("utf-8", "surrogateescape") + b"\0" + _file_hash(path, None).encode())
    return digest.hexdigest()[:16]


def _file_hash(path: str, options: Optional[Mapping[str, Any]]) -> str:
    """A file's size and a hash of its content; above 64 MiB, of samples of the content."""
    digest = hashlib.sha256()
    with open_input(path, options) as file:
        size = file.seek(0, os.SEEK_END)
        step = max(_HASHED_BYTES, size // _HASHED_PIECES)
        for at in [*range(0, size, step), max(0, size - _HASHED_BYTES)]:
            file.seek(at)
            digest.update(file.read(_HASHED_BYTES))
    return f"{size} bytes, {digest.hexdigest()[:16]}"
