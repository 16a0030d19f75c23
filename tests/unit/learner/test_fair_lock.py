from __future__ import annotations

import threading
import time

from services.learner.fair_lock import FairLock


def test_it_excludes() -> None:
    lock, count = FairLock(), [0]

    def add() -> None:
        for _ in range(2000):
            with lock:
                value = count[0]
                time.sleep(0)
                count[0] = value + 1

    threads = [threading.Thread(target=add) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert count == [8000]


def test_a_thread_that_takes_it_in_a_loop_lets_others_in_after_one_turn() -> None:
    lock, stop, turns = FairLock(), threading.Event(), [0]

    def hog() -> None:
        while not stop.is_set():
            with lock:
                turns[0] += 1
                time.sleep(0.01)

    thread = threading.Thread(target=hog)
    thread.start()
    try:
        for _ in range(20):
            before = turns[0]
            with lock:
                # One turn under way, and one more that began before the request was queued.
                assert turns[0] - before <= 2
    finally:
        stop.set()
        thread.join()
