"""An error that a servicer turns into a call's status."""

from __future__ import annotations

import grpc


class StatusError(Exception):
    """An error with a gRPC status code."""

    def __init__(self, code: grpc.StatusCode, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
