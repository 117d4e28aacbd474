"""REQUESTS → BATCHES: texts of many requests are predicted together, in one thread that alone uses the indexes.

While the thread works, requests gather; when it is free, it takes the oldest and all that ask the same way. A long
request goes in pieces and lets others in between. What cannot wait is turned away.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import accumulate, count, pairwise
from typing import Any, NamedTuple, TypeVar

from longtail.serve.gauges import Gauges
from longtail.serve.messages import Refusal
from longtail.serve.settings import Limits
from longtail.serve.shelf import Served, Shelf

Result = TypeVar("Result")
Row = list[dict[str, Any]]
BUSY = (b"retry-after", b"1")
BATCH, CALL, LAST = range(3)  # what is done first


class Wish(NamedTuple):
    """How labels are asked for: texts with equal wishes can be predicted together."""

    model: str
    k: int = 5
    threshold: float | None = None
    allow: tuple[int, ...] | None = None
    deny: tuple[int, ...] | None = None
    details: bool = False
    probabilities: bool = False


@dataclass(eq=False, slots=True)
class Waiting:
    """The texts of one request, and how many of them have been taken."""

    wish: Wish
    texts: list[str]
    done: asyncio.Future[list[Row]]
    rows: list[Row] = field(default_factory=list)
    taken: int = 0


Part = tuple[Waiting, int, int]  # a request, its first text in the batch and the end of them


class Batcher:
    """A queue in front of one thread."""

    def __init__(self, shelf: Shelf, limits: Limits, gauges: Gauges) -> None:
        self._shelf, self._limits, self._gauges = shelf, limits, gauges
        self._waiting: deque[Waiting] = deque()
        self._texts = 0  # waiting texts
        self._calls = 0  # waiting calls
        self._busy = False
        self._closed = False
        self._work: queue.PriorityQueue[tuple[int, int, Callable[[], None] | None]] = queue.PriorityQueue()
        self._number = count()
        self._thread = threading.Thread(target=self._run, name="longtail-index", daemon=True)
        self._loop: asyncio.AbstractEventLoop

    def start(self) -> None:
        """Begin to work, in the running event loop."""
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    async def stop(self) -> None:
        """Take nothing new, finish what was accepted."""
        self._closed = True
        while self._texts or self._calls or self._busy:
            await asyncio.sleep(0.01)
        self._put(LAST, None)
        await asyncio.to_thread(self._thread.join)

    @property
    def accepting(self) -> bool:
        """Whether new work is taken."""
        return not self._closed

    async def predict(self, wish: Wish, texts: list[str]) -> list[Row]:
        """Wait for the labels of texts."""
        self._admit(self._texts > 0 and self._texts + len(texts) > self._limits.waiting)
        waiting = Waiting(wish, texts, self._loop.create_future())
        self._waiting.append(waiting)
        self._count(len(texts))
        if not self._busy:
            self._busy = True
            self._loop.call_later(self._limits.patience, self._start)
        return await self._in_time(waiting.done)

    async def call(self, ask: Callable[[], Result]) -> Result:
        """Run another question in the thread."""
        self._admit(self._calls >= self._limits.calls)
        done: asyncio.Future[Result] = self._loop.create_future()

        def work() -> None:
            try:
                if not done.done():  # given up while it waited: a change that nobody waits for is not made
                    self._shelf.refresh()
                    self._loop.call_soon_threadsafe(self._answer, done, ask(), None)
            except Exception as reason:
                self._loop.call_soon_threadsafe(self._answer, done, None, reason)
            finally:
                self._loop.call_soon_threadsafe(self._called)

        self._calls += 1
        self._put(CALL, work)
        return await self._in_time(done)

    def _admit(self, full: bool) -> None:
        """Turn work away when there is too much, or when the service stops."""
        if self._closed:
            raise Refusal(503, "the service is stopping; ask again in a moment", BUSY)
        if full:
            raise Refusal(429, "too many requests are waiting; ask again in a moment", BUSY)

    async def _in_time(self, done: asyncio.Future[Result]) -> Result:
        """Wait, but not for ever."""
        late = Refusal(504, f"no answer within {self._limits.seconds:g} seconds; ask for less at once")
        timer = self._loop.call_later(self._limits.seconds, self._answer, done, None, late)
        try:
            return await done
        finally:
            timer.cancel()

    def _answer(self, done: asyncio.Future[Result], value: Any, reason: BaseException | None) -> None:
        """Settle a request once; one that was given up or cancelled is settled already."""
        if not done.done():
            if reason is None:
                done.set_result(value)
            else:
                done.set_exception(reason)

    def _called(self) -> None:
        """Count a finished call."""
        self._calls -= 1

    def _count(self, more: int) -> None:
        """Keep the number of waiting texts."""
        self._texts += more
        self._gauges.waiting.set(self._texts)

    def _start(self) -> None:
        """Hand the next batch to the thread, or rest."""
        batch = self._take()
        self._busy = bool(batch)
        if batch:
            self._put(BATCH, lambda: self._predict(batch))

    def _take(self) -> list[Part]:
        """Take the oldest request and those that ask the same way: (request, first text, end)."""
        batch: list[Part] = []
        others: list[Waiting] = []
        room = self._limits.batch
        wish: Wish | None = None
        while self._waiting and room:
            waiting = self._waiting.popleft()
            if waiting.done.done():  # given up
                self._count(waiting.taken - len(waiting.texts))
                continue
            if wish is not None and waiting.wish != wish:
                others.append(waiting)
                continue
            wish = waiting.wish
            first, end = waiting.taken, min(waiting.taken + room, len(waiting.texts))
            room -= end - first
            waiting.taken = end
            self._count(first - end)
            batch.append((waiting, first, end))
        self._waiting.extendleft(reversed(others))
        return batch

    def _run(self) -> None:
        """Work in the thread until told to stop."""
        while (work := self._work.get()[2]) is not None:
            work()

    def _put(self, rank: int, work: Callable[[], None] | None) -> None:
        """Line work up: a batch goes before calls that wait, and while the next one is made up a call is answered."""
        self._work.put((rank, next(self._number), work))

    def _predict(self, batch: list[Part]) -> None:
        """Predict a batch, in the thread; if it fails, each request by itself, so that one cannot spoil the others."""
        wish = batch[0][0].wish
        served = self._shelf.models[wish.model]
        texts = [waiting.texts[first:end] for waiting, first, end in batch]
        self._shelf.refresh()
        rows = _tried(served, wish, [text for part in texts for text in part])
        if not isinstance(rows, Exception):
            sizes = accumulate((len(part) for part in texts), initial=0)
            found: list[list[Row] | Exception] = [rows[start:end] for start, end in pairwise(sizes)]
        else:
            found = [rows] if len(batch) == 1 else [_tried(served, wish, part) for part in texts]
        self._loop.call_soon_threadsafe(self._finish, batch, found)

    def _finish(self, batch: list[Part], found: list[list[Row] | Exception]) -> None:
        """Give the rows to their requests and go on."""
        size = sum(end - first for _, first, end in batch)
        self._gauges.texts.inc(size)
        self._gauges.batches.observe(size)
        for (waiting, _, end), rows in zip(batch, found, strict=True):
            if isinstance(rows, Exception):
                self._answer(waiting.done, None, rows)
                self._count(end - len(waiting.texts))
                continue
            waiting.rows.extend(rows)
            if end == len(waiting.texts):
                self._answer(waiting.done, waiting.rows, None)
            else:
                self._waiting.append(waiting)  # behind the others
        self._start()


def _tried(served: Served, wish: Wish, texts: list[str]) -> list[Row] | Exception:
    """Ask the index; an error is an answer too."""
    index = served.index
    k = max(1, min(wish.k, len(index.labels)))
    try:
        top = index.predict(
            texts, k, threshold=wish.threshold, allow=wish.allow, deny=wish.deny, probabilities=wish.probabilities
        )
        return served.rows(top, index, wish.details)
    except Exception as reason:
        return reason
