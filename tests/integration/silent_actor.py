"""Sends one request, says so on stdout and waits; for tests that stop the process."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator

from services.shared import rpc
from services.shared.generated.seedpod.inference.v1 import inference_pb2, inference_pb2_grpc
from tests.integration.act_requests import request


def main() -> None:
    """Runs until it is killed."""
    address, token = sys.argv[1:]
    stub = inference_pb2_grpc.InferenceServiceStub(rpc.channel(address))
    metadata = ((rpc.LEASE_METADATA, token), (rpc.GROUP_METADATA, "0"))
    next(stub.Act(_requests(), metadata=metadata))
    print("answered", flush=True)
    time.sleep(600)


def _requests() -> Iterator[inference_pb2.ActRequest]:
    yield request(1, step_type=0)
    time.sleep(600)


if __name__ == "__main__":
    main()
