"""The trainer with a fake updater: counting, reuse, failures, and what it waits for."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from services.learner.agreement import Agreement, Tally
from services.learner.cpu_time import CpuTime
from services.learner.trainer import (
    MAX_SKIPPED_UPDATES,
    Trainer,
    TrainingBatch,
    UnrollSource,
    Update,
)
from services.learner.unrolls import RecordBatch
from services.shared.specs import DataType, DiscreteActionSpec, EnvironmentSpec, TensorSpec
from tests.unit.learner.harness import FIRST, LAST, MID, Harness

TIMEOUT = 20.0


class FakeUpdater:
    """Remembers its batches; `skips` says of each call whether it is to be skipped."""

    def __init__(self, skips: Callable[[int], bool] = lambda _: False) -> None:
        self.version = 0
        self.batches: list[RecordBatch] = []
        self.frames: list[int] = []
        self._skips = skips

    def train(self, batch: TrainingBatch, frames: int, tally: Tally) -> Update:
        skipped = self._skips(len(self.batches))
        self.batches.append(batch.records)
        self.frames.append(frames)
        self.version += not skipped
        return Update({"skipped": float(skipped)}, tally)

    def empty_batch(self) -> TrainingBatch:
        raise AssertionError("there are no other learners")


class Training:
    """A trainer on the harness's unrolls of 4 transitions, batches of 2."""

    def __init__(
        self,
        updater: FakeUpdater,
        slots: int = 2,
        agents: int = 1,
        frames_per_step: int = 1,
        learners: int = 1,
        **settings: Any,
    ) -> None:
        self.harness = Harness(
            slots=slots,
            inference_batch_size=slots,
            **{"batch_size": 2, "total_frames": 1000, **settings},
        )
        (self.group,) = self.harness.lease(1, slots)
        spec = EnvironmentSpec(
            (TensorSpec("frame", DataType.UINT8, (1,)),),
            DiscreteActionSpec((100,)),
            agents=agents,
            frames_per_step=frames_per_step,
        )
        self.reported: list[dict[str, float]] = []
        self.woken = 0
        self.statistics = self.harness.statistics
        config = self.harness.config
        source = UnrollSource(
            config.batch_size, spec, self.harness.assembler, self.statistics, self._wake
        )
        agreement = Agreement(self.statistics, spec, config.total_frames, learners)
        self.trainer = Trainer(
            config, source, updater, agreement, self.statistics, CpuTime(), self.reported.append
        )

    def _wake(self) -> None:
        self.woken += 1

    def run(self, episode_length: int = 1000) -> None:
        """Trains to the end, fed by slots whose episodes have so many records."""
        with self.fed(episode_length):
            thread = threading.Thread(target=self.trainer.run, daemon=True)
            thread.start()
            assert self.trainer.ended.wait(TIMEOUT), "training stalls"
            thread.join(TIMEOUT)

    @contextlib.contextmanager
    def fed(self, episode_length: int) -> Iterator[None]:
        stop = threading.Event()
        thread = threading.Thread(target=self._feed, args=(episode_length, stop), daemon=True)
        thread.start()
        yield
        stop.set()
        thread.join(TIMEOUT)

    def _feed(self, episode_length: int, stop: threading.Event) -> None:
        record = 0
        while not stop.is_set():
            if not self.harness.assembler.has_room(self.group.slots):
                time.sleep(0.001)
                continue
            step_type = {0: FIRST, episode_length - 1: LAST}.get(record % episode_length, MID)
            self.harness.send(self.group, step_type, frame=record % 250)
            self.harness.loop.step()
            record += 1


def test_frames_are_counted_once_however_often_a_batch_is_used() -> None:
    updater = FakeUpdater()
    training = Training(updater, agents=2, frames_per_step=4, sample_reuse=3, total_frames=33)
    training.run()
    # 2 unrolls of 4 transitions; 2 agents share an environment, whose step is 4 frames: 8 / 2 * 4.
    assert updater.frames == [16] * 3 + [32] * 3 + [48] * 3
    assert training.statistics.frames == 48
    assert training.statistics.steps == 24
    assert training.statistics.updates == updater.version == 9
    assert training.reported == [{"skipped": 0.0}] * 9
    assert training.trainer.failure is None
    assert [batch is updater.batches[0] for batch in updater.batches[:4]] == [True] * 3 + [False]


def test_what_leads_from_last_to_first_is_no_frame() -> None:
    updater = FakeUpdater()
    training = Training(updater, total_frames=13)
    training.run(episode_length=4)
    # Records F M M L F M M L F: transitions 1 to 4 and 5 to 8 each have one into a FIRST.
    assert updater.frames == [6, 12, 18]
    assert updater.batches[0].step_type.tolist() == [[FIRST, MID, MID, LAST, FIRST]] * 2


def test_half_a_frame_is_not_lost() -> None:
    # One slot of two agents' environments: 4 transitions less one, 3 agent steps, 1.5 frames.
    updater = FakeUpdater()
    training = Training(updater, slots=1, agents=2, batch_size=1, total_frames=6)
    training.run(episode_length=4)
    assert updater.frames == [1, 3, 4, 6]


def test_fewer_slots_than_the_batch_size_do_not_stall() -> None:
    updater = FakeUpdater()
    training = Training(updater, slots=1, batch_size=5, unrolls_per_slot=1, total_frames=40)
    training.run()
    assert updater.frames == [20, 40]
    # Five unrolls of the one slot in turn, each beginning with the last record of the one before.
    frames = np.concatenate([b.observation[0][:, -5:, 0] for b in updater.batches])
    assert frames.tolist() == [list(range(4 * i, 4 * i + 5)) for i in range(10)]
    assert training.woken >= 10


def test_twenty_skipped_updates_in_a_row_end_training() -> None:
    updater = FakeUpdater(skips=lambda call: call >= 3)
    training = Training(updater)
    training.run()
    assert str(training.trainer.failure) == (
        "20 updates in a row were not finite; the weights are the last good ones"
    )
    assert MAX_SKIPPED_UPDATES == 20
    assert len(updater.batches) == 23
    assert training.statistics.skipped_updates == 20
    assert training.statistics.updates == 3


def test_skipped_updates_with_a_good_one_between_do_not() -> None:
    updater = FakeUpdater(skips=lambda call: call % 20 != 19)
    training = Training(updater, total_frames=8 * 45)
    training.run()
    assert training.trainer.failure is None
    # Calls 19 and 39 of 45 were good.
    assert training.statistics.skipped_updates == 43
    assert updater.version == 2


def test_an_error_of_the_updater_is_kept() -> None:
    def broken(_: int) -> bool:
        raise RuntimeError("out of memory")

    training = Training(FakeUpdater(skips=broken))
    training.run()
    assert str(training.trainer.failure) == "out of memory"


def test_stop_ends_a_trainer_that_waits_for_unrolls() -> None:
    training = Training(FakeUpdater())
    thread = threading.Thread(target=training.trainer.run, daemon=True)
    thread.start()
    time.sleep(0.1)
    training.trainer.stop()
    thread.join(5.0)
    assert not thread.is_alive()
    assert training.trainer.failure is None
    assert training.statistics.frames == 0


def test_a_batch_is_not_used_again_once_another_learner_has_stopped() -> None:
    class WithPeer(FakeUpdater):
        """The other learner has given no batch, but its wish to stop, and waits for nobody."""

        def train(self, batch: TrainingBatch, frames: int, tally: Tally) -> Update:
            update = super().train(batch, frames, tally)
            return dataclasses.replace(update, tally=tally + np.array([0, 0, 1], np.float32))

    updater = WithPeer()
    training = Training(updater, learners=2, sample_reuse=3)
    training.run()
    assert len(updater.batches) == 1
    assert training.trainer.failure is None
    assert not training.trainer.is_finished


def test_policy_lag_is_in_updates() -> None:
    updater = FakeUpdater()
    updater.version = 10  # while every action was chosen by version 0
    training = Training(updater, total_frames=8)
    training.run()
    assert training.statistics.policy_lag == 10


def test_batches_are_joined_along_the_slots() -> None:
    updater = FakeUpdater()
    Training(updater, total_frames=16).run()
    both = RecordBatch.concatenate(updater.batches)
    assert both.reward.shape == (4, 5)
    assert both.initial_state[0].shape == (4, 1)
    assert both.observation[0][:, -5:, 0].tolist() == [[0, 1, 2, 3, 4]] * 2 + [[4, 5, 6, 7, 8]] * 2
