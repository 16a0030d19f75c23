"""Adam and RMSProp: what turns gradients into an update, or refuses to.

Own code instead of Keras's: slots are named after the variables they belong to, so that a
checkpoint can be held strictly against them; the schedule follows environment frames; and an
update that is not finite is skipped inside the graph, before it reaches a weight or a slot.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import tensorflow as tf

from services.learner import schedules
from services.shared.config import OptimizerConfig

_SLOTS = {"adam": ("m", "v"), "rmsprop": ("mean_square", "momentum")}


class Optimizer:
    """Updates a fixed set of variables."""

    def __init__(
        self,
        config: OptimizerConfig,
        targets: Mapping[str, tf.Variable],
        total_frames: int,
    ) -> None:
        """Makes the slots, all zeros.

        Args:
          config: Kind and settings.
          targets: The variables to update, by name. A variable's `constraint` is applied after
            each update.
          total_frames: The run's length in environment frames, for the schedule.
        """
        self._config = config
        self._targets = dict(targets)
        self._total_frames = total_frames
        self._updates = tf.Variable(0, dtype=tf.int64, trainable=False)
        self._slots = {
            slot: {
                name: tf.Variable(tf.zeros_like(target), trainable=False)
                for name, target in self._targets.items()
            }
            for slot in _SLOTS[config.name]
        }

    @property
    def variables(self) -> dict[str, tf.Variable]:
        """All state by name: `updates` (int64, those applied) and `<slot>/<target's name>`."""
        slots = {
            f"{slot}/{name}": variable
            for slot, by_name in self._slots.items()
            for name, variable in by_name.items()
        }
        return {"updates": self._updates, **slots}

    def dense(self, gradients: Sequence[tf.Tensor | tf.IndexedSlices | None]) -> list[tf.Tensor]:
        """What a tape gives for the targets, in their order, as tensors.

        Raises:
          ValueError: A target has no gradient.
        """
        dense = []
        for name, gradient in zip(self._targets, gradients, strict=True):
            if gradient is None:
                raise ValueError(f"variable {name!r} has no gradient: the loss does not use it")
            dense.append(tf.convert_to_tensor(gradient))
        return dense

    def apply(
        self, gradients: Sequence[tf.Tensor], loss: tf.Tensor, frames: tf.Tensor
    ) -> dict[str, tf.Tensor]:
        """Clips the gradients and makes an update, unless something is not finite.

        Args:
          gradients: One for each target, in their order; see `dense`.
          loss: Scalar; looked at only for being finite.
          frames: int64 scalar, environment frames so far.

        Returns:
          float32 scalars: `gradient_norm` before clipping, `learning_rate`, and `skipped`, which
          is 1 if the loss or a gradient was not finite; then no variable has changed.
        """
        norm = tf.linalg.global_norm(gradients)
        learning_rate = schedules.value_at(self._config.learning_rate, frames, self._total_frames)
        if self._config.clip_norm is not None:
            scale = self._config.clip_norm / tf.maximum(norm, self._config.clip_norm)
            gradients = [gradient * scale for gradient in gradients]
        # One number that is not finite makes the norm so too.
        finite = tf.math.is_finite(norm) & tf.math.is_finite(loss)
        tf.cond(finite, lambda: self._update(gradients, learning_rate), lambda: False)
        return {
            "gradient_norm": norm,
            "learning_rate": learning_rate,
            "skipped": 1.0 - tf.cast(finite, tf.float32),
        }

    def _update(self, gradients: Sequence[tf.Tensor], learning_rate: tf.Tensor) -> bool:
        # Raw operations throughout: a replica changes its own copy of a mirrored variable.
        one = tf.constant(1, tf.int64)
        tf.raw_ops.AssignAddVariableOp(resource=self._updates.handle, value=one)
        updates = tf.raw_ops.ReadVariableOp(resource=self._updates.handle, dtype=tf.int64)
        count = tf.cast(updates, tf.float32)
        step = self._adam if self._config.name == "adam" else self._rmsprop
        for (name, target), gradient in zip(self._targets.items(), gradients, strict=True):
            step(name, target, gradient, learning_rate, count)
            if target.constraint is not None:
                value = tf.raw_ops.ReadVariableOp(resource=target.handle, dtype=target.dtype)
                tf.raw_ops.AssignVariableOp(resource=target.handle, value=target.constraint(value))
        return True

    # Both are one fused pass over each variable. They hold the variable's lock: inference, which
    # reads it at any time, sees each variable either before or after an update.

    def _adam(
        self,
        name: str,
        target: tf.Variable,
        gradient: tf.Tensor,
        learning_rate: tf.Tensor,
        count: tf.Tensor,
    ) -> None:
        """Kingma and Ba 2014 (arXiv 1412.6980), in the form at the end of section 2.

        theta -= lr sqrt(1 - beta_2^t) / (1 - beta_1^t) m / (sqrt(v) + epsilon)
        """
        tf.raw_ops.ResourceApplyAdam(
            var=target.handle,
            m=self._slots["m"][name].handle,
            v=self._slots["v"][name].handle,
            beta1_power=tf.pow(self._config.beta_1, count),
            beta2_power=tf.pow(self._config.beta_2, count),
            lr=learning_rate,
            beta1=self._config.beta_1,
            beta2=self._config.beta_2,
            epsilon=self._config.epsilon,
            grad=gradient,
            use_locking=True,
        )

    def _rmsprop(
        self,
        name: str,
        target: tf.Variable,
        gradient: tf.Tensor,
        learning_rate: tf.Tensor,
        count: tf.Tensor,
    ) -> None:
        """Tieleman and Hinton 2012, with epsilon inside the root, as IMPALA ran it.

        momentum <- mu momentum + lr g / sqrt(mean_square + epsilon);  theta -= momentum
        """
        del count  # No bias correction.
        tf.raw_ops.ResourceApplyRMSProp(
            var=target.handle,
            ms=self._slots["mean_square"][name].handle,
            mom=self._slots["momentum"][name].handle,
            lr=learning_rate,
            rho=self._config.decay,
            momentum=self._config.momentum,
            epsilon=self._config.epsilon,
            grad=gradient,
            use_locking=True,
        )
