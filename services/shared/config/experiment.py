"""The document as a whole: reading, overriding, validating, writing."""

from __future__ import annotations

import importlib.resources
import pathlib
import re
from typing import Any, Literal, TypeVar

import pydantic
import yaml

from services.shared.config.actor import ActorConfig
from services.shared.config.base import Model, NonNegativeInt, Port, PositiveInt
from services.shared.config.learner import LearnerConfig
from services.shared.config.replay import ReplayConfig

SCHEMA_VERSION = 1
_SHOWN_CHARACTERS = 200

_Model = TypeVar("_Model", bound=Model)


class _Loader(yaml.SafeLoader):
    """PyYAML's, which takes `1e-7` for a string; Helm writes numbers in this form."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?[0-9]+[eE][-+]?[0-9]+$"), list("-+0123456789")
)


class ConfigError(ValueError):
    """An experiment that cannot be used; the message names what was given and allowed."""


class LocalConfig(Model):
    """The launcher that runs the whole system on one machine."""

    actors: PositiveInt = pydantic.Field(
        default=1,
        description="Actor services to start; each has the next higher actor.metrics_port.",
    )
    learners: PositiveInt = pydantic.Field(
        default=1,
        description="Learner services to start, which train one network together; each takes"
        " learner.batch_size unrolls or sequences for an update.",
    )
    replay_shards: PositiveInt = pydantic.Field(
        default=1, description="Replay services to start for R2D2; each has the tables' limits."
    )
    evaluation_environments: NonNegativeInt = pydantic.Field(
        default=0,
        description="Environments of one more actor, whose role is evaluation; 0: there is none.",
    )
    page_port: Port | None = pydantic.Field(
        default=0,
        description="Port of the page that shows a run under way; 0: any free one, so that runs at"
        " the same time have one each; null: none.",
    )
    page_host: str = pydantic.Field(
        default="127.0.0.1",
        description="Where it binds. Whoever reaches it can read it: there is no password.",
    )


class Experiment(Model):
    """One experiment, for all services."""

    version: Literal[1] = 1
    name: str = pydantic.Field(
        default="experiment",
        pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$",
        description="Runs are kept in folders of this name and the time.",
    )
    actor: ActorConfig
    learner: LearnerConfig = LearnerConfig()
    replay: ReplayConfig = ReplayConfig()
    local: LocalConfig = LocalConfig()

    @pydantic.model_validator(mode="after")
    def _actors_send_to_one_learner(self) -> Experiment:
        if self.learner.inference == "actors" and self.local.learners > 1:
            raise ValueError(
                f"local.learners is {self.local.learners}, allowed with learner.inference actors:"
                " 1, to which all of them send their unrolls"
            )
        return self


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
    return _validate(source, _document(source, overrides), Experiment)


def load_replay(source: str, overrides: list[str] | None = None) -> ReplayConfig:
    """Reads the replay service's section alone.

    So a replay service that stands on its own needs no document that says more than `replay`.

    Args:
      source: As for `load`.
      overrides: As for `load`, `replay.address=...` for example.

    Returns:
      The validated section.

    Raises:
      ConfigError: As for `load`.
    """
    document = _document(source, overrides)
    unknown = sorted(set(document) - set(Experiment.model_fields))
    if unknown:
        raise ConfigError(
            f"{source}: unknown sections {unknown}, allowed: {sorted(Experiment.model_fields)}"
        )
    return _validate(source, {"replay": document.get("replay", {})}, _ReplayDocument).replay


class _ReplayDocument(Model):
    replay: ReplayConfig


def dump(experiment: Experiment) -> str:
    """The experiment as the YAML that `load` reads, every default spelt out."""
    return yaml.safe_dump(experiment.model_dump(), sort_keys=False)


def presets() -> list[str]:
    """Names of the experiments that come with seedpod."""
    files = importlib.resources.files("services.local.experiments").iterdir()
    return sorted(f.name.removesuffix(".yaml") for f in files if f.name.endswith(".yaml"))


def _document(source: str, overrides: list[str] | None) -> dict[str, Any]:
    document = _read(source)
    for override in overrides or []:
        _apply(document, override)
    version = document.get("version", SCHEMA_VERSION)
    if version != SCHEMA_VERSION:
        raise ConfigError(
            f"{source}: experiment schema version is {version!r}, this seedpod reads"
            f" {SCHEMA_VERSION}"
        )
    return document


def _validate(source: str, document: dict[str, Any], model: type[_Model]) -> _Model:
    try:
        return model.model_validate(document)
    except pydantic.ValidationError as error:
        lines = [
            f"  {'.'.join(map(str, e['loc']))}: {e['msg']} (given: {_short(e['input'])})"
            for e in error.errors()
        ]
        raise ConfigError("\n".join([f"{source}: not a valid experiment:", *lines])) from None


def _short(value: object) -> str:
    """A value for a message; a whole section would hide what is wrong in it."""
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}..."


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
        document = yaml.load(text, _Loader)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
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
        node[last] = yaml.load(text, _Loader)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ConfigError(f"override {override!r}: value is not YAML: {error}") from None
