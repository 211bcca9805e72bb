"""The trained classifier: features, probabilities, what it says, and how it is kept.

Multinomial logistic regression on embeddings of the reply and the answer, and on how alike the reply is to the answer
and to the request before; probabilities are scaled by one temperature (Guo et al. 2017). Kept as an `.npz` and a
`.json` in a folder named after their content's digest, so that nothing has to be executed to read one, and a changed
one is told.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from evaluators.intervals import Interval
from evaluators.next_state import LABELS, Label
from evaluators.next_state.replies import Reply
from evoplane import files

Array = NDArray[np.float64]
Embed = Callable[[Sequence[str]], Array]
"""Unit vectors of texts: (texts, dimensions)."""
_CURRENT = "current"
_WEIGHTS, _ABOUT = "weights.npz", "about.json"
_ENDING = 400
"""Characters: of an answer the end, of a reply the beginning."""


class ClassifierError(Exception):
    """The files are no classifier, or not the one they are named after."""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured on replies that the model had not seen (cross-validation by conversation)."""

    labels: dict[str, int]
    accuracy: Interval
    spoken_accuracy: Interval
    """Of what it says at or above its confidence, which was chosen on other conversations."""
    spoken: Interval
    """Share of replies it says something about."""
    calibration_error: Interval
    """Expected calibration error: mean distance of confidence from accuracy, in ten bins."""


class Saying(msgspec.Struct, frozen=True):
    """What the classifier says of a reply."""

    label: Label | None
    """None below its confidence."""
    confidence: float
    """Probability of the likeliest label."""


class Classifier(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    coefficients: Array
    """(labels, features)."""
    intercepts: Array
    temperature: float
    threshold: float
    """Confidence below which it says nothing."""
    embedding: str
    """Package and version of the embeddings it was trained on."""
    report: Report

    @cached_property
    def digest(self) -> str:
        """`sha256:` over the numbers and everything said about them."""
        parts = [self._about(), self.coefficients.astype("<f8").tobytes(), self.intercepts.astype("<f8").tobytes()]
        return "sha256:" + hashlib.sha256(b"\0".join(parts)).hexdigest()

    def probabilities(self, features: Array) -> Array:
        """(replies, labels), in the order of `LABELS`."""
        return softmax((features @ self.coefficients.T + self.intercepts) / self.temperature)

    def say(self, replies: Sequence[Reply], embed: Embed) -> list[Saying]:
        """What it says of each reply."""
        if not replies:
            return []
        told = self.probabilities(features(replies, embed))
        best = told.argmax(axis=1)
        return [
            Saying(LABELS[at] if row[at] >= self.threshold else None, float(row[at]))
            for row, at in zip(told, best, strict=True)
        ]

    def save(self, folder: Path) -> Path:
        """Write it below `folder`; the directory's name is its digest."""
        place = folder / self.digest.removeprefix("sha256:")
        place.mkdir(parents=True, exist_ok=True)
        np.savez(place / _WEIGHTS, coefficients=self.coefficients, intercepts=self.intercepts)
        (place / _ABOUT).write_bytes(self._about())
        return place

    def _about(self) -> bytes:
        about = {
            "temperature": self.temperature, "threshold": self.threshold, "embedding": self.embedding,
            "labels": list(LABELS), "report": _plain(msgspec.to_builtins(self.report)),
        }  # fmt: skip
        return json.dumps(about, sort_keys=True, indent=1).encode()


def load(place: Path) -> Classifier:
    """Read a classifier; raises `ClassifierError` when it is not what its directory's name says."""
    try:
        about = json.loads((place / _ABOUT).read_bytes())
        with np.load(place / _WEIGHTS, allow_pickle=False) as arrays:
            coefficients, intercepts = arrays["coefficients"], arrays["intercepts"]
        if tuple(about.pop("labels")) != LABELS:
            raise ClassifierError(f"{place}: other labels than {', '.join(LABELS)}")
        report = msgspec.convert(about.pop("report"), Report)
        read = Classifier(coefficients=coefficients, intercepts=intercepts, report=report, **about)
    except (OSError, ValueError, KeyError, TypeError, msgspec.ValidationError) as error:
        raise ClassifierError(f"{place}: {error}") from error
    if read.digest != f"sha256:{place.name}":
        raise ClassifierError(f"{place}: the content's digest is {read.digest}: it was changed")
    return read


def in_use(folder: Path) -> Classifier | None:
    """The classifier that `use` named last; None before any."""
    name = folder / _CURRENT
    return load(folder / name.read_text().strip()) if name.exists() else None


def use(folder: Path, classifier: Classifier) -> Path:
    """Keep a classifier and name it as the one in use."""
    place = classifier.save(folder)
    files.write_durably(folder / _CURRENT, place.name.encode())
    return place


def features(replies: Sequence[Reply], embed: Embed) -> Array:
    """(replies, features): the reply, the answer it follows, and its similarity to that and to the request before."""
    texts = [r.text[:_ENDING] for r in replies]
    reply, answer, request = (
        embed(told) for told in (texts, [r.answer[-_ENDING:] for r in replies], [r.request[:_ENDING] for r in replies])
    )
    near = [(reply * answer).sum(axis=1), (reply * request).sum(axis=1)]
    return np.hstack([reply, answer, np.stack(near, axis=1)])


def softmax(logits: Array) -> Array:
    shifted = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.asarray(shifted / shifted.sum(axis=1, keepdims=True))


def _plain(value: Any) -> Any:
    """Numbers as JSON has them."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return None if isinstance(value, float) and not np.isfinite(value) else value
