"""A network that writes down what it is trained on, and can be stopped and poisoned by files."""

from __future__ import annotations

import os
import pathlib
import time
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from services.learner.networks import base, heads, mlp
from services.shared import specs

STOP_FILE = "stop"
POISON_FILE = "poison"
# Instance, numbers of the first and the last record, real steps, 1 if all records are one
# instance's and follow each other.
AUDIT_COLUMNS = 5


class MarkedNetwork(mlp.Mlp):
    """Sees the marks of `environment.CountedEnvironment`, which grow without bounds, by sines."""

    def torso(self, inputs: base.NetworkInputs) -> tf.Tensor:
        """Features [N, sizes[-1]]."""
        marks = {name: tf.sin(x) for name, x in inputs.observation.items()}
        return super().torso(inputs._replace(observation=marks))


class SlottedNetwork(MarkedNetwork):
    """Its recurrent state is the number of the env slot, so that each sequence has it."""

    def initial_state(self, batch_size: int | tf.Tensor) -> base.State:
        """Numbers [B, 1] from 0 on; the learner makes one state for all slots, in their order."""
        return (tf.range(batch_size, dtype=tf.float32)[:, None],)


class AuditedNetwork(MarkedNetwork):
    """Appends a row for each unroll that it is trained on to `folder`/audit-<process>."""

    def __init__(
        self,
        environment_spec: specs.EnvironmentSpec,
        head: heads.Head,
        mixed_precision: bool = False,
        *,
        folder: str,
        **arguments: Any,
    ) -> None:
        """Takes what `Mlp` takes, and the folder."""
        super().__init__(environment_spec, head, mixed_precision, **arguments)
        self._folder = pathlib.Path(folder)
        self._fd = os.open(
            self._folder / f"audit-{os.getpid()}", os.O_WRONLY | os.O_CREAT | os.O_APPEND
        )

    def unroll(self, inputs: base.NetworkInputs, state: base.State) -> tuple[Any, base.State]:
        """See `base.Network`; while there is a file `stop` it waits, with `poison` it is NaN."""
        factor = tf.numpy_function(
            self._audit, [inputs.observation["mark"], inputs.first], tf.float32
        )
        factor.set_shape(())
        output, state = super().unroll(inputs, state)
        return tf.nest.map_structure(lambda x: x * factor, output), state

    def _audit(
        self, marks: npt.NDArray[np.float32], first: npt.NDArray[np.bool_]
    ) -> npt.NDArray[np.float32]:
        """Writes rows of marks [T + 1, B, 2]; returns what the output is multiplied by."""
        while (self._folder / STOP_FILE).exists():
            time.sleep(0.05)
        numbers = marks.astype(np.int64)
        instance, record = numbers[..., 0], numbers[..., 1]
        good = (instance == instance[0]).all(axis=0) & (np.diff(record, axis=0) == 1).all(axis=0)
        steps = np.count_nonzero(~first[1:], axis=0)
        rows = np.stack([instance[0], record[0], record[-1], steps, good], axis=1)
        os.write(self._fd, rows.astype(np.int64).tobytes())
        return np.array(np.nan if (self._folder / POISON_FILE).exists() else 1.0, np.float32)


def read_audit(folder: pathlib.Path) -> dict[int, npt.NDArray[np.int64]]:
    """The rows [n, 5] of each learner process, by its number; see `AUDIT_COLUMNS`."""
    return {
        int(path.name.removeprefix("audit-")): np.fromfile(path, np.int64).reshape(
            -1, AUDIT_COLUMNS
        )
        for path in folder.glob("audit-*")
    }
