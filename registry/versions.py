"""Agent versions in MLflow's model registry: the part people look at.

Each version is a registered-model version whose bundle holds the manifest, the adapter and the evidence,
with lineage as tags. Its number is the version's label everywhere. What is *served* is decided by the
control database (`registry.pointers`); MLflow's aliases mirror that and can be rebuilt from it at any time.
"""

from __future__ import annotations

import hashlib
import shutil
import sqlite3
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from evoplane.settings import Settings
from registry import pointers, tracking
from registry.control import now
from registry.manifest import AgentVersion, Manifest
from registry.tenants import RegistryError

_MAX_TAG_CHARS = 4000
_ADAPTER_FILES = ("adapter_config.json", "adapter_model.safetensors")
_SHOWN_AS = {"approval": "approval_id"}
"""Lineage by another name in MLflow: the tag `approval` there is what a person says (`registry.mlflow_approvals`)."""
ALIASES = ("champion", "previous", "canary", "shadow")


def register(
    config: Settings,
    connection: sqlite3.Connection,
    agent: str,
    manifest: Manifest,
    *,
    parent: str | None = None,
    intervention: str = "initial",
    description: str = "",
    lineage: Mapping[str, str] | None = None,
    evidence: Mapping[str, Any] | None = None,
    metrics: Mapping[str, float] | None = None,
) -> AgentVersion:
    """Register a version in MLflow and make it known to the gateways; returns it with its label.

    Registering the same manifest for the same decision again returns the version there is, so a flow that
    is run again registers once.
    """
    lineage = dict(lineage or {})
    for known in pointers.versions(connection, agent).values():
        if known.digest == manifest.digest and known.lineage.get("decision") == lineage.get("decision"):
            return known
    mlflow = tracking.client(config)
    _ensure_model(config, agent)
    run = tracking.start_run(config, agent, f"{intervention} · {description[:80]}", {**lineage, "parent": parent})
    tracking.log_metrics(config, run, metrics or {})
    with tempfile.TemporaryDirectory() as folder:
        bundle = Path(folder)
        (bundle / "manifest.json").write_bytes(_pretty(msgspec.to_builtins(manifest)))
        (bundle / "evidence.json").write_bytes(_pretty(dict(evidence or {})))
        if manifest.policy.path:
            shutil.copytree(config.var / manifest.policy.path, bundle / "adapter")
        mlflow.log_artifacts(run, str(bundle), "bundle")
    tags = {
        "parent": parent or "",
        "intervention": intervention,
        "manifest": manifest.digest,
        **lineage,
    }
    created = mlflow.create_model_version(
        agent,
        source=f"runs:/{run}/bundle",
        run_id=run,
        description=description,
        tags={key: str(value)[:_MAX_TAG_CHARS] for key, value in tags.items()},
    )
    tracking.finish_run(config, run)
    version = AgentVersion(
        agent=agent,
        version=str(created.version),
        digest=manifest.digest,
        manifest=manifest,
        parent=parent,
        intervention=intervention,
        description=description,
        lineage=lineage,
        created_at=now(),
    )
    pointers.put_version(connection, version)
    return version


def tag(config: Settings, connection: sqlite3.Connection, agent: str, version: str, tags: Mapping[str, str]) -> None:
    """Add lineage known only later (who approved, how the canary went) to both records of a version."""
    known = pointers.versions(connection, agent).get(version)
    if known is None:
        raise RegistryError(f"{agent} has no version {version!r}")
    pointers.put_version(connection, msgspec.structs.replace(known, lineage={**known.lineage, **tags}))
    mlflow = tracking.client(config)
    for key, value in tags.items():
        mlflow.set_model_version_tag(agent, version, _SHOWN_AS.get(key, key), str(value)[:_MAX_TAG_CHARS])


def mirror_aliases(config: Settings, connection: sqlite3.Connection, agent: str) -> dict[str, str]:
    """Bring MLflow's aliases in line with the agent's route and verify them; returns the aliases.

    Raises `RegistryError` when MLflow does not show what was written.
    """
    route = pointers.read_route(connection, agent)
    wanted = {name: label for name in ALIASES if (label := getattr(route, name)) is not None}
    mlflow = tracking.client(config)
    current = dict(mlflow.get_registered_model(agent).aliases)
    for name, label in wanted.items():
        if str(current.get(name)) != label:
            mlflow.set_registered_model_alias(agent, name, label)
    for name in ALIASES:
        if name in current and name not in wanted:
            mlflow.delete_registered_model_alias(agent, name)
    shown = {n: str(v) for n, v in mlflow.get_registered_model(agent).aliases.items() if n in ALIASES}
    if shown != wanted:
        raise RegistryError(f"MLflow shows the aliases {shown} of {agent}, not {wanted}: mirror them again")
    return shown


def reconcile(config: Settings, connection: sqlite3.Connection) -> list[str]:
    """Mirror every agent's aliases; returns the agents. For start-up, after whatever happened before."""
    agents = sorted(pointers.all_routes(connection))
    for agent in agents:
        mirror_aliases(config, connection, agent)
    return agents


def version_url(config: Settings, agent: str, version: str) -> str:
    return f"{config.mlflow_url}/#/models/{agent}/versions/{version}"


def adapter_digest(directory: Path) -> str:
    """`sha256:` over an adapter's files, each preceded by its name and length; the worker's identity too."""
    hasher = hashlib.sha256()
    for name in _ADAPTER_FILES:
        content = (directory / name).read_bytes()
        hasher.update(f"{name}\0{len(content)}\0".encode() + content)
    return f"sha256:{hasher.hexdigest()}"


def _ensure_model(config: Settings, agent: str) -> None:
    from mlflow.exceptions import MlflowException

    mlflow = tracking.client(config)
    try:
        mlflow.create_registered_model(agent, description="versions of an Evoplane agent")
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise


def _pretty(value: Any) -> bytes:
    return msgspec.json.format(msgspec.json.encode(value), indent=2)
