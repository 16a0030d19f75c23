"""A lease that is lost while a stream is being opened."""

import asyncio
import socket

import pytest

from services.actor.learner_client import LearnerClient, LeaseLost, Membership
from services.shared.config import ActorConfig
from services.shared.generated.seedpod.inference.v1 import inference_pb2


@pytest.mark.parametrize("delay", [0.0, 0.2])
def test_a_lease_lost_while_a_stream_opens(delay: float) -> None:
    asyncio.run(_lose_a_lease(delay))


async def _lose_a_lease(delay: float) -> None:
    with socket.socket() as silent:  # takes connections and never says a word
        silent.bind(("localhost", 0))
        silent.listen()
        lease = inference_pb2.JoinResponse(lease_token="token")
        member = Membership(
            lease=lease, token="token", address=f"localhost:{silent.getsockname()[1]}"
        )
        config = ActorConfig(environment="any:environment", learner_address=member.address)
        join = inference_pb2.JoinRequest()
        client = LearnerClient(config, 0, 5.0, join, lambda _: None, member)
        try:
            request = inference_pb2.ActRequest(sequence=1)
            exchange = asyncio.create_task(client.exchange(lease, 0, request))
            await asyncio.sleep(delay)
            assert not exchange.done()
            client._drop()  # as the answer to another group's request does
            with pytest.raises(LeaseLost):
                await asyncio.wait_for(exchange, 5.0)
            assert member.reconnects == 0
        finally:
            await client.close()
