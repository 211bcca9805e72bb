"""The policies this worker serves besides the base model, kept over restarts.

A new policy arrives in two phases: it is loaded beside the others, then its log-probabilities on a
probe are compared with those its training computed. Only then does it count as served; a policy that
disagrees is unloaded. The file is written before success is reported, and read again whenever vLLM
has been started. `updates` says which steps there are.

vLLM keys its prefix cache by the adapter's name and directory, and a directory here is named by its content: no
version ever reads what another one cached.
"""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import msgspec

from evoplane.files import write_durably
from services.worker.policies import PolicyError, check_targets, policy_digest
from services.worker.serving.updates import Update, Updates
from services.worker.serving.vllm import VllmError, VllmServer

_IDLE_S = 0.3
"""A name nobody has used for this long is unused: longer than a gateway needs to see that pointers moved."""
_POLL_S = 0.05


class Probe(msgspec.Struct, frozen=True):
    """One example and its completion's log-probabilities, nats, under the weights as trained."""

    prompt_token_ids: list[int]
    completion_token_ids: list[int]
    logprobs: list[float]


class Policy(msgspec.Struct, frozen=True):
    name: str
    """The model name that requests use."""
    path: str
    digest: str
    probe: Probe | None = None

    @property
    def directory(self) -> Path:
        """Absolute: vLLM need not share our working directory."""
        return Path(self.path).absolute()


class ProbeMismatch(Exception):
    """The served log-probabilities are not the trained ones; `numbers` says by how much."""

    def __init__(self, name: str, difference: float, tolerance: float, served: list[float]) -> None:
        super().__init__(
            f"policy {name} does not serve what was trained: log-probabilities differ by up to "
            f"{difference:.2g} nats on the probe, {tolerance:.2g} is tolerated; it was unloaded"
        )
        self.numbers: dict[str, Any] = {
            "max_difference": difference,
            "tolerance": tolerance,
            "served_logprobs": served,
        }


class PolicyConflict(Exception):
    """The name serves other weights already, or the digest is not that of the directory."""


class Policies:
    """The set of served adapters; one change at a time."""

    def __init__(self, file: Path, tolerance: float, updates: Updates | None = None) -> None:
        self._file = file
        self._tolerance = tolerance
        self.updates = updates or Updates()
        self.lock = asyncio.Lock()
        """Held by whatever changes what is served."""
        self._served: dict[str, Policy] = {}
        self._since_start: dict[str, Update] = {}
        self.failed: dict[str, str] = {}
        """Kept policies that could not be loaded after a restart, with the reason."""
        if file.exists():
            kept = msgspec.json.decode(file.read_bytes(), type=list[Policy])
            self._served = {policy.name: policy for policy in kept}

    def served(self) -> list[Policy]:
        return [policy for name, policy in self._served.items() if name not in self.failed]

    async def add(self, server: VllmServer, policy: Policy) -> Update:
        """Serve `policy`; gives the update with its times and the largest difference on the probe. Adding what is
        served is a no-op but for the probe.

        Raises `PolicyError` (no adapter there), `PolicyConflict`, `ProbeMismatch` or `VllmError`.
        """
        async with self.lock:
            held = self._served.get(policy.name)
            if held and held.digest == policy.digest and policy.name not in self.failed:
                difference = await compare(server, policy.name, policy.probe, self._tolerance)
                return Update("adapter", policy.name, policy.digest, "served", probe_difference=difference)
            if held and held.digest != policy.digest:
                raise PolicyConflict(f"policy {policy.name} already serves {held.digest}; delete it first")
            update = self.updates.begin("adapter", policy.name, policy.digest)
            try:
                await self._load(server, policy, update)
            except BaseException as error:
                update.to("refused", str(error))
                raise
            self.failed.pop(policy.name, None)
            self._served[policy.name] = policy
            self._since_start[policy.name] = update
            self._keep()
            update.to("served")
            return update

    async def remove(self, server: VllmServer, name: str, drain_s: float) -> dict[str, float | int] | None:
        """Stop serving `name` when nobody uses it any more, or after `drain_s`: what is in flight then finishes on it.

        Gives the seconds waited and how many requests were left; None if it wasn't served.
        """
        if name not in self._served:
            return None
        began = asyncio.get_running_loop().time()
        left = 0 if name in self.failed else await drained(server, name, drain_s)  # others may be added meanwhile
        async with self.lock:
            if name not in self._served:
                return None
            update = self._since_start.pop(name, None)
            if update is not None:
                update.to("draining")
            if name not in self.failed:
                await server.unload(name)
            self.failed.pop(name, None)
            del self._served[name]
            self._keep()
            if update is not None:
                update.to("gone")
            return {"drain_s": round(asyncio.get_running_loop().time() - began, 3), "left_in_flight": left}

    async def restore(self, server: VllmServer) -> None:
        """Load all kept policies into a freshly started server; one that fails does not stop the others."""
        async with self.lock:
            self.failed.clear()
            for policy in self._served.values():
                try:
                    if await asyncio.to_thread(policy_digest, policy.directory) != policy.digest:
                        raise PolicyError(f"{policy.path} has changed since it was loaded")
                    await server.load(policy.name, policy.directory)
                except (PolicyError, VllmError) as error:
                    self.failed[policy.name] = str(error)

    async def _load(self, server: VllmServer, policy: Policy, update: Update) -> None:
        found = await asyncio.to_thread(policy_digest, policy.directory)
        if found != policy.digest:
            raise PolicyConflict(f"{policy.path} has digest {found}, not {policy.digest}")
        check_targets(policy.directory)
        update.to("loading")
        await server.load(policy.name, policy.directory)
        update.to("probing")
        try:
            update.probe_difference = await compare(server, policy.name, policy.probe, self._tolerance)
        except BaseException:
            with contextlib.suppress(VllmError):
                await server.unload(policy.name)
            raise

    def _keep(self) -> None:
        self._file.parent.mkdir(parents=True, exist_ok=True)
        write_durably(self._file, msgspec.json.encode(list(self._served.values())))


async def compare(server: VllmServer, name: str, probe: Probe | None, tolerance: float) -> float | None:
    """The largest |served − trained| log-probability, nats; None without a probe. Raises `ProbeMismatch`."""
    if probe is None:
        return None
    served = await server.score(name, probe.prompt_token_ids, probe.completion_token_ids)
    difference = max(abs(a - b) for a, b in zip(served, probe.logprobs, strict=True))
    if not difference <= tolerance:
        raise ProbeMismatch(name, difference, tolerance, served)
    return difference


async def drained(server: VllmServer, name: str, most_s: float) -> int:
    """Wait until nobody has used `name` for a moment, at most `most_s`; gives how many still do."""
    clock = asyncio.get_running_loop().time
    deadline = clock() + most_s
    quiet_since: float | None = None
    while True:
        left, now = await server.in_flight(name), clock()
        quiet_since = None if left else now if quiet_since is None else quiet_since
        if (quiet_since is not None and now - quiet_since >= _IDLE_S) or now >= deadline:
            return left
        await asyncio.sleep(_POLL_S)
