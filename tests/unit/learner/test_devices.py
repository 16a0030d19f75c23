"""Which devices train and which do inference, and what is refused; no GPU or TPU is needed."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from services.learner import devices, replicas
from services.learner.agent import pad_rows, padded_size
from services.learner.devices import DeviceError, Devices
from services.shared.config import DevicesConfig, LearnerConfig

GPUS = [f"GPU:{number}" for number in range(4)]


def split(found: list[str], *, shared: bool = False, **settings: Any) -> Devices:
    return devices.split(
        DevicesConfig.model_validate(settings), found[0][:3].lower(), found, shared=shared
    )


def test_one_device_does_both() -> None:
    chosen = split(GPUS[:1])
    assert (chosen.training, chosen.inference) == (("GPU:0",), ("GPU:0",))
    assert not chosen.divided
    assert chosen.fixed_sizes
    assert not Devices().fixed_sizes  # the CPU


@pytest.mark.parametrize(
    ("settings", "training", "inference"),
    [
        ({}, "012", "3"),
        ({"inference": 2}, "01", "23"),
        ({"inference": 3}, "0", "123"),
        ({"count": 2}, "0", "1"),
        ({"count": 1}, "0", "0"),
        # One of several learners.
        ({"shared": True}, "0123", "0"),
        ({"shared": True, "count": 2}, "01", "0"),
    ],
)
def test_several_gpus_are_divided(settings: Any, training: str, inference: str) -> None:
    chosen = split(GPUS, **settings)
    assert chosen.training == tuple(f"GPU:{number}" for number in training)
    assert chosen.inference == tuple(f"GPU:{number}" for number in inference)
    assert chosen.divided == (inference not in training)


@pytest.mark.parametrize(
    ("found", "settings", "message"),
    [
        (4, {"count": 8}, "learner.devices asks for 8 GPUs, found: 4"),
        (1, {"inference": 1}, "inference is 1 of 1 GPUs, allowed: none, one device does both"),
        (4, {"inference": 4}, "inference is 4 of 4 GPUs, allowed: 1 to 3, the others train"),
        (4, {"inference": 1, "shared": True}, "each of several learners trains on all"),
    ],
)
def test_what_cannot_be_is_refused(found: int, settings: Any, message: str) -> None:
    with pytest.raises(DeviceError, match=message):
        split(GPUS[:found], **settings)


@pytest.mark.parametrize(
    ("settings", "learners", "message"),
    [
        ({"devices": {"kind": "gpu"}}, 1, "asks for all GPUs, found: 0"),
        ({"devices": {"kind": "gpu", "count": 2}}, 1, "asks for 2 GPUs, found: 0"),
        ({"devices": {"kind": "tpu", "count": 4}}, 1, "asks for 4 TPU cores, found: 0"),
        ({"devices": {"kind": "tpu"}}, 2, "2 learners on TPUs, allowed: 1"),
        ({"devices": {"kind": "cpu", "count": 2}}, 2, "2 CPU devices for each of 2 learners"),
        (
            {"batch_size": 32, "devices": {"kind": "cpu", "count": 4}},
            1,
            "batch_size is 32, allowed with 3 training devices: a multiple",
        ),
    ],
)
def test_what_this_machine_does_not_have_is_refused(
    settings: Any, learners: int, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The process's own devices stay as they are.
    for name in ("set_visible_devices", "set_logical_device_configuration"):
        monkeypatch.setattr(tf.config, name, lambda *_: None)
    with pytest.raises(DeviceError, match=message):
        devices.choose(LearnerConfig.model_validate(settings), learners)


def test_devices_that_are_left_idle_are_named_loudly(caplog: pytest.LogCaptureFixture) -> None:
    split(GPUS, count=4)
    assert caplog.messages == []
    split(GPUS, count=3)
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert record.getMessage().startswith("1 OF 4 GPUs ARE IDLE")


def test_gpus_beside_a_learner_on_the_cpu_are_idle(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    hidden = []
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: [kind] * 2)
    monkeypatch.setattr(tf.config, "set_visible_devices", lambda *asked: hidden.append(asked))
    chosen = devices.choose(LearnerConfig.model_validate({"devices": {"kind": "cpu"}}))
    assert chosen == Devices()
    assert hidden == [([], "GPU")]
    assert "2 OF 2 GPUs ARE IDLE" in caplog.text


@pytest.mark.parametrize(
    ("cores_per_chip", "settings", "training", "inference"),
    [
        # A 2x2 slice of v5e or v6e has four cores, of v2 or v3 eight.
        (1, {}, 3, 1),
        (1, {"inference": 2}, 2, 2),
        (2, {"inference": 4}, 4, 4),
        (2, {"count": 6, "inference": 4}, 2, 4),
    ],
)
def test_the_cores_of_a_2x2_tpu_are_divided(
    cores_per_chip: int, settings: Any, training: int, inference: int
) -> None:
    cores = list(itertools.product(range(2), range(2), range(1), range(cores_per_chip)))
    topology = tf.tpu.experimental.Topology(
        mesh_shape=[2, 2, 1, cores_per_chip], device_coordinates=np.array([cores], np.int32)
    )
    chosen = devices.split_topology(DevicesConfig.model_validate(settings), topology)
    assert (len(chosen.training), len(chosen.inference)) == (training, inference)
    names = {*chosen.training, *chosen.inference}
    assert len(names) == training + inference
    every = {f"/task:0/device:TPU:{i}" for i in range(len(cores))}
    assert names <= every
    # What TensorFlow is told is what the names say, and neighbours: one link from one to the next.
    assigned = chosen.assignment
    assert assigned.num_replicas == training
    told = [assigned.tpu_device(replica=number) for number in range(training)]
    assert tuple(told) == chosen.training
    steps = np.abs(np.diff(assigned.core_assignment[:, 0, :3], axis=0)).sum(axis=1)
    assert set(steps) <= {0, 1}


def test_a_slice_of_several_hosts_is_refused() -> None:
    coordinates = np.array([[[0, 0, 0, 0]], [[1, 0, 0, 0]]], np.int32)
    topology = tf.tpu.experimental.Topology(mesh_shape=[2, 1, 1, 1], device_coordinates=coordinates)
    with pytest.raises(DeviceError, match="has 2 hosts, allowed: 1"):
        devices.split_topology(DevicesConfig(), topology)


def test_learners_add_up_in_rings_on_cpus() -> None:
    kinds = tf.distribute.experimental.CommunicationImplementation
    assert replicas.communication(Devices()) is kinds.RING
    assert replicas.communication(split(GPUS, shared=True)) is kinds.NCCL


def test_batches_of_inference_have_few_sizes() -> None:
    assert [padded_size(n, 1) for n in (1, 8, 9, 64, 65)] == [8, 8, 16, 64, 128]
    # Each of three devices has as many.
    assert [padded_size(n, 3) for n in (1, 24, 25, 100)] == [24, 24, 48, 192]
    rows = pad_rows(np.ones((3, 2), np.uint8), 8)
    assert rows.dtype == np.uint8
    assert rows.tolist() == [[1, 1]] * 3 + [[0, 0]] * 5
    assert pad_rows(np.zeros(0, np.float32), 8).shape == (0,)
