"""What a run of a job on files has done, in the words of the batchllm program: stats.json, the summary, the report."""

from __future__ import annotations

import dataclasses
import json
import os
import resource
import time
from typing import Any, Optional

from .engine import Engine
from .figures import EngineStats
from .progress import duration
from .report import Report

_PHASES = ("load", "tokenize", "plan", "schedule", "backend", "run")
_NOT_SUMS = ("saving_ratio", "kv_pages_total", "kv_pages_peak", "kv_page_bytes", "state_slots_total", "state_slots_peak",
             "state_slot_bytes", "adapters", "adapter_bytes_peak")  # fmt: skip


class Figures:
    """Figures of one run on an engine that may have had other work before."""

    def __init__(self, engine: Engine, own_engine: bool) -> None:
        self._engine = engine
        self._start = time.monotonic()
        self._before: Optional[EngineStats] = None if own_engine else engine.stats()
        self.chunks = 0

    def stats(self) -> EngineStats:
        """Those of this run alone."""
        now = self._engine.stats()
        if self._before is None:
            return now
        names = [field.name for field in dataclasses.fields(EngineStats) if field.name not in _NOT_SUMS]
        made = dataclasses.replace(now, **{name: getattr(now, name) - getattr(self._before, name) for name in names})
        prompts = made.logical_prompt_tokens
        return dataclasses.replace(made, saving_ratio=1 - made.processed_prompt_tokens / prompts if prompts else 0.0)

    @property
    def seconds(self) -> float:
        """Since the beginning."""
        return time.monotonic() - self._start

    def summary(self, rows: int, failed: int, kept: int) -> str:
        """One line. rows, failed: of this run; kept: rows that earlier runs have done."""
        stats = self.stats()
        before = f"; done before: {kept:,}" if kept else ""
        text = (
            f"{rows:,} rows in {duration(self.seconds)} ({failed:,} errors{before}). Prompts: {stats.logical_prompt_tokens:,}"
            f" tokens, {stats.processed_prompt_tokens:,} computed, {100 * stats.saving_ratio:.1f} % saved by sharing."
            f" Generated: {stats.completion_tokens:,} tokens."
        )
        if stats.cut_off_results:
            text += (
                f" Cut off: {stats.cut_off_results:,} of {stats.constrained_results:,} results with a"
                " constraint."
            )
        return text

    def write_stats(self, path: str, all_rows: Optional[int], rows: int, failed: int, kept: int) -> None:
        """The program's stats.json; its windows are chunks here. all_rows: of the input; None: not known. The others are as
        in `summary`."""
        stats, info = self.stats(), self._engine.info()
        tokens = stats.logical_prompt_tokens + stats.completion_tokens
        found: dict[str, Any] = {"rows": all_rows, "rows_done": rows + kept, "rows_failed": failed, "rows_resumed": kept}
        found |= {"rows_deduplicated": stats.rows_deduplicated, "windows": self.chunks, "groups": stats.groups}
        for name in ("logical_prompt_tokens", "processed_prompt_tokens", "shared_prompt_tokens", "saving_ratio",
                     "recomputed_tokens", "completion_tokens", "constrained_results", "cut_off_results", "steps",
                     "preemptions"):  # fmt: skip
            found[name] = getattr(stats, name)
        found["tokens_per_second"] = tokens / stats.run_seconds if stats.run_seconds else 0
        found["completion_tokens_per_second"] = stats.completion_tokens / stats.run_seconds if stats.run_seconds else 0
        found |= {"backend": info.backend, "device": info.device, "compute_type": info.compute_type}
        found["seconds"] = {"total": self.seconds} | {name: getattr(stats, f"{name}_seconds") for name in _PHASES}
        peak = stats.kv_pages_peak
        found["kv"] = {"pages_total": stats.kv_pages_total, "pages_peak": peak, "page_bytes": stats.kv_page_bytes,
                       "peak_bytes": peak * stats.kv_page_bytes}  # fmt: skip
        if stats.state_slots_total:
            peak = stats.state_slots_peak
            found["states"] = {"slots_total": stats.state_slots_total, "slots_peak": peak,
                               "slot_bytes": stats.state_slot_bytes, "peak_bytes": peak * stats.state_slot_bytes}  # fmt: skip
        if stats.draft_tokens:
            found["drafts"] = {"proposed": stats.draft_tokens, "accepted": stats.draft_tokens_accepted}
        if stats.adapters:
            found["adapters"] = {"used": stats.adapters, "loads": stats.adapter_loads, "load_bytes": stats.adapter_load_bytes,
                                 "peak_bytes": stats.adapter_bytes_peak, "wait_seconds": stats.adapter_wait_seconds}  # fmt: skip
        found["peak_memory_bytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        with open(path, "w", encoding="utf-8") as file:
            file.write(json.dumps(found) + "\n")

    def write_report(self, page: Report, path: str, source: str, target: str, kept: int, interrupted: bool) -> None:
        """The page of the run, with the program's facts."""
        page.title = f"Job: {os.path.basename(source)}"
        page.seconds = self.seconds
        page.add_fact("Input", source)
        page.add_fact("Output", target)
        page.add_fact("Model", self._engine.model_dir or "none")
        page.add_fact("Chunks", f"{self.chunks:,}")
        if kept:
            page.add_fact("Rows of earlier runs", f"{kept:,}, which are not in this report")
        if interrupted:
            page.add_fact("State", "interrupted")
        page.save(path)
