"""Divides prompts into ranges, one for each partition, so that rows that share a prefix meet.

The ranges are those of Spark's PrefixRanges. In sorted order, rows that share a prefix are neighbours. A boundary between
two rows costs what they have in common, since that prefix is computed on both sides. So each boundary is placed where
neighbours have least in common, near the point that balances the work. A prefix with more rows than fit a partition is
divided among several, and computed once in each.

Prompts are bytes that sort as prompts do: UTF-8, or four big-endian bytes for each token.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from dataclasses import dataclass, field
from typing import Iterator, NamedTuple, Optional, Sequence

TOKEN_BYTES = 4
"""How many bytes of a prompt count as one token, in weights and limits."""

# How far a boundary may move to avoid cutting prefixes, as a share of a partition's work.
_SLACK = 0.25
# The engine shares no prefix of fewer than 16 tokens, so cutting one costs nothing.
_LEAST_PREFIX = 16 * TOKEN_BYTES


class Item(NamedTuple):
    """A sampled row."""

    head: bytes
    place: int
    """Orders rows with the same head."""
    length: int
    """Of the whole prompt."""


@dataclass
class PromptSample:
    """A uniform sample of prompts: the rows with the smallest draws."""

    capacity: int
    head_bytes: int
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
        """In the order of prompts."""
        return sorted(item for _, item in self._items)


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

    def __init__(self, boundaries: Sequence[tuple[bytes, int]], head_bytes: int, blind: bool) -> None:
        self._boundaries = list(boundaries)
        self._head_bytes = head_bytes
        self.blind = blind
        """Most sampled prompts are longer than heads, and their heads are equal."""

    @property
    def partitions(self) -> int:
        """How many there are."""
        return len(self._boundaries) + 1

    def partition(self, prompt: Optional[bytes], place: int) -> int:
        """The number of a row's partition. A null prompt may go to any partition."""
        if prompt is None:
            return place % self.partitions
        return bisect_right(self._boundaries, (prompt[: self._head_bytes], place))

    @classmethod
    def choose(cls, sample: PromptSample, wanted: int, output_tokens: int) -> PrefixRanges:
        """Chooses boundaries. wanted: the number of partitions; there are fewer if there are fewer rows. output_tokens:
        the tokens that a row is expected to generate; they weigh as much as prompt tokens."""
        rows = sample.items()
        n = len(rows)
        partitions = max(1, min(wanted, n))
        shared = [0] * (n + 1)  # shared[i]: the prefix of rows i - 1 and i
        blind = 0
        for i in range(1, n):
            shared[i] = common(rows[i - 1].head, rows[i].head)
            blind += shared[i] == sample.head_bytes < rows[i].length
        before = _work(rows, shared, sample.rows, output_tokens)
        share = before[n] / partitions
        boundaries: list[tuple[bytes, int]] = []
        last = 0
        for part in range(1, partitions):
            # Leaves a row for each of the others.
            cut = _cut(before, shared, last + 1, n - (partitions - part), part * share, _SLACK * share)
            right = rows[cut]
            equal = rows[cut - 1].head == right.head
            # The shortest head that separates the two: no group with a longer prefix is cut.
            boundaries.append((right.head, right.place) if equal else (right.head[: shared[cut] + 1], 0))
            last = cut
        return cls(boundaries, sample.head_bytes, 2 * blind > n)


def _work(rows: Sequence[Item], shared: Sequence[int], total: int, output_tokens: int) -> list[float]:
    """For each i the work of all rows before sampled row i, in bytes of prompt. A sampled row stands for total / n rows,
    but what it shares is computed once for all of them."""
    scale = total / len(rows) if rows else 1.0
    before = [0.0]
    for i, row in enumerate(rows):
        longest = max(shared[i], shared[i + 1])
        own = row.length - longest + output_tokens * TOKEN_BYTES
        before.append(before[i] + own * scale + (longest - shared[i]))
    return before


def _cut(
    before: Sequence[float], shared: Sequence[int], lowest: int, highest: int, aim: float, slack: float
) -> int:
    """Of the cuts in [lowest, highest] within slack of the aim, the one where neighbours have least in common."""
    best, nearest = -1, lowest
    for i in range(lowest, highest + 1):
        distance = abs(before[i] - aim)
        if distance < abs(before[nearest] - aim):
            nearest = i
        if distance > slack:
            if before[i] > aim:
                break
            continue
        if best < 0 or (_cost(shared[i]), distance) < (_cost(shared[best]), abs(before[best] - aim)):
            best = i
    return best if best >= 0 else nearest


def _cost(shared: int) -> int:
    return 0 if shared < _LEAST_PREFIX else shared


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
