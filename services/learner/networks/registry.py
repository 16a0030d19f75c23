"""Networks by name: turns an experiment's `learner.network` into a network with variables."""

from __future__ import annotations

import importlib
import inspect

import tensorflow as tf

from services.learner import preprocess
from services.learner.networks import base, football, heads, impala, mlp, nature
from services.shared import config, specs

NETWORKS: dict[str, type[base.Network]] = {
    "football": football.Football,
    "impala_deep": impala.ImpalaDeep,
    "impala_shallow": impala.ImpalaShallow,
    "mlp": mlp.Mlp,
    "mlp_lstm": mlp.MlpLstm,
    "nature": nature.Nature,
}


class NetworkError(ValueError):
    """A network that cannot be made; the message names what was given and allowed."""


def create(
    network: config.NetworkConfig,
    environment_spec: specs.EnvironmentSpec,
    head: heads.Head,
    seed: int = 0,
) -> base.Network:
    """Makes a network and all its variables.

    Args:
      network: Name, arguments and precision.
      environment_spec: What the network will see.
      head: See `base.Network`.
      seed: Set as TensorFlow's global seed, which the initial values come from.

    Returns:
      The network; its variables exist, so `base.named_variables` is complete.

    Raises:
      NetworkError: Unknown name, an import path that leads nowhere or not to a network,
        arguments that the network does not take, an observation that it cannot process, or
        outputs that are not one row for each record.
    """
    network_class = find(network.name)
    _check_arguments(network, network_class)
    tf.random.set_seed(seed)
    try:
        instance = network_class(
            environment_spec, head, network.mixed_precision, **network.arguments
        )
    except ValueError as error:
        raise NetworkError(f"network {network.name!r}: {error}") from error
    try:
        output, _ = instance.step(example_inputs(instance, 2), instance.initial_state(2))
    except (ValueError, tf.errors.InvalidArgumentError) as error:
        seen = {spec.name: preprocess.network_shape(spec) for spec in environment_spec.observation}
        raise NetworkError(
            f"network {network.name!r} cannot process observations of the shapes {seen}: {error}"
        ) from error
    shapes = [tuple(part.shape) for part in tf.nest.flatten(output)]
    if any(shape[:1] != (2,) for shape in shapes):
        raise NetworkError(
            f"network {network.name!r}: for two records its outputs have the shapes {shapes}, must"
            " begin with 2: a torso makes one row of features for each record"
        )
    return instance


def example_inputs(network: base.Network, batch_size: int = 1) -> base.NetworkInputs:
    """Zeros in the shapes and types that `network.step` takes."""
    spec = network.environment_spec
    observation = {
        tensor.name: tf.zeros(
            [batch_size, *preprocess.network_shape(tensor)], network.compute_dtype
        )
        for tensor in spec.observation
    }
    return base.NetworkInputs(
        observation=observation,
        previous_action=tf.zeros([batch_size, spec.action.size], spec.action.dtype),
        reward=tf.zeros([batch_size]),
        first=tf.ones([batch_size], tf.bool),
    )


def find(name: str) -> type[base.Network]:
    """The class of a network.

    Raises:
      NetworkError: An unknown name, or an import path that leads nowhere or not to a network.
    """
    if name in NETWORKS:
        return NETWORKS[name]
    module_name, separator, class_name = name.partition(":")
    if not separator:
        raise NetworkError(
            f"network {name!r} is unknown, allowed: {sorted(NETWORKS)} or module:Class"
        )
    try:
        network_class = getattr(importlib.import_module(module_name), class_name)
    except (ImportError, AttributeError) as error:
        raise NetworkError(f"network {name!r} cannot be imported: {error}") from error
    if not (isinstance(network_class, type) and issubclass(network_class, base.Network)):
        raise NetworkError(
            f"network {name!r} is {network_class!r}, allowed: a subclass of"
            f" {base.Network.__module__}.{base.Network.__name__}"
        )
    return network_class


def _check_arguments(network: config.NetworkConfig, network_class: type[base.Network]) -> None:
    parameters = list(inspect.signature(network_class).parameters.values())
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return
    # The first three are what every network is given.
    allowed = [parameter.name for parameter in parameters[3:]]
    unknown = sorted(set(network.arguments) - set(allowed))
    if unknown:
        raise NetworkError(
            f"network {network.name!r} takes no arguments {unknown}, allowed: {allowed}"
        )
