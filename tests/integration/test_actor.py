"""The real actor, supervisor and workers, against a real gRPC server."""

import contextlib
import itertools
import json
import pathlib
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import numpy as np
import psutil
import pytest

from services.shared import specs
from tests.integration.fake_learner import (
    ABSENT,
    FIRST,
    LAST,
    MID,
    FakeLearner,
    Record,
    check_rows,
)

ROOT = pathlib.Path(__file__).parents[2]
StartActor = Callable[..., "Actor"]


class Actor:
    """A running `python -m services.actor`."""

    def __init__(self, tmp_path: pathlib.Path, address: str, settings: dict[str, Any]) -> None:
        self.log = tmp_path / f"actor-{time.monotonic_ns()}.log"
        document = {
            "actor": {
                "environment": "tests.integration.actor_environments:marked",
                "learner_address": address,
                "workers": 1,
                "groups": 2,
                "environments_per_group": 3,
                "step_timeout_seconds": 0.5,
                "start_timeout_seconds": 5.0,
                **settings,
            },
            "learner": {"keepalive_seconds": 1.0},
        }
        experiment = tmp_path / "experiment.yaml"
        experiment.write_text(json.dumps(document))
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "services.actor", "--experiment", str(experiment)],
                cwd=ROOT,
                stderr=log,
            )

    @property
    def text(self) -> str:
        return self.log.read_text()

    def workers(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children()

    def end(self, number: signal.Signals = signal.SIGTERM) -> float:
        """Ends it by a signal; returns how many seconds it took."""
        began = time.monotonic()
        family = psutil.Process(self.process.pid).children(recursive=True)
        self.process.send_signal(number)
        self.process.wait(15)
        psutil.wait_procs(family, 2)
        assert not [p for p in family if p.is_running()], self.text
        return time.monotonic() - began


@pytest.fixture
def learner() -> Iterator[FakeLearner]:
    learner = FakeLearner()
    learner.start()
    yield learner
    learner.is_silent.clear()
    learner.stop()


@pytest.fixture
def start_actor(tmp_path: pathlib.Path, learner: FakeLearner) -> Iterator[StartActor]:
    actors: list[Actor] = []

    def start(**settings: Any) -> Actor:
        actors.append(Actor(tmp_path, learner.address, settings))
        return actors[-1]

    yield start
    for actor in actors:
        with contextlib.suppress(psutil.NoSuchProcess):
            actor.end(signal.SIGKILL)


def _only(learner: FakeLearner, group: int, token: str = "lease 1") -> list[Record]:
    return list(learner.records[token, group])


def _marks(records: list[Record], row: int) -> "np.ndarray[Any, np.dtype[np.float32]]":
    return np.array([r.observation[1][row] for r in records], np.float32)


def _check_undisturbed(records: list[Record], row: int) -> None:
    """The row's one environment took every step: no gap, no other incarnation."""
    marks = _marks(records, row)
    assert len(set(marks[:, 0])) == 1
    assert {int(r.incarnation[row]) for r in records} == {1}
    assert [int(r.step_type[row]) for r in records[:12]] == [0, 1, 1, 1, 1, 2] * 2
    np.testing.assert_array_equal(marks[:, 2], np.arange(len(records)) % 6)


def test_records_of_whole_episodes(learner: FakeLearner, start_actor: StartActor) -> None:
    actor = start_actor(environment_arguments={"agents": 2}, metrics_port=0)
    learner.wait_for_records(30)
    for group in range(2):
        records = _only(learner, group)[:24]
        check_rows(records)
        for row in range(6):
            _check_undisturbed(records, row)
            assert {int(r.reward[row]) for r in records if r.step_type[row] != FIRST} == {1}
            ends = [r.discount[row] for r in records if r.step_type[row] == LAST]
            assert ends == [0, 1, 0, 1]  # terminated, truncated, ...
        assert np.all(records[5].observation[0] == 7)
        # Rows lie by environment, then agent.
        marks = [records[0].observation[1][row][0] for row in range(6)]
        assert marks == [group * 3 + row // 2 for row in range(6)]
    join = learner.joins[0]
    assert (join.api_version, join.groups, join.environments_per_group) == (
        "seedpod.inference.v1",
        2,
        3,
    )
    assert 0 < sum(r.environment_cpu_seconds for r in records) < 1
    assert 0 < sum(r.actor_cpu_seconds for r in records) < 5
    for process in [psutil.Process(actor.process.pid), *actor.workers()]:
        mapped = pathlib.Path(f"/proc/{process.pid}/maps").read_text()
        assert "tensorflow" not in mapped
        assert "numpy" in mapped or process.pid == actor.process.pid
    assert actor.end() < 5
    assert actor.process.returncode == 0


def _check_replaced(records: list[Record], row: int) -> None:
    """FIRST, 5 steps, FIRST, 2 steps; the 8th breaks it, and another one comes in its place."""
    types = [int(r.step_type[row]) for r in records]
    assert types[:10] == [0, 1, 1, 1, 1, 2, 0, 1, 1, ABSENT]
    back = types.index(FIRST, 10)
    assert set(types[9:back]) == {ABSENT}
    assert records[back].incarnation[row] == 2
    number, episode, step, _ = _marks(records[back:], row)[0]
    assert number >= 6
    assert (episode, step) == (1, 0)


def test_broken_environments_are_replaced(learner: FakeLearner, start_actor: StartActor) -> None:
    faults = {"0": "raise", "1": "exit", "4": "nan observation", "5": "nan reward"}
    actor = start_actor(environment_arguments={"faults": faults})
    learner.wait_for_records(20)
    (worker,) = actor.workers()
    for group, row in ((0, 0), (0, 1), (1, 1), (1, 2)):
        learner.wait_for(lambda g=group, r=row: _only(learner, g)[-1].incarnation[r] == 2)  # type: ignore[misc]
    learner.wait_for_records(20)
    for group, rows in ((0, (0, 1)), (1, (1, 2))):
        records = _only(learner, group)
        check_rows(records)
        for row in rows:
            _check_replaced(records, row)
    _check_undisturbed(_only(learner, 0), 2)
    _check_undisturbed(_only(learner, 1), 0)
    assert actor.workers() == [worker]
    assert "RuntimeError: broken on purpose" in actor.text
    assert actor.text.count("is nan, allowed: finite numbers") == 2


def test_a_hung_environment_is_replaced(learner: FakeLearner, start_actor: StartActor) -> None:
    actor = start_actor(environment_arguments={"faults": {"1": "hang"}})
    learner.wait_for_records(20)
    (worker,) = actor.workers()
    learner.wait_for(lambda: bool(_only(learner, 0)[-1].incarnation[1] == 2))
    time.sleep(2.0)  # the hung call comes back, and must do nothing
    learner.wait_for_records(20)
    for group in range(2):
        records = _only(learner, group)
        # The new thread opened new streams and repeated what was not answered.
        records = [r for r, n in itertools.pairwise(records) if r.sequence != n.sequence]
        check_rows(records)
        for row in range(3):
            if (group, row) == (0, 1):
                _check_replaced(records, row)
            else:
                _check_undisturbed(records, row)
    assert actor.workers() == [worker]
    assert "sleep(2.0)" in actor.text  # where it hung
    # The abandoned thread ended without a word.
    for noise in ("Traceback", "Exception in thread", "never retrieved", "loop is closed"):
        assert noise not in actor.text


def test_a_group_without_environments_waits(learner: FakeLearner, start_actor: StartActor) -> None:
    actor = start_actor(
        groups=1, environments_per_group=1, environment_arguments={"faults": {"0": "raise"}}
    )
    learner.wait_for(lambda: bool(learner.leases))
    learner.wait_for_records(20)
    records = _only(learner, 0)
    check_rows(records)
    assert [int(r.step_type[0]) for r in records[7:11]] == [MID, MID, FIRST, MID]
    assert [int(r.incarnation[0]) for r in records[7:11]] == [1, 1, 2, 2]
    assert "all its environments are being replaced" in actor.text


def test_a_killed_worker_comes_back_with_its_lease(
    learner: FakeLearner, start_actor: StartActor
) -> None:
    actor = start_actor(workers=2)
    learner.wait_for(lambda: len(learner.joins) == 2)
    learner.wait_for_records(3)
    victim = next(w for w in actor.workers() if _worker_token(learner, w) == "lease 1")
    other = next(w for w in actor.workers() if w != victim)
    assert len({lease.request.actor_name for lease in learner.leases.values()}) == 2
    before = len(learner.records["lease 2", 0])
    victim.kill()
    learner.wait_for(lambda: len(learner.joins) == 3)
    assert learner.joins[-1].lease_token == "lease 1"
    learner.wait_for_records(10)
    check_rows(_only(learner, 0))
    assert _only(learner, 0)[0].incarnation.min() > 1 << 16
    assert other.is_running()
    records = _only(learner, 0, "lease 2")
    assert len(records) > before
    assert {int(r.incarnation[0]) for r in records} == {1}
    # No child outlives a killed supervisor.
    family = actor.workers()
    actor.process.kill()
    _, alive = psutil.wait_procs(family, 3)
    assert not alive


def _worker_token(learner: FakeLearner, worker: psutil.Process) -> str:
    for (token, _), records in learner.records.items():
        if records and records[0].observation[1][0][3] == np.float32(worker.pid):
            return token
    return ""


@pytest.mark.parametrize("fault", ["hold", "crash"])
def test_a_worker_that_hangs_or_crashes_is_started_again(
    learner: FakeLearner, start_actor: StartActor, fault: str
) -> None:
    actor = start_actor(environment_arguments={"faults": {"1": fault}, "at": 100})
    learner.wait_for(lambda: len(learner.joins) == 2)
    learner.wait_for_records(3)
    assert learner.joins[1].lease_token == "lease 1"
    # Where it was, from the interpreter's own fault handler.
    assert "in _break" in actor.text


@pytest.mark.parametrize("status", [0, 64])
def test_an_environment_cannot_end_the_training(
    learner: FakeLearner, start_actor: StartActor, status: int
) -> None:
    actor = start_actor(environment_arguments={"faults": {"1": f"status {status}"}, "at": 100})
    learner.wait_for(lambda: len(learner.joins) == 3)  # twice
    assert actor.process.poll() is None
    assert f"ended with status {status}; another one starts" in actor.text


def test_an_actor_that_stood_still_goes_on(learner: FakeLearner, start_actor: StartActor) -> None:
    actor = start_actor()
    learner.wait_for_records(5)
    (worker,) = actor.workers()
    family = [psutil.Process(actor.process.pid), worker]
    for process in family:
        process.suspend()
    time.sleep(7.0)  # a worker alone would be given up after 5.5
    for process in family:
        process.resume()
    learner.wait_for_records(5)
    time.sleep(1.0)
    assert actor.workers() == [worker]
    assert "silent" not in actor.text


def test_environments_that_never_finish_a_step_end_the_actor(start_actor: StartActor) -> None:
    actor = start_actor(environment_arguments={"faults": {"*": "raise"}, "at": 1}, start_attempts=2)
    assert actor.process.wait(20) == 1
    assert "was lost before it had finished a step, 2 times in a row" in actor.text
    assert "RuntimeError: broken on purpose" in actor.text


def _simulators(folder: pathlib.Path, count: int) -> list[psutil.Process]:
    deadline = time.monotonic() + 20
    while len(names := [path.name for path in folder.iterdir()]) < count:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return [psutil.Process(int(name)) for name in names]


def _simulated(folder: pathlib.Path, **arguments: Any) -> dict[str, Any]:
    return {
        "environment": "tests.integration.actor_environments:simulated",
        "environment_arguments": {"folder": str(folder), **arguments},
        "groups": 1,
        "environments_per_group": 2,
    }


@pytest.fixture
def folder(tmp_path: pathlib.Path) -> pathlib.Path:
    path = tmp_path / "simulators"
    path.mkdir()
    return path


def test_a_dead_worker_leaves_nothing_behind(
    learner: FakeLearner, start_actor: StartActor, folder: pathlib.Path
) -> None:
    actor = start_actor(**_simulated(folder), workers=2)
    simulators = _simulators(folder, 8)
    learner.wait_for_records(5)
    victim, other = actor.workers()
    theirs = {p: victim.pid in [a.pid for a in p.parents()] for p in simulators}
    assert list(theirs.values()).count(True) == 4
    victim.kill()
    mine = [p for p in simulators if theirs[p]]
    _, alive = psutil.wait_procs(mine, 5)
    assert not alive
    learner.wait_for(lambda: len(learner.joins) == 3)
    assert other.is_running()
    assert all(p.is_running() for p in simulators if not theirs[p])
    actor.end()


@pytest.mark.parametrize("how", ["signal", "finished", "hung close"])
def test_environments_are_closed_at_the_end(
    learner: FakeLearner, start_actor: StartActor, folder: pathlib.Path, how: str
) -> None:
    actor = start_actor(**_simulated(folder, closes_in=60.0 if how == "hung close" else 0.0))
    simulators = _simulators(folder, 4)
    learner.wait_for_records(5)
    if how == "finished":
        learner.is_finished = True
        assert actor.process.wait(15) == 0
    else:
        assert actor.end() < 5
    _, alive = psutil.wait_procs(simulators, 2)
    assert not alive
    closed = [path.read_text() for path in folder.iterdir()].count("closed")
    assert closed == (0 if how == "hung close" else 2)


def test_the_unanswered_request_is_repeated(learner: FakeLearner, start_actor: StartActor) -> None:
    actor = start_actor()
    learner.wait_for_records(10)
    learner.is_silent.set()
    time.sleep(0.3)
    lengths = [len(_only(learner, group)) for group in range(2)]
    learner.stop()
    time.sleep(1.0)
    learner.is_silent.clear()
    learner.start()
    learner.wait_for_records(10)
    for group, length in enumerate(lengths):
        records = _only(learner, group)
        lost, repeated = records[length - 1], records[length]
        assert lost.sequence == repeated.sequence
        assert lost.stream != repeated.stream
        assert np.array_equal(lost.observation[1], repeated.observation[1])
        check_rows(records[: length - 1] + records[length:])
    assert len(learner.joins) == 1
    assert "lost the learner" in actor.text
    assert actor.text.count("lost the learner") < 4


def test_a_stopped_learner_is_noticed(tmp_path: pathlib.Path) -> None:
    command = [sys.executable, "-m", "tests.integration.fake_learner"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as learner:
        assert learner.stdout is not None
        actor = Actor(tmp_path, learner.stdout.readline().strip(), {})
        try:
            _wait_for_text(actor, "leased 6 slots")
            time.sleep(0.5)
            learner.send_signal(signal.SIGSTOP)  # its kernel still acknowledges what is sent
            _wait_for_text(actor, "lost the learner", seconds=5.0)
            learner.send_signal(signal.SIGCONT)
            _wait_for_text(actor, "connected to the learner again")
        finally:
            actor.end(signal.SIGKILL)
            learner.kill()


def _wait_for_text(actor: Actor, text: str, seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while text not in actor.text:
        assert time.monotonic() < deadline, actor.text
        time.sleep(0.05)


def test_an_unknown_lease_means_to_begin_anew(
    learner: FakeLearner, start_actor: StartActor
) -> None:
    start_actor()
    learner.wait_for_records(10)
    learner.stop()
    learner.leases.clear()
    learner.start()
    learner.wait_for(lambda: len(learner.leases) == 1)
    learner.wait_for_records(10, "lease 2")
    assert [join.lease_token for join in learner.joins] == ["", ""]
    for group in range(2):
        records = _only(learner, group, "lease 2")
        check_rows(records)
        assert set(records[0].step_type) == {FIRST}
        assert set(records[0].incarnation) == {2}


def test_another_stream_took_over(learner: FakeLearner, start_actor: StartActor) -> None:
    start_actor()
    learner.wait_for_records(5)
    learner.refuse_act = (grpc.StatusCode.ABORTED, "a newer stream has taken this group over")
    learner.wait_for(lambda: len(learner.leases) == 2)
    learner.wait_for_records(5, "lease 2")
    assert {len(_only(learner, group, "lease 2")) > 4 for group in range(2)} == {True}
    assert learner.joins[1].lease_token == ""


def test_a_learner_that_starts_late_or_is_full(
    learner: FakeLearner, start_actor: StartActor
) -> None:
    learner.refuse_join = (grpc.StatusCode.RESOURCE_EXHAUSTED, "6 slots wanted, 2 free")
    actor = start_actor()
    learner.wait_for(lambda: len(learner.joins) > 3)
    learner.refuse_join = None
    learner.wait_for_records(3)
    assert actor.text.count("6 slots wanted, 2 free") == 1
    assert "joined the learner after" in actor.text


@pytest.mark.parametrize("where", ["act", "join"])
def test_the_end_of_training(learner: FakeLearner, start_actor: StartActor, where: str) -> None:
    if where == "join":
        learner.is_finished = True
    actor = start_actor(workers=2)
    if where == "act":
        learner.wait_for(lambda: len(learner.leases) == 2)
        learner.wait_for_records(3)
        learner.is_finished = True
    assert actor.process.wait(15) == 0
    assert "training is finished" in actor.text


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals(learner: FakeLearner, start_actor: StartActor, number: signal.Signals) -> None:
    # One environment hangs and the learner is silent: nothing may hold up the end.
    actor = start_actor(
        environment_arguments={"faults": {"1": "hang"}}, step_timeout_seconds=60.0, workers=2
    )
    learner.wait_for(lambda: len(learner.leases) == 2)
    learner.wait_for_records(5)
    learner.is_silent.set()
    assert actor.end(number) < 10
    assert actor.process.returncode == 0


@pytest.mark.parametrize(
    ("factory", "expected"),
    [
        ("unstartable", "RuntimeError: the simulator's licence has expired"),
        ("hanging_start", "longer than start_timeout_seconds"),
        ("crashing_start", "in crashing_start"),
        ("nan_start", "observation 'mark' is nan, allowed: finite numbers"),
        ("missing", "module 'tests.integration.actor_environments' has no callable 'missing'"),
    ],
)
def test_an_environment_that_never_starts_ends_the_actor(
    start_actor: StartActor, factory: str, expected: str
) -> None:
    actor = start_actor(
        environment=f"tests.integration.actor_environments:{factory}",
        start_attempts=2,
        start_timeout_seconds=1.0 if factory == "hanging_start" else 10.0,
    )
    assert actor.process.wait(20) == 1
    assert expected in actor.text


def test_what_the_learner_refuses_ends_the_actor(
    learner: FakeLearner, start_actor: StartActor
) -> None:
    learner.refuse_join = (grpc.StatusCode.FAILED_PRECONDITION, "mine has [84, 84], yours [4]")
    actor = start_actor()
    assert actor.process.wait(15) == 1
    assert "mine has [84, 84], yours [4]" in actor.text
    learner.refuse_join = None
    actor = start_actor()
    learner.wait_for_records(3)
    learner.refuse_act = (grpc.StatusCode.INVALID_ARGUMENT, "unknown step type 9")
    assert actor.process.wait(15) == 1
    assert "unknown step type 9" in actor.text


def test_a_bad_experiment_is_refused(start_actor: StartActor) -> None:
    actor = start_actor(environments_per_group=0)
    assert actor.process.wait(10) == 2
    assert "actor.environments_per_group" in actor.text


def test_metrics(learner: FakeLearner, start_actor: StartActor) -> None:
    with contextlib.closing(socket.socket()) as probe:
        probe.bind(("", 0))
        port = probe.getsockname()[1]
    start_actor(metrics_port=port, environment_arguments={"faults": {"1": "raise"}})

    def values() -> dict[str, float]:
        with contextlib.suppress(OSError):
            text = urllib.request.urlopen(f"http://localhost:{port}/metrics", timeout=5).read()
            lines = [line.rsplit(" ", 1) for line in text.decode().splitlines() if line[0] != "#"]
            return {name: float(value) for name, value in lines}
        return {}

    learner.wait_for(lambda: values().get("seedpod_actor_environment_restarts_total") == 1)
    learner.wait_for(lambda: values()["seedpod_actor_environment_steps_total"] > 100)
    assert values()["seedpod_actor_connected_workers"] == 1


def test_a_gymnasium_environment(learner: FakeLearner, start_actor: StartActor) -> None:
    start_actor(environment="CartPole-v1")
    learner.wait_for_records(40)
    lease = learner.leases["lease 1"]
    assert lease.spec.observation == (
        specs.TensorSpec("observation", specs.DataType.FLOAT32, (4,)),
    )
    records = _only(learner, 0)
    check_rows(records)
    assert LAST in {int(t) for r in records for t in r.step_type}
    # No two environments have the same seed.
    assert len({r.tobytes() for g in range(2) for r in _only(learner, g)[0].observation[0]}) == 6


def test_workers_move_when_a_learner_comes_or_goes(
    learner: FakeLearner, start_actor: StartActor
) -> None:
    other = FakeLearner()
    other.start()
    other.stop()
    actor = start_actor(
        learner_address=f"{learner.address}, {other.address}",
        rebalance_seconds=0.3,
        workers=2,
        groups=1,
        start_timeout_seconds=20.0,
    )
    learner.wait_for(lambda: learner.live_slots == 6)

    other.start()
    try:
        learner.wait_for(lambda: (learner.live_slots, other.live_slots) == (3, 3))
        assert "leaving the learner at" in actor.text
    finally:
        other.stop()
    learner.wait_for(lambda: learner.live_slots == 6)
