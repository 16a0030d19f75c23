"""Wrong values are refused, with a message that names them."""

from __future__ import annotations

import pytest

from tests.unit.chart import chart

TPU = "learner.accelerator.type=tpu"
TWO_TO_ONE = ("_arguments.left_players=2", "_arguments.right_players=1")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nodeSelector.a=b"], "additional properties 'nodeSelector' not allowed"),
        (["actor.replica=3"], "'/actor': additional properties 'replica' not allowed"),
        (["learner.image.name=x"], "'/learner/image': additional properties 'name' not allowed"),
        (
            ["experiment.learner.batchsize=3"],
            "'/experiment/learner': additional properties 'batchsize' not allowed",
        ),
        (
            ["experiment.learner.vtrace.entropy.price=3"],
            "'/experiment/learner/vtrace/entropy': additional properties 'price' not allowed",
        ),
        (["experiment.learner.batch_size=0"], "'/experiment/learner/batch_size': minimum: got 0"),
        (["experiment.actor.environment=null"], "missing property 'environment'"),
        (["actor.replicas=-1"], "'/actor/replicas': minimum: got -1, want 0"),
        (["actor.replicas=many"], "'/actor/replicas': got string, want integer"),
        (["learner.replicas=2", TPU], "learner.replicas is 2 on TPUs, allowed: 0 or 1"),
        (
            ["learner.replicas=2", "learner.persistence.existingClaim=mine"],
            "existingClaim is mine for 2 learners, allowed: for one, each has a volume of its own",
        ),
        (
            ["learner.replicas=2", "actor.autoscaling.hpa.enabled=true"],
            "seedpod_actors_wanted of one learner and learner.replicas is 2, allowed: hpa with",
        ),
        (
            ["learner.replicas=3", "actor.replicas=1", "experiment.actor.workers=2"],
            "1 actor pods of 2 workers for 3 learners, allowed: a worker for each learner or more",
        ),
        (
            ["learner.replicas=2", "actor.replicas=65"],
            "need 2080 env slots, experiment.learner.max_slots is 1024 in each of 2 learners",
        ),
        (
            ["experiment.learner.inference=actors"],
            "experiment.learner.inference is actors, allowed in a cluster: learner",
        ),
        (
            ["experiment:cartpole-r2d2", "replay.replicas=0"],
            "replay.replicas is 0, allowed with learner.algorithm r2d2: 1 or more",
        ),
        (
            [
                "experiment:cartpole-r2d2",
                *("replay.replicas=2", "replay.persistence.existingClaim=mine"),
            ],
            "a shard needs a volume of its own",
        ),
        (["learner.checkpointDirectory=gs://bucket/x"], "'gs://bucket/x' does not match pattern"),
        (["actor.resources.limits=null"], "'/actor/resources': missing property 'limits'"),
        (
            ["tls.enabled=true"],
            'existingSecret is "", existingSecrets {} and certManager.enabled false',
        ),
        (
            ["tls.enabled=true", "tls.existingSecret=mine", "tls.existingSecrets.actor=ours"],
            "allowed with tls.enabled: exactly one of them",
        ),
        (
            [
                *("experiment:cartpole-r2d2", "tls.enabled=true"),
                *(f"tls.existingSecrets.{name}=ours" for name in ("learner", "actor", "test")),
            ],
            "tls.existingSecrets has no replay, allowed: a secret for each of learner actor replay",
        ),
        (
            [
                *("tls.enabled=true", "tls.existingSecret=mine"),
                *("tls.certManager.enabled=true", "tls.certManager.issuerRef.name=ours"),
            ],
            "allowed with tls.enabled: exactly one of them",
        ),
        (
            ["tls.enabled=true", "tls.certManager.enabled=true"],
            "tls.certManager.issuerRef.name is empty, allowed: the name of an Issuer",
        ),
        (["actor.image.tag=latest"], "actor.image.tag is latest, allowed: a tag"),
        (["monitoring.scrape=prometheus"], "'/monitoring/scrape': value must be one of"),
        (
            ["actor.pdb.enabled=true", "actor.pdb.minAvailable=1", "actor.pdb.maxUnavailable=1"],
            "actor.pdb: minAvailable is 1 and maxUnavailable 1, allowed: exactly one",
        ),
        (["learner.pdb.enabled=true"], "minAvailable is null and maxUnavailable null"),
        (
            ["actor.autoscaling.hpa.enabled=true", "actor.autoscaling.keda.enabled=true"],
            "actor.autoscaling: hpa and keda are both enabled, allowed: one of them",
        ),
        (["actor.autoscaling.minReplicas=11"], "minReplicas is 11, allowed: at most maxReplicas"),
        (
            ["actor.autoscaling.hpa.enabled=true", "actor.autoscaling.hpa.metric=gke"],
            "metric is gke and monitoring.scrape none, allowed with it: podMonitoring",
        ),
        ([TPU, "learner.accelerator.tpu.accelerator=tpu-v9"], "tpu-v9, allowed: tpu-v4-podslice,"),
        (
            [TPU, "learner.accelerator.tpu.topology=4x4", "learner.accelerator.tpu.chips=16"],
            "topology is 4x4, allowed for tpu-v5-lite-podslice: 1x1, 2x2, 2x4",
        ),
        (
            [
                *(TPU, "learner.accelerator.tpu.accelerator=tpu-v5p-slice"),
                *("learner.accelerator.tpu.topology=2x2", "learner.accelerator.tpu.chips=4"),
            ],
            "topology is 2x2, allowed for tpu-v5p-slice: 2x2x1",
        ),
        (
            [TPU, "learner.accelerator.tpu.topology=2x4", "learner.accelerator.tpu.chips=4"],
            "chips is 4, a topology of 2x4 has 8: a pod takes all chips of its node",
        ),
        # 9 pods x 2 cores x 2 groups x 32 environments.
        (
            ["actor.replicas=9", "experiment.actor.environments_per_group=32"],
            "need 1152 env slots, experiment.learner.max_slots is 1024",
        ),
        # The autoscaler's most count: 10 pods x 1 x 2 x 64.
        (
            [
                *("actor.autoscaling.hpa.enabled=true", "experiment.actor.workers=1"),
                "experiment.actor.environments_per_group=64",
            ],
            "10 actor pods of 1 workers with 2 groups of 64 environments need 1280 env slots",
        ),
        (
            ["actor.resources.limits.cpu=1500m", "actor.replicas=33"],
            "33 actor pods of 2 workers with 2 groups of 8 environments need 1056 env slots",
        ),
        (
            ["evaluator.enabled=true", "evaluator.environments=993"],
            "8 environments and 993 slots of the evaluator need 1057 env slots",
        ),
        # 4 pods x 2 cores x 2 groups x 32 environments x (2 + 1) agents; the evaluator's 4 x 3.
        (
            [
                *("actor.replicas=4", "experiment.actor.environments_per_group=32"),
                *(f"experiment.actor.environment{x}" for x in ("=football", *TWO_TO_ONE)),
                "evaluator.enabled=true",
            ],
            "32 environments of 3 agents and 12 slots of the evaluator need 1548 env slots",
        ),
        (["evaluator.image.tag=latest"], "evaluator.image.tag is latest, allowed: a tag that"),
    ],
)
def test_refused(arguments: list[str], message: str) -> None:
    assert message in chart.refuse(*arguments)
