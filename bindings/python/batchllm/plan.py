"""Plans: which rows share which prefixes, without an engine or a model."""

from __future__ import annotations

import os
from array import array
from dataclasses import dataclass
from typing import Any, Iterator, Literal, Optional, Sequence, Union

from . import native
from .adapters import Directory, adapters_column
from .columns import Rows, token_column
from .errors import ClosedError, refuse_pickle
from .predictions import Prediction, prediction_of
from .report import Report
from .tokenizer import Tokenizer

ENLARGE = {"none": 0, "optimal": 1, "paper": 2}
LEVELS = {"auto": 0}

Enlarge = Literal["none", "optimal", "paper"]
Levels = Union[Literal[1, 2, "auto"], int]


def named(what: str, names: dict[str, int], value: str) -> int:
    """The number of a name, or an error that lists the names."""
    if value not in names:
        raise ValueError(f"{what} is {value!r}: it is one of {', '.join(map(repr, names))}")
    return names[value]


def level_count(levels: Union[int, str]) -> int:
    """The library's number for `levels`."""
    if isinstance(levels, str) and levels not in LEVELS:
        raise ValueError(f"levels is {levels!r}: it is 1, 2 or 'auto'")
    return LEVELS[levels] if isinstance(levels, str) else levels


@dataclass(frozen=True)
class PlanStats:
    """Figures of a plan.

    rows, groups, grouped_rows: rows, groups that share a prefix, and rows in them.
    reused_rows: rows whose groups come from a previous plan.
    known_rows: rows that the previous plan has too, alone or in groups.
    logical_tokens, processed_tokens: tokens of all prompts; the same with each group's prefix counted once.
    longest_prefix, largest_group: in tokens; in rows.
    saving_ratio: 1 - processed / logical.
    seconds: time spent on planning; 0 for a plan from a file.
    enlarge, levels: how the plan was made: 0 "none", 1 "optimal", 2 "paper"; levels of prefixes (0: "auto").
    self_contained: whether the plan contains the rows' tokens.
    tokenizer_fingerprint: that of the tokenizer; 0: unknown.
    """

    rows: int
    groups: int
    grouped_rows: int
    reused_rows: int
    known_rows: int
    logical_tokens: int
    processed_tokens: int
    longest_prefix: int
    largest_group: int
    saving_ratio: float
    seconds: float
    enlarge: int
    levels: int
    self_contained: int
    tokenizer_fingerprint: int


@dataclass(frozen=True)
class Group:
    """Rows that share a prefix, by their numbers."""

    prefix_tokens: int
    common_prefix_tokens: int
    rows: memoryview[int]


class Groups(Sequence[Group]):
    """A plan's groups in scheduling order; rows that share nothing are groups of one.

    prefix_tokens, common_prefix_tokens: [groups] int64; rows of group i are rows[row_offsets[i]:row_offsets[i + 1]].
    """

    def __init__(self, groups: native.batchllm_plan_groups) -> None:
        self.prefix_tokens = native.batchllm_plan_groups_column_prefix_tokens(groups)
        self.common_prefix_tokens = native.batchllm_plan_groups_column_common_prefix_tokens(groups)
        self.row_offsets = native.batchllm_plan_groups_column_row_offsets(groups)
        self.rows = native.batchllm_plan_groups_column_rows(groups)

    def __len__(self) -> int:
        return len(self.prefix_tokens)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        if not -len(self) <= index < len(self):
            raise IndexError(f"group {index} of {len(self)}")
        index %= len(self)
        rows = self.rows[self.row_offsets[index] : self.row_offsets[index + 1]]
        return Group(self.prefix_tokens[index], self.common_prefix_tokens[index], rows)

    def __iter__(self) -> Iterator[Group]:
        return (self[i] for i in range(len(self)))


class Plan:
    """What rows share, found once and reused. Immutable: any number of threads may use it."""

    def __init__(
        self, handle: native.batchllm_plan, adapters: Optional[native.batchllm_params_column] = None
    ) -> None:
        self._native: Optional[native.batchllm_plan] = handle
        self._adapters = adapters

    @classmethod
    def build(
        cls,
        rows: Rows,
        *,
        enlarge: Enlarge = "optimal",
        levels: Levels = "auto",
        min_prefix_tokens: int = 0,
        self_contained: bool = False,
        decode_lengths: Optional[Sequence[int]] = None,
        previous: Optional[Plan] = None,
        tokenizer_fingerprint: int = 0,
        common_prefix_cost: float = 0.0,
        adapters: Optional[Sequence[Optional[Directory]]] = None,
    ) -> Plan:
        """Plans rows of token ids.

        rows: as for `Engine.generate`, or as returned by `Tokenizer.encode`.
        enlarge, levels, min_prefix_tokens: as in `Engine`.
        self_contained: the plan contains the rows' tokens.
        decode_lengths: tokens that each row is expected to generate, for the order of groups; None: all the same.
        previous: a plan of earlier rows: equal rows keep their groups, the others are planned again.
        tokenizer_fingerprint: `Tokenizer.fingerprint`: an engine with another tokenizer rejects the plan; 0: unknown.
        common_prefix_cost: with levels "auto", `Engine.info().common_prefix_cost`: what a head costs each token below it, in computed
            tokens; 0: not known, so no common prefixes are shared.
        adapters: the directory of each row's adapter; None: it has none. Rows whose adapters differ in content share nothing.
        """
        column = token_column(rows)
        options = native.batchllm_plan_options()
        options.enlarge = named("enlarge", ENLARGE, enlarge)
        options.levels = level_count(levels)
        options.min_prefix_tokens = min_prefix_tokens
        options.self_contained = int(self_contained)
        options.tokenizer_fingerprint = tokenizer_fingerprint
        options.common_prefix_cost = common_prefix_cost
        lengths = None if decode_lengths is None else array("i", decode_lengths)
        own = None if adapters is None else adapters_column(adapters)
        return cls(
            native.batchllm_plan_create_from(
                column.tokens, column.offsets, lengths, own, options, previous._handle() if previous else None
            ),
            own,
        )

    @classmethod
    def load(cls, path: Union[str, os.PathLike[str]]) -> Plan:
        """Reads a plan file."""
        return cls(native.batchllm_plan_load_from(os.fspath(path)))

    def save(self, path: Union[str, os.PathLike[str]]) -> None:
        """Writes the plan file atomically: an existing file is replaced or left as it was."""
        native.batchllm_plan_save(self._handle(), os.fspath(path))

    def stats(self) -> PlanStats:
        """Figures of the plan."""
        stats = native.batchllm_plan_stats()
        native.batchllm_plan_get_stats(self._handle(), stats)
        return PlanStats(**{name: getattr(stats, name) for name in PlanStats.__dataclass_fields__})

    def groups(self) -> Groups:
        """All groups, as columns."""
        return Groups(native.batchllm_plan_groups_of(self._handle()))

    @property
    def advice(self) -> str:
        """What to put first in the prompts so that rows share more; "" if there is no advice."""
        return native.batchllm_plan_advice_text(self._handle())

    def predict(
        self,
        model: Union[str, os.PathLike[str]],
        rows: Optional[Rows] = None,
        *,
        device: str = "",
        max_tokens: int = 128,
        samples: int = 1,
        expected_tokens: int = 0,
        backend: str = "auto",
        devices: Optional[str] = None,
        backend_options: Optional[str] = None,
        kv_memory_bytes: int = 0,
        step_tokens: int = 0,
        max_requests: int = 0,
    ) -> Prediction:
        """Predicts how long an engine would take for the plan's rows, before anything runs.

        model: a directory with a config.json; weights are not read.
        rows: the rows that the plan was made from; None: those in the plan, made with `self_contained=True`.
        device: "h200", "h100", or a file with a device's costs; "here" or "": this machine's, measured once and kept.
        max_tokens, samples: of each row. Where a model ends a row is not known in advance: each row is assumed to run
            to max_tokens, or to expected_tokens if the model may end it.
        backend, devices, backend_options, kv_memory_bytes, step_tokens, max_requests: as in `Engine`.

        Rows have the adapters that the plan was built with; one that was loaded or taken from an engine knows none.
        """
        options = native.batchllm_engine_options()
        options.model_dir = os.fspath(model)
        options.backend = backend
        options.devices = devices
        options.backend_options = backend_options
        options.kv_memory_bytes = kv_memory_bytes
        options.step_tokens = step_tokens
        options.max_requests = max_requests
        column = None if rows is None else token_column(rows)
        made = native.batchllm_prediction()
        native.batchllm_plan_predict_rows(
            self._handle(),
            None if column is None else column.tokens,
            None if column is None else column.offsets,
            max_tokens,
            samples,
            self._adapters,
            options,
            device,
            expected_tokens,
            made,
        )
        return prediction_of(made)

    def report(self, tokenizer: Optional[Tokenizer] = None) -> Report:
        """A page that shows what the rows share. With a tokenizer and a plan made with `self_contained=True`, prefixes
        are shown as words; without the tokenizer, as token ids; otherwise by their lengths."""
        made = Report("Plan")
        handle = tokenizer._handle() if tokenizer is not None else None
        native.batchllm_report_add_plan_of(made._native, self._handle(), handle)
        return made

    def close(self) -> None:
        """Frees the plan now instead of on garbage collection. Calls in other threads end first."""
        self._native = None

    def _handle(self) -> native.batchllm_plan:
        handle = self._native
        if handle is None:
            raise ClosedError("the plan was closed")
        return handle

    def __enter__(self) -> Plan:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        if self._native is None:
            return "Plan(closed)"
        stats = self.stats()
        return f"Plan({stats.rows} rows, {stats.grouped_rows} of them in {stats.groups} groups)"

    __reduce_ex__ = refuse_pickle
