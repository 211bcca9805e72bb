"""The policies this worker serves besides the base model, kept over restarts.

A new policy arrives in two phases: it is loaded beside the others, then its log-probabilities on a
probe are compared with those its training computed. Only then does it count as served; a policy that
disagrees is unloaded. The file is written before success is reported, and read again whenever vLLM
has been started.
"""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import msgspec

from services.worker.files import write_atomically
from services.worker.policies import PolicyError, policy_digest
from services.worker.serving.vllm import VllmError, VllmServer


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

    def __init__(self, file: Path, tolerance: float) -> None:
        self._file = file
        self._tolerance = tolerance
        self._lock = asyncio.Lock()
        self._served: dict[str, Policy] = {}
        self.failed: dict[str, str] = {}
        """Kept policies that could not be loaded after a restart, with the reason."""
        if file.exists():
            kept = msgspec.json.decode(file.read_bytes(), type=list[Policy])
            self._served = {policy.name: policy for policy in kept}

    def served(self) -> list[Policy]:
        return [policy for name, policy in self._served.items() if name not in self.failed]

    async def add(self, server: VllmServer, policy: Policy) -> float | None:
        """Serve `policy`; returns the largest difference on its probe. Adding what is served is a no-op.

        Raises `PolicyError` (no adapter there), `PolicyConflict`, `ProbeMismatch` or `VllmError`.
        """
        async with self._lock:
            held = self._served.get(policy.name)
            if held and held.digest == policy.digest and policy.name not in self.failed:
                return await self._difference(server, policy)
            if held and held.digest != policy.digest:
                raise PolicyConflict(f"policy {policy.name} already serves {held.digest}; delete it first")
            found = await asyncio.to_thread(policy_digest, policy.directory)
            if found != policy.digest:
                raise PolicyConflict(f"{policy.path} has digest {found}, not {policy.digest}")
            await server.load(policy.name, policy.directory)
            try:
                difference = await self._difference(server, policy)
            except BaseException:
                with contextlib.suppress(VllmError):
                    await server.unload(policy.name)
                raise
            self.failed.pop(policy.name, None)
            self._served[policy.name] = policy
            self._keep()
            return difference

    async def remove(self, server: VllmServer, name: str) -> bool:
        """Stop serving `name`; False if it wasn't served. Requests in flight finish on it."""
        async with self._lock:
            if name not in self._served:
                return False
            if name not in self.failed:
                await server.unload(name)
            self.failed.pop(name, None)
            del self._served[name]
            self._keep()
            return True

    async def restore(self, server: VllmServer) -> None:
        """Load all kept policies into a freshly started server; one that fails does not stop the others."""
        async with self._lock:
            self.failed.clear()
            for policy in self._served.values():
                try:
                    if await asyncio.to_thread(policy_digest, policy.directory) != policy.digest:
                        raise PolicyError(f"{policy.path} has changed since it was loaded")
                    await server.load(policy.name, policy.directory)
                except (PolicyError, VllmError) as error:
                    self.failed[policy.name] = str(error)

    async def _difference(self, server: VllmServer, policy: Policy) -> float | None:
        probe = policy.probe
        if probe is None:
            return None
        served = await server.score(policy.name, probe.prompt_token_ids, probe.completion_token_ids)
        difference = max(abs(a - b) for a, b in zip(served, probe.logprobs, strict=True))
        if not difference <= self._tolerance:
            raise ProbeMismatch(policy.name, difference, self._tolerance, served)
        return difference

    def _keep(self) -> None:
        self._file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(self._file, msgspec.json.encode(list(self._served.values())))
