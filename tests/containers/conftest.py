from __future__ import annotations

import fcntl
import os
import pathlib
import subprocess
import tempfile
from collections.abc import Callable, Iterator

import pytest

from tests.containers import docker

ROOT = pathlib.Path(__file__).resolve().parents[2]
# Twenty minutes: without a wheel of the football engine, the actor's build compiles it.
_BUILD_SECONDS = 1200


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = pathlib.Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.containers)


@pytest.fixture(scope="session")
def _engine() -> None:
    try:
        subprocess.run(
            ["docker", "version"], timeout=30, check=True, capture_output=True, text=True
        )
    except FileNotFoundError:
        pytest.skip("needs Docker: there is no docker command")
    except subprocess.SubprocessError as error:
        reason = getattr(error, "stderr", None) or str(error)
        pytest.skip(f"needs Docker, and no engine answers: {reason.strip().splitlines()[-1]}")


@pytest.fixture(scope="session", autouse=True)
def _images(_engine: None) -> None:
    """All images, built by what `make images` calls."""
    # The host's network: a build must get at the package registries as this machine does.
    environment = {**os.environ, "TAG": docker.TAG, "BUILD_OPTIONS": "--network=host"}
    for name in ("IMAGE_PREFIX", "LEARNER_VARIANT"):
        environment.pop(name, None)
    # Where tests run in several processes, the others find all layers built by the first.
    with (pathlib.Path(tempfile.gettempdir()) / "seedpod-build-images.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        result = subprocess.run(
            [ROOT / "scripts" / "build-images"],
            env=environment,
            timeout=_BUILD_SECONDS,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
    assert result.returncode == 0, result.stdout[-5000:]


@pytest.fixture
def system() -> Iterator[Callable[[str], docker.System]]:
    """Makes a system of containers for a preset, and removes it after the test."""
    systems: list[docker.System] = []

    def make(experiment: str) -> docker.System:
        systems.append(docker.System(experiment))
        return systems[-1]

    yield make
    for made in systems:
        made.close()
