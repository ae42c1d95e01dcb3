"""Slots: a bounded queue before a few worker threads, and the bridge from their tokens to asyncio."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Literal

from surefoot.engines.base import Generation, Step
from surefoot.monitor import Metrics

Cause = Literal["timeout", "disconnect", "shutdown"]


class QueueFullError(Exception):
    """Too many requests wait.

    Attributes
    ----------
    retry_after : int
        Seconds after which a slot is likely to be free.
    """

    def __init__(self, retry_after: int) -> None:
        super().__init__(f"too many requests wait; try again in {retry_after} s")
        self.retry_after = retry_after


class Job:
    """One generation on its way through the queue and a slot. Made by `Slots.submit`."""

    def __init__(self, generation: Generation, deadline: float) -> None:
        self.generation = generation
        self.cause: Cause | None = None
        self._loop = asyncio.get_running_loop()
        self._steps: asyncio.Queue[Step | BaseException | None] = asyncio.Queue()
        self._timer = self._loop.call_at(self._loop.time() + deadline - time.monotonic(), self.cancel, "timeout")
        self.future: Future[None] | None = None

    def cancel(self, cause: Cause) -> None:
        """End within one token; the first cause counts."""
        if self.cause is None and self.generation.finish_reason is None:
            self.cause = cause
        self.generation.cancel()
        if self.future is not None and self.future.cancel():
            self.generation.finish_reason = self.generation.finish_reason or "cancelled"
            self._steps.put_nowait(None)  # it never ran

    async def steps(self) -> AsyncIterator[Step]:
        """The generation's steps; raises what it raised. Leaving early cancels."""
        try:
            while (step := await self._steps.get()) is not None:
                if isinstance(step, BaseException):
                    raise step
                yield step
        finally:
            self._timer.cancel()
            self.cancel("disconnect")

    def put(self, step: Step | BaseException | None) -> None:
        """Hand a step over from the worker's thread."""
        self._loop.call_soon_threadsafe(self._steps.put_nowait, step)


class Slots:
    """Runs generations, ``slots`` at a time, first come first served.

    Parameters
    ----------
    slots, queue : int
        How many run, and how many more may wait.
    metrics : Metrics
    """

    def __init__(self, slots: int, queue: int, metrics: Metrics) -> None:
        self.slots, self.queue = slots, queue
        self._metrics = metrics
        self._pool = ThreadPoolExecutor(slots, thread_name_prefix="surefoot-slot")
        self._lock = threading.Lock()
        self._jobs: set[Job] = set()
        self._running = 0
        self._seconds = 1.0  # a running mean of how long an answer takes

    @property
    def running(self) -> int:
        """Slots at work."""
        return self._running

    @property
    def waiting(self) -> int:
        """Requests that wait."""
        return max(0, len(self._jobs) - self._running)

    def check(self) -> None:
        """Raise `QueueFullError` when no more may wait."""
        if len(self._jobs) >= self.slots + self.queue:
            expected = self._seconds * (self.waiting + 1) / self.slots
            raise QueueFullError(max(1, min(60, round(expected))))

    def submit(self, generation: Generation, deadline: float) -> Job:
        """Queue a generation.

        Parameters
        ----------
        generation : Generation
        deadline : float
            When it is cancelled with cause "timeout", on the clock of `time.monotonic`.

        Raises
        ------
        QueueFullError
        """
        job = Job(generation, deadline)
        with self._lock:
            self.check()
            self._jobs.add(job)
        job.future = self._pool.submit(self._work, job)
        job.future.add_done_callback(lambda _: self._leave(job))
        self._report()
        return job

    def _work(self, job: Job) -> None:
        with self._lock:
            self._running += 1
        self._report()
        started = time.monotonic()
        try:
            for step in job.generation:
                job.put(step)
            job.put(None)
        except BaseException as error:  # whatever it is belongs to the request, not to the worker
            job.put(error)
        finally:
            with self._lock:
                self._running -= 1
                self._jobs.discard(job)
                self._seconds += 0.1 * (time.monotonic() - started - self._seconds)

    def _leave(self, job: Job) -> None:
        with self._lock:
            self._jobs.discard(job)
        self._report()

    def _report(self) -> None:
        self._metrics.busy.set(self._running)
        self._metrics.waiting.set(self.waiting)

    def cancel_all(self, cause: Cause) -> None:
        """Cancel what runs and what waits."""
        for job in list(self._jobs):
            job.cancel(cause)

    def close(self) -> None:
        """Cancel what still runs, and end the workers."""
        self.cancel_all("shutdown")
        self._pool.shutdown(wait=True, cancel_futures=True)
