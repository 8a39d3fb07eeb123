"""Which rows of an engine belong to which call, and the results that have arrived for each."""

from __future__ import annotations

from array import array
from typing import Optional, Sequence

from . import native
from .errors import StateError

# A call that finds rows of other calls in the engine numbers its own from a multiple of this.
TAGS_OF_A_CALL = 1 << 40


class Call:
    """The rows of one call, identified by a range of tags."""

    def __init__(self) -> None:
        self.first_tag = 0
        self.rows = 0
        self.added = False  # every row is in the engine
        self.over = False  # the call has ended
        self.wanted = True  # keep its results after the call has ended
        self.told = False  # it was logged that this call left rows behind
        self.asked: frozenset[str] = frozenset()  # columns that results have, even if all of them are empty

    def has(self, tag: int) -> bool:
        """Whether a row has this tag."""
        return 0 <= tag - self.first_tag < self.rows


class _Mail:
    """What has arrived for a call: the number of rows so far, and the results that have not been taken yet."""

    def __init__(self, done: int = 0, parts: Sequence[native.batchllm_results] = ()) -> None:
        self.done = done
        self.parts = list(parts)

    def add(self, results: native.batchllm_results) -> None:
        self.done += native.batchllm_results_rows(results)
        self.parts.append(results)


class Calls:
    """The calls of an engine. All of it is used under the engine's lock.

    Ctrl-C may arrive at any point, and the garbage collector may end the call of an abandoned stream at any point, which
    moves it from `active` to `ended`.
    """

    def __init__(self) -> None:
        self.active: list[Call] = []
        self.ended: list[Call] = []  # that ended before their rows
        self.unclaimed: list[native.batchllm_results] = []  # of rows that belong to no call
        self.polled: list[native.batchllm_results] = []  # not yet sorted by call
        self.next_tag = 0  # of rows that are added step by step
        self._next_call = TAGS_OF_A_CALL
        self._mail: dict[Call, _Mail] = {}

    # ---- Calls begin and end ----

    def begin(self, call: Call, first_tag: int) -> None:
        """Registers a call whose rows have tags from first_tag on."""
        call.first_tag = first_tag
        self._mail[call] = _Mail()
        self.active.append(call)

    def leave(self, call: Call, complete: bool) -> bool:
        """Ends a call. complete: nothing of it is left. Returns whether it was active and has rows left."""
        call.over = True
        if call not in self.active:
            return False
        self.active.remove(call)
        if complete:
            del self._mail[call]
            return False
        self.ended.append(call)
        return True

    def left_behind(self) -> int:
        """The rows that calls have left, without those that were counted before."""
        left = 0
        for call in self.ended:
            if call.wanted and not call.told:
                left += call.rows - self._mail[call].done
                call.told = True
        return left

    # ---- Tags ----

    def new_first_tag(self) -> int:
        """The first tag of a call that overlaps others."""
        self._next_call += TAGS_OF_A_CALL
        return self._next_call - TAGS_OF_A_CALL

    def tags(self, call: Call, n: int) -> array[int]:
        """Tags for the next n rows of a call."""
        first = call.first_tag + call.rows
        if first < TAGS_OF_A_CALL:
            self.next_tag = max(self.next_tag, first + n)
        return array("Q", range(first, first + n))

    def refuse_taken(self, tags: Sequence[int]) -> None:
        """Rejects tags of other calls' rows: a result's tag determines which call it belongs to."""
        for call in self.active + self.ended:
            end = call.first_tag + call.rows if call.added or call.over else call.first_tag + TAGS_OF_A_CALL
            taken = next((tag for tag in tags if call.first_tag <= tag < end), None)
            if taken is not None:
                raise StateError(f"tags: {taken} is a row of a call that has rows left")

    # ---- Results ----

    def collect(self, engine: native.batchllm_engine) -> None:
        """Polls finished results and hands them to the calls that they belong to.

        Results are either in `polled` or in the mail, never in both or neither: no Python code runs between the poll
        and the list, nor between the last assignments.
        """
        self.polled.extend(map(native.batchllm_poll_results, (engine,), (0,)))
        calls = [call for call in self.active + self.ended if call in self._mail]
        mail = {call: _Mail(self._mail[call].done, self._mail[call].parts) for call in calls}
        unclaimed = list(self.unclaimed)
        for results in self.polled:
            for call in calls:
                if results.count and mail[call].done < call.rows:
                    mine = native.batchllm_results_of_rows(results, call.first_tag, call.rows, 1)
                    if mine.count:
                        mail[call].add(mine)
                        results = native.batchllm_results_of_rows(results, call.first_tag, call.rows, 0)
            if results.count:
                unclaimed.append(results)
        for call in calls:
            if call.over:
                if call.wanted:
                    unclaimed.extend(mail[call].parts)
                mail[call].parts.clear()
                if mail[call].done >= call.rows:
                    del mail[call]
        self._mail = mail
        self.unclaimed = unclaimed
        self.polled = []
        for call in [call for call in self.ended if call not in mail]:
            self.ended.remove(call)

    def complete(self, call: Call) -> bool:
        """Whether every row of a call has its result."""
        return self._mail[call].done >= call.rows

    def take_unclaimed(self, most: int) -> native.batchllm_results:
        """Removes up to this many of the results that belong to no call; 0: all."""
        everything = joined(self.unclaimed)
        some = native.batchllm_results_take(everything, 0, most)
        rest = native.batchllm_results_take(everything, some.count, 0)
        self.unclaimed = [rest] if rest.count else []
        return some

    def results(self, call: Call) -> native.batchllm_results:
        """All results of a call that have not been dropped, in the order of its rows."""
        return native.batchllm_results_of_rows(joined(self._mail[call].parts), 0, call.rows, 1)

    def so_far(self, call: Call) -> native.batchllm_results:
        """The same in the order in which they arrived."""
        return joined(self._mail[call].parts)

    def first_part(self, call: Call) -> Optional[native.batchllm_results]:
        """The earliest of a call's results that have not been dropped."""
        parts = self._mail[call].parts
        return parts[0] if parts else None

    def drop_first_part(self, call: Call) -> None:
        """Forgets what `first_part` returned."""
        del self._mail[call].parts[0]


def joined(parts: Sequence[native.batchllm_results]) -> native.batchllm_results:
    """Joins parts of results in their order."""
    parts = list(parts) or [native.batchllm_results_none()]
    while len(parts) > 1:
        pairs = [native.batchllm_results_join(a, b) for a, b in zip(parts[::2], parts[1::2])]
        parts = pairs + parts[len(pairs) * 2 :]
    return parts[0]
