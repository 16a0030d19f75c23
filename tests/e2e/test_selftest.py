"""What `helm test` runs, against a real run."""

from __future__ import annotations

import pathlib
import subprocess
import sys

from tests.e2e import runs


def test_a_running_system_passes(tmp_path: pathlib.Path) -> None:
    process = runs.start(tmp_path, "memory-r2d2", "--frames=100000000")
    status = runs.status(process)
    (learner,) = runs.descendants(process.pid, "services.learner")
    options = [argument for argument in learner.cmdline() if argument.startswith("--set=")]
    (address,) = (o for o in options if o.startswith("--set=learner.address="))
    actor = address.replace("learner.address", "actor.learner_address")
    selftest = subprocess.run(
        [
            *(sys.executable, "-m", "services.actor.selftest", "--experiment=memory-r2d2"),
            *(*options, actor),
        ],
        stderr=subprocess.PIPE,
        text=True,
        timeout=180,
    )
    process.terminate()
    runs.finish(process)
    assert selftest.returncode == 0, selftest.stderr
    # It needs no seat of the 16 environments that are there.
    assert status.leased_slots in (0, 16)
    for line in ("joined the learner", "an action came: [[", "gave a sequence of", "all is well"):
        assert line in selftest.stderr
