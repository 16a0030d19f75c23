"""The experiment document: one YAML file that every service reads, validated and frozen.

`load` is called by each service's `__main__` and by the launcher; the models below are the only
place where settings and their defaults are defined. A key that is not here is refused.
"""

from services.shared.config.actor import ActorConfig, RecordingConfig, environment_name
from services.shared.config.base import ClientRole, TlsConfig
from services.shared.config.experiment import (
    SCHEMA_VERSION,
    ConfigError,
    Experiment,
    LocalConfig,
    dump,
    load,
    load_replay,
    presets,
)
from services.shared.config.learner import (
    DevicesConfig,
    EntropyConfig,
    EvaluationConfig,
    LearnerConfig,
    NetworkConfig,
    OptimizerConfig,
    R2d2Config,
    ScheduleConfig,
    SelfPlayConfig,
    VtraceConfig,
)
from services.shared.config.replay import PersistenceConfig, ReplayConfig, TableConfig

__all__ = [
    "SCHEMA_VERSION",
    "ActorConfig",
    "ClientRole",
    "ConfigError",
    "DevicesConfig",
    "EntropyConfig",
    "EvaluationConfig",
    "Experiment",
    "LearnerConfig",
    "LocalConfig",
    "NetworkConfig",
    "OptimizerConfig",
    "PersistenceConfig",
    "R2d2Config",
    "RecordingConfig",
    "ReplayConfig",
    "ScheduleConfig",
    "SelfPlayConfig",
    "TableConfig",
    "TlsConfig",
    "VtraceConfig",
    "dump",
    "environment_name",
    "load",
    "load_replay",
    "presets",
]
