"""Checks a running system from an actor's place: `helm test` runs it in the actor's image.

It joins the learner with one environment, sends that one's first observation, takes the action
that comes back, and reads the learner's status; with R2D2 it also samples a sequence from every
replay shard. Exits with 1 and says which step failed, and why.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import socket
import sys
import time

import grpc
import numpy as np

from services.actor import environments
from services.actor.environments import checks
from services.actor.environments.base import Environment
from services.shared import config, rpc, wire
from services.shared.config import Experiment
from services.shared.generated.seedpod.inference.v1 import inference_pb2, inference_pb2_grpc
from services.shared.generated.seedpod.replay.v1 import replay_pb2, replay_pb2_grpc
from services.shared.specs import EnvironmentSpec, StepType

_POLL_SECONDS = 0.5

_log = logging.getLogger(__name__)


class SelftestError(Exception):
    """A step failed; the message says which, and why."""


class Deadline:
    """The time that all steps have together."""

    def __init__(self, seconds: float) -> None:
        """Starts now."""
        self.seconds = seconds
        self._end = time.monotonic() + seconds

    def left(self) -> float:
        """Seconds that are left, for a call's timeout."""
        return max(0.01, self._end - time.monotonic())

    def is_over(self) -> bool:
        """Whether no time is left."""
        return time.monotonic() >= self._end


def check_learner(experiment: Experiment, deadline: Deadline) -> None:
    """Joins, acts once, and reads the status.

    Raises:
      grpc.RpcError: The learner is away, or refuses.
      SelftestError: Its answer does not fit.
    """
    actor = experiment.actor
    environment = environments.make(actor.environment, actor.environment_arguments, actor.seed)
    channel = rpc.channel(actor.learner_address, tls=actor.tls)
    with contextlib.closing(environment), channel:
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        _act_once(stub, environment, deadline)
        status = stub.GetStatus(inference_pb2.GetStatusRequest(), timeout=deadline.left())
    if status.failure:
        raise SelftestError(f"the learner has failed: {status.failure}")
    _log.info("the learner has trained on %d frames, %d updates", status.frames, status.updates)


def _act_once(
    stub: inference_pb2_grpc.InferenceServiceStub, environment: Environment, deadline: Deadline
) -> None:
    spec = environment.spec
    join = inference_pb2.JoinRequest(
        api_version=wire.API_VERSION,
        actor_name=f"selftest-{socket.gethostname()}",
        environment=wire.environment_spec_to_proto(spec),
        environments_per_group=1,
        groups=1,
    )
    lease = stub.Join(join, timeout=deadline.left(), wait_for_ready=True)
    if lease.finished:
        _log.info("training is finished; there are no actions to ask for")
        return
    _log.info("joined the learner: env slots %s", list(lease.slots))
    metadata = ((rpc.LEASE_METADATA, lease.lease_token), (rpc.GROUP_METADATA, "0"))
    request = _first_request(environment)
    response = next(stub.Act(iter([request]), metadata=metadata, timeout=deadline.left()))
    if len(response.action) != lease.action_bytes:
        raise SelftestError(
            f"an action of {len(response.action)} bytes came, announced were {lease.action_bytes}"
        )
    action = np.frombuffer(response.action, spec.action.dtype).reshape(spec.agents, -1)
    _log.info("an action came: %s", action.tolist())


def _first_request(environment: Environment) -> inference_pb2.ActRequest:
    """The request of a group of this one environment, at the beginning of an episode."""
    spec: EnvironmentSpec = environment.spec
    layout = wire.ObservationLayout(spec.observation, spec.agents)
    block = bytearray(layout.total_bytes)
    casts, rows = checks.casters(spec), layout.views(block)
    for cast, row, value in zip(casts, rows, environment.reset(), strict=True):
        row[...] = cast(value)
    return inference_pb2.ActRequest(
        sequence=1,
        incarnation=np.ones(spec.agents, np.uint32).tobytes(),
        step_type=np.full(spec.agents, StepType.FIRST, np.uint8).tobytes(),
        reward=np.zeros(spec.agents, np.float32).tobytes(),
        discount=np.ones(spec.agents, np.float32).tobytes(),
        observation=bytes(block),
    )


def check_replay(
    address: str, table: str, deadline: Deadline, tls: config.TlsConfig | None = None
) -> None:
    """Samples one sequence from a replay shard, once it has enough of them.

    Args:
      address: host:port of the shard.
      table: Its name.
      deadline: For all of it.
      tls: This side's certificate; None: no encryption.

    Raises:
      grpc.RpcError: The shard is away, or has not enough in time.
      SelftestError: It has no such table, or nobody has written to it in time.
    """
    with rpc.channel(address, tls=tls) as channel:
        stub = replay_pb2_grpc.ReplayServiceStub(channel)
        layout = _layout(stub, address, table, deadline)
        request = replay_pb2.SampleRequest(table=table, layout=layout, batch_size=1)
        response = stub.Sample(request, timeout=deadline.left())
    sizes = np.frombuffer(response.header.block_bytes, np.uint32)
    if not len(sizes) or int(sizes.sum()) != len(response.payload):
        raise SelftestError(
            f"replay at {address} sent {len(response.payload)} bytes for blocks of {sizes.tolist()}"
        )
    _log.info("replay at %s gave a sequence of %d bytes", address, len(response.payload))


def _layout(
    stub: replay_pb2_grpc.ReplayServiceStub, address: str, table: str, deadline: Deadline
) -> replay_pb2.Layout:
    """Waits until a learner has written to the table; returns what its blocks mean."""
    while True:
        status = stub.GetStatus(
            replay_pb2.GetStatusRequest(), timeout=deadline.left(), wait_for_ready=True
        )
        tables = {entry.name: entry for entry in status.tables}
        if tables and table not in tables:
            raise SelftestError(
                f"replay at {address} has no table {table!r}; there are {sorted(tables)}"
            )
        if table in tables and tables[table].HasField("layout"):
            layout: replay_pb2.Layout = tables[table].layout
            return layout
        if deadline.is_over():
            raise SelftestError(
                f"no learner has written to replay at {address} within {deadline.seconds:.0f} s"
            )
        time.sleep(_POLL_SECONDS)


def main(arguments: list[str] | None = None) -> int:
    """Runs the checks; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m services.actor.selftest", description=__doc__)
    parser.add_argument("--experiment", required=True, help="a YAML file or a preset's name")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="overrides")
    parser.add_argument("--timeout-seconds", type=float, default=120.0, help="(%(default)s)")
    parsed = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="selftest: %(message)s", force=True)
    deadline = Deadline(parsed.timeout_seconds)
    try:
        experiment = config.load(parsed.experiment, parsed.overrides)
        check_learner(experiment, deadline)
        r2d2 = experiment.learner.r2d2
        if experiment.learner.algorithm == "r2d2":
            for address in r2d2.replay_addresses:
                check_replay(address, r2d2.replay_table, deadline, experiment.actor.tls)
    except grpc.RpcError as error:
        _log.error("FAILED: %s: %s", error.code().name, error.details())
        return 1
    except (config.ConfigError, environments.UnknownEnvironmentError, SelftestError) as error:
        _log.error("FAILED: %s", error)
        return 1
    _log.info("all is well")
    return 0


if __name__ == "__main__":
    sys.exit(main())
