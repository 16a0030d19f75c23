"""What becomes of the records of an env slot: the learner's arrays by slot are masked by it.

An actor says its role in Join; the lease writes it into `LeaseTable.roles`, which all parts of the
learner read. Inference serves all roles in the same batches.
"""

from __future__ import annotations

import enum

from services.shared.generated.seedpod.inference.v1 import inference_pb2


class Role(enum.IntEnum):
    """The role of a slot, uint8 in arrays by slot. Whatever is not TRAINING is not trained on."""

    TRAINING = 0
    EVALUATION = 1
    # Played by a past policy; see `self_play`. No actor asks for it: the learner's settings say
    # which agents of an environment are opponents.
    OPPONENT = 2


def from_proto(role: inference_pb2.ActorRole) -> Role:
    """The role that an actor asks for.

    Raises:
      ValueError: This learner does not know it; the message names those that it does.
    """
    if role in (inference_pb2.ACTOR_ROLE_UNSPECIFIED, inference_pb2.ACTOR_ROLE_TRAINING):
        return Role.TRAINING
    if role == inference_pb2.ACTOR_ROLE_EVALUATION:
        return Role.EVALUATION
    raise ValueError(f"role is {role}, allowed: TRAINING or EVALUATION")
