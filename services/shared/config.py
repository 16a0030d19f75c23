"""The experiment document: one YAML file that every service reads, validated and frozen.

`load` is called by each service's `__main__` and by the launcher; the models below are the only
place where settings and their defaults are defined. A key that is not here is refused.
"""

from __future__ import annotations

import importlib.resources
import pathlib
from typing import Annotated, Any, Literal

import pydantic
import yaml

SCHEMA_VERSION = 1

PositiveInt = Annotated[int, pydantic.Field(ge=1)]
NonNegative = Annotated[float, pydantic.Field(ge=0, allow_inf_nan=False)]
Positive = Annotated[float, pydantic.Field(gt=0, allow_inf_nan=False)]
Fraction = Annotated[float, pydantic.Field(ge=0, le=1)]


class ConfigError(ValueError):
    """An experiment that cannot be used; the message names what was given and allowed."""


class _Model(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(frozen=True, extra="forbid")


class ActorConfig(_Model):
    """The actor service: environments and how they are stepped."""

    environment: str = pydantic.Field(
        description="`football`, any gymnasium id, or `module:factory` of your own."
    )
    environment_arguments: dict[str, Any] = pydantic.Field(
        default={}, description="Keyword arguments of the environment's constructor."
    )
    workers: PositiveInt | None = pydantic.Field(
        default=None, description="Environment processes. Default: one for each CPU core."
    )
    groups: PositiveInt = pydantic.Field(
        default=2,
        description="Groups of each worker; one steps while another waits for its actions.",
    )
    environments_per_group: PositiveInt = pydantic.Field(
        default=8, description="Environments that step together and share one message."
    )
    seed: int = pydantic.Field(default=0, description="Each environment's seed derives from it.")
    learner_address: str = pydantic.Field(
        default="localhost:50051", description="host:port of the learner."
    )
    step_timeout_seconds: Positive = pydantic.Field(
        default=60.0,
        description="An environment that takes longer for one step or reset is replaced.",
    )
    start_timeout_seconds: Positive = pydantic.Field(
        default=120.0, description="An environment that takes longer to start has failed."
    )
    start_attempts: PositiveInt = pydantic.Field(
        default=3,
        description="An environment that fails to start this often in a row ends the actor.",
    )
    metrics_port: Annotated[int, pydantic.Field(ge=0, le=65535)] | None = pydantic.Field(
        default=None, description="Prometheus port; 0: any free one; null: none."
    )
    metrics_host: str = pydantic.Field(default="127.0.0.1", description="Where /metrics binds.")


class ScheduleConfig(_Model):
    """A value that changes linearly over the run's frames."""

    initial: NonNegative
    final: NonNegative = 0.0
    frames: PositiveInt | None = pydantic.Field(
        default=None, description="When `final` is reached. Default: the run's end."
    )


class OptimizerConfig(_Model):
    """The optimizer."""

    name: Literal["adam", "rmsprop"] = "adam"
    learning_rate: NonNegative | ScheduleConfig = pydantic.Field(
        default=0.00048,
        description="IMPALA (arXiv 1802.01561), table G.1: 0.00048 for the shallow model.",
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
            "Adam: beside the root, Keras's default. RMSProp: inside the root; IMPALA's 0.1"
            " (table G.1) on a loss summed over 32 x 20 steps is 2.4e-7 on its mean."
        ),
    )
    clip_norm: Positive | None = pydantic.Field(
        default=0.5,
        description=(
            "Global gradient norm. The loss is a mean over steps, for which PPO codes use 0.5"
            " (arXiv 2005.12729); IMPALA's 40 (table G.1) belongs to a sum over 640 steps."
        ),
    )


class EntropyConfig(_Model):
    """The entropy bonus: fixed, or adjusted so that the entropy meets a target."""

    cost: NonNegative | ScheduleConfig = pydantic.Field(
        default=0.01, description="IMPALA, table G.1: 0.01 is the middle of the range searched."
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


class VtraceConfig(_Model):
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


class NetworkConfig(_Model):
    """The network: a name known to `services.learner.networks` or `module:Class`."""

    name: str = "mlp"
    arguments: dict[str, Any] = {}
    mixed_precision: bool = pydantic.Field(
        default=False, description="bfloat16 inside the network; outputs and losses float32."
    )


class LearnerConfig(_Model):
    """The learner service: inference, unrolls and training."""

    address: str = pydantic.Field(
        default="localhost:50051", description="host:port to serve on; port 0: any free one."
    )
    metrics_port: Annotated[int, pydantic.Field(ge=0, le=65535)] | None = pydantic.Field(
        default=9100, description="Prometheus port; 0: any free one; null: none."
    )
    metrics_host: str = pydantic.Field(default="127.0.0.1", description="Where /metrics binds.")
    total_frames: PositiveInt = pydantic.Field(
        default=1_000_000_000, description="Environment frames to train on."
    )
    seed: int = 0
    network: NetworkConfig = NetworkConfig()
    vtrace: VtraceConfig = VtraceConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    unroll_length: PositiveInt = pydantic.Field(
        default=20, description="IMPALA, table G.1: 20; DMLab 100."
    )
    batch_size: PositiveInt = pydantic.Field(
        default=32, description="Unrolls in one update; IMPALA, table G.1: 32."
    )
    sample_reuse: PositiveInt = pydantic.Field(
        default=1,
        description="Updates from each batch; V-trace corrects what is then off-policy.",
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
        description="Compile the training step with XLA: pays for convolutions, costs half a"
        " minute at the start.",
    )
    threads: PositiveInt | None = pydantic.Field(
        default=None, description="TensorFlow threads inside one operation. Default: all cores."
    )
    checkpoint_directory: str | None = None
    checkpoint_interval_seconds: Positive = 600.0
    checkpoints_to_keep: PositiveInt = 3
    log_directory: str | None = pydantic.Field(default=None, description="TensorBoard event files.")


class LocalConfig(_Model):
    """The launcher that runs the whole system on one machine."""

    actors: PositiveInt = pydantic.Field(
        default=1,
        description="Actor services to start; each has the next higher actor.metrics_port.",
    )


class Experiment(_Model):
    """One experiment, for all services."""

    version: Literal[1] = 1
    name: str = pydantic.Field(
        default="experiment",
        pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$",
        description="Runs are kept in folders of this name and the time.",
    )
    actor: ActorConfig
    learner: LearnerConfig = LearnerConfig()
    local: LocalConfig = LocalConfig()


def load(source: str, overrides: list[str] | None = None) -> Experiment:
    """Reads an experiment.

    Args:
      source: A YAML file's path, or the name of a preset (`football`, `cartpole`, ...).
      overrides: `dotted.key=value` strings; the values are YAML.

    Returns:
      The validated experiment.

    Raises:
      ConfigError: The document does not exist, is no YAML mapping, has another schema version,
        an unknown key or a value outside its limits; the message says which.
    """
    document = _read(source)
    for override in overrides or []:
        _apply(document, override)
    version = document.get("version", SCHEMA_VERSION)
    if version != SCHEMA_VERSION:
        raise ConfigError(
            f"{source}: experiment schema version is {version!r}, this seedpod reads"
            f" {SCHEMA_VERSION}"
        )
    try:
        return Experiment.model_validate(document)
    except pydantic.ValidationError as error:
        lines = [
            f"  {'.'.join(map(str, e['loc']))}: {e['msg']} (given: {e['input']!r})"
            for e in error.errors()
        ]
        raise ConfigError("\n".join([f"{source}: not a valid experiment:", *lines])) from None


def dump(experiment: Experiment) -> str:
    """The experiment as the YAML that `load` reads, every default spelt out."""
    return yaml.safe_dump(experiment.model_dump(), sort_keys=False)


def presets() -> list[str]:
    """Names of the experiments that come with seedpod."""
    files = importlib.resources.files("services.local.experiments").iterdir()
    return sorted(f.name.removesuffix(".yaml") for f in files if f.name.endswith(".yaml"))


def _read(source: str) -> dict[str, Any]:
    path = pathlib.Path(source)
    if path.suffix in {".yaml", ".yml"}:
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{source}: cannot be read: {error}") from None
    elif source in presets():
        preset = importlib.resources.files("services.local.experiments") / f"{source}.yaml"
        text = preset.read_text(encoding="utf-8")
    else:
        raise ConfigError(f"experiment {source!r} is neither a .yaml file nor one of {presets()}")
    try:
        document = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"{source}: not YAML: {error}") from None
    if not isinstance(document, dict):
        raise ConfigError(f"{source}: is a {type(document).__name__}, must be a mapping")
    return document


def _apply(document: dict[str, Any], override: str) -> None:
    key, separator, text = override.partition("=")
    if not separator or not key:
        raise ConfigError(f"override {override!r} must look like learner.batch_size=64")
    *parents, last = key.split(".")
    node = document
    for parent in parents:
        child = node.setdefault(parent, {})
        if not isinstance(child, dict):
            raise ConfigError(f"override {override!r}: {parent} is {child!r}, not a mapping")
        node = child
    try:
        node[last] = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"override {override!r}: value is not YAML: {error}") from None
