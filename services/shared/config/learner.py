"""The learner service's settings: network, algorithm, optimizer, serving."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import pydantic

from services.shared.config.base import (
    MEBIBYTE,
    Fraction,
    Model,
    NonNegative,
    NonNegativeInt,
    Port,
    Positive,
    PositiveInt,
    TlsConfig,
)


class ScheduleConfig(Model):
    """A value that changes linearly over the run's frames."""

    initial: NonNegative
    final: NonNegative = 0.0
    frames: PositiveInt | None = pydantic.Field(
        default=None, description="When `final` is reached. Default: the run's end."
    )


class OptimizerConfig(Model):
    """The optimizer."""

    name: Literal["adam", "rmsprop"] = "adam"
    learning_rate: NonNegative | ScheduleConfig = pydantic.Field(
        default=0.00048,
        description="That of IMPALA's published code; its paper (arXiv 1802.01561), table G.1, lets"
        " 0.0006 fall to 0 for Atari.",
    )
    beta_1: Fraction = pydantic.Field(default=0.9, description="Adam, arXiv 1412.6980.")
    beta_2: Fraction = pydantic.Field(default=0.999, description="Adam, arXiv 1412.6980.")
    decay: Fraction = pydantic.Field(default=0.99, description="RMSProp decay; IMPALA, table G.1.")
    momentum: Fraction = pydantic.Field(
        default=0.0, description="RMSProp momentum; IMPALA, table G.1."
    )
    epsilon: Positive = pydantic.Field(
        default=1e-7,
        description=(
            "Adam: beside the root, Keras's default. RMSProp: inside the root; IMPALA's 0.01"
            " (table G.1) on a loss summed over 32 x 20 steps is 2.4e-8 on its mean."
        ),
    )
    clip_norm: Positive | None = pydantic.Field(
        default=0.5,
        description=(
            "Global gradient norm. The loss is a mean over steps, for which PPO codes use 0.5"
            " (arXiv 2005.12729); IMPALA's 40 (table G.1) belongs to a sum over 640 steps."
        ),
    )


class EntropyConfig(Model):
    """The entropy bonus: fixed, or adjusted so that the entropy meets a target."""

    cost: NonNegative | ScheduleConfig = pydantic.Field(
        default=0.01, description="IMPALA, table G.1."
    )
    target: float | None = pydantic.Field(
        default=None,
        description="Entropy in nats that `cost` (then its starting value) is adjusted to.",
    )
    adjustment_rate: Positive = pydantic.Field(
        default=10.0,
        description="Multiplies the learning rate for the adjusted cost, as SEED RL does.",
    )

    @pydantic.model_validator(mode="after")
    def _adjusted_cost_is_positive(self) -> EntropyConfig:
        initial = self.cost.initial if isinstance(self.cost, ScheduleConfig) else self.cost
        if self.target is not None and initial == 0:
            raise ValueError(
                "cost is 0, allowed with a target: more than 0, because its logarithm is adjusted"
            )
        return self


class VtraceConfig(Model):
    """The V-trace actor-critic loss; IMPALA (arXiv 1802.01561), section 4."""

    discount: Fraction = pydantic.Field(default=0.99, description="IMPALA, table G.1.")
    trace_lambda: Fraction = pydantic.Field(default=1.0, description="IMPALA, remark 2.")
    clip_rho: Positive = pydantic.Field(default=1.0, description="IMPALA, section 4.1.")
    clip_c: Positive = pydantic.Field(default=1.0, description="IMPALA, section 4.1.")
    clip_pg_rho: Positive = pydantic.Field(default=1.0, description="IMPALA, section 4.2.")
    baseline_cost: NonNegative = pydantic.Field(default=0.5, description="IMPALA, table G.1.")
    entropy: EntropyConfig = EntropyConfig()
    reward_clip: Positive | None = pydantic.Field(
        default=None, description="Rewards are clipped to [-x, x]; IMPALA uses 1 for Atari."
    )


class R2d2Config(Model):
    """Recurrent replay distributed DQN; R2D2 (Kapturowski et al. 2019, ICLR)."""

    discount: Fraction = pydantic.Field(default=0.997, description="R2D2, table 2.")
    n_steps: PositiveInt = pydantic.Field(default=5, description="R2D2, section 2.3.")
    burn_in: NonNegativeInt = pydantic.Field(
        default=40, description="Records before the unroll that only bring the state up to date."
    )
    replay_period: PositiveInt = pydantic.Field(
        default=40,
        description="Records from the beginning of a sequence to that of the next one; must"
        " divide burn_in + unroll_length. R2D2, section 2.3: 40, for unrolls of 80.",
    )
    rescaling_epsilon: Positive = pydantic.Field(
        default=1e-3, description="Of the value rescaling h; R2D2, section 2.3."
    )
    priority_eta: Fraction = pydantic.Field(
        default=0.9, description="Weight of the largest against the mean error; R2D2, section 2.3."
    )
    importance_exponent: NonNegative = pydantic.Field(default=0.6, description="R2D2, table 2.")
    target_update_period: PositiveInt = pydantic.Field(
        default=2500, description="Updates between copies to the target network; R2D2, table 2."
    )
    epsilon: Fraction = pydantic.Field(
        default=0.4,
        description="Of the first slot: the i-th of N leased training slots acts at random with"
        " probability"
        " epsilon^(1 + epsilon_exponent i / (N - 1)); Ape-X (arXiv 1803.00933), section 4.1.",
    )
    epsilon_exponent: NonNegative = pydantic.Field(default=7.0, description="Ape-X, section 4.1.")
    evaluation_epsilon: Fraction = pydantic.Field(
        default=1e-3, description="Of evaluation slots, unless learner.evaluation.greedy."
    )
    dueling_size: PositiveInt = pydantic.Field(
        default=512,
        description="Hidden units of the value and of the advantage head; R2D2, fig. 1.",
    )
    replay_addresses: Annotated[tuple[str, ...], pydantic.Field(min_length=1)] = pydantic.Field(
        default=("localhost:50052",),
        description="host:port of each replay shard, in the same order for every learner.",
    )
    replay_table: str = "sequences"
    max_pending_bytes: PositiveInt = pydantic.Field(
        default=256 * MEBIBYTE,
        description="Sequences that may wait for a replay service that is away; further ones are"
        " dropped and counted.",
    )


class SelfPlayConfig(Model):
    """Opponents that are earlier policies of the run; Heinrich et al. 2015 (ICML)."""

    opponent_agents: PositiveInt = pydantic.Field(
        default=1,
        description="So many agents of each environment, the last ones, are opponents: in football"
        " those of the right team. Nothing is learned from what they see.",
    )
    newest_share: Fraction = pydantic.Field(
        default=0.8,
        description="Share of the episodes in which the opponent is the newest policy; OpenAI Five"
        " (arXiv 1912.06680): 0.8.",
    )
    pool_size: Annotated[int, pydantic.Field(ge=1, le=64)] = pydantic.Field(
        default=8, description="Earlier policies to choose from; a new one replaces the oldest."
    )
    snapshot_period: PositiveInt = pydantic.Field(
        default=1000, description="Updates from one policy of the pool to the next."
    )


class NetworkConfig(Model):
    """The network: a name known to `services.learner.networks` or `module:Class`."""

    name: str = "mlp"
    arguments: dict[str, Any] = pydantic.Field(
        default={}, description="Keyword arguments of the network's constructor."
    )
    mixed_precision: bool = pydantic.Field(
        default=False, description="bfloat16 inside the network; outputs and losses float32."
    )


class DevicesConfig(Model):
    """What the learner computes on; see docs/devices.md."""

    kind: Literal["auto", "cpu", "gpu", "tpu"] = pydantic.Field(
        default="auto",
        description="auto: GPUs if there are any, else the CPU. tpu: the cores of one host.",
    )
    count: PositiveInt | None = pydantic.Field(
        default=None,
        description="Devices that must be there; further ones are left idle. Default: all there"
        " are. Of cpu: logical devices, to try what several do.",
    )
    inference: PositiveInt | None = pydantic.Field(
        default=None,
        description="Of several devices those that only answer actors; the others train."
        " Default: 1. A single device does both.",
    )


class EvaluationConfig(Model):
    """Slots of actors whose role is evaluation."""

    greedy: bool = pydantic.Field(
        default=False,
        description="Take the most probable action instead of drawing one; R2D2: never act at"
        " random.",
    )
    episodes: PositiveInt = pydantic.Field(
        default=100, description="The newest so many are reported; so many make an evaluation."
    )
    results_path: str | None = pydantic.Field(
        default=None, description="A file that gets a line of JSON for each evaluation."
    )
    recordings_directory: str | None = pydantic.Field(
        default=None, description="Where actors' recordings are kept. Default: nowhere."
    )
    recordings_to_keep: PositiveInt = pydantic.Field(
        default=20, description="Recordings, and heat maps; the oldest go."
    )


class LearnerConfig(Model):
    """The learner service: inference, unrolls and training."""

    address: str = pydantic.Field(
        default="localhost:50051", description="host:port to serve on; port 0: any free one."
    )
    trajectory_address: str = pydantic.Field(
        default="localhost:50053",
        description="host:port to take unrolls on, with inference by actors.",
    )
    tls: TlsConfig | None = pydantic.Field(
        default=None, description="Files of the service's certificate. Default: no encryption."
    )
    metrics_port: Port | None = pydantic.Field(
        default=9100, description="Prometheus port; 0: any free one; null: none."
    )
    metrics_host: str = pydantic.Field(default="127.0.0.1", description="Where /metrics binds.")
    total_frames: PositiveInt = pydantic.Field(
        default=1_000_000_000, description="Environment frames to train on."
    )
    seed: int = 0
    network: NetworkConfig = NetworkConfig()
    algorithm: Literal["vtrace", "r2d2"] = pydantic.Field(
        default="vtrace", description="What is learned from the records, and how."
    )
    inference: Literal["learner", "actors"] = pydantic.Field(
        default="learner",
        description="Who holds the policy. `actors`: each actor service infers by itself, fetches"
        " parameters and sends unrolls, as in IMPALA; only V-trace.",
    )
    vtrace: VtraceConfig = VtraceConfig()
    r2d2: R2d2Config = R2d2Config()
    self_play: SelfPlayConfig | None = pydantic.Field(
        default=None, description="Default: all agents of an environment are the newest policy."
    )
    optimizer: OptimizerConfig = OptimizerConfig()
    devices: DevicesConfig = DevicesConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    unroll_length: PositiveInt = pydantic.Field(
        default=20, description="IMPALA, table G.1: 20; DMLab, table D.3: 100. R2D2: 80."
    )
    batch_size: PositiveInt = pydantic.Field(
        default=32,
        description="Unrolls or sequences in one update; IMPALA, table G.1: 32; R2D2: 64.",
    )
    sample_reuse: PositiveInt = pydantic.Field(
        default=1,
        description="V-trace: updates from each batch; it corrects what is then off-policy.",
    )
    inference_batch_size: PositiveInt = pydantic.Field(
        default=64, description="Slots after which a batch goes without waiting for more."
    )
    inference_max_wait_seconds: Annotated[float, pydantic.Field(ge=0, le=60)] = pydantic.Field(
        default=0.002, description="Longest time that a request waits for its batch to fill."
    )
    max_slots: PositiveInt = pydantic.Field(
        default=1024, description="Env slots to lease. Memory is used only by slots in use."
    )
    unrolls_per_slot: Annotated[int, pydantic.Field(ge=1, le=64)] = pydantic.Field(
        default=1,
        description="Finished unrolls a slot may hold before its actor has to wait.",
    )
    front_ends: PositiveInt = pydantic.Field(
        default=1, description="Processes that speak gRPC with the actors."
    )
    lease_grace_seconds: Annotated[float, pydantic.Field(ge=0.1, le=86400)] = pydantic.Field(
        default=30.0, description="How long slots stay leased after their last stream ended."
    )
    keepalive_seconds: Annotated[float, pydantic.Field(ge=0.1, le=3600)] = pydantic.Field(
        default=5.0, description="A silent peer is given up after twice this time."
    )
    xla: bool = pydantic.Field(
        default=False,
        description="Compile the training step with XLA: pays for convolutions on an accelerator,"
        " costs half a minute at the start.",
    )
    threads: PositiveInt | None = pydantic.Field(
        default=None, description="TensorFlow threads inside one operation. Default: all cores."
    )
    peers_timeout_seconds: Positive = pydantic.Field(
        default=600.0,
        description="How long a learner waits for the others of its run before it ends, to be"
        " started again.",
    )
    checkpoint_directory: str | None = None
    initial_checkpoint: str | None = pydantic.Field(
        default=None,
        description="A checkpoint whose network a new run begins with: of any environment in which"
        " an agent sees and does the same.",
    )
    checkpoint_interval_seconds: Positive = 600.0
    checkpoints_to_keep: PositiveInt = 3
    log_directory: str | None = pydantic.Field(default=None, description="TensorBoard event files.")

    @property
    def opponent_agents(self) -> int:
        """Agents of each environment, the last ones, that are played by past policies."""
        return self.self_play.opponent_agents if self.self_play is not None else 0

    @pydantic.model_validator(mode="after")
    def _actors_can_infer(self) -> LearnerConfig:
        if self.inference == "learner":
            return self
        if self.algorithm != "vtrace":
            raise ValueError(
                f"inference is actors with algorithm {self.algorithm}, allowed: vtrace, which"
                " corrects for the parameters' age"
            )
        if self.self_play is not None:
            raise ValueError(
                "inference is actors with self_play, allowed: without; the pool of opponents is"
                " the learner's"
            )
        return self

    @pydantic.model_validator(mode="after")
    def _sequences_fit(self) -> LearnerConfig:
        if self.algorithm != "r2d2":
            return self
        sequence, period = self.r2d2.burn_in + self.unroll_length, self.r2d2.replay_period
        if sequence % period:
            raise ValueError(
                f"r2d2.burn_in {self.r2d2.burn_in} + unroll_length {self.unroll_length} is"
                f" {sequence}, allowed: a multiple of r2d2.replay_period, {period}"
            )
        if self.r2d2.n_steps > self.unroll_length:
            raise ValueError(
                f"r2d2.n_steps is {self.r2d2.n_steps}, allowed: at most unroll_length,"
                f" {self.unroll_length}"
            )
        if self.sample_reuse != 1:
            raise ValueError(
                f"sample_reuse is {self.sample_reuse}, allowed with r2d2: 1; how often sequences"
                " are replayed is the table's samples_per_insert"
            )
        return self
