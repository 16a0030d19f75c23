"""What learners know of each other without TensorFlow: who there is, and what all agree on."""

from __future__ import annotations

import json

import numpy as np
import prometheus_client
import pytest

from services.learner import peers
from services.learner.agreement import Agreement
from services.learner.peers import Cluster, PeerLost
from services.learner.statistics import Statistics
from services.local.ports import free_port
from services.shared.specs import DataType, DiscreteActionSpec, EnvironmentSpec, TensorSpec

# Two agents share an environment, whose step is four frames.
SPEC = EnvironmentSpec(
    (TensorSpec("x", DataType.UINT8, (1,)),), DiscreteActionSpec((2,)), agents=2, frames_per_step=4
)


def statistics() -> Statistics:
    registry = prometheus_client.CollectorRegistry()
    return Statistics(2, registry, np.zeros(2, np.uint8), np.arange(2))


def set_config(monkeypatch: pytest.MonkeyPatch, workers: list[str], index: int) -> None:
    document = {"cluster": {"worker": workers}, "task": {"type": "worker", "index": index}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(document))


def test_the_environment_names_the_learners(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TF_CONFIG", raising=False)
    assert peers.from_environment() is None
    set_config(monkeypatch, ["a:1"], 0)
    assert peers.from_environment() is None
    set_config(monkeypatch, ["a:1", "b:1"], 1)
    assert peers.from_environment() == Cluster(("a:1", "b:1"), 1)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "JSONDecodeError"),
        ("[1]", "list indices"),
        ('{"cluster": {"worker": ["a:1", "b:1"]}}', "'task'"),
        ('{"cluster": {"worker": "a:1"}, TASK}', "invalid literal"),
        ('{"cluster": {"worker": [1, 2]}, TASK}', "'int' object"),
        ('{"cluster": {"worker": ["a", "b"]}, TASK}', "invalid literal"),
        ('{"cluster": {"worker": ["a:1", "b:65536"]}, TASK}', "port of b:65536"),
        ('{"cluster": {"worker": ["a:1", "a:1"]}, TASK}', "twice"),
        ('{"cluster": {"worker": ["a:1"]}, TASK}', "task is"),
        ('{"cluster": {"worker": ["a:1", "b:1"], "chief": ["c:1"]}, TASK}', "jobs are"),
    ],
)
def test_a_list_of_learners_that_is_none_is_refused(
    monkeypatch: pytest.MonkeyPatch, text: str, reason: str
) -> None:
    monkeypatch.setenv("TF_CONFIG", text.replace("TASK", '"task": {"type": "worker", "index": 1}'))
    with pytest.raises(ValueError, match=rf"(?s)TF_CONFIG is .*{reason}.*must look like"):
        peers.from_environment()


def test_a_learner_that_does_not_come_is_named() -> None:
    here, there = (f"localhost:{free_port()}" for _ in range(2))
    missing: list[list[str]] = []

    def note(addresses: list[str]) -> bool:
        missing.append(addresses)
        return False

    with pytest.raises(PeerLost, match=rf"these learners do not answer: \['{there}'\]"):
        peers.wait(Cluster((here, there), 0), 0.5, note)
    assert missing[0] == [there]
    assert peers.wait(Cluster((here, there), 0), 60, lambda _: True) is False


def test_all_learners_end_after_the_same_update() -> None:
    learners = [Agreement(statistics(), SPEC, total_frames=100, learners=2) for _ in range(2)]
    counts = [learner._statistics for learner in learners]
    for steps, frames, is_over in (((10, 14), 48, False), ((9, 17), 100, True)):
        for statistic, n in zip(counts, steps, strict=True):
            statistic.add_steps(n, SPEC)
            statistic.episodes += 1
        tallies = [learner.offer(stop=False) for learner in learners]
        for learner, tally in zip(learners, tallies, strict=True):
            learner.take(tally, tallies[0] + tallies[1])
        assert [learner.frames for learner in learners] == [frames] * 2
        assert [learner.is_over for learner in learners] == [is_over] * 2
    assert [s.frames for s in counts] == [100, 100]
    assert [(s.steps, s.elsewhere_steps, s.elsewhere_episodes) for s in counts] == [
        (19, 31, 2),
        (31, 19, 2),
    ]
    assert [s.own_share(steps_at_start=0) for s in counts] == [0.38, 0.62]
    assert counts[0].own_share(steps_at_start=19) == 0


def test_who_is_asked_to_stop_stops_all() -> None:
    learners = [Agreement(statistics(), SPEC, total_frames=100, learners=2) for _ in range(2)]
    tallies = [learners[0].offer(stop=False), learners[1].offer(stop=True)]
    for learner, tally in zip(learners, tallies, strict=True):
        learner.take(tally, tallies[0] + tallies[1])
    assert [learner.is_over for learner in learners] == [True, True]
    assert [learner.stopped for learner in learners] == [True, True]


def test_one_learner_agrees_with_itself_at_once() -> None:
    counts = statistics()
    alone = Agreement(counts, SPEC, total_frames=4)
    counts.add_steps(2, SPEC)
    assert (alone.frames, alone.is_over) == (4, True)
