"""Renders the chart with the real helm, and validates what comes out."""

from __future__ import annotations

import functools
import json
import pathlib
import subprocess
from typing import Any

import jsonschema
import kubernetes_validate
import yaml
from kubernetes_validate import utils

ROOT = pathlib.Path(__file__).resolve().parents[3]
CHART = ROOT / "helm" / "seedpod"
TOOLS = ROOT / "build" / "tools"
HELM = TOOLS / "helm"
PRESETS = sorted(path.stem for path in (CHART / "presets").glob("*.yaml"))
EXPERIMENTS = sorted(path.stem for path in (CHART / "experiments").glob("*.yaml"))
VERSIONS = [f"1.{minor}" for minor in range(30, 38)]
# Schemas of the `spec` of custom resources by "apiVersion kind", and `$defs`.
CRDS = yaml.safe_load((pathlib.Path(__file__).parent / "crds.yaml").read_text())
# Read once, not for each object.
utils.schema_contents = functools.cache(utils.schema_contents)

Object = dict[str, Any]
_validated: set[str] = set()


def helm(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs helm."""
    assert HELM.exists(), f"{HELM} is missing: run `make tools`"
    return subprocess.run([HELM, *arguments], capture_output=True, text=True, timeout=60)


@functools.cache
def _render(arguments: tuple[str, ...]) -> str:
    result = helm("template", "run", str(CHART), "--namespace=ns", *arguments)
    assert result.returncode == 0, result.stderr
    return result.stdout


def render(*arguments: str) -> list[Object]:
    """The objects of release `run` in namespace `ns`.

    Args:
      arguments: `key=value`, `preset:NAME`, `experiment:NAME`, or an option of helm's.
    """
    text = _render(tuple(_argument(a) for a in arguments))
    return [document for document in yaml.load_all(text, yaml.CSafeLoader) if document]


def refuse(*arguments: str) -> str:
    """What helm says to values that it does not take."""
    options = [_argument(a) for a in arguments]
    result = helm("template", "run", str(CHART), "--namespace=ns", *options)
    assert result.returncode != 0, f"was accepted: {arguments}"
    return result.stderr


def _argument(text: str) -> str:
    kind, _, name = text.partition(":")
    if kind in ("preset", "experiment"):
        return f"--values={CHART}/{kind}s/{name}.yaml"
    return text if text.startswith("--") else f"--set={text}"


def find(objects: list[Object], kind: str, suffix: str = "") -> Object:
    """The only object of a kind whose name ends like this."""
    (found,) = find_all(objects, kind, suffix)
    return found


def find_all(objects: list[Object], kind: str, suffix: str = "") -> list[Object]:
    return [o for o in objects if o["kind"] == kind and o["metadata"]["name"].endswith(suffix)]


def workload(objects: list[Object], component: str) -> Object:
    kind = "Deployment" if component in ("actor", "evaluator") else "StatefulSet"
    return find(objects, kind, f"-{component}")


def pods(objects: list[Object]) -> dict[str, Object]:
    """Pod specs by component, that of `helm test` included."""
    found = {}
    for o in objects:
        template = o if o["kind"] == "Pod" else o.get("spec", {}).get("template")
        if template and "containers" in template.get("spec", {}):
            found[o["metadata"]["labels"]["app.kubernetes.io/component"]] = template["spec"]
    return found


def container(objects: list[Object], component: str) -> Object:
    (only,) = pods(objects)[component]["containers"]
    result: Object = only
    return result


def experiment(objects: list[Object]) -> Any:
    return yaml.safe_load(find(objects, "ConfigMap", "-experiment")["data"]["experiment.yaml"])


def validate(objects: list[Object]) -> None:
    """Strictly, against every Kubernetes version; custom resources by the schemas here."""
    for o in objects:
        key = json.dumps(o, sort_keys=True)
        if key in _validated:
            continue
        where = f"{o['kind']} {o['metadata']['name']}"
        custom = CRDS.get(f"{o['apiVersion']} {o['kind']}")
        if custom is not None:
            _validate_custom(o, custom)
            continue
        for version in VERSIONS:
            try:
                kubernetes_validate.validate(o, version, strict=True)
            except kubernetes_validate.ValidationError as error:
                raise AssertionError(f"{where}, Kubernetes {version}: {error}") from error
            except kubernetes_validate.SchemaNotFoundError as error:  # its command only warns
                raise AssertionError(f"{where}: {error.message}") from error
        _validated.add(key)


def _validate_custom(o: Object, spec: Any) -> None:
    keys = {"apiVersion": {}, "kind": {}, "metadata": {"$ref": "#/$defs/metadata"}, "spec": spec}
    schema = {
        "$defs": CRDS["$defs"],
        "properties": keys,
        "required": list(keys),
        "additionalProperties": False,
    }
    jsonschema.Draft202012Validator(schema).validate(o)
