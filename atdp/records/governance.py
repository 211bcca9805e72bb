"""Who may do what with a record: classification, redaction, retention, legal basis, review, eligibility."""

from __future__ import annotations

from typing import Literal

from msgspec import UNSET, UnsetType

from atdp.records.common import PartOfRecord, Time

Decision = Literal["allow", "deny", "pending"]


class Redaction(PartOfRecord, frozen=True):
    state: Literal["none", "redacted", "sealed"]
    policy: str | UnsetType = UNSET


class Retention(PartOfRecord, frozen=True):
    policy: str | UnsetType = UNSET
    expires_at: Time | UnsetType = UNSET
    legal_hold: bool | UnsetType = UNSET


class Basis(PartOfRecord, frozen=True):
    kind: Literal["consent", "contract", "legitimate_interest", "legal_obligation", "synthetic", "none"]
    ref: str | UnsetType = UNSET


class Eligibility(PartOfRecord, frozen=True):
    """What the record may be used for; deny wins over every later allow."""

    train: Decision | UnsetType = UNSET
    evaluate: Decision | UnsetType = UNSET
    replay: Decision | UnsetType = UNSET
    debug: Decision | UnsetType = UNSET
    cross_tenant: Decision | UnsetType = UNSET


class Gov(PartOfRecord, frozen=True):
    tenant: str | UnsetType = UNSET
    classification: Literal["public", "internal", "confidential", "restricted"] | UnsetType = UNSET
    labels: list[str] | UnsetType = UNSET
    redaction: Redaction | UnsetType = UNSET
    retention: Retention | UnsetType = UNSET
    basis: Basis | UnsetType = UNSET
    review: Literal["none", "pending", "approved", "rejected"] | UnsetType = UNSET
    eligibility: Eligibility | UnsetType = UNSET
