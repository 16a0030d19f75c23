"""Records of the step store on their way through a real replay service and back."""

from __future__ import annotations

import contextlib
import pathlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from services.learner.agreement import NO_TALLY
from services.learner.replay_source import ReplaySource, to_records
from services.learner.sequences import SequenceSender, layout
from services.learner.trainer import Update
from services.learner.unrolls import RecordBatch
from services.shared.replay import ReplayClient, ReplayError
from tests.integration.replay_server import ReplayServer
from tests.unit.learner.harness import FIRST, LAST, MID, Harness

TIMEOUT = 20.0
BURN_IN, LENGTH, PERIOD, STACK = 2, 4, 2, 3
RECORDS = BURN_IN + LENGTH + 1
CONTEXT = STACK - 1
EPISODE = 9  # records


class RewardSum:
    """Gives a sequence the sum of the rewards that it is shown as priority."""

    parameter_size = 2

    def initial_priorities(
        self, q: Any, action: Any, reward: npt.NDArray[np.float32], discount: Any, step_type: Any
    ) -> npt.NDArray[np.float32]:
        assert q.shape == (len(reward), LENGTH + 1, 2)
        assert np.all(q == 0.5)
        assert np.all(discount == 1)
        assert action.shape == (len(reward), LENGTH + 1, 1)
        assert np.all((step_type == FIRST).sum(axis=1) <= 1)
        total: npt.NDArray[np.float32] = reward.sum(axis=1)
        return total


class Learner:
    """The harness's inference, a sender and a sampler of the oldest items, each once."""

    def __init__(self, servers: list[ReplayServer], slots: int = 2, **r2d2: Any) -> None:
        r2d2 = {"burn_in": BURN_IN, "replay_period": PERIOD, "n_steps": 1, **r2d2}
        self.harness = Harness(
            slots=slots,
            unroll_length=LENGTH,
            stack=STACK,
            algorithm="r2d2",
            batch_size=2,
            inference_batch_size=slots,
            r2d2=r2d2,
        )
        (self.group,) = self.harness.lease(1, slots)
        config = self.harness.config
        self.client = ReplayClient(
            [server.address for server in servers],
            layout(self.harness.spec, 2, self.harness.state),
            max_pending_bytes=config.r2d2.max_pending_bytes,
            max_waiting_items=4,
            keepalive_seconds=1.0,
        )
        self.sampler = self.client.sampler(2, CONTEXT + RECORDS)
        self.failures: list[Exception] = []
        self.sender = SequenceSender(
            config,
            self.harness.spec,
            self.harness.assembler,
            self.client,
            RewardSum(),
            self.harness.statistics,
            lambda: None,
            self.failures.append,
        )
        self._thread = threading.Thread(target=self.sender.run, daemon=True)
        self._thread.start()
        self.records = 0

    def play(self, records: int, incarnation: int = 1, bad: int = -1) -> None:
        """Record n of slot s shows frame n + 100 s and has reward n, NaN if it is the bad one."""
        first = self.records if incarnation > 1 else 0
        for _ in range(records):
            deadline = time.monotonic() + TIMEOUT
            while not self.harness.assembler.has_room(self.group.slots):
                assert time.monotonic() < deadline, "the sender takes nothing"
                time.sleep(0.001)
            n = self.records
            step_type = {0: FIRST, EPISODE - 1: LAST}.get((n - first) % EPISODE, MID)
            frame: Any = n + 100 * np.arange(len(self.group.slots))
            reward = np.nan if n == bad else float(n)
            self.harness.send(self.group, step_type, frame[:, None], reward, incarnation)
            self.harness.loop.step()
            self.records += 1

    def wait_sent(self, count: int) -> None:
        deadline = time.monotonic() + TIMEOUT
        while self.sender.sent + self.sender.dropped < count:
            assert not self.failures
            assert time.monotonic() < deadline, (self.sender.sent, self.sender.dropped)
            time.sleep(0.01)

    def stop(self) -> None:
        self.sender.stop()
        self._thread.join(TIMEOUT)
        assert not self._thread.is_alive()
        self.client.close()


Make = Callable[..., Learner]


@pytest.fixture
def make(tmp_path: pathlib.Path) -> Iterator[Make]:
    with contextlib.ExitStack() as stack:

        def create(
            servers: ReplayServer | list[ReplayServer] | None = None, **settings: Any
        ) -> Learner:
            if servers is None:
                server = ReplayServer(tmp_path, {"selector": "fifo", "max_times_sampled": 1})
                stack.callback(server.start().close)
                servers = server
            several = servers if isinstance(servers, list) else [servers]
            learner = Learner(several, **settings)
            stack.callback(learner.stop)
            return learner

        yield create


def sampled(learner: Learner, batches: int) -> list[tuple[RecordBatch, int, float]]:
    """(records, row, priority) of each sequence; copies, so that the arrays stay valid."""
    found = []
    for _ in range(batches):
        batch = learner.sampler.next(TIMEOUT)
        records = to_records(learner.harness.spec, batch)
        copy = records.select(np.arange(len(batch.keys)))
        found += [(copy, row, float(batch.priorities[row])) for row in range(len(batch.keys))]
    return found


def check_sequence(records: RecordBatch, row: int, priority: float, first: int = 0) -> int:
    """Compares with what `play` showed; returns the number of the sequence's first record."""
    frames = records.observation[0][row, :, 0].astype(int)
    slot, start = divmod(int(frames[CONTEXT]), 100)
    numbers = np.arange(start, start + RECORDS)
    np.testing.assert_array_equal(frames[CONTEXT:], 100 * slot + numbers)
    np.testing.assert_array_equal(records.reward[row], numbers)
    place = (numbers - first) % EPISODE
    expected_type = np.where(place == 0, FIRST, np.where(place == EPISODE - 1, LAST, MID))
    np.testing.assert_array_equal(records.step_type[row], expected_type)
    # The stored state counts the records since FIRST, before the sequence's first record.
    if place[0] != 0:
        assert records.initial_state[0][row, 0] == place[0]
    # Each record's observation is stacked of its newest three frames, none of an older episode.
    stacked = frames[records.stack_index[0][row]] - 100 * slot
    wanted = numbers[:, None] - np.arange(STACK)[::-1]
    np.testing.assert_array_equal(stacked, np.maximum(wanted, (numbers - place)[:, None]))
    # The harness's actions are the frames modulo 100; the one before belongs to the record before.
    np.testing.assert_array_equal(records.action[row, :, 0], numbers)
    known = place > 0
    np.testing.assert_array_equal(records.previous_action[row, known, 0], (numbers - 1)[known])
    assert priority == numbers[BURN_IN:].sum()
    return start


def test_sequences_begin_with_their_stored_state(make: Make) -> None:
    learner = make()
    # Sequences of 7 records begin at 0, 2, 4, ...: with 27 records of a slot there are 11 of
    # each, over three episodes.
    learner.play(27)
    found = sampled(learner, 11)
    starts: dict[int, list[int]] = {0: [], 1: []}
    for records, row, priority in found:
        slot = int(records.observation[0][row, CONTEXT, 0]) // 100
        starts[slot].append(check_sequence(records, row, priority))
    assert starts == {0: list(range(0, 21, 2)), 1: list(range(0, 21, 2))}
    learner.wait_sent(22)
    # Of 26 transitions of each slot two lead to FIRST.
    assert learner.harness.statistics.frames == 2 * 24


def test_no_sequence_mixes_incarnations(make: Make) -> None:
    learner = make(slots=1)
    learner.play(12)
    learner.play(13, incarnation=2)
    # Runs 0-2, ..., 8-10; record 11 belongs to none. From 12 on the environment is a new one.
    found = sampled(learner, 3)
    assert [check_sequence(*f) for f in found[:3]] == [0, 2, 4]
    assert [check_sequence(*f, first=12) for f in found[3:]] == [12, 14, 16]


def test_sequences_that_are_not_finite_are_dropped(make: Make) -> None:
    learner = make()
    learner.play(RECORDS + 2 * PERIOD, bad=5)
    # In the unroll of two sequences of each slot, from 2 to 6 and from 4 to 8, then in a burn-in.
    learner.wait_sent(6)
    assert (learner.sender.dropped, learner.sender.sent) == (4, 2)
    # Each has the two steps of its last run.
    assert learner.sender.dropped_steps == 8
    assert learner.sender.steps_in_hand == 0
    assert not learner.failures


def test_inference_goes_on_while_replay_is_away(
    make: Make, tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    directory = str(tmp_path / "data")
    table = {"selector": "fifo", "max_times_sampled": 1}
    server = ReplayServer(tmp_path, table, persistence={"directory": directory}).start()
    try:
        # Room for a few sequences, which wait for the service to come back.
        learner = make(server, slots=1, max_pending_bytes=4096)
        learner.play(9)
        assert [check_sequence(*f) for f in sampled(learner, 1)] == [0, 2]
        # A kill would bring back what was used up in the last second.
        learner.client.checkpoint()
        server.kill()
        deadline = time.monotonic() + TIMEOUT
        while not learner.client.shards_away:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        learner.play(70)
        learner.wait_sent(37)
        dropped = learner.sender.dropped
        assert 0 < dropped < 40
        assert "sequences dropped so far" in caplog.text
        # What is dropped is not trained on, and counts as no frame.
        frames = learner.harness.statistics.frames
        learner.play(10)
        learner.wait_sent(42)
        assert learner.sender.dropped == dropped + 5
        assert learner.harness.statistics.frames == frames
        waiting = learner.sender.sent - learner.client.acknowledged_items
        assert waiting > 0
        server.start()
        learner.client.flush(TIMEOUT)
        assert learner.sender.sent == learner.client.acknowledged_items
        # Nothing that was sent is lost, nothing is broken; what came later is not missing.
        learner.play(11)
        starts = [check_sequence(*f) for f in sampled(learner, waiting // 2 + 2)]
        assert starts[: waiting // 2] == list(range(4, 4 + waiting // 2 * 2, 2))
        assert starts == sorted(starts)
        assert not learner.failures
    finally:
        server.close()


def test_the_rate_limiter_holds_inference_back(make: Make, tmp_path: pathlib.Path) -> None:
    table = {"samples_per_insert": 2.0, "error_buffer": 4.0, "min_size_to_sample": 2}
    server = ReplayServer(tmp_path, table).start()
    try:
        learner = make(server, slots=1)
        # The limiter lets 2 + 4 / 2 sequences in, and 4 / 2 more since the sampler reads two
        # batches ahead; another two batches may be on their way to it. Then the sender stops,
        # and with it the slot.
        with pytest.raises(AssertionError, match="the sender takes nothing"):
            _play_impatiently(learner, 40)
        assert server.status().inserted_items == 6
        assert learner.sender.sent - learner.client.acknowledged_items == 4
        held = learner.records
        for _ in range(4):
            learner.sampler.next(TIMEOUT)
        learner.play(4)
        assert learner.records == held + 4
        assert server.status().inserted_items > 6
        assert learner.sender.dropped == 0
    finally:
        server.close()


def test_the_rate_limiter_of_one_shard_holds_while_the_other_is_away(
    make: Make, tmp_path: pathlib.Path
) -> None:
    table = {"samples_per_insert": 2.0, "error_buffer": 4.0, "min_size_to_sample": 2}
    servers = [ReplayServer(tmp_path / name, table).start() for name in "ab"]
    try:
        learner = make(servers, slots=1)
        servers[1].kill()
        deadline = time.monotonic() + TIMEOUT
        learner.play(7)
        while not learner.client.shards_away:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        with pytest.raises(AssertionError, match="the sender takes nothing"):
            _play_impatiently(learner, 60)
        assert servers[0].status().inserted_items == 6
        assert learner.sender.dropped == 0
    finally:
        for server in servers:
            server.close()


def _play_impatiently(learner: Learner, records: int) -> None:
    for _ in range(records):
        deadline = time.monotonic() + 2.0
        while not learner.harness.assembler.has_room(learner.group.slots):
            assert time.monotonic() < deadline, "the sender takes nothing"
            time.sleep(0.001)
        learner.play(1)


def test_a_table_of_another_layout_ends_the_sender(make: Make, tmp_path: pathlib.Path) -> None:
    server = ReplayServer(tmp_path, {}).start()
    try:
        other = ReplayClient([server.address], layout(Harness(stack=1).spec, 3, ()))
        writer = other.writer(0, 4)
        writer.extend(
            {field.name: np.zeros((4, *field.shape), field.dtype) for field in other.layout.steps}
        )
        writer.create_item(4, 1.0)
        other.flush(TIMEOUT)
        other.close()
        learner = make(server)
        deadline = time.monotonic() + TIMEOUT
        while not learner.failures:
            assert time.monotonic() < deadline
            # However late the refusal comes, there is a sequence that hears of it.
            if learner.harness.assembler.has_room(learner.group.slots):
                learner.play(1)
            else:
                time.sleep(0.01)
        assert isinstance(learner.failures[0], ReplayError)
        assert "has layout" in str(learner.failures[0])
    finally:
        server.close()


def test_sequences_of_another_length_are_refused(make: Make, tmp_path: pathlib.Path) -> None:
    """Shorter ones would be trained on with zeros behind them."""
    server = ReplayServer(tmp_path, {}).start()
    try:
        learner = make(server, slots=1)
        learner.play(7)
        learner.client.flush(TIMEOUT)
        sampler = learner.client.sampler(2, CONTEXT + RECORDS + PERIOD)
        with pytest.raises(
            ReplayError, match=r"sequences of \[9\] records, this learner's have 11"
        ):
            ReplaySource(learner.harness.spec, sampler).next(lambda: False)
    finally:
        server.close()


def test_priorities_go_back(make: Make, tmp_path: pathlib.Path) -> None:
    server = ReplayServer(tmp_path, {}).start()
    try:
        learner = make(server, slots=1)
        learner.play(9)
        learner.client.flush(TIMEOUT)
        learner.wait_sent(2)
        source = ReplaySource(learner.harness.spec, learner.sampler)
        batch = source.next(lambda: False)
        assert batch is not None
        assert batch.weights is not None
        assert batch.weights.max() == 1.0
        total = server.status().total_priority
        for _ in range(6):  # until both were drawn
            assert source.next(lambda: False) is not None
            source.done(Update({"skipped": 0.0}, NO_TALLY, np.array([7.0, 7.0], np.float32)))
        deadline = time.monotonic() + TIMEOUT
        while server.status().total_priority != pytest.approx(2 * 7**0.9):
            assert time.monotonic() < deadline, (total, server.status().total_priority)
            time.sleep(0.02)
        # What is not finite is not sampled again; the batch has one of the two, or both.
        assert source.next(lambda: False) is not None
        source.done(Update({"skipped": 1.0}, NO_TALLY, np.array([np.nan, np.nan], np.float32)))
        left = pytest.approx(7**0.9), pytest.approx(0.0)
        while server.status().total_priority not in left:
            assert time.monotonic() < deadline, server.status().total_priority
            time.sleep(0.02)
        assert source.next(lambda: True) is None
    finally:
        server.close()
