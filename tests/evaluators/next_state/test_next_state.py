"""The next-state classifier: what it learns from, how it is kept, that it is calibrated and knows when to be silent."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evaluators.next_state import LABELS
from evaluators.next_state.classifier import Classifier, ClassifierError, load
from evaluators.next_state.feedback import reply_signals
from evaluators.next_state.replies import Reply, replies_of
from evaluators.next_state.training import MIN_LABELS, TooFewLabels, _calibration_error, train
from evaluators.rewards import DEFAULT_RULE
from evaluators.text_drift import embed as embed_texts
from tests.evaluators.rewards.making import event, says

LABELLED = Path(__file__).parents[2] / "harvest" / "replies.jsonl"
lexical = partial(embed_texts, method="lexical")
"""Hashed words: quick, and enough to learn from plain words."""


def labelled() -> list[Reply]:
    """The replies of the harvesting tests in three classes; each is a conversation of its own."""
    made = []
    for number, line in enumerate(map(json.loads, LABELLED.read_text().splitlines())):
        names = line["labels"]
        label = "positive" if names == ["user_thanks"] else "negative" if names else "neutral"
        made.append(
            Reply(trajectory_id=f"tr{number}", event_id=f"ev{number}", request=(line["earlier"] or [""])[-1],
                  answer=line["answer"], text=line["text"], label=label)
        )  # fmt: skip
    return made


@pytest.fixture(scope="module")
def trained() -> Classifier:
    return train(labelled(), lexical, "words", precision=0.85)


def message(role: str, text: str) -> dict[str, Any]:
    return {"messages": [{"role": role, "parts": [{"type": "text", "content": text}]}]}


def test_replies_are_labelled_by_who_knows_the_outcome_and_not_by_what_was_read_in_them() -> None:
    records = []
    for n in range(4):
        records += [
            event(f"u{n}", "user_message", o=message("user", f"question {n}")),
            event(f"c{n}", a=message("assistant", f"answer {n}")),
        ]
    records.append(event("u4", "user_message", o=message("user", "bye")))
    records += [
        says("a", 0, "helpful", "end_user", about="c0"),
        says("b", 1, "user_thanks", "implicit", about="c1"),
        says("c", 1, "judge", "llm_judge", about="c1"),
        says("d", None, "next_state", "human", about="c2", kind="label", label="neutral"),
        says("e", 1, "helpful", "end_user", about="c2"),
        says("f", 1, "resolved", "end_user"),
    ]
    found = replies_of(records, DEFAULT_RULE)
    assert [(r.event_id, r.request, r.text) for r in found][:2] == [
        ("c0", "question 0", "question 1"),
        ("c1", "question 1", "question 2"),
    ]
    assert [(r.label, r.label_from) for r in found] == [
        ("negative", "helpful"), (None, ""), ("neutral", "next_state"), (None, "")]  # fmt: skip


def test_with_too_few_labels_of_a_class_it_refuses_and_says_which() -> None:
    few = [r for r in labelled() if r.label != "positive"] + [r for r in labelled() if r.label == "positive"][:5]
    with pytest.raises(TooFewLabels, match=f"5 positive: {MIN_LABELS}"):
        train(few, lexical, "words")


def test_with_too_few_conversations_it_refuses() -> None:
    one = [Reply(trajectory_id=f"tr{n % 3}", event_id=r.event_id, request=r.request, answer=r.answer, text=r.text,
                 label=r.label) for n, r in enumerate(labelled())]  # fmt: skip
    with pytest.raises(TooFewLabels, match="3 conversations"):
        train(one, lexical, "words")


def test_what_it_says_above_its_confidence_is_right_as_often_as_was_asked_for(trained: Classifier) -> None:
    report = trained.report
    assert report.spoken_accuracy.high >= 0.85 > report.accuracy.value
    assert report.spoken_accuracy.value > report.accuracy.value
    assert 0 < report.spoken.value < 1
    assert report.calibration_error.low <= report.calibration_error.value <= report.calibration_error.high < 0.25


def test_it_is_silent_below_its_confidence_and_about_neutral_replies(trained: Classifier) -> None:
    replies = labelled()
    said = trained.say(replies, lexical)
    assert all((s.label is None) == (s.confidence < trained.threshold) for s in said)
    signals = reply_signals(replies, trained, lexical)
    assert len(signals) == sum(s.label in ("positive", "negative") for s in said) > 0
    assert all(s["source"]["kind"] == "reward_model" and s["optimizable"] is False for s in signals)
    assert {s["source"]["version"] for s in signals} == {trained.digest.removeprefix("sha256:")[:12]}
    silent = Classifier(
        coefficients=trained.coefficients, intercepts=trained.intercepts, temperature=trained.temperature,
        threshold=1.01, embedding="words", report=trained.report,
    )  # fmt: skip
    assert reply_signals(replies, silent, lexical) == []


def test_where_no_confidence_is_precise_enough_it_never_speaks() -> None:
    chance = np.random.default_rng(0)
    shuffled = [Reply(trajectory_id=r.trajectory_id, event_id=r.event_id, request="", answer="", text=r.text,
                      label=LABELS[chance.integers(3)]) for r in labelled()]  # fmt: skip
    noise = train(shuffled, lexical, "words", precision=0.9)
    assert noise.threshold > 1
    assert {s.label for s in noise.say(shuffled, lexical)} == {None}


def test_it_is_kept_under_its_digest_and_read_without_executing_anything(trained: Classifier, tmp_path: Path) -> None:
    place = trained.save(tmp_path)
    assert sorted(p.name for p in place.iterdir()) == ["about.json", "weights.npz"]
    read = load(place)
    assert read.digest == trained.digest == f"sha256:{place.name}"
    assert [s.label for s in read.say(labelled()[:9], lexical)] == [
        s.label for s in trained.say(labelled()[:9], lexical)
    ]
    assert train(labelled(), lexical, "words", precision=0.85).digest == trained.digest


def test_a_changed_file_is_told(trained: Classifier, tmp_path: Path) -> None:
    place = trained.save(tmp_path)
    about = json.loads((place / "about.json").read_text())
    (place / "about.json").write_text(json.dumps({**about, "threshold": 0.0}))
    with pytest.raises(ClassifierError, match="changed"):
        load(place)
    with pytest.raises(ClassifierError):
        load(tmp_path / "nothing")


def test_the_calibration_error_of_honest_confidences_is_small_and_of_boasting_ones_large() -> None:
    chance = np.random.default_rng(1)
    confidence = chance.uniform(0.4, 1.0, 2000)
    honest = _calibration_error(confidence, chance.random(2000) < confidence, 0.05)
    boasting = _calibration_error(np.minimum(confidence + 0.3, 1), chance.random(2000) < confidence, 0.05)
    assert honest.high < 0.06
    assert boasting.low > 0.15


@pytest.mark.stack
def test_on_sentence_embeddings_it_reads_replies_in_nine_languages() -> None:
    """Run with -s for the figures in docs/rewards.md."""
    from evaluators.next_state.embedding import embed, embedding_name

    report = train(labelled(), embed, embedding_name(), precision=0.9).report
    print(f"\n{report}")
    assert report.accuracy.value > 0.6
    assert report.spoken_accuracy.high >= 0.9
    assert report.calibration_error.value < 0.2
