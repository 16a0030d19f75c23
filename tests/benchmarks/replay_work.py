"""What `bench_replay` gives to both services, and how it counts; needs no more than numpy."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import time
from typing import Any

import numpy as np
import numpy.typing as npt

BATCH = 64
_RING = 512


@dataclasses.dataclass(frozen=True)
class Work:
    """Items of one kind.

    Attributes:
      name: For the table.
      steps: Fields [512, ...]; step n of each slot is entry n mod 512.
      length, period: Steps of an item, and from one item to the next of a slot.
      items: To insert.
      batches: To sample.
      capacity: Items that the table holds.
    """

    name: str
    steps: dict[str, npt.NDArray[Any]]
    length: int
    period: int
    items: int
    batches: int
    capacity: int

    @property
    def item_bytes(self) -> int:
        """As the learner sees it."""
        return self.length * sum(int(field[0].nbytes) for field in self.steps.values())

    def step(self, n: int) -> dict[str, Any]:
        """Step n."""
        return {name: field[n % _RING] for name, field in self.steps.items()}

    def run(self, start: int, stop: int) -> dict[str, npt.NDArray[Any]]:
        """Steps start to stop, [n, ...] each."""
        index = np.arange(start, stop) % _RING
        return {name: field[index] for name, field in self.steps.items()}

    def is_due(self, n: int) -> bool:
        """Whether an item ends with the n-th step."""
        return n >= self.length and (n - self.length) % self.period == 0

    def save(self, path: pathlib.Path) -> None:
        """Writes it for another process."""
        numbers = [self.length, self.period, self.items, self.batches, self.capacity]
        text = json.dumps([self.name, *numbers])
        with path.open("wb") as file:
            np.savez(file, work=np.array(text), **self.steps)  # type: ignore[arg-type]

    @classmethod
    def load(cls, path: pathlib.Path) -> Work:
        """Reads what `save` wrote."""
        with np.load(path) as file:
            steps = {name: file[name] for name in file.files if name != "work"}
            name, *numbers = json.loads(str(file["work"]))
        return cls(name, steps, *numbers)


class Phase:
    """CPU and wall time of a part of the run."""

    def __init__(self, server: int) -> None:
        """Begins; `server` is the other process."""
        self._server = server
        self._before = self._now()

    def end(self, items: int, item_bytes: int) -> dict[str, float]:
        """Items per second, and the CPU time of each."""
        client, server, wall = (
            after - before for after, before in zip(self._now(), self._before, strict=True)
        )
        return {
            "items": items,
            "items_per_second": round(items / wall, 1),
            "megabytes_per_second": round(items * item_bytes / wall / 1e6, 1),
            "client_cpu_us_per_item": round(client / items * 1e6, 2),
            "server_cpu_us_per_item": round(server / items * 1e6, 2),
        }

    def _now(self) -> tuple[float, float, float]:
        fields = pathlib.Path(f"/proc/{self._server}/stat").read_text().rpartition(")")[2].split()
        server = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        return time.process_time(), server, time.perf_counter()


def waits_in_milliseconds(waits: list[float]) -> dict[str, float]:
    """Quantiles of the learner's waits for a batch, given in seconds."""
    p50, p99 = np.quantile(waits, [0.5, 0.99]) * 1e3
    return {"p50_ms": round(float(p50), 2), "p99_ms": round(float(p99), 2)}


def works(scale: float) -> list[Work]:
    """All kinds; `scale` is of the amount of work."""

    def count(number: int) -> int:
        return max(BATCH, int(number * scale))

    rng = np.random.default_rng(0)
    tiny = {"data": rng.integers(0, 255, (_RING, 100), np.uint8)}
    frames, source = atari_frames()
    scalars = {
        "reward": np.zeros(_RING, np.float32),
        "discount": np.ones(_RING, np.float32),
        "action": rng.integers(0, 18, _RING, np.int32),
    }
    noise = {"frame": rng.integers(0, 255, (_RING, 84, 84), np.uint8), **scalars}
    football = {"frame": football_frames(), **scalars}
    return [
        Work("tiny 100 B, 10k", tiny, 1, 1, count(50_000), count(800), 10_000),
        Work("tiny 100 B, 1M", tiny, 1, 1, count(200_000), count(800), 1_000_000),
        Work(f"565 KB, {source}", {"frame": frames, **scalars}, 80, 40, count(3_000), count(50),
             count(3_000)),
        Work("565 KB, incompressible", noise, 80, 40, count(1_000), count(20), count(1_000)),
        Work("1.6 MB, football", football, 120, 40, count(1_500), count(24), count(1_500)),
    ]  # fmt: skip


def atari_frames() -> tuple[npt.NDArray[np.uint8], str]:
    """Consecutive 84x84 frames of an episode, uint8 [512, 84, 84], and where they are from."""
    try:
        return _seaquest_frames(), "Seaquest"
    except ImportError:
        return _synthetic_frames(), "synthetic frames"


def _seaquest_frames() -> npt.NDArray[np.uint8]:
    """Random play with the usual preprocessing: of each four frames the last two, their maximum."""
    import ale_py
    import ale_py.roms

    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    game = ale_py.ALEInterface()
    game.setInt("random_seed", 1)
    game.loadROM(ale_py.roms.get_rom_path("seaquest"))
    actions = game.getMinimalActionSet()
    rng = np.random.default_rng(1)
    rows, columns = _area_weights(210, 84), _area_weights(160, 84).T
    frames = np.empty((_RING, 84, 84), np.uint8)
    for frame in frames:
        action = actions[rng.integers(len(actions))]
        screens = []
        for _ in range(4):
            game.act(action)
            screens.append(game.getScreenGrayscale())
        frame[:] = np.rint(rows @ np.maximum(*screens[2:]) @ columns)
        if game.game_over():
            game.reset_game()
    return frames


def _area_weights(size: int, smaller: int) -> npt.NDArray[np.float64]:
    """[smaller, size]: how much of each pixel goes into each one of a smaller picture."""
    edges = np.arange(smaller + 1) * (size / smaller)
    begin, end = edges[:-1, None], edges[1:, None]
    pixels = np.arange(size)
    overlap = np.minimum(end, pixels + 1) - np.maximum(begin, pixels)
    weights: npt.NDArray[np.float64] = np.maximum(overlap, 0) * (smaller / size)
    return weights


def _synthetic_frames() -> npt.NDArray[np.uint8]:
    """Frames that compress like a game's: a still scene, some sprites that move."""
    rng = np.random.default_rng(0)
    scene = np.repeat(np.repeat(rng.integers(0, 8, (12, 6)), 7, 0), 14, 1).astype(np.uint8) * 20
    frames = np.repeat(scene[None], _RING, 0)
    for sprite in range(12):
        y, x, pattern = sprite * 7, rng.integers(0, 70), rng.integers(0, 255, (6, 8))
        for n in range(_RING):
            left = (x + n * (1 + sprite % 3)) % 76
            frames[n, y : y + 6, left : left + 8] = pattern
    return frames


def football_frames() -> npt.NDArray[np.uint8]:
    """Super mini maps as bits, uint8 [512, 72, 192]: four planes each of four frames.

    Each plane (arXiv 1907.11180) has a few points, which walk at random.
    """
    rng = np.random.default_rng(0)
    points = (11, 11, 1, 1)
    planes = np.zeros((_RING + 3, 72, 96, 4), np.uint8)
    for plane, number in enumerate(points):
        start = rng.integers(0, (72, 96), (number, 2))
        walk = rng.integers(-1, 2, (_RING + 3, number, 2)).cumsum(0)
        places = (start + walk) % (72, 96)
        for n in range(_RING + 3):
            planes[n, places[n, :, 0], places[n, :, 1], plane] = 1
    stacked = np.concatenate([planes[n : n + _RING] for n in range(4)], -1)
    return np.packbits(stacked, axis=-1).reshape(_RING, 72, 192)
