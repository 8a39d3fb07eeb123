"""Mistakes that let no row of a job run: the job fails instead of each of its rows."""

from __future__ import annotations

from typing import Optional

from . import native
from .results import Results

# How the error of a conversation begins if the model has no chat template.
_NO_TEMPLATE = "the model has no chat template"


def mistake_of(results: Results) -> Optional[str]:
    """The reason why no row of a job can run, if the results of all its rows give the same one; else None. Rows that are
    null tell nothing of the model's template."""
    null = native.BATCHLLM_ERROR_ROW_NULL
    at = next((i for i, status in enumerate(results.statuses) if status != null), None)
    if at is None or results.statuses[at] == native.BATCHLLM_OK:
        return None
    first = results.error_text(at)
    no_template = first.startswith(_NO_TEMPLATE)
    if not no_template and (at > 0 or results.statuses[at] != native.BATCHLLM_ERROR_ROW_INVALID_PARAMETER):
        return None
    if any(results.error_text(i) != first and not (no_template and results.statuses[i] == null) for i in range(at + 1, len(results))):
        return None
    return f"no row can run: {first}" + ("; pass the prompts as text, as the model was trained on them" if no_template else "")
