"""replies: what users' next messages say about answers, read by the trained classifier and told as signals.

    python -m flows.replies AGENT [LIMIT]

The classifier is the one that `evoplane rewards learn-replies` made; it says nothing below its confidence.
"""

from __future__ import annotations

import argparse
from typing import Any

from dashboards.reading import read_replies
from evaluators.next_state.classifier import Embed, in_use
from evaluators.next_state.feedback import reply_signals
from evaluators.rewards.posting import post
from evoplane.settings import Settings, ending_when_wrong, settings
from flows import environment  # noqa: F401  (before prefect)
from flows.judging import feedback_key
from registry import control, pointers

from prefect import flow  # isort: skip
from prefect.states import Completed, Failed  # isort: skip


class NotTrained(Exception):
    """There is no classifier yet."""


@flow(name="replies", flow_run_name="replies to {agent}", log_prints=True)
def replies(agent: str, limit: int = 1000) -> dict[str, int]:
    """Read the replies in the agent's newest trajectories, at most `limit` a tenant."""
    from evaluators.next_state.embedding import embed, embedding_name

    return read_agent(settings(), agent, limit, embed, embedding_name())


@flow(name="replies-all", flow_run_name="scheduled reading of replies", log_prints=True)
def replies_all(limit: int = 1000) -> Any:
    """Read the replies to every agent that has a classifier. One that can't be told doesn't stop the others."""
    from evaluators.next_state.embedding import embed, embedding_name

    config = settings()
    lines, failed = [], False
    for agent in sorted(pointers.all_routes(control.connect(config.control_db))):
        try:
            told = read_agent(config, agent, limit, embed, embedding_name())
            lines.append(f"{agent}: {told['told']} told of {told['replies']} replies")
        except NotTrained as error:
            lines.append(f"{agent}: {error}")
        except Exception as error:  # the gateway, or what lies between; said in the run's state
            lines.append(f"{agent}: {type(error).__name__}: {error}")
            failed = True
    message = "; ".join(lines) or "no agent serves a version yet"
    return Failed(message=message) if failed else Completed(message=message)


def read_agent(config: Settings, agent: str, limit: int, embed: Embed, embedding: str) -> dict[str, int]:
    """Post what the classifier says; telling it again changes nothing. Raises `NotTrained`, `NotTaken`."""
    classifier = in_use(config.var / "next_state" / agent)
    if classifier is None or classifier.embedding != embedding:
        raise NotTrained(f"train one for {embedding}: evoplane rewards learn-replies --agent {agent}")
    told = seen = 0
    for tenant, mine in read_replies(config, agent, limit).items():
        signals = reply_signals(mine, classifier, embed)
        seen, told = seen + len(mine), told + len(signals)
        if signals:
            with feedback_key(config, tenant, agent) as key:
                post(config.gateway_url, key, signals)
    return {"replies": seen, "told": told}


def main() -> None:
    # before anything is asked of Prefect: a typing error is no run that failed
    parser = argparse.ArgumentParser(prog="python -m flows.replies", description=replies.__doc__)
    parser.add_argument("agent")
    parser.add_argument(
        "limit", nargs="?", type=int, default=1000, help="newest trajectories a tenant (default: %(default)s)"
    )
    told = parser.parse_args()
    print(replies(told.agent, told.limit))


if __name__ == "__main__":
    with ending_when_wrong():
        main()
