"""The other learners of a run: who they are, and that they are there.

Each learner of a run with several has `TF_CONFIG` in its environment, which names all of them;
the chart and the launcher write it. Before TensorFlow connects them, which it does silently,
`wait` looks whether all have come.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import os
import socket
import time
from collections.abc import Callable, Iterator

from services.shared.config import LearnerConfig

_SAY_SECONDS = 10.0
_CONNECT_SECONDS = 1.0
_POLL_SECONDS = 0.2
_log = logging.getLogger(__name__)


class PeerLost(RuntimeError):
    """Another learner of the run has gone: all have to begin anew from the newest checkpoint."""


@dataclasses.dataclass(frozen=True)
class Cluster:
    """All learners of a run.

    Attributes:
      addresses: host:port of each, where TensorFlow's collectives talk.
      index: Which of them this one is; 0 is the chief.
    """

    addresses: tuple[str, ...]
    index: int


def own_settings(config: LearnerConfig, cluster: Cluster | None) -> LearnerConfig:
    """Without the files that only the first of several learners writes.

    Raises:
      ValueError: Several learners cannot do what is asked for.
    """
    if cluster is not None and config.inference != "learner":
        raise ValueError(
            f"learner.inference is {config.inference} with {len(cluster.addresses)} learners,"
            " allowed: learner"
        )
    if cluster is None or cluster.index == 0:
        return config
    evaluation = {"results_path": None, "recordings_directory": None}
    return config.model_copy(
        update={
            "log_directory": None,
            "evaluation": config.evaluation.model_copy(update=evaluation),
        }
    )


def from_environment() -> Cluster | None:
    """What `TF_CONFIG` says; None if it is not set or names one learner.

    Raises:
      ValueError: It is not what TensorFlow expects.
    """
    text = os.environ.get("TF_CONFIG", "")
    if not text:
        return None
    try:
        document = json.loads(text)
        cluster, task = document["cluster"], document["task"]
        addresses, index = list(cluster["worker"]), int(task["index"])
        if set(cluster) != {"worker"}:  # TensorFlow would wait for the others, too
            raise ValueError(f"jobs are {sorted(cluster)}")
        for address in addresses:
            if not 0 < int(address.rpartition(":")[2]) < 65536:
                raise ValueError(f"port of {address}")
        if len(set(addresses)) < len(addresses):
            raise ValueError("an address stands there twice")
        if task["type"] != "worker" or not 0 <= index < len(addresses):
            raise ValueError(f"task is {task}")
    except (AttributeError, ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"TF_CONFIG is {text!r} ({error!r}), must look like"
            ' {"cluster": {"worker": ["host:port", ...]}, "task": {"type": "worker", "index": 0}}'
        ) from None
    return Cluster(tuple(addresses), index) if len(addresses) > 1 else None


def wait(cluster: Cluster, timeout_seconds: float, missing: Callable[[list[str]], bool]) -> bool:
    """Waits until all other learners have come.

    Meanwhile it listens where TensorFlow will, so that the others see this one.

    Args:
      cluster: All learners.
      timeout_seconds: How long.
      missing: Called now and then with the addresses that do not answer yet; True: give up.

    Returns:
      Whether all have come; False if `missing` gave up.

    Raises:
      PeerLost: They have not come in time.
      OSError: The own address cannot be listened on.
    """
    others = [a for i, a in enumerate(cluster.addresses) if i != cluster.index]
    started, said = time.monotonic(), 0.0
    with _listen(cluster.addresses[cluster.index]):
        while others := [address for address in others if not _answers(address)]:
            waited = time.monotonic() - started
            if missing(others):
                return False
            if waited > timeout_seconds:
                raise PeerLost(f"after {waited:.0f} s these learners do not answer: {others}")
            if time.monotonic() - said > _SAY_SECONDS:
                said = time.monotonic()
                _log.info(
                    "waiting for %.0f s for %d of %d learners: %s",
                    waited, len(others), len(cluster.addresses), ", ".join(others),
                )  # fmt: skip
            time.sleep(_POLL_SECONDS)
        missing([])
    return True


@contextlib.contextmanager
def _listen(address: str) -> Iterator[None]:
    port = int(address.rpartition(":")[2])
    with socket.socket(socket.AF_INET) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("", port))
        listener.listen(64)
        yield


def _answers(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=_CONNECT_SECONDS).close()
    except OSError:
        return False
    return True
