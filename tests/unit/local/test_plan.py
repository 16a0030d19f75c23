"""The simulation against times that follow by hand, and what `seedpod plan` makes of it."""

from __future__ import annotations

import json
import math
import pathlib
from typing import Any

import pytest
import simpy

from services.learner.unrolls import policy_lag_bound
from services.local import cli
from services.local.plan import calibration, planner
from services.local.plan.processor import Processor
from services.local.plan.simulation import Result, Simulation
from services.local.plan.system import Costs, System
from services.shared import config

MS = 0.001


def costs(**given: float) -> Costs:
    """Free of charge but for what is given."""
    nothing = dict.fromkeys(
        (
            "environment_seconds",
            "actor_message_seconds",
            "front_end_message_seconds",
            "inference_call_seconds",
            "inference_slot_seconds",
            "update_seconds",
        ),
        0.0,
    )
    return Costs(**{**nothing, **given})


def system(**given: Any) -> System:
    """One environment on a machine of its own, batches of one."""
    return System(
        **{
            "actors": 1,
            "workers": 1,
            "groups": 1,
            "environments_per_group": 1,
            "actor_cores": 1,
            "learner_cores": 8,
            "inference_batch_size": 1,
            "unroll_length": 4,
            "batch_size": 1,
            **given,
        }
    )


def settled(prices: Costs, one: System, seconds: float = 10.0) -> Result:
    simulation = Simulation(prices, one)
    simulation.run(seconds / 4)
    return simulation.run(seconds)


@pytest.mark.parametrize(("cores", "ends"), [(1, [3.0, 3.0]), (2, [2.0, 2.0])])
def test_jobs_share_cores(cores: float, ends: list[float]) -> None:
    # Two seconds of work from 0 on, one second from 1 on.
    clock = simpy.Environment()
    processor = Processor(clock, cores)
    found = []

    def job(start: float, work: float) -> Any:
        yield clock.timeout(start)
        yield processor.run(work)
        found.append(clock.now)

    clock.process(job(0, 2))
    clock.process(job(1, 1))
    clock.run()
    assert found == pytest.approx(ends)
    assert processor.busy_seconds == pytest.approx(3)


def test_one_environment_waits_for_each_answer() -> None:
    prices = costs(
        environment_seconds=10 * MS,
        actor_message_seconds=1 * MS,
        front_end_message_seconds=2 * MS,
        inference_call_seconds=3 * MS,
        inference_slot_seconds=1 * MS,
    )
    result = settled(prices, system(latency_seconds=0.5 * MS))
    # 10 + 1 on the actor; 0.5 + 1 to, 3 + 1 in, 1 + 0.5 from inference.
    assert result.frames_per_second == pytest.approx(1000 / 18, rel=0.01)
    assert result.round_trip_seconds == pytest.approx(7 * MS)
    assert result.busy["actors"] == pytest.approx(11 / 18, rel=0.01)
    assert result.busy["inference"] == pytest.approx(4 / 18, rel=0.01)
    assert result.busy["front_ends"] == pytest.approx(2 / 18, rel=0.01)


@pytest.mark.parametrize(
    ("step", "latency", "per_second"),
    [
        (10, 2, 100),  # the other group steps while one waits 4 ms
        (5, 10, 80),  # two records in the 25 ms of a step and its answer
    ],
)
def test_two_groups_hide_the_answers_time(step: float, latency: float, per_second: float) -> None:
    result = settled(
        costs(environment_seconds=step * MS), system(groups=2, latency_seconds=latency * MS)
    )
    assert result.records_per_second == pytest.approx(per_second, rel=0.01)


@pytest.mark.parametrize(
    ("max_wait", "round_trip"),
    [(2, 2), (50, 5)],  # the first one's patience; or until both have reported: 10 and 0
)
def test_a_batch_waits_for_all_or_for_the_clock(max_wait: float, round_trip: float) -> None:
    one = system(groups=2, inference_batch_size=3, max_wait_seconds=max_wait * MS)
    result = settled(costs(environment_seconds=10 * MS), one)
    assert result.round_trip_seconds == pytest.approx(round_trip * MS, rel=0.01)


def test_a_full_batch_goes_and_groups_are_not_divided() -> None:
    # Six groups of 2 and batches of 5: two groups go as soon as a third has come.
    one = system(workers=6, actor_cores=6, environments_per_group=2, inference_batch_size=5)
    result = settled(costs(environment_seconds=5 * MS, inference_call_seconds=MS), one)
    assert result.batch_fill == pytest.approx(4 / 5, rel=0.01)


def test_all_parts_share_the_cores_of_one_machine() -> None:
    prices = costs(environment_seconds=3 * MS, inference_slot_seconds=MS, update_seconds=8 * MS)
    result = settled(prices, system(workers=4, actor_cores=None, learner_cores=1))
    # A record costs 3 + 1 + 8 / 4 ms of the only core.
    assert result.frames_per_second == pytest.approx(1000 / 6, rel=0.01)
    assert result.busy["actors"] == pytest.approx(1, rel=0.01)


def test_a_slow_trainer_holds_actors_and_bounds_the_lag() -> None:
    one = system(workers=3, actor_cores=3, batch_size=2)
    simulation = Simulation(costs(environment_seconds=MS, update_seconds=0.1), one)
    simulation.run(5)
    result = simulation.run(20)
    assert result.frames_per_second == pytest.approx(80, rel=0.01)  # 2 unrolls of 4 in 0.1 s
    assert result.bottleneck == "training"
    assert result.held_groups == pytest.approx(3, rel=0.05)
    assert 0 < result.policy_lag <= policy_lag_bound(3, 2, 1, 1)
    # No ring holds more than two unrolls and the record that is shared.
    assert all(group.written - group.taken * 4 <= 8 for group in simulation.groups)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_no_record_is_lost(seed: int) -> None:
    prices = costs(
        environment_seconds=2 * MS,
        environment_variation=1.0,
        inference_slot_seconds=0.1 * MS,
        update_seconds=5 * MS,
    )
    one = system(workers=3, actor_cores=2, environments_per_group=3, batch_size=4, groups=2)
    simulation = Simulation(prices, one, seed)
    answered = simulation.run(10).records_per_second * 10
    assert answered == pytest.approx(3 * sum(group.written for group in simulation.groups))
    finished = sum(3 * max(0, group.written - 1) // 4 // 3 * 3 for group in simulation.groups)
    waiting = sum(sum(group.left) for group in simulation.groups)
    in_hand = finished - waiting - simulation.trained_records // 4
    assert 0 <= in_hand < 4


def test_environment_times_have_the_mean_that_is_given() -> None:
    prices = costs(environment_seconds=2 * MS, environment_variation=1.0)
    result = settled(prices, system(environments_per_group=5, inference_batch_size=5), 100)
    assert result.records_per_second == pytest.approx(500, rel=0.02)


def test_an_autoscaler_stops_where_the_learner_is_busy() -> None:
    # An actor makes 100 records a second; training takes 12.4 ms of 4: busy 0.31 of the time.
    prices = costs(environment_seconds=10 * MS, update_seconds=12.4 * MS)
    simulation = Simulation(prices, system(groups=2))
    # 0.9 / 0.31 = 2.9 actors.
    assert planner.autoscaled(simulation, 5.0, 3, 100) == [3, 3, 3]
    simulation.scale(1)
    assert planner.autoscaled(simulation, 5.0, 2, 2) == [2, 2]
    assert simulation.run(5).records_per_second == pytest.approx(200, rel=0.02)


def test_a_plan_is_the_smallest_that_reaches_the_rate() -> None:
    prices = costs(environment_seconds=10 * MS, update_seconds=MS, inference_slot_seconds=MS)
    one = system(groups=2, device="separate", learner_cores=4)
    found = planner.plan(prices, one, 500, planner.Prices(core=0.1, accelerator=2))
    assert (found.learners, found.actors, found.system.front_ends) == (1, 5, 1)
    assert found.cores == 4 + 5
    assert found.dollars_per_hour == pytest.approx(0.9 + 4)
    # One learner answers 900 a second at 90 %.
    assert planner.plan(prices, one, 1000, planner.Prices()).learners == 2


def test_a_plan_that_cannot_be_says_what_limits() -> None:
    prices = costs(environment_seconds=MS)
    one = system(latency_seconds=1000.0)
    with pytest.raises(planner.PlanError, match=r"500 frames/s: 1 learner.* give 0 by"):
        planner.plan(prices, one, 500, planner.Prices())


def test_costs_of_a_run() -> None:
    measured = calibration.Measured(
        cpu={
            "environment": 1.1,
            "actor": 0.22,
            "front_ends": 0.11,
            "inference": 0.55,
            "training": 0.3,
            "learner_other": 0.1,
        },
        frames_per_update=100,
        frames_per_episode=10,
        observation_bytes=0,
        source="by hand",
    )
    overrides = ["learner.inference_batch_size=10", "actor.environments_per_group=4"]
    found = measured.costs(config.load("cartpole", overrides))
    # 10 of 11 records are frames.
    assert found.environment_seconds == pytest.approx(1.0 * MS)
    assert found.actor_message_seconds == pytest.approx(0.8 * MS)
    assert found.front_end_message_seconds == pytest.approx(0.4 * MS)
    assert found.inference_call_seconds == pytest.approx(0.5 * MS)
    assert found.inference_slot_seconds == pytest.approx(0.45 * MS)
    assert found.update_seconds == pytest.approx(30 * MS)
    assert found.gather_seconds == pytest.approx(10 * MS)


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["plan", "--experiment=football", "--frames-per-second=1000"]) == 0
    output = capsys.readouterr().out.splitlines()
    found = json.loads(output[-1])
    assert 980 <= found["frames_per_second"] < 1500
    # At 3.5 milliseconds a frame, a core steps fewer than 300 frames.
    assert found["actors"] == 1
    assert found["dollars_per_hour"] == pytest.approx(0.035 * (8 + 4))
    assert output[0].startswith("what the parts cost: README.md")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--experiment=memory"], "'memory' costs is not known; allowed: one of ['cartpole'"),
        (["--experiment=cartpole-r2d2"], "learner.algorithm is r2d2, allowed here: vtrace"),
        (["--run=/nonexistent"], "/nonexistent/experiment.yaml"),
    ],
)
def test_the_command_refuses(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["plan", "--frames-per-second=1000", *arguments]) == 1
    assert words in capsys.readouterr().err


def test_a_folder_without_a_finished_run(tmp_path: pathlib.Path) -> None:
    with pytest.raises(config.ConfigError, match="not the folder of a finished run"):
        calibration.of_run(tmp_path)
    (tmp_path / "summary.json").write_text(json.dumps({"frames": 0}))
    with pytest.raises(config.ConfigError, match="has no CPU times"):
        calibration.of_run(tmp_path)


def test_values_that_cannot_be() -> None:
    with pytest.raises(ValueError, match="update_seconds is nan, allowed: 0 or more"):
        costs(update_seconds=math.nan)
    with pytest.raises(ValueError, match="actors is 0, allowed: 1 or more"):
        system(actors=0)
    with pytest.raises(ValueError, match="device is 'tpu', allowed: cpu, shared, separate"):
        system(device="tpu")
