"""Mistakes that let no row of a job run: the job fails instead of each of its rows."""

from __future__ import annotations

from typing import Optional

from . import native
from .results import Results

# How the error of a conversation begins if the model has no chat template.
_NO_TEMPLATE = "the model has no chat template"


def mistake_of(results: Results) -> Optional[str]:
    """The reason why no row of a job can run, if the results of all its rows that are not null give the same one; else
    None."""
    given = [i for i, status in enumerate(results.statuses) if status != native.BATCHLLM_ERROR_ROW_NULL]
    if not given or results.statuses[given[0]] == native.BATCHLLM_OK:
        return None
    first = results.error_text(given[0])
    no_template = first.startswith(_NO_TEMPLATE)
    shared = results.statuses[given[0]] == native.BATCHLLM_ERROR_ROW_INVALID_PARAMETER or no_template
    if not shared or any(results.error_text(i) != first for i in given[1:]):
        return None
    return f"no row can run: {first}" + ("; pass the prompts as text, as the model was trained on them" if no_template else "")
