"""The vLLM server: how it is started, kept alive, and asked about its policies.

The server is a child process in its own environment (its dependencies exclude ours); we speak HTTP to
it. fp32 throughout: served log-probabilities then agree with training to 1e-4 nats.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx

from evoplane.settings import Settings
from services.worker import process
from services.worker.policies import LORA_TARGETS

TEMPLATE = Path(__file__).parent / "smollm2-tools.jinja"
INSIDE = Path(__file__).parent / "inside"
"""What vLLM imports of ours; a folder of its own, so that nothing else here gets into its environment."""
_PROBE = {"x-evoplane-probe": "1"}
"""Passes the gate while users' requests wait at it."""
_CACHE_BLOCK_TOKENS = 32
"""Only whole blocks are shared between prompts. vLLM's 128 on CPUs is longer than the common start of
an agent's short prompts (tools and system text), which then is computed again for every request."""
_STARTUP_TIMEOUT_S = 600.0
_KEEP_ALIVE_S = 2.0
_POLL_S = 0.25


class VllmError(Exception):
    """vLLM refused or failed; `status` is what it answered, 503 where it did not answer."""

    def __init__(self, message: str, status: int = 503) -> None:
        super().__init__(message)
        self.status = status


def command(settings: Settings, weights: Path | None = None) -> list[str]:
    """The command line of the server; `weights` is the model directory when it is not the configured base."""
    worker = settings.worker
    return [
        # not resolved: the path of the link, not of its target, is what makes it the environment's
        str(Path.cwd() / worker.vllm_python),
        "-m",
        "vllm.entrypoints.openai.api_server",
        f"--model={(weights or settings.model_dir).resolve()}",
        f"--served-model-name={settings.model.name}",
        "--host=127.0.0.1",
        f"--port={worker.vllm_port}",
        f"--dtype={worker.dtype}",
        f"--max-model-len={worker.max_model_len}",
        f"--max-num-seqs={worker.max_num_seqs}",
        "--enforce-eager",
        "--enable-prefix-caching",
        f"--block-size={_CACHE_BLOCK_TOKENS}",
        "--enable-lora",
        # else the output layer is wrapped, too: every step gathers an adapter of the whole vocabulary for each
        # request, and scoring a prompt while others decode ends the engine (vLLM 0.32 takes it for a row a request)
        "--lora-target-modules",
        *LORA_TARGETS,
        f"--max-loras={worker.max_loras}",
        f"--max-cpu-loras={4 * worker.max_loras}",
        f"--max-lora-rank={settings.evolve.lora_rank}",
        "--enable-auto-tool-choice",
        "--tool-call-parser=hermes",
        f"--chat-template={TEMPLATE}",
        "--logprobs-mode=processed_logprobs",
        "--distributed-executor-backend=uni",
        "--enable-scale-out",
        "--middleware=evoplane_gate.Gate",
    ]


def environment(settings: Settings) -> dict[str, str]:
    """The server's environment: offline, silent, adapters loadable at run time."""
    # in-place weights and the reset of the prefix cache are among vLLM's development endpoints
    full = {"VLLM_SERVER_DEV_MODE": "1"} if settings.worker.full_weights else {}
    return (
        os.environ
        | full
        | {
            "PYTHONPATH": str(INSIDE),
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_PLUGINS": "",
            "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True",
            "VLLM_NO_USAGE_STATS": "1",
            "DO_NOT_TRACK": "1",
            "HF_HUB_OFFLINE": "1",
            "TRANSFORMERS_OFFLINE": "1",
            # well above what clients keep: an idle connection is never closed while a request is on its way into it
            "VLLM_HTTP_TIMEOUT_KEEP_ALIVE": "75",
            # "auto" binds the engine to all cores but one and leaves that one idle: on two cores, half the
            # machine, and the same half for every vLLM on it
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "OMP_NUM_THREADS": str(settings.worker.threads),
            "OMP_WAIT_POLICY": "PASSIVE",
            # the engine runs its one worker itself: a process less to start, and its memory
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        }
    )


class VllmServer:
    """Owns the child. `on_start` runs each time the server has come up, before it counts as serving."""

    def __init__(self, settings: Settings, on_start: Callable[[], Awaitable[None]]) -> None:
        self._settings = settings
        self._on_start = on_start
        self._child: subprocess.Popen[bytes] | None = None
        self._keeper: asyncio.Task[None] | None = None
        self.client = httpx.AsyncClient(
            base_url=settings.vllm_url, timeout=60, limits=httpx.Limits(keepalive_expiry=_KEEP_ALIVE_S)
        )
        self.log = settings.logs_dir / "vllm.log"
        self.state = "stopped"
        """stopped | starting | serving | failed"""
        self.weights: Path | None = None
        """Directory of the base weights when they are not the configured ones."""
        self.restarts = 0

    @property
    def pid(self) -> int | None:
        return self._child.pid if self._child else None

    def start(self) -> None:
        self._keeper = asyncio.create_task(self._keep(), name="vllm")

    async def close(self) -> None:
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)
        if self._child is not None:
            await asyncio.to_thread(process.stop, self._child)
        await self.client.aclose()
        self.state = "stopped"

    async def healthy(self) -> bool:
        """Whether the engine answers now."""
        if self.state != "serving":
            return False
        try:
            return (await self.client.get("/health", timeout=5)).status_code == 200
        except httpx.HTTPError:
            return False

    async def load(self, name: str, path: Path) -> None:
        """Load an adapter (absolute path) under a name not yet taken; others keep serving."""
        await self._post("/v1/load_lora_adapter", {"lora_name": name, "lora_path": str(path)})

    async def unload(self, name: str) -> None:
        await self._post("/v1/unload_lora_adapter", {"lora_name": name})

    async def score(self, name: str, prompt: list[int], completion: list[int]) -> list[float]:
        """Log-probability, nats, of each completion token under `name`, unscaled by any temperature."""
        ids = prompt + completion
        answer = await self._post(
            "/v1/completions",
            {"model": name, "prompt": ids, "max_tokens": 1, "temperature": 0, "prompt_logprobs": 0},
            _PROBE,
        )
        per_token = answer.json()["choices"][0]["prompt_logprobs"][len(prompt) :]
        return [entry[str(token)]["logprob"] for token, entry in zip(completion, per_token, strict=True)]

    async def in_flight(self, name: str) -> int:
        """Requests that are being answered under this name now."""
        return int((await self._gate({}))["in_flight"].get(name, 0))

    async def hold(self) -> int:
        """Let no further request begin; gives how many are still being answered."""
        return sum((await self._gate({"hold": True}))["in_flight"].values())

    async def release(self, weights: str) -> None:
        """Let those begin that wait; their answers are stamped with the name of the base weights."""
        await self._gate({"hold": False, "weights": weights})

    async def reload(self, directory: Path, weights: str) -> None:
        """Replace the base weights in place. Only while nothing runs; what was cached of the old ones is dropped."""
        body = {"method": "reload_weights", "kwargs": {"weights_path": str(directory)}}
        await self._post("/collective_rpc", body)
        await self._post("/reset_prefix_cache", {})
        await self._post("/update_weight_version", {"new_version": weights})

    async def restart(self) -> None:
        """End the engine; its keeper starts another with the weights that are in force."""
        if self._child is not None:
            self.state = "failed"
            await asyncio.to_thread(process.stop, self._child)

    async def _gate(self, told: dict[str, Any]) -> dict[str, Any]:
        state: dict[str, Any] = (await self._post("/evoplane/gate", told)).json()
        return state

    async def _post(self, path: str, body: dict[str, Any], headers: dict[str, str] | None = None) -> httpx.Response:
        try:
            answer = await self.client.post(path, json=body, headers=headers)
        except httpx.HTTPError as error:
            raise VllmError(f"vLLM did not answer {path}: {error!r}; see {self.log}") from error
        if answer.is_error:
            raise VllmError(f"vLLM answered {path} with {_message(answer)}", answer.status_code)
        return answer

    async def _keep(self) -> None:
        backoff = process.Backoff()
        while True:
            self.state = "starting"
            backoff.started()
            self._child = None
            try:
                # from the event loop's thread, which lives as long as this process: see process.start
                self._child = process.start(
                    command(self._settings, self.weights), env=environment(self._settings), log=self.log
                )
                await self._until_up(self._child)
                await self._on_start()
                self.state = "serving"
                await asyncio.to_thread(self._child.wait)
            except Exception as error:  # also a machine without a process or a thread to spare: later it may have one
                with contextlib.suppress(OSError), self.log.open("a") as stream:
                    stream.write(f"evoplane: {error if isinstance(error, VllmError) else repr(error)}\n")
            self.state = "failed"
            if self._child is not None:
                await asyncio.to_thread(process.stop, self._child)
            self.restarts += 1
            await asyncio.sleep(backoff.next_wait_s())

    async def _until_up(self, child: subprocess.Popen[bytes]) -> None:
        deadline = asyncio.get_running_loop().time() + _STARTUP_TIMEOUT_S
        while asyncio.get_running_loop().time() < deadline:
            if child.poll() is not None:
                raise VllmError(f"vLLM ended with code {child.returncode} while starting")
            try:
                if (await self.client.get("/health", timeout=5)).status_code == 200:
                    return
            except httpx.HTTPError:
                pass
            await asyncio.sleep(_POLL_S)
        raise VllmError(f"vLLM was not healthy after {_STARTUP_TIMEOUT_S:.0f} s")


def _message(answer: httpx.Response) -> str:
    try:
        return f"{answer.status_code}: {answer.json()['error']['message']}"
    except (ValueError, KeyError, TypeError):
        return f"{answer.status_code}: {answer.text[:500]}"
