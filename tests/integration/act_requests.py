"""Requests of a group whose environments show one byte each; imports no TensorFlow."""

from __future__ import annotations

import numpy as np

from services.shared.generated.seedpod.inference.v1 import inference_pb2
from services.shared.specs import StepType


def request(
    sequence: int, step_type: int = StepType.MID, frame: int = 0, incarnation: int = 1, k: int = 2
) -> inference_pb2.ActRequest:
    return inference_pb2.ActRequest(
        sequence=sequence,
        incarnation=np.full(k, incarnation, "<u4").tobytes(),
        step_type=bytes([step_type] * k),
        reward=np.zeros(k, "<f4").tobytes(),
        discount=np.ones(k, "<f4").tobytes(),
        observation=bytes([frame] * k),
    )
