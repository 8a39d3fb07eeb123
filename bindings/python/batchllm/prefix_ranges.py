"""Divides prompts into ranges, one for each partition, so that rows that share a prefix meet.

The library chooses the ranges (batchllm_ranges_choose), for Ray as for Spark, from a sample that is drawn here.

Prompts are bytes that sort as prompts do: UTF-8, or four big-endian bytes for each token.
"""

from __future__ import annotations

import heapq
from array import array
from bisect import bisect_right
from dataclasses import dataclass, field
from typing import Iterator, NamedTuple, Optional, Sequence

from . import native
from .columns import from_texts

TOKEN_BYTES = 4
"""How many bytes of a prompt count as one token, in weights and limits."""


class Item(NamedTuple):
    """A sampled row."""

    start: bytes
    place: int
    """Orders rows with the same start."""
    length: int
    """Of the whole prompt."""


@dataclass
class PromptSample:
    """A uniform sample of prompts: the rows with the smallest draws."""

    capacity: int
    start_bytes: int
    rows: int = 0
    """Seen, sampled or not."""
    bytes: int = 0
    """Of their prompts."""
    _items: list[tuple[int, Item]] = field(default_factory=list)

    def add(self, draw: int, item: Item) -> None:
        """Adds one of the rows that are counted in `rows`."""
        if len(self._items) < self.capacity:
            heapq.heappush(self._items, (-draw, item))
        elif draw < -self._items[0][0]:
            heapq.heapreplace(self._items, (-draw, item))

    def items(self) -> list[Item]:
        """In no particular order."""
        return [item for _, item in self._items]


def common(a: bytes, b: bytes) -> int:
    """The length of the longest common prefix of a and b."""
    high = min(len(a), len(b))
    if a[:high] == b[:high]:
        return high
    low = 0  # a[:low] and b[:low] are equal, a[:high] and b[:high] are not
    while high - low > 1:
        middle = (low + high) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle
    return low


class PrefixRanges:
    """Boundaries between partitions: partition i has the rows from boundary i - 1 up to, but not including, boundary i."""

    def __init__(self, boundaries: Sequence[tuple[bytes, int]], start_bytes: int, blind: bool) -> None:
        self._boundaries = list(boundaries)
        self._start_bytes = start_bytes
        self.blind = blind
        """Most sampled prompts are longer than starts, and their starts are equal."""

    @property
    def partitions(self) -> int:
        """How many there are."""
        return len(self._boundaries) + 1

    def partition(self, prompt: Optional[bytes], place: int) -> int:
        """The number of a row's partition. A null prompt may go to any partition."""
        if prompt is None:
            return place % self.partitions
        return bisect_right(self._boundaries, (prompt[: self._start_bytes], place))

    @classmethod
    def choose(cls, sample: PromptSample, wanted: int, output_tokens: int) -> PrefixRanges:
        """Chooses boundaries. wanted: the number of partitions; there are fewer if there are fewer rows. output_tokens:
        the tokens that a row is expected to generate; they weigh as much as prompt tokens."""
        rows = sample.items()
        starts = from_texts([item.start for item in rows])
        chosen = native.batchllm_ranges_choose_from(
            starts.data,
            starts.offsets,
            array("q", [item.length for item in rows]),
            array("q", [item.place for item in rows]),
            wanted,
            sample.rows,
            sample.start_bytes,
            output_tokens,
        )
        text = bytes(native.batchllm_ranges_column_starts(chosen))
        offsets = native.batchllm_ranges_column_offsets(chosen)
        found = [text[begin:end] for begin, end in zip(offsets, offsets[1:])]
        places = native.batchllm_ranges_column_places(chosen)
        return cls(list(zip(found, places)), sample.start_bytes, bool(chosen.blind))


def windows(prompts: Sequence[Optional[bytes]], max_rows: int, max_bytes: int) -> Iterator[range]:
    """Divides rows, in the order of their prompts, into windows of bounded size. A window ends where neighbours in its last
    quarter have least in common, so that few prefixes are computed in two windows."""
    begin = 0
    while begin < len(prompts):
        end, held = begin, 0
        while end < len(prompts) and end - begin < max_rows and held < max_bytes:
            held += len(prompts[end] or b"")
            end += 1
        if end < len(prompts) and end - begin > 1:
            first = max(begin + 1, end - (end - begin) // 4)
            end = min(
                range(end - 1, first - 1, -1) or [end],
                key=lambda i: common(prompts[i - 1] or b"", prompts[i] or b""),
            )
        yield range(begin, end)
        begin = end
