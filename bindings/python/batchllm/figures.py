"""Figures of an engine: its effective options, and its statistics."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class EngineInfo:
    """The engine's effective options on one of its devices, and the sizes of the model.

    device_count: how many devices the engine has.
    backend, compute_type: for example "cpu" and "f32".
    device: for display: the processor or GPU, and which features of it are used.
    device_number: its number, as in `devices`.
    vocabulary: token ids are below this.
    hidden: size of a hidden state, and so of a full embedding.
    page_tokens: positions in a KV page.
    kv_groups: groups of layers with separate KV pages.
    reproducible: as in the engine's options.
    kv_pages, kv_page_bytes: number and size of this device's KV pages.
    step_tokens: maximum tokens of a batch.
    max_request_tokens: maximum tokens of a row, prompt plus output.
    state_slots, state_slot_bytes: number and size of this device's state slots; 0 slots for a model whose layers have no state.
    common_prefix_cost: for `Plan.build`; 0: not known.
    adapter_memory_bytes, adapter_slots: the most memory for adapters on this device, and the most adapters at once; 0: this backend has
    none.
    picture_slots, picture_tokens: the most pictures at once on this device, and the most tokens of them together; 0: it has none.
    weight_bytes: memory that the model's weights take on this device; 0: not known. compute_type says whether those in four bits stay so.
    """

    device_count: int
    backend: str
    compute_type: str
    device: str
    device_number: int
    vocabulary: int
    hidden: int
    page_tokens: int
    kv_groups: int
    reproducible: bool
    kv_pages: int
    kv_page_bytes: int
    step_tokens: int
    max_request_tokens: int
    state_slots: int
    state_slot_bytes: int
    common_prefix_cost: float
    adapter_memory_bytes: int
    adapter_slots: int
    picture_slots: int
    picture_tokens: int
    weight_bytes: int


@dataclass(frozen=True)
class EngineStats:
    """Statistics of the engine so far.

    rows, rows_done, rows_failed: rows added, rows with a result, and how many of these have an error.
    rows_deduplicated: rows that got the answer of an equal greedy row.
    logical_prompt_tokens: prompt tokens of rows that have started, counting n samples as n rows.
    processed_prompt_tokens, shared_prompt_tokens: how many of these were computed, and how many were not.
    recomputed_tokens: tokens computed again after a preemption.
    completion_tokens: tokens generated.
    steps, preemptions, groups: batches that were run; how often a row was preempted; groups of rows that share a
    prefix.
    kv_pages_total, kv_pages_peak, kv_page_bytes: KV pages of all devices, the most in use at once, and the size of one.
    saving_ratio: 1 - processed / logical.
    load_seconds, tokenize_seconds, plan_seconds, schedule_seconds, backend_seconds, run_seconds: time spent loading, in
    each part of the work, in the model (on the busiest device), and in all steps.
    state_slots_total, state_slots_peak, state_slot_bytes: the same as for KV pages, for the states that some models' layers have.
    constrained_results, cut_off_results: results of rows with a constraint, and how many of these max_tokens or a stop cut off:
    their texts are only the beginnings of valid ones.
    adapters: different adapters that rows have started with.
    adapter_loads, adapter_load_bytes: how often adapters were loaded onto devices, and how much.
    adapter_bytes_peak: the most memory that adapters took at once, on all devices.
    adapter_wait_seconds: how long steps waited for adapters to be read.
    row_pictures, picture_loads: pictures of rows that have started, and how often one was computed.
    picture_prepare_seconds, picture_wait_seconds: how long threads prepared pictures, and how long steps waited for them.
    draft_tokens, draft_tokens_accepted: tokens that drafts proposed and steps computed, and how many of these were right.
    """

    rows: int
    rows_done: int
    rows_failed: int
    rows_deduplicated: int
    logical_prompt_tokens: int
    processed_prompt_tokens: int
    shared_prompt_tokens: int
    recomputed_tokens: int
    completion_tokens: int
    steps: int
    preemptions: int
    groups: int
    kv_pages_total: int
    kv_pages_peak: int
    kv_page_bytes: int
    saving_ratio: float
    load_seconds: float
    tokenize_seconds: float
    plan_seconds: float
    schedule_seconds: float
    backend_seconds: float
    run_seconds: float
    state_slots_total: int
    state_slots_peak: int
    state_slot_bytes: int
    constrained_results: int
    cut_off_results: int
    adapters: int
    adapter_loads: int
    adapter_load_bytes: int
    adapter_bytes_peak: int
    adapter_wait_seconds: float
    row_pictures: int
    picture_loads: int
    picture_prepare_seconds: float
    picture_wait_seconds: float
    draft_tokens: int
    draft_tokens_accepted: int
