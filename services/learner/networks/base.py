"""What the learner asks of a network, and the parts that all networks share.

The inference loop calls `step` on a batch of slots, the losses call `unroll` on [T, B] records.
Both are the same mathematics, put together from the same pieces: `torso` per record, then an
optional LSTM core, then the head. A network of one's own is a subclass that overrides `torso`
(see `mlp.Mlp` for a short one), named in the experiment as `module:Class`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import tensorflow as tf

from services.learner.networks import heads, layers
from services.shared import specs

State = tuple[tf.Tensor, ...]


class NetworkInputs(NamedTuple):
    """What a network sees of a record; leading dimensions are [B] in `step`, [T, B] in `unroll`.

    Attributes:
      observation: Tensors by name as `preprocess` makes them, in the compute precision.
      previous_action: [..., A], int32 or float32, the action chosen at the record before.
      reward: float32 [...], the reward that arrived with this record, as the loss sees it.
      first: bool [...], whether the record starts an episode. There the recurrent state is
        zeroed, and previous action and reward count for nothing.
    """

    observation: dict[str, tf.Tensor]
    previous_action: tf.Tensor
    reward: tf.Tensor
    first: tf.Tensor


class Network(tf.Module):  # type: ignore[misc]  # TensorFlow is untyped.
    """Torso, optional LSTM core, head."""

    def __init__(
        self,
        environment_spec: specs.EnvironmentSpec,
        head: heads.Head,
        mixed_precision: bool = False,
        *,
        lstm_size: int | None = None,
        lstm_horizon: int | None = None,
    ) -> None:
        """Makes what all networks share.

        Args:
          environment_spec: What the network will see.
          head: What the algorithm makes of the features; from the learner.
          mixed_precision: Compute in bfloat16; variables, recurrent state and outputs stay
            float32.
          lstm_size: Units of the LSTM between torso and head, which also takes the previous
            action and the reward, clipped to [-1, 1] (IMPALA, arXiv 1802.01561, figure 3).
            None: no memory.
          lstm_horizon: Records that the LSTM shall be able to bridge from the start; see
            `layers.LstmCore`.
        """
        super().__init__()
        if lstm_size is not None and lstm_size < 1:
            raise ValueError(f"lstm_size is {lstm_size}, allowed: 1 or more, or none")
        self.environment_spec = environment_spec
        self.compute_dtype: tf.DType = tf.bfloat16 if mixed_precision else tf.float32
        self.core = None if lstm_size is None else layers.LstmCore(lstm_size, lstm_horizon)
        self.head = head

    def torso(self, inputs: NetworkInputs) -> tf.Tensor:
        """Features [N, F] of N records in the compute precision; no memory, no time axis."""
        raise NotImplementedError(f"{type(self).__name__} has no torso")

    def initial_state(self, batch_size: int | tf.Tensor) -> State:
        """The recurrent state before the first record: [B, ...] each; () without memory."""
        return () if self.core is None else self.core.initial_state(batch_size)

    def step(self, inputs: NetworkInputs, state: State) -> tuple[Any, State]:
        """Answers one record of each of B environments.

        Args:
          inputs: The records, [B, ...].
          state: What the step before returned, [B, ...].

        Returns:
          The head's output [B, ...] and the state after these records.
        """
        features = self._features(inputs)
        if self.core is not None:
            projected = self.core.project(features)
            features, state = self.core.advance(projected, inputs.first, state)
        return self.head(features), state

    def unroll(self, inputs: NetworkInputs, state: State) -> tuple[Any, State]:
        """Answers T consecutive records of each of B environments at once.

        Args:
          inputs: The records, [T, B, ...] with a static T.
          state: The state before the first of them, [B, ...].

        Returns:
          The head's output [T, B, ...] and the state after the last record.
        """
        length = inputs.first.shape[0]
        features = self._features(tf.nest.map_structure(_merge_time, inputs))
        if self.core is not None:
            outputs = []
            projected = tf.split(self.core.project(features), length)
            for projected_t, first_t in zip(projected, tf.unstack(inputs.first), strict=True):
                output, state = self.core.advance(projected_t, first_t, state)
                outputs.append(output)
            features = tf.concat(outputs, axis=0)
        output = self.head(features)
        return tf.nest.map_structure(lambda x: _split_time(x, length), output), state

    def previous_action_and_reward(self, inputs: NetworkInputs) -> tf.Tensor:
        """Features [N, F] of N records' previous actions (one-hot) and rewards (in [-1, 1])."""
        action_spec = self.environment_spec.action
        if isinstance(action_spec, specs.DiscreteActionSpec):
            choices = tf.unstack(inputs.previous_action, axis=-1)
            parts = [
                tf.one_hot(choice, depth, dtype=tf.float32)
                for choice, depth in zip(choices, action_spec.num_values, strict=True)
            ]
        else:
            parts = [tf.clip_by_value(inputs.previous_action, -1.0, 1.0)]
        parts.append(tf.clip_by_value(inputs.reward, -1.0, 1.0)[:, None])
        features = tf.where(inputs.first[:, None], 0.0, tf.concat(parts, axis=-1))
        return tf.cast(features, self.compute_dtype)

    def _features(self, inputs: NetworkInputs) -> tf.Tensor:
        features = self.torso(inputs)
        if self.core is None:
            return features
        return tf.concat([features, self.previous_action_and_reward(inputs)], axis=-1)


def _merge_time(x: tf.Tensor) -> tf.Tensor:
    return tf.reshape(x, [-1, *x.shape[2:]])


def _split_time(x: tf.Tensor, length: int) -> tf.Tensor:
    return tf.reshape(x, [length, -1, *x.shape[1:]])


def named_variables(module: Any, trainable_only: bool = False) -> dict[str, tf.Variable]:
    """A module's variables by the path of attributes that leads to them, `torso/0/kernel`.

    Such names follow from the code alone, not from the order in which objects were made, so a
    checkpoint can be held strictly against them. Leading underscores are dropped. Keras layers
    are walked too.

    Args:
      module: A `tf.Module`.
      trainable_only: Leave out variables that no gradient is meant for.

    Returns:
      The variables, sorted by name; one that is reached twice has the first of its names.
    """
    found = {}
    seen: set[int] = set()
    for path, variable in _walk(module, (), seen):
        name = "/".join(path)
        if name in found:
            raise ValueError(f"two variables are called {name!r}; rename an attribute")
        if variable.trainable or not trainable_only:
            found[name] = variable
    return dict(sorted(found.items()))


# Attributes in which TensorFlow keeps its own books on what a module holds.
_TENSORFLOW_ATTRIBUTES = ("_self_", "_obj_reference", "_tf_", "_name", "_scope_name")


def _walk(
    value: Any, path: tuple[str, ...], seen: set[int]
) -> Iterator[tuple[tuple[str, ...], tf.Variable]]:
    if id(value) in seen:
        return
    seen.add(id(value))
    children: dict[str, Any] = {}
    if isinstance(value, tf.Variable):
        yield path, value
    elif isinstance(value, tf.Module):
        attributes = sorted(vars(value).items())
        children = {k: v for k, v in attributes if not k.startswith(_TENSORFLOW_ATTRIBUTES)}
    elif isinstance(value, dict):
        children = {str(key): value[key] for key in sorted(value, key=str)}
    elif isinstance(value, list | tuple):
        children = {str(i): child for i, child in enumerate(value)}
    elif hasattr(value, "trainable_variables") and hasattr(value, "variables"):
        # A Keras layer: a Keras variable's `value` is TensorFlow's.
        children = {f"{i}_{v.name}": v.value for i, v in enumerate(value.variables)}
    for name, child in children.items():
        yield from _walk(child, (*path, name.lstrip("_")), seen)
