"""A lock that is given in the order it was asked for."""

from __future__ import annotations

import threading
from collections import deque
from types import TracebackType


class Turn:
    """Mutual exclusion, first come first served.

    `threading.Lock` goes to whoever happens to be awake, which is mostly the thread that just gave it back: of several
    streams that take turns token by token, one would run and the others starve.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._taken = False
        self._waiting: deque[threading.Lock] = deque()

    def __enter__(self) -> None:
        with self._lock:
            if not self._taken:
                self._taken = True
                return
            ticket = threading.Lock()
            ticket.acquire()
            self._waiting.append(ticket)
        ticket.acquire()  # until the one before gives it

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with self._lock:
            if self._waiting:
                self._waiting.popleft().release()
            else:
                self._taken = False
