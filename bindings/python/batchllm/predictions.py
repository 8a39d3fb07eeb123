"""Predictions: how long a plan's rows will take on a device, before anything runs."""

from __future__ import annotations

from dataclasses import dataclass, field

from . import native


@dataclass(frozen=True)
class Prediction:
    """The result of `Plan.predict`.

    device: the device's name, for display. devices: how many.
    seconds: time spent in steps, on the busiest device.
    linear_seconds, attention_seconds, other_seconds: summed over all devices.
    steps, preemptions: summed over all devices.
    rows, logical_prompt_tokens, processed_prompt_tokens, recomputed_tokens, completion_tokens: of all rows; n samples of
        a row count as n rows.
    saving_ratio: 1 - processed / logical.
    common_prefix_cost: for `Plan.build`, on this device; 0: not known.
    kv_pages_peak, kv_pages_total, kv_page_bytes: KV pages: the most in use, their number, and the size of one.
    weight_bytes, four_bit_bytes: memory that the model's weights take on each device; of these, those that stay in four bits.
    adapters, adapter_loads, adapter_load_bytes: different ones; how often one is loaded onto a device, and their bytes.
    adapter_seconds: what adapters add, summed over all devices.
    """

    device: str
    devices: int
    seconds: float
    linear_seconds: float
    attention_seconds: float
    other_seconds: float
    steps: int
    preemptions: int
    rows: int
    logical_prompt_tokens: int
    processed_prompt_tokens: int
    recomputed_tokens: int
    completion_tokens: int
    saving_ratio: float
    common_prefix_cost: float
    kv_pages_peak: int
    kv_pages_total: int
    kv_page_bytes: int
    weight_bytes: int
    four_bit_bytes: int
    adapters: int
    adapter_loads: int
    adapter_load_bytes: int
    adapter_seconds: float
    _native: native.batchllm_prediction = field(repr=False, compare=False)


def prediction_of(made: native.batchllm_prediction) -> Prediction:
    """A `Prediction` from the native struct."""
    names = [name for name in Prediction.__dataclass_fields__ if name != "_native"]
    return Prediction(_native=made, **{name: getattr(made, name) for name in names})
