"""Mutual TLS between the processes of a run; who has no certificate is refused."""

from __future__ import annotations

import pathlib

import grpc
import pytest
import trustme

from services.shared import config, probe, rpc
from services.shared.generated.seedpod.inference.v1 import inference_pb2, inference_pb2_grpc
from services.shared.generated.seedpod.replay.v1 import replay_pb2, replay_pb2_grpc
from tests.certificates import write_certificate
from tests.e2e import runs

ENDLESS = "--frames=100000000"


def options(tls: config.TlsConfig) -> list[str]:
    return [
        f"--set={service}.tls={{certificate: {tls.certificate}, key: {tls.key},"
        f" authority: {tls.authority}}}"
        for service in ("actor", "learner", "replay")
    ]


def ask_learner(address: str, tls: config.TlsConfig | None) -> inference_pb2.GetStatusResponse:
    with rpc.channel(address, tls=tls) as channel:
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        answer: inference_pb2.GetStatusResponse = stub.GetStatus(
            inference_pb2.GetStatusRequest(), timeout=5
        )
        return answer


def ask_replay(address: str, tls: config.TlsConfig | None) -> replay_pb2.GetStatusResponse:
    with rpc.channel(address, tls=tls) as channel:
        stub = replay_pb2_grpc.ReplayServiceStub(channel)
        answer: replay_pb2.GetStatusResponse = stub.GetStatus(
            replay_pb2.GetStatusRequest(), timeout=5
        )
        return answer


def address_of(process_id: int, service: str) -> str:
    """As the launcher has told the service."""
    (found,) = runs.wait_for(
        lambda: runs.descendants(process_id, f"services.{service}"), f"the {service}"
    )
    prefix = f"--set={service}.address="
    (address,) = (a for a in found.cmdline() if a.startswith(prefix))
    return str(address.removeprefix(prefix))


def test_a_run_trains_over_mutual_tls_and_refuses_strangers(tmp_path: pathlib.Path) -> None:
    authority = trustme.CA()
    tls = write_certificate(tmp_path / "tls", authority)
    process = runs.start(tmp_path / "runs", "memory-r2d2", ENDLESS, *options(tls))
    learner, replay = (address_of(process.pid, s) for s in ("learner", "replay"))

    def updates() -> int:
        try:
            return int(ask_learner(learner, tls).updates)
        except grpc.RpcError:
            return 0

    runs.wait_for(lambda: updates() > 5, "training")
    assert ask_replay(replay, tls).tables[0].sampled_items > 0

    stranger = write_certificate(tmp_path / "stranger", trustme.CA())
    # Knows whom to trust, but is not trusted itself.
    stranger = stranger.model_copy(update={"authority": tls.authority})
    for bad in (None, stranger):
        for ask, address in ((ask_learner, learner), (ask_replay, replay)):
            with pytest.raises(grpc.RpcError) as refused:
                ask(address, bad)
            assert refused.value.code() is grpc.StatusCode.UNAVAILABLE

    health = ["--address", replay, "--service", "seedpod.replay.v1.ReplayService"]
    folder = ["--tls", str(tmp_path / "tls")]
    assert probe.main([*health, *folder]) == 0
    assert probe.main([*health, *folder, "--server-name=10.1.1.1"]) == 1  # not in it
    assert probe.main([*health, *folder, "--service=x"]) == 1
    assert probe.main(health) == 1
    assert probe.main([*health, "--tls=/nowhere"]) == 1

    # A certificate that is renewed, here by another authority, is taken up without a restart.
    renewed = trustme.CA()
    write_certificate(tmp_path / "tls", renewed)
    runs.wait_for(lambda: updates() > 0, "the renewed certificate")
    assert ask_replay(replay, tls).tables[0].items > 0
    with pytest.raises(grpc.RpcError):
        ask_learner(learner, write_certificate(tmp_path / "old", authority))
    # Nor need the clients be restarted: the learner comes back to replay, the actor to the learner.
    for module in ("services.replay", "services.learner.front_end"):
        (victim,) = runs.descendants(process.pid, module)
        victim.kill()
        before = updates()
        runs.wait_for(lambda before=before: updates() > before + 5, f"training without {module}")  # type: ignore[misc]
    actor = (runs.folder(tmp_path / "runs") / "actor-0.log").read_text()
    assert actor.count("leased 16 slots") == 1
    assert "the certificate was renewed" in actor

    # Neither the keys nor the leases' tokens are in what a run leaves behind.
    key = (tmp_path / "tls" / "tls.key").read_text().splitlines()[1]
    for path in (tmp_path / "runs").rglob("*"):
        if path.is_file():
            data = path.read_bytes()
            assert key.encode() not in data, path
            assert b"PRIVATE KEY" not in data, path

    assert runs.interrupt(process, group=False) < 30
    runs.finish(process)


def test_a_missing_certificate_is_named(tmp_path: pathlib.Path) -> None:
    tls = write_certificate(tmp_path / "tls", trustme.CA())
    (tmp_path / "tls" / "tls.key").unlink()
    process = runs.start(tmp_path / "runs", "cartpole", ENDLESS, *options(tls))
    assert "tls.key" in runs.fail(process)
