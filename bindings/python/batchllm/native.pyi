"""The part of the generated layer that the package uses: batchllm.h in Python's terms (bindings/swig)."""

import os
from array import array
from typing import Any, Callable, Optional, Union

Path = Union[str, bytes, os.PathLike[str], os.PathLike[bytes]]
Buffer = Union[bytes, bytearray, memoryview[Any], array[Any], Any]

BATCHLLM_VERSION_MAJOR: int
BATCHLLM_VERSION_MINOR: int
BATCHLLM_VERSION_PATCH: int
BATCHLLM_OK: int
BATCHLLM_ERROR_INVALID_ARGUMENT: int
BATCHLLM_ERROR_OUT_OF_MEMORY: int
BATCHLLM_ERROR_IO: int
BATCHLLM_ERROR_STOPPED: int
BATCHLLM_ERROR_INTERNAL: int
BATCHLLM_ERROR_UNSUPPORTED: int
BATCHLLM_ERROR_STATE: int
BATCHLLM_ERROR_MODEL_FORMAT: int
BATCHLLM_ERROR_TOKENIZER_FORMAT: int
BATCHLLM_ERROR_PLAN_FORMAT: int
BATCHLLM_ERROR_PLAN_MISMATCH: int
BATCHLLM_ERROR_JOURNAL_FORMAT: int
BATCHLLM_ERROR_JOURNAL_MISMATCH: int
BATCHLLM_ERROR_JOURNAL_EXISTS: int
BATCHLLM_ERROR_ADAPTER_FORMAT: int
BATCHLLM_ERROR_BACKEND_UNAVAILABLE: int
BATCHLLM_ERROR_DEVICE: int
BATCHLLM_ERROR_ROW_EMPTY: int
BATCHLLM_ERROR_ROW_TOO_LONG: int
BATCHLLM_ERROR_ROW_INVALID_UTF8: int
BATCHLLM_ERROR_ROW_UNKNOWN_TOKEN: int
BATCHLLM_ERROR_ROW_INVALID_PARAMETER: int
BATCHLLM_ERROR_ROW_TEMPLATE: int
BATCHLLM_ERROR_ROW_TOO_LARGE: int
BATCHLLM_ERROR_ROW_NOT_A_NUMBER: int
BATCHLLM_ERROR_ROW_CONSTRAINT: int
BATCHLLM_ERROR_ROW_NULL: int
BATCHLLM_ERROR_ROW_ADAPTER: int
BATCHLLM_ERROR_ROW_PICTURE: int
BATCHLLM_PICTURE_BYTES: int
BATCHLLM_PICTURE_NAME: int
BATCHLLM_JOURNAL_LINES: int
BATCHLLM_JOURNAL_BLOCKS: int
BATCHLLM_JOURNAL_REFUSE: int
BATCHLLM_JOURNAL_RESUME: int
BATCHLLM_JOURNAL_OVERWRITE: int
BATCHLLM_JOURNAL_RETRY: int
BATCHLLM_ENLARGE_NONE: int
BATCHLLM_ENLARGE_OPTIMAL: int
BATCHLLM_ENLARGE_PAPER: int
BATCHLLM_ORDER_DECODE_FIRST: int
BATCHLLM_ORDER_ARRIVAL: int
BATCHLLM_LOG_ERROR: int
BATCHLLM_LOG_WARNING: int
BATCHLLM_LOG_INFO: int
BATCHLLM_LOG_DEBUG: int
BATCHLLM_FINISH_STOP: int
BATCHLLM_FINISH_LENGTH: int
BATCHLLM_FINISH_CANCELLED: int
BATCHLLM_FINISH_ERROR: int
BATCHLLM_FINISH_SCORED: int
BATCHLLM_ENCODE_ADD_SPECIAL: int
BATCHLLM_ENCODE_PARSE_SPECIAL: int
BATCHLLM_DECODE_SKIP_SPECIAL: int
BATCHLLM_CHAT_NO_GENERATION_PROMPT: int

class _Handle:
    thisown: bool

class batchllm_engine(_Handle): ...
class batchllm_params_column(_Handle):
    # What it points to, kept alive.
    constraints: list[batchllm_constraint]
    adapters: list[batchllm_adapter]

class batchllm_constraint(_Handle): ...
class batchllm_plan(_Handle): ...
class batchllm_plan_groups(_Handle): ...
class batchllm_tokenizer(_Handle): ...
class batchllm_frame(_Handle): ...
class batchllm_report(_Handle): ...
class batchllm_table(_Handle): ...
class batchllm_journal(_Handle): ...

class batchllm_ranges(_Handle):
    blind: int


class batchllm_results(_Handle):
    count: int

class batchllm_column(_Handle):
    count: int

class batchllm_engine_options(_Handle):
    def __init__(self) -> None: ...
    threads: int
    model_dir: Optional[Path]
    backend: Optional[str]
    devices: Optional[str]
    compute_type: Optional[str]
    backend_options: Optional[str]
    kv_memory_bytes: int
    kv_memory_fraction: float
    step_tokens: int
    max_request_tokens: int
    max_requests: int
    adapter_memory_bytes: int
    enlarge: int
    levels: int
    order: int
    log_level: int
    seed: int
    timeline_path: Optional[Path]
    min_prefix_tokens: int
    reproducible: int

class batchllm_progress(_Handle):
    def __init__(self) -> None: ...
    rows_waiting: int
    rows_running: int
    rows_done: int
    decode_tokens: int
    own_tokens: int
    prefix_tokens: int
    pages_used: int
    pages_total: int
    tokens_left: int
    tokens_done: int
    seconds: float

class batchllm_info(_Handle):
    def __init__(self) -> None: ...
    device_count: int
    backend: str
    compute_type: str
    device: str
    device_number: int
    vocabulary: int
    hidden: int
    page_tokens: int
    kv_groups: int
    reproducible: int
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

class batchllm_stats(_Handle):
    def __init__(self) -> None: ...
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

class batchllm_plan_options(_Handle):
    def __init__(self) -> None: ...
    enlarge: int
    levels: int
    self_contained: int
    tokenizer_fingerprint: int
    order: int
    min_prefix_tokens: int
    common_prefix_cost: float

class batchllm_plan_stats(_Handle):
    def __init__(self) -> None: ...
    enlarge: int
    levels: int
    self_contained: int
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
    tokenizer_fingerprint: int

class batchllm_journal_info(_Handle):
    started: int
    resumable: int
    complete: int
    created: int
    rows_done: int
    failed_done: int
    rows_lost: int
    rows_written: int
    failed_written: int
    blocks: int
    state: str

class batchllm_prediction(_Handle):
    def __init__(self) -> None: ...
    devices: int
    rows: int
    steps: int
    logical_prompt_tokens: int
    processed_prompt_tokens: int
    recomputed_tokens: int
    completion_tokens: int
    preemptions: int
    kv_pages_peak: int
    kv_pages_total: int
    kv_page_bytes: int
    saving_ratio: float
    common_prefix_cost: float
    seconds: float
    linear_seconds: float
    attention_seconds: float
    other_seconds: float
    device: str
    weight_bytes: int
    four_bit_bytes: int
    adapters: int
    adapter_loads: int
    adapter_load_bytes: int
    adapter_seconds: float

def batchllm_version() -> int: ...
def batchllm_status_name(status: int) -> str: ...
def batchllm_finish_name(reason: int) -> str: ...
def batchllm_calls() -> int: ...
def batchllm_on_log(function: Callable[[int, int, str], None]) -> None: ...
def batchllm_end_log() -> None: ...
def batchllm_set_log(options: batchllm_engine_options, number: int) -> None: ...
def batchllm_engine_create_from(options: batchllm_engine_options) -> batchllm_engine: ...
def batchllm_build_groups(engine: batchllm_engine) -> None: ...
def batchllm_step(engine: batchllm_engine, progress: batchllm_progress) -> None: ...
def batchllm_advance(engine: batchllm_engine, seconds: float, progress: batchllm_progress) -> None: ...
def batchllm_interrupt(engine: batchllm_engine) -> None: ...
def batchllm_cancel(engine: batchllm_engine, tag: int) -> None: ...
def batchllm_cancel_all(engine: batchllm_engine) -> None: ...
def batchllm_cancel_rows(engine: batchllm_engine, first_tag: int, rows: int) -> None: ...
def batchllm_engine_label_count(engine: batchllm_engine) -> int: ...
def batchllm_engine_label(engine: batchllm_engine, label: int) -> str: ...
def batchllm_engine_info(engine: batchllm_engine, device: int, info: batchllm_info) -> None: ...
def batchllm_engine_stats(engine: batchllm_engine, stats: batchllm_stats) -> None: ...
def batchllm_engine_use_plan(engine: batchllm_engine, plan: batchllm_plan) -> None: ...
def batchllm_engine_take_plan(engine: batchllm_engine) -> batchllm_plan: ...
def batchllm_params_column_create(count: int) -> batchllm_params_column: ...
def batchllm_params_set_integers(column: batchllm_params_column, field: str, values: Buffer) -> None: ...
def batchllm_params_set_numbers(column: batchllm_params_column, field: str, values: Buffer) -> None: ...
def batchllm_params_set_tokens(
    column: batchllm_params_column, field: str, tokens: Buffer, offsets: Buffer
) -> None: ...
def batchllm_params_set_texts(
    column: batchllm_params_column, field: str, text: Buffer, starts: Buffer, offsets: Buffer
) -> None: ...
def batchllm_params_set_biases(
    column: batchllm_params_column, field: str, tokens: Buffer, values: Buffer, offsets: Buffer
) -> None: ...
def batchllm_check_params(engine: batchllm_engine, params: Optional[batchllm_params_column]) -> None: ...
def batchllm_add_token_column(
    engine: batchllm_engine, tokens: Buffer, offsets: Buffer, tags: Buffer, params: Optional[batchllm_params_column]
) -> None: ...
def batchllm_add_text_column(
    engine: batchllm_engine, text: Buffer, offsets: Buffer, tags: Buffer, params: Optional[batchllm_params_column]
) -> None: ...
def batchllm_add_chat_column(
    engine: batchllm_engine,
    conversations: Buffer,
    offsets: Buffer,
    tags: Buffer,
    params: Optional[batchllm_params_column],
) -> None: ...
def batchllm_add_score_columns(
    engine: batchllm_engine,
    tokens: Buffer,
    offsets: Buffer,
    continuations: Buffer,
    continuation_offsets: Buffer,
    continuation_rows: Buffer,
    tags: Buffer,
    params: Optional[batchllm_params_column],
) -> None: ...
def batchllm_add_score_text_columns(
    engine: batchllm_engine,
    text: Buffer,
    offsets: Buffer,
    continuations: Buffer,
    continuation_offsets: Buffer,
    continuation_rows: Buffer,
    tags: Buffer,
    params: Optional[batchllm_params_column],
) -> None: ...
def batchllm_add_score_picture_columns(
    engine: batchllm_engine,
    chat: bool,
    text: Buffer,
    offsets: Buffer,
    picture_rows: Buffer,
    pictures: Buffer,
    picture_offsets: Buffer,
    kinds: Buffer,
    continuations: Buffer,
    continuation_offsets: Buffer,
    continuation_rows: Buffer,
    tags: Buffer,
    params: Optional[batchllm_params_column],
) -> None: ...
def batchllm_poll_results(engine: batchllm_engine, max_results: int) -> batchllm_results: ...
def batchllm_results_of_rows(results: batchllm_results, first_tag: int, rows: int, inside: int) -> batchllm_results: ...
def batchllm_results_rows(results: batchllm_results) -> int: ...
def batchllm_results_take(results: batchllm_results, first: int, max_results: int) -> batchllm_results: ...
def batchllm_results_none() -> batchllm_results: ...
def batchllm_results_join(a: batchllm_results, b: batchllm_results) -> batchllm_results: ...
def batchllm_engine_set_report(engine: batchllm_engine, report: Optional[batchllm_report]) -> None: ...
def batchllm_report_create_empty() -> batchllm_report: ...
def batchllm_report_add_prediction(report: batchllm_report, prediction: batchllm_prediction) -> None: ...
def batchllm_report_add_fact(report: batchllm_report, name: str, value: str) -> None: ...
def batchllm_report_add_plan_of(
    report: batchllm_report, plan: batchllm_plan, tokenizer: Optional[batchllm_tokenizer]
) -> None: ...
def batchllm_report_html_of(report: batchllm_report, title: str, seconds: float) -> str: ...
def batchllm_report_save_to(report: batchllm_report, title: str, seconds: float, path: Path) -> None: ...
def batchllm_plan_create_from(
    tokens: Buffer,
    offsets: Buffer,
    decode_lengths: Buffer,
    adapters: Optional[batchllm_params_column],
    options: Optional[batchllm_plan_options],
    previous: Optional[batchllm_plan],
) -> batchllm_plan: ...
def batchllm_plan_load_from(path: Path) -> batchllm_plan: ...
def batchllm_plan_save(plan: batchllm_plan, path: Path) -> None: ...
def batchllm_plan_get_stats(plan: batchllm_plan, stats: batchllm_plan_stats) -> None: ...
def batchllm_plan_advice_text(plan: batchllm_plan) -> str: ...
def batchllm_plan_predict_rows(
    plan: batchllm_plan,
    tokens: Optional[Buffer],
    offsets: Optional[Buffer],
    max_tokens: int,
    samples: int,
    adapters: Optional[batchllm_params_column],
    engine_options: batchllm_engine_options,
    device: str,
    expected_tokens: int,
    out: batchllm_prediction,
) -> None: ...
def batchllm_plan_groups_of(plan: batchllm_plan) -> batchllm_plan_groups: ...
def batchllm_plan_groups_column_prefix_tokens(groups: batchllm_plan_groups) -> memoryview[int]: ...
def batchllm_plan_groups_column_common_prefix_tokens(groups: batchllm_plan_groups) -> memoryview[int]: ...
def batchllm_plan_groups_column_row_offsets(groups: batchllm_plan_groups) -> memoryview[int]: ...
def batchllm_plan_groups_column_rows(groups: batchllm_plan_groups) -> memoryview[int]: ...
def batchllm_tokenizer_create_from(path: Path) -> batchllm_tokenizer: ...
def batchllm_tokenizer_fingerprint(tokenizer: batchllm_tokenizer) -> int: ...
def batchllm_tokenizer_vocabulary(tokenizer: batchllm_tokenizer) -> int: ...
def batchllm_encode_column(
    tokenizer: batchllm_tokenizer, text: Buffer, offsets: Buffer, flags: int, threads: int
) -> batchllm_column: ...
def batchllm_decode_column(
    tokenizer: batchllm_tokenizer, tokens: Buffer, offsets: Buffer, flags: int, threads: int
) -> batchllm_column: ...
def batchllm_chat_column(
    tokenizer: batchllm_tokenizer, conversations: Buffer, offsets: Buffer, flags: int, threads: int
) -> batchllm_column: ...
def batchllm_column_column_error_offsets(column: batchllm_column) -> memoryview[int]: ...
def batchllm_column_column_errors(column: batchllm_column) -> memoryview[int]: ...
def batchllm_column_column_offsets(column: batchllm_column) -> memoryview[int]: ...
def batchllm_column_column_tokens(column: batchllm_column) -> memoryview[int]: ...
def batchllm_column_column_text(column: batchllm_column) -> memoryview[int]: ...
def batchllm_column_column_statuses(column: batchllm_column) -> memoryview[int]: ...

ArrowColumns = tuple[str, memoryview[int], memoryview[int], Optional[memoryview[int]]]

def batchllm_arrow_read(schema_capsule: object, array_capsule: object) -> ArrowColumns: ...
def batchllm_arrow_open(stream_capsule: object) -> object: ...
def batchllm_arrow_next(stream: object) -> Optional[ArrowColumns]: ...
def batchllm_arrow_write(results: batchllm_results, asked: int) -> tuple[object, object]: ...

class batchllm_pictures(_Handle): ...

def batchllm_pictures_open(model_dir: Path, folders: Buffer) -> batchllm_pictures: ...
def batchllm_options_set_pictures(
    options: batchllm_engine_options, pictures: Optional[batchllm_pictures]
) -> None: ...
def batchllm_add_picture_columns(
    engine: batchllm_engine,
    chat: int,
    text: Buffer,
    offsets: Buffer,
    picture_rows: Buffer,
    pictures: Buffer,
    picture_offsets: Buffer,
    kinds: Buffer,
    tags: Optional[Buffer],
    params: Optional[batchllm_params_column],
) -> None: ...

class batchllm_adapter(_Handle): ...

def batchllm_adapter_open(engine: Optional[batchllm_engine], name: str, path: Path) -> batchllm_adapter: ...
def batchllm_adapter_identity(adapter: batchllm_adapter) -> str: ...
def batchllm_params_set_adapter(
    column: batchllm_params_column, rows: Optional[Buffer], adapter: batchllm_adapter
) -> None: ...
def batchllm_constraint_create_from(
    engine: batchllm_engine,
    kind: int,
    text: Optional[Buffer],
    choices: Optional[Buffer],
    starts: Optional[Buffer],
    start_after: Optional[Buffer],
    whitespace: int,
    member_order: int,
    numbers: int,
    loose: int,
) -> batchllm_constraint: ...
def batchllm_constraint_warnings(constraint: batchllm_constraint) -> str: ...
def batchllm_params_set_constraint(
    column: batchllm_params_column, rows: Optional[Buffer], constraint: batchllm_constraint
) -> None: ...

def batchllm_ranges_choose_from(
    heads: Buffer,
    offsets: Buffer,
    lengths: Buffer,
    places: Buffer,
    partitions: int,
    rows: int,
    start_bytes: int,
    expected_tokens: int,
) -> batchllm_ranges: ...
def batchllm_ranges_column_starts(ranges: batchllm_ranges) -> memoryview[int]: ...
def batchllm_ranges_column_offsets(ranges: batchllm_ranges) -> memoryview[int]: ...
def batchllm_ranges_column_places(ranges: batchllm_ranges) -> memoryview[int]: ...
def batchllm_journal_open_from(
    output: Optional[str],
    input: Optional[str],
    model: Optional[str],
    kind: int,
    existing: int,
    parts: Buffer,
    earlier_state: Optional[str],
) -> batchllm_journal: ...
def batchllm_journal_get_info(journal: batchllm_journal, info: batchllm_journal_info) -> None: ...
def batchllm_journal_column_done(journal: batchllm_journal) -> memoryview[int]: ...
def batchllm_journal_append_line_column(
    journal: batchllm_journal, rows: Buffer, failed: Optional[Buffer], text: Buffer, offsets: Buffer
) -> None: ...
def batchllm_journal_append_block_of(
    journal: batchllm_journal, rows: Buffer, failed: Optional[Buffer], block: Buffer
) -> None: ...
def batchllm_journal_column_block_rows(journal: batchllm_journal, block: int) -> memoryview[int]: ...
def batchllm_journal_column_block(journal: batchllm_journal, block: int) -> memoryview[int]: ...
def batchllm_journal_sync(journal: batchllm_journal) -> None: ...
def batchllm_journal_use_pictures(journal: batchllm_journal, pictures: batchllm_pictures) -> None: ...
def batchllm_journal_finish(journal: batchllm_journal, path: Optional[str]) -> None: ...
def batchllm_frame_create(columns: int) -> batchllm_frame: ...
def batchllm_frame_name(frame: batchllm_frame, column: int, name: Buffer) -> None: ...
def batchllm_frame_extend(
    frame: batchllm_frame, column: int, text: Buffer, offsets: Buffer, valid: Buffer
) -> None: ...
def batchllm_frame_pictures(frame: batchllm_frame, counts: Buffer) -> None: ...
def batchllm_arrow_fill_frame(frame: batchllm_frame, stream_capsule: object) -> None: ...
def batchllm_table_create_from(
    frame: batchllm_frame, prompt: Buffer, fields: int, chat: int, system: Buffer
) -> batchllm_table: ...
def batchllm_add_table_rows(
    engine: batchllm_engine, table: batchllm_table, tags: Buffer, params: Optional[batchllm_params_column]
) -> None: ...
def batchllm_add_table_picture_rows(
    engine: batchllm_engine,
    table: batchllm_table,
    picture_rows: Buffer,
    pictures: Buffer,
    picture_offsets: Buffer,
    kinds: Buffer,
    tags: Optional[Buffer],
    params: Optional[batchllm_params_column],
) -> None: ...
def batchllm_add_null_rows(
    engine: batchllm_engine, tags: Buffer, params: Optional[batchllm_params_column]
) -> None: ...
def batchllm_table_rows(table: batchllm_table) -> int: ...
def batchllm_table_column_text(table: batchllm_table) -> memoryview[int]: ...
def batchllm_table_column_offsets(table: batchllm_table) -> memoryview[int]: ...
def batchllm_table_column_statuses(table: batchllm_table) -> memoryview[int]: ...
def batchllm_table_column_row_order(table: batchllm_table) -> memoryview[int]: ...
def batchllm_table_column_field_orders(table: batchllm_table) -> memoryview[int]: ...
def batchllm_table_hit_rate(table: batchllm_table, which: int) -> float: ...
