"""Changing the base weights themselves, in place, without a request that fails or mixes two versions.

    judge the directory → hold new requests → wait for those in flight → reload → probe → let them in again

What goes wrong before the reload has changed nothing; what goes wrong after it puts the former weights back, and
restarts the engine where even that fails. Adapters were trained over the former base and would answer
wrongly over another one: while any is served, the update is refused.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec

from evoplane.files import write_durably
from services.worker.serving.policies import Policies, PolicyConflict, Probe, ProbeMismatch, compare
from services.worker.serving.updates import Update, Updates
from services.worker.serving.vllm import VllmError, VllmServer
from services.worker.serving.weights import WeightsError, validate, weights_digest

_POLL_S = 0.05


class Kept(msgspec.Struct, frozen=True):
    """The base weights in force when they are not the configured model's."""

    name: str
    path: str
    digest: str


class BaseWeights:
    """Which base weights this worker serves, kept over restarts."""

    def __init__(self, file: Path, base: Path, served_name: str, tolerance: float, updates: Updates) -> None:
        self._file = file
        self._base = base
        self._served_name = served_name
        self._tolerance = tolerance
        self._updates = updates
        self.kept: Kept | None = None
        if file.exists():
            self.kept = msgspec.json.decode(file.read_bytes(), type=Kept | None)

    @property
    def directory(self) -> Path | None:
        """Where the weights in force are, unless they are the configured model's."""
        return Path(self.kept.path) if self.kept else None

    @property
    def name(self) -> str:
        """Empty for the configured model's."""
        return self.kept.name if self.kept else ""

    async def change(
        self, server: VllmServer, policies: Policies, wanted: Kept | None, probe: Probe | None, drain_s: float
    ) -> Update:
        """Serve `wanted` (None: the configured model) as the base.

        Raises `WeightsError` or `PolicyConflict` (nothing was touched), `ProbeMismatch` or `VllmError` (the former
        weights serve again).
        """
        async with policies.lock:
            update = self._updates.begin("weights", wanted.name if wanted else "", wanted.digest if wanted else "")
            try:
                await self._judge(policies, wanted)
                update.to("holding")
                try:
                    await self._empty(server, drain_s)
                    await self._replace(server, update, wanted, probe)
                finally:
                    await server.release(self.name)
            except BaseException as error:
                update.to("refused", str(error))
                raise
            update.to("served")
            return update

    async def restore(self, server: VllmServer) -> None:
        """After a start: the engine began with the weights in force; say so to its gate."""
        await server.release(self.name)

    async def _judge(self, policies: Policies, wanted: Kept | None) -> None:
        if names := [policy.name for policy in policies.served()]:
            raise PolicyConflict(f"adapters of the present base are served, take them out first: {', '.join(names)}")
        if wanted is None:
            return
        await asyncio.to_thread(validate, Path(wanted.path), self._base)
        found = await asyncio.to_thread(weights_digest, Path(wanted.path))
        if found != wanted.digest:
            raise WeightsError(f"{wanted.path} has digest {found}, not {wanted.digest}")

    async def _empty(self, server: VllmServer, drain_s: float) -> None:
        clock = asyncio.get_running_loop().time
        deadline = clock() + drain_s
        while left := await server.hold():
            if clock() >= deadline:
                raise VllmError(f"{left} requests were still being answered after {drain_s:g} s; nothing was changed")
            await asyncio.sleep(_POLL_S)

    async def _replace(self, server: VllmServer, update: Update, wanted: Kept | None, probe: Probe | None) -> None:
        before = self.kept
        update.to("reloading")
        try:
            await self._reload(server, wanted)
            update.to("probing")
            update.probe_difference = await compare(server, self._served_name, probe, self._tolerance)
        except (VllmError, ProbeMismatch):
            update.to("restoring")
            try:
                await self._reload(server, before)
                # an engine with layers missing dies of its first request: let it be ours
                await server.score(self._served_name, [1], [1])
            except VllmError:
                await server.restart()
            raise
        self.kept = wanted
        server.weights = self.directory
        self._file.parent.mkdir(parents=True, exist_ok=True)
        write_durably(self._file, msgspec.json.encode(wanted))

    async def _reload(self, server: VllmServer, kept: Kept | None) -> None:
        await server.reload(Path(kept.path) if kept else self._base, kept.name if kept else "default")
