"""What is in the images, and what is not."""

from __future__ import annotations

import json
import os
import pathlib
import re
import shutil
import tomllib

import pytest

from tests.containers import docker

ROOT = pathlib.Path(__file__).resolve().parents[2]
BASE = "python:3.11-slim-bookworm"
# What an image may add to its base, in megabytes: its own part of the limits of 250 and 700 for
# images on a base of 130, the size of the public one.
LARGEST = {"replay": 120, "actor": 570}

services = pytest.mark.parametrize("service", docker.SERVICES)


@services
def test_configuration(service: str) -> None:
    config = docker.inspect(docker.image(service))["Config"]
    assert config["User"] == "10001:10001"
    assert config["Entrypoint"] == ["python", "-m", f"services.{service}"]
    labels = {k.removeprefix("org.opencontainers.image."): v for k, v in config["Labels"].items()}
    assert labels["title"] == f"seedpod-{service}"
    assert labels["base.name"] == f"docker.io/library/{BASE}"
    with (ROOT / "pyproject.toml").open("rb") as file:
        assert labels["version"] == tomllib.load(file)["project"]["version"]
    assert len(labels["revision"].removesuffix("-modified")) == 40
    assert labels["description"].startswith("seedpod's ")


@services
def test_there_is_no_compiler_and_nothing_can_be_written(service: str) -> None:
    code = """
import json, os, shutil
tools = ["cc", "gcc", "g++", "c++", "clang", "cpp", "ld", "as", "make", "cmake", "git"]
writable = [
    path for path in ("/", "/app", "/app/services", "/opt/seedpod", "/var/lib/seedpod", "/etc")
    if os.access(path, os.W_OK)
]
print(json.dumps({
    "tools": [tool for tool in tools if shutil.which(tool)],
    "headers": os.path.exists("/usr/include/stdio.h"),
    "writable": writable,
    "user": [os.getuid(), os.getgid(), os.path.expanduser("~")],
}))
"""
    found = json.loads(docker.python(service, code))
    assert found == {
        "tools": [],
        "headers": False,
        "writable": [],
        "user": [10001, 10001, "/tmp"],
    }


@pytest.mark.parametrize("service", ["actor", "replay"])
def test_no_tensorflow_beside_the_learner(service: str) -> None:
    code = """
from importlib import metadata
print(*sorted(d.name.lower() for d in metadata.distributions()))
"""
    names = set(docker.python(service, code).split())
    assert {"grpcio", "numpy", "seedpod"} <= names
    assert not [n for n in names if "tensor" in n or n in ("keras", "grpcio-tools", "setuptools")]


@pytest.mark.parametrize("service", LARGEST)
def test_size(service: str) -> None:
    size, base = (docker.inspect(name)["Size"] for name in (docker.image(service), BASE))
    assert (size - base) / 1e6 < LARGEST[service]


@pytest.mark.parametrize("name", ["football", "atari", "memory", "CartPole-v1", "HalfCheetah-v5"])
def test_the_actor_steps_environments(name: str) -> None:
    code = f"""
from services.actor import environments
environment = environments.make({name!r}, {{}}, seed=1)
print(len(environment.reset()) == len(environment.spec.observation) > 0)
environment.close()
"""
    assert docker.python("actor", code) == "True"


def test_cores_are_those_of_the_limit() -> None:
    code = "from services.shared.cores import usable_cores; print(usable_cores())"
    assert docker.python("replay", code, "--cpus=0.5") == "1"
    assert docker.python("replay", code) == str(len(os.sched_getaffinity(0)))


def test_the_learner_sizes_its_threads_by_the_limit() -> None:
    code = """
from services.learner import devices
devices.configure(None)
import tensorflow as tf
print(tf.config.threading.get_intra_op_parallelism_threads())
"""
    assert docker.python("learner", code, "--cpus=1", "--memory=2g") == "1"


@services
def test_help_and_errors(service: str) -> None:
    assert "--experiment" in docker.docker("run", "--rm", docker.image(service))
    with pytest.raises(AssertionError, match="is neither a"):
        docker.docker("run", "--rm", docker.image(service), "--experiment=no-such")


def test_an_image_of_ones_own_is_built_as_the_docs_say(tmp_path: pathlib.Path) -> None:
    text = (ROOT / "docs" / "adding-an-environment.md").read_text()
    (recipe,) = re.findall(r"^```dockerfile\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    for there, here in (
        ("seedpod-actor:0.1.0", docker.image("actor")),
        ("PACKAGE==VERSION", "sortedcontainers==2.4.0"),
    ):
        assert there in recipe
        recipe = recipe.replace(there, here)
    (tmp_path / "Dockerfile").write_text(recipe)
    shutil.copy(ROOT / "examples" / "corridor.py", tmp_path)
    docker.docker("build", "--network=host", "--tag=seedpod-own:test", str(tmp_path), timeout=300)
    code = """
import os, corridor, sortedcontainers
from services.actor.environments import make
print(os.getuid(), make("corridor:Corridor", {"length": 7}, seed=0).spec.observation[0].num_values)
"""
    options = ("--rm", *docker.HARDENED, "--entrypoint=python")
    assert docker.docker("run", *options, "seedpod-own:test", "-c", code) == "10001 7"
