"""A real trajectory server and its client, without a network: what passes between them."""

from __future__ import annotations

import asyncio
import random
import socket
import threading
from collections.abc import Iterator

import grpc
import numpy as np
import pytest
from prometheus_client import CollectorRegistry

from services.learner import trajectories
from services.learner.statistics import Statistics
from services.learner.trajectory_client import Finished, Refused, TrajectoryClient
from services.learner.trajectory_server import TrajectoryServer, _Actor
from services.learner.unroll_queue import Desk, ParameterBoard, UnrollQueue
from services.shared import rpc, wire
from services.shared.config import LearnerConfig
from services.shared.generated.seedpod.trajectory.v1 import trajectory_pb2
from tests.mutations import mutate
from tests.unit.learner.test_trajectories import LAYOUT, SPEC, batch

TIMEOUT = 20.0
PARAMETERS = {
    "torso/0/kernel": np.arange(400_000, dtype=np.float32).reshape(1000, 400),
    "torso/0/bias": np.ones(3, np.float32),
}


class System:
    """A server with room for three unrolls, and a client that has registered."""

    def __init__(self) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.address = f"127.0.0.1:{probe.getsockname()[1]}"
        config = LearnerConfig(inference="actors", trajectory_address=self.address)
        self.desk = Desk(LAYOUT, UnrollQueue(3), ParameterBoard(PARAMETERS, 5))
        self.statistics = Statistics(
            4, CollectorRegistry(), np.zeros(4, np.uint8), np.arange(4, dtype=np.int64)
        )
        self.server = TrajectoryServer(config, lambda _: self.desk, self.statistics)
        self.server.start()
        self.client = TrajectoryClient(self.address, 5.0, None)

    def close(self) -> None:
        self.client.close()
        self.server.stop()


@pytest.fixture
def system() -> Iterator[System]:
    made = System()
    yield made
    made.close()


def registration() -> trajectory_pb2.RegisterRequest:
    return trajectory_pb2.RegisterRequest(
        api_version=trajectories.API_VERSION,
        actor_name="a",
        environment=wire.environment_spec_to_proto(SPEC),
        slots=2,
        unroll_length=2,
        parameters=trajectories.parameter_specs(PARAMETERS),
    )


def test_parameters_come_in_pieces_and_only_when_they_are_new(system: System) -> None:
    system.client.register(registration())
    fetched = system.client.fetch(-1)
    assert fetched is not None
    version, data = fetched
    assert version == 5
    assert len(data) == 1_600_012  # two pieces
    np.testing.assert_array_equal(
        trajectories.unpack(PARAMETERS, data)["torso/0/kernel"], PARAMETERS["torso/0/kernel"]
    )
    assert system.client.fetch(5) is None
    assert system.server.parameter_bytes == 1_600_012
    system.desk.board.pin({name: value + 1 for name, value in PARAMETERS.items()}, 6)
    renewed = system.client.fetch(5)
    assert renewed is not None
    assert renewed[0] == 6


def test_unrolls_arrive_once_and_wait_for_room(system: System) -> None:
    system.client.register(registration())
    message = trajectories.encode(LAYOUT, batch())
    message.episodes.add(episode_return=1.5, length=9)
    message.environment_cpu_seconds, message.actor_cpu_seconds = 2.0, 0.5
    answer = system.client.put(message)
    assert answer is not None
    assert (answer.sequence, answer.version, answer.finished) == (1, 5, False)
    # Again, as after a lost connection: acknowledged, and neither taken nor counted.
    again = TrajectoryClient(system.address, 5.0, None)
    again._actor_id = system.client._actor_id
    repeated = again.put(message)
    assert repeated is not None
    assert repeated.sequence == 1
    again.close()
    assert len(system.desk.queue) == 2
    assert system.statistics.ended_episodes.pop() == (1.5, 9)
    assert system.server.environment_cpu_seconds == 2.0
    assert system.server.live_slots <= 2

    assert system.client.put(trajectories.encode(LAYOUT, batch())) is not None  # the fourth of 3
    acknowledged = threading.Event()

    def put_more() -> None:
        system.client.put(trajectories.encode(LAYOUT, batch()))
        acknowledged.set()

    waiting = threading.Thread(target=put_more)
    waiting.start()
    assert not acknowledged.wait(0.5)
    first = system.desk.queue.take(3, TIMEOUT)
    assert first is not None
    np.testing.assert_array_equal(first.reward, batch().reward)
    assert acknowledged.wait(TIMEOUT)
    waiting.join(TIMEOUT)
    assert len(system.desk.queue) == 4
    # Of the 3 x 2 unrolls each first one has a step from LAST to FIRST, which is none.
    assert system.desk.queue.received_steps == 3 * (1 + 2)
    assert system.desk.queue.waiting_steps == 2 * (1 + 2)

    system.server.finish()
    with pytest.raises(Finished):
        system.client.put(trajectories.encode(LAYOUT, batch()))


@pytest.mark.parametrize("turns", range(5))
def test_a_stream_that_is_replaced_while_it_gets_room_takes_nothing_twice(turns: int) -> None:
    desk = Desk(LAYOUT, UnrollQueue(3), ParameterBoard(PARAMETERS, 5))
    statistics = Statistics(
        4, CollectorRegistry(), np.zeros(4, np.uint8), np.arange(4, dtype=np.int64)
    )
    config = LearnerConfig(inference="actors")
    message = trajectories.encode(LAYOUT, batch())
    message.sequence = 1

    async def replace() -> int:
        server = TrajectoryServer(config, lambda _: desk, statistics)
        server._desk, actor = desk, _Actor("a", 2)
        for _ in range(2):
            desk.queue.put(batch())
        old = asyncio.create_task(server._take(actor, message))
        await asyncio.sleep(0.01)
        while desk.queue.take(9, 0.0) is not None:
            pass
        server._room.set()
        for _ in range(turns):  # of the event loop
            await asyncio.sleep(0)
        old.cancel()
        answer = await server._take(actor, message)
        await asyncio.gather(old, return_exceptions=True)
        return int(answer.sequence)

    assert asyncio.run(replace()) == 1
    assert len(desk.queue) == 2


def test_what_does_not_fit_is_named_on_both_sides(system: System) -> None:
    for change, message in (
        ({"unroll_length": 3}, "have 3 transitions, this learner's 2"),
        ({"parameters": []}, "has 0 arrays, this learner's 2"),
        ({"slots": 0}, "slots is 0, allowed: 1 or more"),
        ({"slots": -2}, "slots is -2, allowed: 1 or more"),
    ):
        request = registration()
        for name, value in change.items():
            if isinstance(value, list):
                del request.parameters[:]
            else:
                setattr(request, name, value)
        with pytest.raises(Refused, match=message):
            system.client.register(request)
    request = registration()
    request.parameters[0].shape[0] = 999
    with pytest.raises(Refused, match=r"'torso/0/kernel' \[999, 400\] where this learner's has"):
        system.client.register(request)


def test_mutated_messages_are_answered_or_refused(system: System) -> None:
    system.client.register(registration())
    good = trajectories.encode(LAYOUT, batch())
    good.actor_id = system.client._actor_id
    with rpc.channel(system.address) as channel:
        put = channel.stream_stream("/seedpod.trajectory.v1.TrajectoryService/PutUnrolls")
        refused = []
        for seed in range(60):
            good.sequence = 1 + (system.desk.queue.received_steps > 0)
            data = mutate(good.SerializeToString(), random.Random(seed))
            try:
                list(put(iter([data]), timeout=TIMEOUT))
            except grpc.RpcError as error:
                refused.append(error.code())
            while system.desk.queue.take(9, 0.0) is not None:
                pass
        assert len(refused) > 10
        assert set(refused) <= {grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND}
    other = TrajectoryClient(system.address, 5.0, None)
    other.register(registration())
    assert other.put(trajectories.encode(LAYOUT, batch())) is not None
    other.close()
