from __future__ import annotations

import time

import pytest

from services.learner.cpu_time import CpuTime


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_parts_that_do_not_overlap() -> None:
    clock = Clock()
    cpu = CpuTime(clock)
    with cpu.inference(8):
        clock.now += 2
    with cpu.training():
        clock.now += 5
    clock.now += 1
    assert cpu.seconds() == (2, 5, 1)


def test_inference_during_training_is_taken_out_of_training() -> None:
    clock = Clock()
    cpu = CpuTime(clock)
    with cpu.inference(10):
        clock.now += 1  # alone: 0.1 s a slot
    with cpu.training():
        clock.now += 2
        with cpu.inference(20):
            clock.now += 6
    # The 30 slots stand for 3 s; 2 of them lie within the 8 s of the training step.
    assert cpu.seconds() == pytest.approx((3, 6, 0))


def test_a_call_that_a_training_step_began_in_is_no_measure() -> None:
    clock = Clock()
    cpu = CpuTime(clock)
    with cpu.inference(10):
        clock.now += 1
    with cpu.inference(10):
        clock.now += 1
        with cpu.training():
            clock.now += 4
    # 20 slots at 0.1 s; of the training step's 4 s, 1 is counted as the second call's.
    assert cpu.seconds() == pytest.approx((2, 3, 1))


def test_inference_that_never_ran_alone_is_counted_as_training() -> None:
    clock = Clock()
    cpu = CpuTime(clock)
    with cpu.training(), cpu.inference(10):
        clock.now += 4
    assert cpu.seconds() == (0, 4, 0)


def test_a_failed_training_step_counts() -> None:
    clock = Clock()
    cpu = CpuTime(clock)

    def fail() -> None:
        with cpu.training():
            clock.now += 3
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    with cpu.inference(1):
        clock.now += 1
    assert cpu.seconds() == (1, 3, 0)


def test_the_clock_is_the_processs_cpu_time() -> None:
    cpu = CpuTime()
    with cpu.training():
        time.sleep(0.2)  # costs nothing
    with cpu.inference(1):
        until = time.process_time() + 0.2
        while time.process_time() < until:
            pass
    inference, training, other = cpu.seconds()
    assert 0.2 <= inference < 0.4
    assert training < 0.15
    assert other < 0.15
