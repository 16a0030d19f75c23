"""`python -m services.shared.probe`: asks a service for its health, over TLS too.

For kubelets, whose own gRPC probes know no TLS, and for people. Exits with 0 if it is serving.
"""

from __future__ import annotations

import argparse
import sys

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from services.shared import rpc
from services.shared.config import TlsConfig


def main(arguments: list[str] | None = None) -> int:
    """Asks once; returns the exit status, 1 with a message if the service is not serving."""
    parser = argparse.ArgumentParser(prog="python -m services.shared.probe", description=__doc__)
    parser.add_argument("--address", required=True, help="host:port")
    parser.add_argument("--service", default="", help="as its health service names it")
    parser.add_argument("--timeout-seconds", type=float, default=4.0)
    parser.add_argument("--tls", help="folder of tls.crt, tls.key and ca.crt; none: no encryption")
    parser.add_argument(
        "--server-name", help="that the server's certificate has, if not the address's host"
    )
    parsed = parser.parse_args(arguments)
    tls = None
    if parsed.tls is not None:
        tls = TlsConfig(
            certificate=f"{parsed.tls}/tls.crt",
            key=f"{parsed.tls}/tls.key",
            authority=f"{parsed.tls}/ca.crt",
        )
    try:
        with rpc.channel(parsed.address, tls=tls, server_name=parsed.server_name) as channel:
            request = health_pb2.HealthCheckRequest(service=parsed.service)
            answer = health_pb2_grpc.HealthStub(channel).Check(
                request, timeout=parsed.timeout_seconds, wait_for_ready=True
            )
    except OSError as error:
        print(f"probe: {error}", file=sys.stderr)
        return 1
    except grpc.RpcError as error:
        print(f"probe: {error.code().name}: {error.details()}", file=sys.stderr)
        return 1
    if answer.status != health_pb2.HealthCheckResponse.SERVING:
        name = health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)
        print(f"probe: {parsed.service!r} is {name}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
