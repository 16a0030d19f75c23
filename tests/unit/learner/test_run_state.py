"""What a run begins with, of several learners too."""

from __future__ import annotations

import pathlib

import numpy as np
import prometheus_client
import pytest

from services.learner.checkpoint import CheckpointError
from services.learner.replicas import ALONE
from services.learner.run_state import RunState
from services.learner.statistics import Statistics
from services.shared import config
from tests.unit.learner import replica_worker


def test_only_the_first_learner_reads_the_initial_checkpoint(tmp_path: pathlib.Path) -> None:
    experiment = config.load("cartpole", [f"learner.initial_checkpoint={tmp_path / 'elsewhere'}"])
    registry = prometheus_client.CollectorRegistry()
    statistics = Statistics(2, registry, np.zeros(2, np.uint8), np.arange(2))
    agent = replica_worker.make("vtrace", replica_worker.BATCH, ALONE)

    def begin(is_chief: bool) -> None:
        state = RunState(experiment, statistics, claims=False, is_chief=is_chief)
        state.begin(agent, replica_worker.SPEC, counts=True)

    with pytest.raises(CheckpointError, match=r"elsewhere/meta\.json: cannot be read"):
        begin(is_chief=True)
    begin(is_chief=False)
