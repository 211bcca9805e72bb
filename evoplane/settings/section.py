"""What every section of the configuration is."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """Unknown keys are errors, and nothing changes while a process runs."""

    model_config = ConfigDict(extra="forbid", frozen=True)
