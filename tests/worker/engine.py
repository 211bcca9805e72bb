"""An engine that is not one: weights by directory, requests in flight, a cache, and a log of what was done to it."""

from __future__ import annotations

from pathlib import Path

from services.worker.serving.vllm import VllmError


class FakeEngine:
    """What `VllmServer` offers to those who change weights."""

    def __init__(self, base: Path, logprob: dict[str, float]) -> None:
        self.loaded = base
        self.adapters: dict[str, Path] = {}
        self.logprob = logprob
        """Directory name → what its weights say of any token, nats."""
        self.running: list[int] = []
        """What `hold` and `in_flight` find, one call after the other; then nothing."""
        self.holding = False
        self.stamp = ""
        self.weights: Path | None = None
        self.log: list[str] = []
        self.broken_reload = False

    async def load(self, name: str, path: Path) -> None:
        self.log.append(f"load {name}")
        self.adapters[name] = path

    async def unload(self, name: str) -> None:
        self.log.append(f"unload {name}")
        del self.adapters[name]

    async def in_flight(self, name: str) -> int:
        return self.running.pop(0) if self.running else 0

    async def hold(self) -> int:
        self.holding = True
        return self.running.pop(0) if self.running else 0

    async def release(self, weights: str) -> None:
        self.holding, self.stamp = False, weights
        self.log.append(f"release {weights}")

    async def reload(self, directory: Path, weights: str) -> None:
        assert self.holding, "nobody may run while weights are replaced"
        if self.broken_reload and directory.name != "base":
            raise VllmError("500", 500)
        self.loaded = directory
        self.log.append(f"reload {directory.name}")

    async def restart(self) -> None:
        self.log.append("restart")

    async def score(self, name: str, prompt: list[int], completion: list[int]) -> list[float]:
        self.log.append(f"score {name}")
        directory = self.adapters.get(name, self.loaded)
        return [self.logprob[directory.name]] * len(completion)
