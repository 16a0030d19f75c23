"""When two groups pay: `make bench-groups`.

One worker plays against a learner that answers after a set time, with one group of 2k environments
and with two of k, whose steps sleep. With S the step of a group of k and L the time to its answer
the first makes 2k / (2S + L) steps a second and the second 2k / max(2S, S + L)
(docs/performance.md). Only the ratio is measured, so other work on the machine hardly matters. The
last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import time

from tests.benchmarks import bench_actor
from tests.integration.fake_learner import FakeLearner

_WARM_UP_REQUESTS = 10
_START_SECONDS = 60.0


def steps_per_second(
    latency: float, step_milliseconds: float, k: int, groups: int, seconds: float
) -> float:
    """Of one worker.

    Args:
      latency: Seconds from a request to its answer.
      step_milliseconds: Of one environment.
      k: Environments of a group.
      groups: Of the worker.
      seconds: To measure.

    Raises:
      TimeoutError: The actor does not begin.
    """
    learner = FakeLearner(pace_seconds=latency)

    def requests() -> int:
        return sum(len(records) for records in learner.records.values())

    learner.start()
    arguments = {"sleep_milliseconds": step_milliseconds}
    name = bench_actor.SYNTHETIC
    try:
        with bench_actor.running_actor(learner.address, name, arguments, k, groups):
            deadline = time.monotonic() + _START_SECONDS
            while requests() < _WARM_UP_REQUESTS:
                if time.monotonic() > deadline:
                    raise TimeoutError(f"the actor sent nothing for {_START_SECONDS:.0f} s")
                time.sleep(0.05)
            before, began = requests(), time.monotonic()
            time.sleep(seconds)
            return (requests() - before) * k / (time.monotonic() - began)
    finally:
        learner.stop()


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--k", type=int, default=8, help="of each of two groups (%(default)s)")
    parser.add_argument("--step-milliseconds", type=float, default=1.25, help="(%(default)s)")
    parser.add_argument("--seconds", type=float, default=3.0, help="of each part (%(default)s)")
    parsed = parser.parse_args()
    k, step, seconds = parsed.k, parsed.step_milliseconds, parsed.seconds
    # A sleep takes longer than it was told to: S is measured.
    group_step = k / steps_per_second(0.0, step, 2 * k, 1, seconds)
    print(f"S is {group_step * 1e3:.1f} ms, a message without waiting included")
    print(f"{'L / S':>6} {'one group':>10} {'two':>7} {'ratio':>6} {'formula':>8}")
    rows = []
    for share in (0.05, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0):
        latency = share * group_step
        one = steps_per_second(latency, step, 2 * k, 1, seconds)
        two = steps_per_second(latency, step, k, 2, seconds)
        formula = (2 + share) / max(2, 1 + share)
        print(f"{share:6.2f} {one:10,.0f} {two:7,.0f} {two / one:6.2f} {formula:8.2f}", flush=True)
        rows.append({"latency": share, "one": round(one), "two": round(two), "formula": formula})
    print(json.dumps({"k": k, "step_seconds": round(group_step, 5), "rows": rows}))


if __name__ == "__main__":
    main()
