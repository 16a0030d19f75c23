"""What a Join must look like, whatever this learner has been told before.

`service` asks before the first Join fixes what the run looks like.
"""

from __future__ import annotations

import grpc

from services.learner import roles
from services.shared import rpc, wire
from services.shared.generated.seedpod.inference.v1 import inference_pb2
from services.shared.specs import EnvironmentSpec
from services.shared.status import StatusError

# One-hot vectors and logits of that length; more is a mistake of the environment's.
_MAX_CATEGORIES = 1 << 16
_MAX_NAME_CHARACTERS = 256
# Of the largest message, for all that is not observation.
_HEAD_BYTES = 65536


def check(
    request: inference_pb2.JoinRequest, max_slots: int, opponent_agents: int
) -> EnvironmentSpec:
    """Refuses what cannot be served.

    Args:
      request: Of an actor.
      max_slots: `learner.max_slots`.
      opponent_agents: Agents of each environment that past policies play.

    Returns:
      What its environments look like.

    Raises:
      StatusError: FAILED_PRECONDITION, INVALID_ARGUMENT or RESOURCE_EXHAUSTED, see the proto.
    """
    if request.api_version != wire.API_VERSION:
        raise StatusError(
            grpc.StatusCode.FAILED_PRECONDITION,
            f"the actor speaks {request.api_version[:_MAX_NAME_CHARACTERS]!r}, this learner"
            f" {wire.API_VERSION!r}",
        )
    for field, name in (
        ("actor_name", request.actor_name),
        ("environment_name", request.environment_name),
    ):
        if len(name) > _MAX_NAME_CHARACTERS or not name.isprintable():
            raise _invalid(
                f"{field} is {name[:_MAX_NAME_CHARACTERS]!r}, allowed: at most"
                f" {_MAX_NAME_CHARACTERS} printable characters, because it goes into logs"
            )
    try:
        roles.from_proto(request.role)
        spec = wire.environment_spec_from_proto(request.environment)
    except ValueError as error:
        raise _invalid(str(error)) from None
    if spec.agents <= opponent_agents:
        raise StatusError(
            grpc.StatusCode.FAILED_PRECONDITION,
            f"learner.self_play.opponent_agents is {opponent_agents}, allowed: fewer than the"
            f" agents of an environment, {spec.agents}",
        )
    _check_sizes(request, spec, max_slots)
    return spec


def _check_sizes(request: inference_pb2.JoinRequest, spec: EnvironmentSpec, max_slots: int) -> None:
    environments, groups = request.environments_per_group, request.groups
    if environments < 1 or groups < 1:
        raise _invalid(
            f"{groups} groups of {environments} environments, allowed: 1 or more of each"
        )
    slots = groups * environments * spec.agents
    if slots > max_slots:
        raise StatusError(
            grpc.StatusCode.RESOURCE_EXHAUSTED,
            f"{slots} env slots asked for by {request.actor_name!r}, this learner has"
            f" {max_slots} (learner.max_slots)",
        )
    row_bytes = sum(tensor.storage_bytes for tensor in spec.observation)
    group_bytes = environments * spec.agents * row_bytes
    allowed = rpc.MAX_MESSAGE_BYTES - _HEAD_BYTES
    if group_bytes > allowed:
        raise _invalid(
            f"a group's observations have {group_bytes} bytes, allowed: {allowed}; use more"
            " groups of fewer environments"
        )
    choices = getattr(spec.action, "num_values", (spec.action.size,))
    largest = max(*choices, *(tensor.num_values for tensor in spec.observation))
    if largest > _MAX_CATEGORIES:
        raise _invalid(f"{largest} actions or categories, allowed: {_MAX_CATEGORIES}")


def _invalid(message: str) -> StatusError:
    return StatusError(grpc.StatusCode.INVALID_ARGUMENT, message)
