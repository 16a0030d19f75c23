"""Networks that fail, by `tests.e2e.networks:Class`."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from services.learner.networks import base, mlp


class NotFinished(mlp.Mlp):
    """Cannot be made."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        raise TypeError("the attention layer is not written yet")


class Overrun(mlp.Mlp):
    """Breaks down when CartPole's pole leans to one side, which inference sees first."""

    def torso(self, inputs: base.NetworkInputs) -> tf.Tensor:
        x = inputs.observation["observation"]
        check = tf.debugging.Assert(tf.reduce_max(tf.abs(x[:, 2])) < 0.1, ["it leans too far"])
        with tf.control_dependencies([check]):
            return super().torso(inputs)
