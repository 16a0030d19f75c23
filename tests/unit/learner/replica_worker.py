"""Makes the same updates on one device, on several, or in several processes.

`python -m tests.unit.learner.replica_worker OUTPUT DEVICES` writes what came out as OUTPUT.npz and
OUTPUT.json; DEVICES is `learner.devices` as JSON. It is a process of its own because TensorFlow
takes its devices, and the other learners, only once in a process. With TF_CONFIG it is one of
several learners, and has its share of each batch.
"""

from __future__ import annotations

import json
import pathlib
import signal
import sys
from typing import Any

import numpy as np

from services.learner import devices, peers, replicas
from services.learner.agent import Agent
from services.learner.inference import Decisions
from services.learner.r2d2_agent import R2d2Agent
from services.learner.replicas import Replicas
from services.learner.trainer import TrainingBatch
from services.learner.unrolls import RecordBatch
from services.learner.vtrace_agent import VtraceAgent
from services.shared.config import LearnerConfig
from services.shared.specs import DataType, DiscreteActionSpec, EnvironmentSpec, TensorSpec
from tests.unit.learner.harness import FIRST, LAST, MID

SPEC = EnvironmentSpec((TensorSpec("x", DataType.FLOAT32, (3,)),), DiscreteActionSpec((4,)))
BATCH = 8
BURN_IN, LENGTH = 2, 4
UPDATES = 4
# Only what computes is on a device for certain.
OPERATIONS = ("MatMul", "PartitionedCall", "StatefulPartitionedCall")
# In one update a reward of the first row is infinite: nobody may make it.
SPOILT = 1


def make(algorithm: str, batch_size: int, together: Replicas) -> Agent:
    config = LearnerConfig.model_validate(
        {
            "algorithm": algorithm,
            "network": {"name": "mlp_lstm", "arguments": {"sizes": [8], "lstm_size": 5}},
            "unroll_length": LENGTH,
            "batch_size": batch_size,
            "seed": 7,
            # Compiled or not, it is the same.
            "xla": together.local == 2 and algorithm == "vtrace",
            "optimizer": {"learning_rate": 0.01, "clip_norm": 0.1},
            "vtrace": {"entropy": {"cost": 0.1, "target": 1.0}},
            "r2d2": {
                **{"burn_in": BURN_IN, "replay_period": 3, "n_steps": 2, "dueling_size": 6},
                "target_update_period": 2,
            },
        }
    )
    if algorithm == "r2d2":
        return R2d2Agent(config, SPEC, lambda slots: np.zeros(len(slots), np.float32), together)
    return VtraceAgent(config, SPEC, np.zeros(BATCH, np.bool_), together)


def batch(algorithm: str, update: int, agent: Agent) -> TrainingBatch:
    """A whole batch; its rows have unequally many transitions."""
    random = np.random.default_rng(update)
    records = LENGTH + 1 + (BURN_IN if algorithm == "r2d2" else 0)
    step_type = np.full((BATCH, records), MID, np.uint8)
    step_type[-1, 1:3] = step_type[-2, 0:2] = step_type[-1, 3:5] = LAST, FIRST
    reward = random.normal(size=(BATCH, records)).astype(np.float32)
    if update == SPOILT:
        reward[0, -1] = np.inf
    index = np.tile(np.arange(1, records + 1, dtype=np.int32)[None, :, None], (BATCH, 1, 1))
    state = agent.initial_state(BATCH)
    values: dict[str, Any] = {
        "observation": (random.normal(size=(BATCH, records + 1, 3)).astype(np.float32),),
        "stack_index": (index,),
        "previous_action": random.integers(4, size=(BATCH, records, 1), dtype=np.int32),
        "action": random.integers(4, size=(BATCH, records, 1), dtype=np.int32),
        "reward": reward,
        "discount": np.ones((BATCH, records), np.float32),
        "step_type": step_type,
        "policy_parameters": random.normal(size=(BATCH, records, 4)).astype(np.float32),
        "initial_state": tuple(random.normal(size=x.shape).astype(x.dtype) for x in state),
        "policy_version": np.zeros((BATCH, records), np.int64),
    }
    weights = random.uniform(0.5, 1, BATCH).astype(np.float32)
    return TrainingBatch(RecordBatch(**values), weights)


def act(agent: Agent, n: int) -> Decisions:
    """Answers to the same observations."""
    return agent.act(
        np.arange(n) % BATCH,
        (np.ones((n, 3), np.float32),),
        np.zeros((n, 1), np.int32),
        np.zeros(n, np.float32),
        np.ones(n, bool),
        agent.initial_state(n),
    )


def run(algorithm: str, together: Replicas, arrays: dict[str, Any]) -> dict[str, Any]:
    """Makes the updates; adds the variables to `arrays`, returns the rest."""
    size = BATCH // together.learners
    rows = np.arange(BATCH)[together.learner * size :][:size]
    agent = make(algorithm, size, together)
    name = f"{algorithm}/{together.learners}x{together.local}"
    drawn = [int(x) for x in act(agent, 32).action[:, 0]]
    metrics, tallies = [], []
    arrays |= {f"{name}/before/{k}": v for k, v in agent.variables().items()}
    for update in range(UPDATES):
        whole = batch(algorithm, update, agent)
        assert whole.weights is not None
        part = TrainingBatch(whole.records.select(rows), whole.weights[rows])
        done = agent.train(part, 100 * update, np.array([update, 1, together.learner], np.float32))
        metrics.append(done.metrics)
        tallies.append(done.tally.tolist())
        if done.priorities is not None:
            arrays[f"{name}/priorities/{update}"] = done.priorities
    arrays |= {f"{name}/after/{k}": v for k, v in agent.variables().items()}
    arrays[f"{name}/acts"] = act(agent, 13).policy_parameters

    def devices_of(function: Any) -> list[str]:
        operations = function.graph.get_operations()
        # Compiled ones are in a function of their own.
        return sorted({op.device for op in operations if op.type in OPERATIONS})

    return {
        "name": name,
        "drawn": drawn,
        "metrics": metrics,
        "tallies": tallies,
        "training": devices_of(agent._train),
        "acting": devices_of(agent._act),
    }


def main() -> None:
    """See the module."""
    output, settings = sys.argv[1], json.loads(sys.argv[2])
    arrays: dict[str, Any] = {}
    cluster = peers.from_environment()
    heard: list[int] = []
    if cluster is not None:
        signal.signal(signal.SIGTERM, lambda number, _: heard.append(number))
        assert peers.wait(cluster, 300, lambda _: False)
        together = replicas.form(cluster)
        signal.raise_signal(signal.SIGTERM)
    else:
        config = LearnerConfig.model_validate({"batch_size": BATCH, "devices": settings})
        together = replicas.form(None, devices.choose(config))
    outcomes = [run(algorithm, together, arrays) for algorithm in ("vtrace", "r2d2")]
    if cluster is not None:
        outcomes.append({"name": "chief", "values": chief_speaks(together)})
        outcomes.append({"name": "signals", "heard": heard})
        outcomes.append({"name": "alike", "fault": compared(together)})
    np.savez(f"{output}.npz", **arrays)
    document = {outcome["name"]: outcome for outcome in outcomes}
    pathlib.Path(f"{output}.json").write_text(json.dumps(document))


def chief_speaks(together: Replicas) -> dict[str, Any]:
    """What all learners have after the chief's word, of types and sizes that differ."""
    own: dict[str, Any] = {
        "text": np.frombuffer(b"chief" if together.learner == 0 else b"other", np.uint8),
        "number": np.array(2**40 + together.learner, np.int64),
        "nan": np.array([[np.nan, -0.0, together.learner]], np.float32),
    }
    heard = together.broadcast(own)
    return {name: array.tolist() for name, array in heard.items()}


def compared(together: Replicas) -> str:
    """What a learner says that has another batch size than the first one."""
    own = {"learner.seed": "7", "learner.batch_size": "8" * (1 + together.learner)}
    try:
        together.check_alike({"learner.seed": "7"})
        together.check_alike(own)
    except peers.PeerLost as error:
        return str(error)
    return ""


if __name__ == "__main__":
    main()
