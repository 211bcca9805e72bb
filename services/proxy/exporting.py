"""What leaves the store: the trajectories that are eligible for a purpose, as writers of formats take them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, get_args

from atdp.convert.base import Purpose
from atdp.eligibility import eligible
from services.proxy import parts
from services.proxy.reader import StoreReader

PURPOSES: tuple[str, ...] = get_args(Purpose)


class Selection:
    """The trajectories of tenants, and counts of what was taken and withheld."""

    def __init__(
        self, reader: StoreReader, tenants: list[str], agent: str | None, source: str | None, purpose: str
    ) -> None:
        """`source` is the format they were imported from; None is any origin."""
        self._reader, self._tenants, self._agent, self._source = reader, tenants, agent, source
        self._tenant = ""
        self.purpose = purpose
        self.written = 0
        self.withheld = 0
        self.broken_off = 0
        """Answers that were left out of what is trained on."""

    def records(self, whole: bool) -> Iterator[dict[str, Any]]:
        """Records, oldest trajectory first, each context before the first trajectory that names it.

        `whole` loads content kept apart; without it records are as stored, and their hashes hold. Of what is whole and
        to be trained on, answers are left out that failed or are not known to be whole.
        """
        for tenant in self._tenants:
            self._tenant = tenant
            contexts: set[str] = set()
            for row in reversed(self._reader.trajectories(tenant, agent=self._agent)):
                chain = self._reader.records(tenant, row.trajectory_id)
                if self._source is not None and chain[0].get("origin", {}).get("format") != self._source:
                    continue
                if not eligible(chain, self.purpose):
                    self.withheld += 1
                    continue
                if whole and self.purpose == "train":
                    chain = self._to_learn(chain)
                for id in dict.fromkeys(record["ctx"] for record in chain if "ctx" in record):
                    context = None if id in contexts else self._reader.contexts(tenant, id)
                    contexts.add(id)
                    if context is not None:
                        self.written += 1
                        yield context
                for record in chain:
                    self.written += 1
                    yield parts.internalize(record, self.content) if whole else record

    def _to_learn(self, chain: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Without calls whose answer is not whole: a model would learn to break off."""
        kept = [record for record in chain if record.get("kind") != "llm_call" or record["y"]["status"] == "ok"]
        self.broken_off += len(chain) - len(kept)
        return kept

    def content(self, digest: str) -> bytes | None:
        """Content of the tenant whose records are being read."""
        try:
            return self._reader.part(self._tenant, digest)
        except KeyError:
            return None
