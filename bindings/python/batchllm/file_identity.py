"""What identifies a job on files: everything that must be the same when it is resumed."""

from __future__ import annotations

import dataclasses
import hashlib
import os
from typing import Any, Mapping, Optional, Sequence

from .constraints import schema_of
from .engine import Engine
from .file_formats import is_remote, open_input
from .file_rows import Prompts, ResultColumns
from .params import SamplingParams

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
    adapter_column: Optional[str],
    options: Optional[Mapping[str, Any]],
) -> dict[str, Any]:
    """Everything that changes the output, as arguments of `Journal`."""
    info, task = engine.info(), wanted.task
    found: dict[str, Any] = {
        "engine seed": engine.seed,
        "backend": info.backend,
        "compute_type": info.compute_type,
        "max_request_tokens": info.max_request_tokens,
        "reproducible": bool(info.reproducible),
        "input_format": kinds[0],
        "output_format": kinds[1],
        "chunk_rows": chunk_rows,
        "columns": list(passed),
        "samples": "lists" if wanted.lists else "rows",
        "result_prefix": wanted.prefix,
        "prompt_column": prompts.column,
        "template": prompts.template,
        "fields": prompts.fields,
        "chat": prompts.chat,
        "system": prompts.system,
        "task": task.name,
        "pooling": task.pooling,
        "normalize": task.normalize,
        "dimensions": task.dimensions,
        "continuations_column": task.continuations_column,
        "continuations": task.continuations,
    }
    if prompts.images is not None:
        found["image_column"] = prompts.images
    if prompts.images is not None or engine._image_folders:
        found["image_folders"] = engine._image_folders
    if wanted.parsed:
        found["parsed"] = True
    if wanted.params.adapter is not None:
        found["content of the adapter"] = engine._adapters.identity(engine._enter(), wanted.params.adapter)
    if adapter_column is not None:
        found["adapter_column"] = adapter_column
        for name, content in engine._adapters.identities(engine._enter()).items():
            if name.encode(errors="replace").decode() == name:  # else no row can name it
                found[f"adapter {name}"] = content
    if is_remote(source):
        found["input"] = _hash(source, options)
    default = SamplingParams()
    for field in dataclasses.fields(wanted.params):
        value = getattr(wanted.params, field.name)
        if value == getattr(default, field.name):
            continue  # so that a parameter that a later version adds changes no job that does not use it
        if field.name == "json_schema" and value is not None:
            value = schema_of(value)  # a class may have changed without changing its name
        if field.name == "adapter":
            continue  # its content counts, not its name
        found["samples of a row" if field.name == "samples" else field.name] = value
    return {"input": None if is_remote(source) else source, "model": engine.model_dir, "parts": found}


def _hash(path: str, options: Optional[Mapping[str, Any]]) -> str:
    """The size of a file at a URL and a hash of its content; above 64 MiB, of samples of the content."""
    digest = hashlib.sha256()
    with open_input(path, options) as file:
        size = file.seek(0, os.SEEK_END)
        step = max(_HASHED_BYTES, size // _HASHED_PIECES)
        for at in [*range(0, size, step), max(0, size - _HASHED_BYTES)]:
            file.seek(at)
            digest.update(file.read(_HASHED_BYTES))
    return f"{size} bytes, {digest.hexdigest()[:16]}"
