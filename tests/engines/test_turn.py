"""Turns are given in the order they were asked for."""

from __future__ import annotations

import threading
import time

from surefoot.engines.turn import Turn


def test_nobody_starves_and_nobody_overtakes() -> None:
    turn, order, counts = Turn(), [], [0] * 4
    stop = time.monotonic() + 1.0

    def work(i: int) -> None:
        while time.monotonic() < stop:
            with turn:
                counts[i] += 1
                order.append(i)
                time.sleep(0.002)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert max(counts) - min(counts) <= 3
    settled = order[8:-8]
    assert all(len(set(settled[i : i + 4])) == 4 for i in range(0, len(settled) - 4, 4))


def test_one_at_a_time_even_when_one_fails() -> None:
    turn, inside, worst = Turn(), [0], [0]

    def work(i: int) -> None:
        for _ in range(200):
            try:
                with turn:
                    inside[0] += 1
                    worst[0] = max(worst[0], inside[0])
                    inside[0] -= 1
                    if i % 2:
                        raise RuntimeError
            except RuntimeError:
                pass

    threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()
    assert worst[0] == 1
