from __future__ import annotations

from evaluators.dataset import Split, select

NOBODY = Split(clusters={}, heldout=frozenset(), heldout_entities=frozenset())


def test_a_resolved_decision_teaches_what_the_model_itself_did(case) -> None:
    resolved = case("How long is the warranty?", reward=1.0, text="It is 12 months.", overlay_text="12 months")
    assert select([resolved], NOBODY, [], limit=10).train == (resolved,)


def test_a_failure_nobody_demonstrated_teaches_nothing(case) -> None:
    assert select([case(reward=0.0, text="I don't know.")], NOBODY, [], limit=10).train == ()


def test_a_success_with_incomplete_tokens_teaches_nothing(case) -> None:
    assert select([case(reward=1.0, text="Yes.", completion_token_ids=[])], NOBODY, [], limit=10).train == ()


def test_a_demonstration_counts_more_than_the_models_own_action(case, demonstrated) -> None:
    shown = case(
        "Cancel A1234.", reward=1.0, text="Fine.", demonstration=demonstrated("cancel_order", order_id="A1234")
    )
    assert shown.taught == shown.wanted
