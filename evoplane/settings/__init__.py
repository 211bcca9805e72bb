"""One configuration: `evoplane.toml`, overridden by `EVOPLANE_<SECTION>__<KEY>` environment variables.

Unknown keys are errors, and secrets are never read from the file: keys live hashed in the control
database, and the one secret a deployment needs comes from the environment.
"""

from evoplane.settings.deployment import Settings
from evoplane.settings.forms import place_of
from evoplane.settings.loop import AlertEvent, AlertHook, Alerts, Delivery, Evolve, Monitor, Replay, Surfaces
from evoplane.settings.processes import Console, Evidently, Mlflow, Model, Otlp, Paths, Prefect, Worker
from evoplane.settings.reading import (
    WRONG_SETTINGS,
    SettingsError,
    ending_when_wrong,
    is_secret,
    read_settings,
    settings,
)
from evoplane.settings.signals import (
    Harvest,
    Judge,
    NextState,
    RewardClause,
    RewardSettings,
    SourceKind,
    WebhookRule,
    WebhookSource,
)
from evoplane.settings.traffic import A2aAgent, Gateway, McpServer, Price, Store, Translated, UpstreamSettings

__all__ = [
    "WRONG_SETTINGS",
    "A2aAgent",
    "AlertEvent",
    "AlertHook",
    "Alerts",
    "Console",
    "Delivery",
    "Evidently",
    "Evolve",
    "Gateway",
    "Harvest",
    "Judge",
    "McpServer",
    "Mlflow",
    "Model",
    "Monitor",
    "NextState",
    "Otlp",
    "Paths",
    "Prefect",
    "Price",
    "Replay",
    "RewardClause",
    "RewardSettings",
    "Settings",
    "SettingsError",
    "SourceKind",
    "Store",
    "Surfaces",
    "Translated",
    "UpstreamSettings",
    "WebhookRule",
    "WebhookSource",
    "Worker",
    "ending_when_wrong",
    "is_secret",
    "place_of",
    "read_settings",
    "settings",
]
