"""REQUESTS → BATCHES: texts of many requests are predicted together, in the only thread that uses the indexes.

While the thread works, requests queue; when it is free, it takes the oldest and all with the same options. A long
request is split, so that others run in between. When the queue is full, requests are refused.
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
from longtail.serve.messages import BUSY, HTTPError
from longtail.serve.registry import Registry, ServedModel
from longtail.serve.settings import Limits

Result = TypeVar("Result")
Row = list[dict[str, Any]]
BATCH, CALL, STOP = range(3)  # priorities: the lowest number runs first


class Options(NamedTuple):
    """The options of a prediction: texts with equal options can be predicted together."""

    model: str
    k: int = 5
    threshold: float | str | None = None  # a number, or the name of tuned thresholds
    allow: tuple[int, ...] | None = None
    deny: tuple[int, ...] | None = None
    details: bool = False
    probabilities: bool = False


@dataclass(eq=False, slots=True)
class Pending:
    """A request in the queue: its texts, and how many of them were taken into batches."""

    options: Options
    texts: list[str]
    future: asyncio.Future[list[Row]]
    rows: list[Row] = field(default_factory=list)
    taken: int = 0


Slice = tuple[Pending, int, int]  # a request, and which of its texts are in the batch: first, end


class Batcher:
    """A queue in front of one worker thread."""

    def __init__(self, registry: Registry, limits: Limits, gauges: Gauges) -> None:
        self._registry, self._limits, self._gauges = registry, limits, gauges
        self._queue: deque[Pending] = deque()
        self._texts = 0  # waiting texts
        self._calls = 0  # waiting calls
        self._busy = False
        self._closed = False
        self._work: queue.PriorityQueue[tuple[int, int, Callable[[], None] | None]] = queue.PriorityQueue()
        self._number = count()
        self._thread = threading.Thread(target=self._run, name="longtail-index", daemon=True)
        self._loop: asyncio.AbstractEventLoop

    def start(self) -> None:
        """Start the worker thread, in the running event loop."""
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    async def stop(self) -> None:
        """Accept nothing new, finish what was accepted."""
        self._closed = True
        while self._texts or self._calls or self._busy:
            await asyncio.sleep(0.01)
        self._put(STOP, None)
        await asyncio.to_thread(self._thread.join)

    @property
    def accepting(self) -> bool:
        """Whether new requests are accepted."""
        return not self._closed

    async def predict(self, options: Options, texts: list[str]) -> list[Row]:
        """Predict the labels of texts, in a batch with other requests."""
        self._admit(self._texts > 0 and self._texts + len(texts) > self._limits.waiting)
        pending = Pending(options, texts, self._loop.create_future())
        self._queue.append(pending)
        self._count(len(texts))
        if not self._busy:
            self._busy = True
            self._loop.call_later(self._limits.batch_timeout, self._start)
        return await self._wait(pending.future)

    async def call(self, task: Callable[[], Result]) -> Result:
        """Run another task in the worker thread."""
        self._admit(self._calls >= self._limits.calls)
        future: asyncio.Future[Result] = self._loop.create_future()

        def work() -> None:
            try:
                if not future.done():  # timed out or cancelled while queued: its change is not made
                    self._registry.refresh()
                    self._loop.call_soon_threadsafe(self._settle, future, task(), None)
            except Exception as reason:
                self._loop.call_soon_threadsafe(self._settle, future, None, reason)
            finally:
                self._loop.call_soon_threadsafe(self._call_done)

        self._calls += 1
        self._put(CALL, work)
        return await self._wait(future)

    def _admit(self, full: bool) -> None:
        """Refuse a request when the queue is full, or when the service stops."""
        if self._closed:
            raise HTTPError(503, "the service is stopping; ask again in a moment", BUSY)
        if full:
            raise HTTPError(429, "too many requests are waiting; ask again in a moment", BUSY)

    async def _wait(self, future: asyncio.Future[Result]) -> Result:
        """Wait for a result, with a timeout."""
        timeout = HTTPError(504, f"no answer within {self._limits.timeout:g} seconds; ask for less at once")
        timer = self._loop.call_later(self._limits.timeout, self._settle, future, None, timeout)
        try:
            return await future
        finally:
            timer.cancel()

    def _settle(self, future: asyncio.Future[Result], value: Any, reason: BaseException | None) -> None:
        """Settle a future; one that timed out or was cancelled is settled already."""
        if not future.done():
            if reason is None:
                future.set_result(value)
            else:
                future.set_exception(reason)

    def _call_done(self) -> None:
        """Count a finished task."""
        self._calls -= 1

    def _count(self, more: int) -> None:
        """Update the number of waiting texts."""
        self._texts += more
        self._gauges.waiting.set(self._texts)

    def _start(self) -> None:
        """Hand the next batch to the thread, if there is one."""
        batch = self._take()
        self._busy = bool(batch)
        if batch:
            self._put(BATCH, lambda: self._predict(batch))

    def _take(self) -> list[Slice]:
        """Take the oldest request and those with the same options: (request, first text, end)."""
        batch: list[Slice] = []
        others: list[Pending] = []
        room = self._limits.batch_size
        options: Options | None = None
        while self._queue and room:
            pending = self._queue.popleft()
            if pending.future.done():  # timed out or cancelled
                self._count(pending.taken - len(pending.texts))
                continue
            if options is not None and pending.options != options:
                others.append(pending)
                continue
            options = pending.options
            first, end = pending.taken, min(pending.taken + room, len(pending.texts))
            room -= end - first
            pending.taken = end
            self._count(first - end)
            batch.append((pending, first, end))
        self._queue.extendleft(reversed(others))
        return batch

    def _run(self) -> None:
        """Run the worker thread until it is stopped."""
        while (work := self._work.get()[2]) is not None:
            work()

    def _put(self, priority: int, work: Callable[[], None] | None) -> None:
        """Queue work for the thread: a batch goes before other calls; those run while the next batch is collected."""
        self._work.put((priority, next(self._number), work))

    def _predict(self, batch: list[Slice]) -> None:
        """Predict a batch, in the thread; if it fails, predict each request alone, so that only the bad one fails."""
        options = batch[0][0].options
        model = self._registry.models[options.model]
        texts = [pending.texts[first:end] for pending, first, end in batch]
        self._registry.refresh()
        rows = _predict_rows(model, options, [text for part in texts for text in part])
        if not isinstance(rows, Exception):
            sizes = accumulate((len(part) for part in texts), initial=0)
            results: list[list[Row] | Exception] = [rows[start:end] for start, end in pairwise(sizes)]
        else:
            results = [rows] if len(batch) == 1 else [_predict_rows(model, options, part) for part in texts]
        self._loop.call_soon_threadsafe(self._finish, batch, results)

    def _finish(self, batch: list[Slice], results: list[list[Row] | Exception]) -> None:
        """Give the rows to their requests and start the next batch."""
        size = sum(end - first for _, first, end in batch)
        self._gauges.texts.inc(size)
        self._gauges.batches.observe(size)
        for (pending, _, end), rows in zip(batch, results, strict=True):
            if isinstance(rows, Exception):
                self._settle(pending.future, None, rows)
                self._count(end - len(pending.texts))
                continue
            pending.rows.extend(rows)
            if end == len(pending.texts):
                self._settle(pending.future, pending.rows, None)
            else:
                self._queue.append(pending)  # behind the others
        self._start()


def _predict_rows(model: ServedModel, options: Options, texts: list[str]) -> list[Row] | Exception:
    """Predict rows, or return the error."""
    index = model.index
    k = max(1, min(options.k, len(index.labels)))
    try:
        top = index.predict(
            texts,
            k,
            threshold=options.threshold,
            allow=options.allow,
            deny=options.deny,
            probabilities=options.probabilities,
        )
        return model.rows(top, index, options.details)
    except Exception as reason:
        return reason
