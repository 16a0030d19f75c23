"""The thread that does a worker's work: takes answers, steps environments, sends requests.

One event loop serves all groups of a worker: the groups whose answer has arrived are stepped
one after the other, while the others wait for the learner. A hung environment takes the whole
thread with it; then the worker starts another pilot, which finds everything it needs in the
groups and the membership, opens new streams and repeats the unanswered requests.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING

import grpc
import grpc.aio
import uvloop

from services.actor.groups import Group
from services.actor.learner_client import Finished, LearnerClient, LeaseLost, Refused
from services.actor.waiting import Waiting
from services.actor.watchdog import Abandoned
from services.shared.generated.seedpod.inference.v1 import inference_pb2

if TYPE_CHECKING:
    from services.actor.pictures.camera import Camera

# How often a group without any environment looks for one.
_DESERTED_POLL_SECONDS = 0.05
# How long a loop still takes what gRPC has to report about its streams.
_DRAIN_SECONDS = 0.1
_ABANDONED_DRAIN_SECONDS = 1.0
_DRAIN_STEPS = 20
_log = logging.getLogger(__name__)


class Pilot:
    """A thread with an event loop that serves all groups."""

    def __init__(
        self,
        connect: Callable[[], LearnerClient],
        groups: list[Group],
        ended: Callable[[Exception | str], None],
    ) -> None:
        """Starts the thread.

        Args:
          connect: Makes the connection, in the thread's event loop.
          groups: To be served.
          ended: Called once when the pilot ends by itself: with `Finished`, `Refused`, or the
            traceback of what should not happen.
        """
        self._connect = connect
        self._groups = groups
        self._ended = ended
        self._is_abandoned = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._serving: list[asyncio.Task[None]] = []
        # A daemon: a hung environment must not keep the worker from ending.
        self._thread = threading.Thread(target=self._run, name="pilot", daemon=True)
        self._thread.start()

    @property
    def thread_id(self) -> int | None:
        """Of the thread, as threading counts."""
        return self._thread.ident

    def stop(self, timeout_seconds: float) -> bool:
        """Ends all streams and the thread; returns False if it hangs."""
        if self._loop is not None and self._task is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed already
                self._loop.call_soon_threadsafe(self._task.cancel)
        self._thread.join(timeout_seconds)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            uvloop.run(self._main())
        except (Finished, Refused) as end:
            self._say(end)
        except asyncio.CancelledError:
            pass
        except BaseException:
            self._say(traceback.format_exc())

    def _say(self, end: Exception | str) -> None:
        if not self._is_abandoned:
            self._ended(end)

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()
        client = self._connect()
        try:
            self._serving = [
                asyncio.create_task(self._serve(client, group)) for group in self._groups
            ]
            await asyncio.gather(*self._serving)
        finally:
            await client.close()
            await _drain(_ABANDONED_DRAIN_SECONDS if self._is_abandoned else _DRAIN_SECONDS)

    def _step(self, group: Group) -> bool:
        try:
            return group.step()
        except Abandoned:
            # Another pilot has the groups and the membership. Cancelled here and now, the other
            # tasks touch nothing any more; then the loop ends in order.
            self._is_abandoned = True
            for task in self._serving:
                task.cancel()
            raise asyncio.CancelledError from None

    async def _serve(self, client: LearnerClient, group: Group) -> None:
        deserted = Waiting()
        while True:
            lease = await client.lease()
            if group.lease is not lease:
                group.begin(lease)
            if group.request is None and not self._step(group):
                await self._wait_for_environment(group, deserted)
                continue
            assert group.request is not None, "step made a request"
            try:
                response = await client.exchange(lease, group.index, group.request)
            except LeaseLost:
                continue
            try:
                group.accept(response)
            except ValueError as error:
                raise Refused(str(error)) from None
            if group.camera is not None:
                await _deliver(client, lease, group.camera)

    async def _wait_for_environment(self, group: Group, deserted: Waiting) -> None:
        while group.is_deserted:
            deserted.still(f"group {group.index}: all its environments are being replaced")
            await asyncio.sleep(_DESERTED_POLL_SECONDS)
        deserted.over(f"group {group.index} has an environment again")


async def _deliver(
    client: LearnerClient, lease: inference_pb2.JoinResponse, camera: Camera
) -> None:
    """Hands finished recordings to the learner; what it does not take is lost, and counted."""
    for recorded in camera.take():
        with recorded.file:
            try:
                await client.put_recording(lease, recorded)
            except grpc.aio.AioRpcError as error:
                camera.failures += 1
                _log.warning("the learner does not take %s: %s", recorded.name, error.details())


async def _drain(seconds: float) -> None:
    """Waits for the last events of closed streams.

    gRPC has one queue for all loops of the process, those of abandoned pilots included: an
    event of a loop that is closed by then raises in the loop that finds it, and holds up those
    behind it.
    """
    # In steps: if the process was held up meanwhile, the events still get their turns.
    for _ in range(_DRAIN_STEPS):
        await asyncio.sleep(seconds / _DRAIN_STEPS)
