"""How the selftest fails: with the step and the reason."""

from __future__ import annotations

import pathlib

import pytest

from services.actor import selftest
from services.local.ports import free_port
from services.shared.generated.seedpod.inference.v1 import inference_pb2
from tests.integration.fake_learner import FakeLearner
from tests.integration.replay_clients import LAYOUT, InsertCall
from tests.integration.replay_server import ReplayServer


def test_nobody_is_there(capsys: pytest.CaptureFixture[str]) -> None:
    address = f"--set=actor.learner_address=localhost:{free_port()}"
    assert selftest.main(["--experiment=memory", address, "--timeout-seconds=1"]) == 1
    assert "FAILED: DEADLINE_EXCEEDED" in capsys.readouterr().err


def test_an_unknown_environment_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    override = "--set=actor.environment=no_such_module:Environment"
    assert selftest.main(["--experiment=memory", override]) == 1
    assert "no_such_module" in capsys.readouterr().err


def test_actions_come_and_a_failure_of_the_learner_is_reported(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = inference_pb2.GetStatusResponse(failure="the disk burns")
    monkeypatch.setattr(FakeLearner, "GetStatus", lambda *_: answer)
    learner = FakeLearner()
    learner.start()
    try:
        address = f"--set=actor.learner_address={learner.address}"
        assert selftest.main(["--experiment=memory", address]) == 1
        output = capsys.readouterr().err
        assert "an action came: [[" in output
        assert "FAILED: the learner has failed: the disk burns" in output
        learner.is_finished = True
        answer.failure = ""
        assert selftest.main(["--experiment=memory", address]) == 0
        assert "training is finished" in capsys.readouterr().err
    finally:
        learner.stop()


def test_replay(tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    server = ReplayServer(tmp_path, {"min_size_to_sample": 2}).start()
    try:
        with pytest.raises(selftest.SelftestError, match=r"no table 'other'.*\['sequences'\]"):
            selftest.check_replay(server.address, "other", selftest.Deadline(20))
        with pytest.raises(selftest.SelftestError, match="no learner has written"):
            selftest.check_replay(server.address, "sequences", selftest.Deadline(1))
        stream = InsertCall(server, layout=LAYOUT)
        stream.receive()
        stream.insert(1, [1.0, 2.0])
        selftest.check_replay(server.address, "sequences", selftest.Deadline(20))
        assert "gave a sequence of 8 bytes" in caplog.text
        stream.end()
    finally:
        server.close()
