"""Rows that are embedded, classified or scored: how they are added, and the columns of their results."""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import Any, Literal, Mapping, Optional, Sequence

from . import native
from .columns import Column
from .continuations import add_scored_part, continuation_columns
from .embeddings import embedding_params, label_params
from .engine import Engine
from .frames import optional
from .params import SamplingParams, params_column
from .pictures import picture_column
from .row_parts import Nulls, add_part, parts_of, picked
from .table import Table

TaskName = Literal["generate", "embed", "classify"]
TASKS = ("generate", "embed", "classify")
"""What users name. Rows with continuations are scored."""


@dataclass(frozen=True)
class Task:
    """What is done with the rows of a job."""

    name: str = "generate"
    pooling: Optional[str] = None
    normalize: Optional[bool] = None
    dimensions: int = 0
    continuations: Optional[Sequence[Any]] = None
    """The same for all rows."""
    continuations_column: Optional[str] = None

    def __post_init__(self) -> None:
        if self.name not in TASKS:
            raise ValueError(f"task is {self.name!r}: it is {', '.join(map(repr, TASKS[:-1]))} or {TASKS[-1]!r}")
        if self.continuations is not None and self.continuations_column is not None:
            raise ValueError("continuations and continuations_column both say what is scored")
        if self.scores and self.name != "generate":
            raise ValueError(f"task is {self.name!r}, and rows with continuations are scored")
        if self.name != "embed" and (self.pooling is not None or self.normalize is not None or self.dimensions):
            raise ValueError("pooling, normalize and dimensions are for task='embed'")

    @property
    def scores(self) -> bool:
        """Whether rows are scored."""
        return self.continuations is not None or self.continuations_column is not None

    @property
    def generates(self) -> bool:
        """Whether rows are continued."""
        return self.name == "generate" and not self.scores

    def params(self, engine: Engine, params: SamplingParams) -> Optional[native.batchllm_params_column]:
        """Parameters of rows that are embedded or classified; None for other rows."""
        special = params.add_special, params.parse_special
        if self.name == "embed":
            column = embedding_params(self.pooling, self.normalize, self.dimensions, *special)
        elif self.name == "classify":
            column = label_params(*special)
        else:
            return None
        return engine._with_adapter(column, params.adapter)

    def columns(self, arrow: Any, list_of: Any) -> list[tuple[str, Any]]:
        """(name, type) of the result columns of rows that are not continued."""
        if self.scores:
            return [("scores", list_of(arrow.float64()))]
        if self.name == "embed":
            return [("embedding", list_of(arrow.float32()))]
        return [("label", arrow.string()), ("score", arrow.float32()), ("probabilities", list_of(arrow.float32()))]


def with_labels(columns: Mapping[str, Any], labels: Sequence[str]) -> dict[str, Any]:
    """Columns of results; for classified rows also the likeliest label, its probability, and those of all labels."""
    made = dict(columns)
    if "label_probabilities" not in made:
        return made
    arrow = optional("pyarrow", "classifying")
    made["probabilities"] = made["label_probabilities"]
    lists = made["probabilities"].to_pylist()
    best = [max(range(len(one)), key=one.__getitem__) if one else None for one in lists]
    made["label"] = arrow.array([None if at is None else labels[at] for at in best], arrow.string())
    scores = [None if at is None else one[at] for at, one in zip(best, lists)]
    made["score"] = arrow.array(scores, arrow.float32())
    return made


def add_scored(
    engine: Engine,
    column: Column,
    continuations: Sequence[Any],
    tags: array[int],
    params: SamplingParams,
    images: Optional[Sequence[Any]] = None,
) -> None:
    """Adds rows with these continuations and tags."""
    handle = engine._enter()
    special = engine._with_adapter(params_column(params, 1), params.adapter)
    for part, places in parts_of(column):
        own = picked(tags, places)
        if isinstance(part, (Nulls, Table)):  # rows without a prompt
            add_part(handle, part, own, special)
            continue
        lists = list(continuations) if places is None else [continuations[i] for i in places]
        pictures = None if images is None else picture_column(picked(images, places))
        add_scored_part(handle, part, own, continuation_columns(part, lists, 0, len(lists), None), special, pictures)
