"""Networks that are cut, lose packets, or are slow.

A namespace with a veth pair holds the processes on one side; cutting its link is what a network
does. It needs root, and cleans up what it made.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import subprocess
import threading
import time
from collections.abc import Iterator

from tests.chaos import environment
from tests.chaos.outcome import Outcome
from tests.chaos.system import System


class Link:
    """A network namespace and the way to it.

    Attributes:
      here, there: Addresses of both ends.
      prefix: Put before commands that are to run there.
    """

    def __init__(self) -> None:
        """Makes it.

        Raises:
          OSError: Nobody may here, or the kernel cannot.
        """
        number = secrets.randbelow(1 << 14)
        self._name = f"chaos-{os.getpid()}-{number}"
        self._veth = f"ch{number}"
        subnet = f"10.{200 + (number >> 8) % 50}.{number & 255}"
        self.here, self.there = f"{subnet}.1", f"{subnet}.2"
        self.prefix = ["ip", "netns", "exec", self._name]
        _run("ip", "netns", "add", self._name)
        try:
            _run("ip", "link", "add", self._veth, "type", "veth", "peer", "name", f"{self._veth}p")
            _run("ip", "link", "set", f"{self._veth}p", "netns", self._name)
            _run("ip", "addr", "add", f"{self.here}/24", "dev", self._veth)
            _run("ip", "link", "set", self._veth, "up")
            for command in (
                ("addr", "add", f"{self.there}/24", "dev", f"{self._veth}p"),
                ("link", "set", f"{self._veth}p", "up"),
                ("link", "set", "lo", "up"),
            ):
                _run("ip", "-n", self._name, *command)
        except OSError:
            self.close()
            raise

    def close(self) -> None:
        """Removes namespace and link."""
        for command in (("link", "del", self._veth), ("netns", "del", self._name)):
            with contextlib.suppress(OSError):
                _run("ip", *command)

    def set(self, up: bool) -> None:
        """Connects or cuts."""
        _run("ip", "link", "set", self._veth, "up" if up else "down")

    @contextlib.contextmanager
    def loss(self, share: float) -> Iterator[None]:
        """Drops packets at random, both ways."""
        rules = [(chain, flag) for chain, flag in (("INPUT", "-i"), ("OUTPUT", "-o"))]

        def change(action: str) -> None:
            for chain, flag in rules:
                _run(
                    *("iptables", "-w", action, chain, flag, self._veth, "-m", "statistic"),
                    *("--mode", "random", "--probability", str(share), "-j", "DROP"),
                )

        change("-A")
        try:
            yield
        finally:
            change("-D")


def cut(system: System, link: Link, between: str, seconds: float) -> Outcome:
    """No packet passes for so long."""
    began = time.monotonic()
    link.set(up=False)
    try:
        system.sleep(seconds)
    finally:
        link.set(up=True)
    system.wait_for_frames(500, "training after the cut", 180)
    fault = f"network cut between {between} for {seconds:.0f} s"
    return Outcome(fault, 1, 1, system.longest_pause(began))


def lose_packets(system: System, link: Link, between: str, share: float, seconds: float) -> Outcome:
    """A share of the packets is lost, for so long."""
    before, began = system.frames(), time.monotonic()
    system.sleep(seconds)
    usual = (system.frames() - before) / (time.monotonic() - began)
    with link.loss(share):
        before, began = system.frames(), time.monotonic()
        system.sleep(seconds)
        rate = (system.frames() - before) / (time.monotonic() - began)
        system.wait_for_frames(100, "training in spite of the loss", 180)
    system.wait_for_frames(500, "training after the loss", 180)
    return Outcome(
        f"{share:.0%} of packets lost between {between}", 1, 1, system.longest_pause(began),
        note=f"{rate:.0f} frames/s instead of {usual:.0f}, each over {seconds:.0f} s",
    )  # fmt: skip


def slow_link(system: System, seconds: float) -> Outcome:
    """An actor behind 50 ms of latency and 1 Mbit/s is served like any other."""
    host, _, port = system.address.rpartition(":")
    began = time.monotonic()
    with Proxy(host, int(port), delay_seconds=0.05, bytes_per_second=125_000) as proxy:
        others = environment.steps_taken(system.folder).keys()
        system.add_actor("slow", f"--set=actor.learner_address={host}:{proxy.port}")
        slots = system.metric("live_slots")
        system.wait(lambda: system.metric("live_slots") > slots, "the slow actor", 120)
        before, passed = environment.steps_taken(system.folder), proxy.passed
        system.sleep(seconds)
        after, passed = environment.steps_taken(system.folder), proxy.passed - passed
        system.wait_for_frames(500, "training with a slow actor", 180)
        process = system.processes.pop("slow")
        text = process.text()
        process.end()
    lost = text.count("lost the learner")
    rates = {number: (after[number] - before.get(number, 0)) / seconds for number in after}
    slow = sum(rate for number, rate in rates.items() if number not in others)
    rest = (sum(rates.values()) - slow) / system.actors
    return Outcome(
        "an actor behind 50 ms and 1 Mbit/s", 1, int(not lost), system.longest_pause(began),
        note=f"{slow:.0f} steps/s, each of the others {rest:.0f}; {8 * passed / seconds / 1000:.0f}"
        f" kbit/s passed; {lost} connections lost",
    )  # fmt: skip


class Proxy:
    """Passes TCP connections on, later and slower.

    Attributes:
      port: Where it listens, on the same host.
      passed: Bytes so far, both ways.
    """

    def __init__(self, host: str, port: int, delay_seconds: float, bytes_per_second: int) -> None:
        """Prepares; entering it starts it."""
        self.port = 0
        self.passed = 0
        self._target = host, port
        self._delay_seconds = delay_seconds
        self._bytes_per_second = bytes_per_second
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> Proxy:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(10)
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    async def _start(self) -> None:
        self._server = await asyncio.start_server(self._serve, self._target[0], 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _stop(self) -> None:
        self._server.close()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there_reader, there_writer = await asyncio.open_connection(*self._target)
        with contextlib.suppress(ConnectionError, asyncio.CancelledError):
            await asyncio.gather(self._pass(reader, there_writer), self._pass(there_reader, writer))
        writer.close()
        there_writer.close()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """What has come leaves after the delay, and no faster than the rate allows."""
        queue: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(64)

        async def send() -> None:
            while True:
                due, data = await queue.get()
                await asyncio.sleep(max(0.0, due - time.monotonic()))
                writer.write(data)
                await writer.drain()
                self.passed += len(data)
                if not data:
                    return
                await asyncio.sleep(len(data) / self._bytes_per_second)

        sending = asyncio.ensure_future(send())
        try:
            while data := await reader.read(4096):
                await queue.put((time.monotonic() + self._delay_seconds, data))
            await queue.put((time.monotonic(), b""))
            await sending
        finally:
            sending.cancel()


def _run(*command: str) -> None:
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=10)
    except (subprocess.CalledProcessError, FileNotFoundError) as error:
        raise OSError(f"{' '.join(command)}: {getattr(error, 'stderr', error)}") from None
