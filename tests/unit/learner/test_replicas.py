"""One batch on one device, several devices and several processes: the same update."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
import signal
import socket
import subprocess
import sys
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import tensorflow as tf

from services.learner import peers, replicas
from services.learner.networks import registry
from services.local.ports import free_port
from tests.unit.learner import replica_worker
from tests.unit.learner.replica_worker import SPOILT, UPDATES

ALGORITHMS = ("vtrace", "r2d2")
# Of each process: two and four devices train.
DEVICES: tuple[dict[str, Any], ...] = (
    {"kind": "cpu", "count": 4, "inference": 2},
    {"kind": "cpu", "count": 5},
    {},
    {},
)


@dataclasses.dataclass
class Outcome:
    """What `replica_worker` says of one process."""

    document: dict[str, Any]
    arrays: dict[str, npt.NDArray[Any]]

    def part(self, name: str) -> dict[str, npt.NDArray[Any]]:
        """Arrays under a name, by the rest of theirs."""
        prefix = f"{name}/"
        return {k.removeprefix(prefix): v for k, v in self.arrays.items() if k.startswith(prefix)}


@pytest.fixture(scope="module")
def alone() -> Outcome:
    """All of it on one device, in this process."""
    arrays: dict[str, Any] = {}
    runs = [replica_worker.run(algorithm, replicas.ALONE, arrays) for algorithm in ALGORITHMS]
    return Outcome({run["name"]: run for run in runs}, arrays)


@pytest.fixture(scope="module")
def together(tmp_path_factory: pytest.TempPathFactory) -> list[Outcome]:
    """Processes 0 and 1 have several logical devices, 2 and 3 are learners of one run."""
    folder = tmp_path_factory.mktemp("replicas")
    workers = [f"localhost:{free_port()}" for _ in range(2)]
    tasks = [{"type": "worker", "index": index} for index in range(2)]
    clusters = [json.dumps({"cluster": {"worker": workers}, "task": task}) for task in tasks]
    cluster_environments = [{"TF_CONFIG": cluster} for cluster in clusters]
    environments: list[dict[str, str]] = [{}, {}, *cluster_environments]
    processes = []
    try:
        for i, (devices, environment) in enumerate(zip(DEVICES, environments, strict=True)):
            module = "tests.unit.learner.replica_worker"
            process = subprocess.Popen(
                [sys.executable, "-m", module, str(folder / str(i)), json.dumps(devices)],
                env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2", **environment},
                stderr=subprocess.PIPE,
                text=True,
            )
            processes.append(process)
        errors = [process.communicate(timeout=600)[1] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0] * 4, "\n".join(errors)
    return [
        Outcome(json.loads((folder / f"{i}.json").read_text()), dict(np.load(folder / f"{i}.npz")))
        for i in range(4)
    ]


# Process, and what made the update: learners x devices of each.
TOGETHER = [(0, "1x2"), (1, "1x4"), (2, "2x1"), (3, "2x1")]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize(("process", "count"), TOGETHER)
def test_the_update_is_that_of_one_device(
    alone: Outcome, together: list[Outcome], algorithm: str, process: int, count: str
) -> None:
    name, outcome = f"{algorithm}/{count}", together[process]
    single = f"{algorithm}/1x1"
    before, after = alone.part(f"{single}/before"), alone.part(f"{single}/after")
    moved = max(float(np.max(np.abs(after[k] - before[k]))) for k in after if "network" in k)
    assert moved > 0.01
    for stage, values in (("before", before), ("after", after)):
        variables = outcome.part(f"{name}/{stage}")
        assert variables.keys() == values.keys()
        for key, value in values.items():
            np.testing.assert_allclose(variables[key], value, rtol=0, atol=1e-5, err_msg=key)
    # Inference has the newest weights, on devices of its own too.
    np.testing.assert_allclose(
        outcome.arrays[f"{name}/acts"], alone.arrays[f"{single}/acts"], rtol=0, atol=1e-5
    )
    for update, metrics in enumerate(outcome.document[name]["metrics"]):
        assert metrics["skipped"] == (update == SPOILT)
        if update == SPOILT:
            continue
        # The clipping is that of the whole gradient, and the largest difference of all.
        expected = alone.document[single]["metrics"][update]
        for key in ("loss", "gradient_norm", "behaviour_difference"):
            assert math.isclose(metrics[key], expected[key], abs_tol=1e-5), key
    assert after["optimizer/updates"] == UPDATES - 1


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_learners_begin_alike_and_draw_differently(
    alone: Outcome, together: list[Outcome], algorithm: str
) -> None:
    first, second = (together[i].document[f"{algorithm}/2x1"]["drawn"] for i in (2, 3))
    assert first == alone.document[f"{algorithm}/1x1"]["drawn"]
    # R2D2's slots never explore here: alike networks choose alike actions.
    assert (first != second) == (algorithm == "vtrace")


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_device_is_at_work(together: list[Outcome], algorithm: str) -> None:
    for process, training, acting in ((0, "01", "23"), (1, "0123", "4")):
        document = together[process].document[f"{algorithm}/1x{len(training)}"]
        for job, numbers in (("training", training), ("acting", acting)):
            names = [device[-5:] for device in document[job]]
            assert names == [f"CPU:{number}" for number in numbers]


def test_priorities_are_those_of_the_learners_own_sequences(
    alone: Outcome, together: list[Outcome]
) -> None:
    for update, expected in alone.part("r2d2/1x1/priorities").items():
        halves = [together[i].part("r2d2/2x1/priorities")[update] for i in (2, 3)]
        finite = np.isfinite(expected)
        assert finite.all() == (int(update) != SPOILT)
        for given in (together[1].part("r2d2/1x4/priorities")[update], np.concatenate(halves)):
            np.testing.assert_allclose(given[finite], expected[finite], rtol=0, atol=1e-5)


def test_all_learners_hear_the_same(together: list[Outcome]) -> None:
    # Each has said: number of the update, 1, its own number.
    for process in (2, 3):
        tallies = together[process].document["vtrace/2x1"]["tallies"]
        assert tallies == [[2.0 * update, 2.0, 1.0] for update in range(UPDATES)]
    # On several devices a learner still speaks once.
    tallies = together[1].document["vtrace/1x4"]["tallies"]
    assert tallies == [[float(update), 1.0, 0.0] for update in range(UPDATES)]


def test_the_chief_s_word_reaches_all(together: list[Outcome]) -> None:
    for process in (2, 3):
        heard = together[process].document["chief"]["values"]
        assert bytes(heard["text"]) == b"chief"
        assert heard["number"] == 2**40
        ((nan, zero, number),) = heard["nan"]
        assert math.isnan(nan)
        assert math.copysign(1, zero) == -1
        assert number == 0


def test_learners_of_a_run_still_hear_that_they_are_to_end(together: list[Outcome]) -> None:
    for process in (2, 3):
        assert together[process].document["signals"]["heard"] == [signal.SIGTERM]


def test_a_learner_with_other_settings_is_refused(together: list[Outcome]) -> None:
    first, second = (together[process].document["alike"]["fault"] for process in (2, 3))
    assert first == ""
    assert second == (
        "this learner is unlike the first one: learner.batch_size is 88 here, 8 there"
    )


# As if the other one was stopped, or killed, right after `peers.wait` had seen it.
GONE = """
import os
import signal
import socket
from services.learner import peers, replicas
replicas._REGISTER_SECONDS = 1.0
try:
    replicas.form(peers.from_environment())
except peers.PeerLost as error:
    print(error, flush=True)
    os._exit(75)
"""


def test_a_learner_that_has_gone_is_not_waited_for_without_end() -> None:
    with contextlib.ExitStack() as stack:
        processes = []
        for index in range(2):
            gone = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            workers = [f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"]
            workers[1 - index] = f"127.0.0.1:{gone.getsockname()[1]}"
            document = {"cluster": {"worker": workers}, "task": {"type": "worker", "index": index}}
            process = subprocess.Popen(
                [sys.executable, "-c", GONE],
                env={**os.environ, "TF_CONFIG": json.dumps(document)},
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
            stack.callback(process.kill)
            processes.append(process)
        for process in processes:
            said, _ = process.communicate(timeout=120)
            assert said.startswith("another learner has gone, or cannot be reached")
            assert process.returncode == 75


def test_an_error_of_the_network_that_comes_of_a_lost_learner_tells_so() -> None:
    def build(message: str) -> None:
        try:
            raise tf.errors.InvalidArgumentError(None, None, message)
        except tf.errors.InvalidArgumentError as error:
            raise registry.NetworkError("cannot process observations") from error

    several = replicas.Replicas(learners=2)
    with pytest.raises(peers.PeerLost, match="aborted by: Task with task_name=x"), several.watch():
        build("{{node}} Collective ops is aborted by: Task with task_name=x must be registered")
    # The network's own faults stay what they are, and those of a learner without others.
    with pytest.raises(registry.NetworkError), several.watch():
        build("Matrix size-incompatible")
    with pytest.raises(registry.NetworkError), replicas.ALONE.watch():
        build("Collective ops is aborted by: nobody")
