"""From a snapshot's records to a training set, by real `dvc repro`."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from evaluators import dataset
from evaluators.quality import Finding, QualityResult
from evoplane.settings import Settings
from flows import locks, snapshot, training, training_set
from registry import control, tenants, versions
from services.worker.policies import policy_digest

PASSED = QualityResult(True, 24, 1, 1, ())
TEMPLATE = (
    "{% for m in messages %}<|{{ m.role }}|>{% if m.tool_calls %}{{ m.tool_calls[0].function.name }} "
    "{{ m.tool_calls[0].function.arguments }}{% else %}{{ m.content }}{% endif %}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def trajectory(n: int, text: str, order: str, train: str = "allow") -> list[dict[str, Any]]:
    """A failed session with a demonstration, as the store gives it."""
    call = {"function": {"name": "cancel_order", "arguments": json.dumps({"order_id": order})}}
    told = {"record": "annotation", "time": "2026-01-01T00:00:01Z", "source": {"kind": "end_user"},
            "targets": [{"trajectory_id": f"tr_{n}"}]}  # fmt: skip
    said = {"role": "user", "parts": [{"type": "text", "content": text.format(order)}]}
    return [
        {"record": "trajectory", "session_id": f"se_{n}", "gov": {"eligibility": {"train": train}}},
        {
            "record": "event", "kind": "llm_call", "id": f"ev_{n}", "trajectory_id": f"tr_{n}",
            "time": f"2026-01-01T00:00:{n % 60:02d}Z", "ctx": "c", "y": {"status": "ok"}, "o": {"messages": [said]},
            "a": {"messages": [{"role": "assistant", "parts": [{"type": "text", "content": "Sure!"}]}]},
            "m": {"tags": {"agent": "support", "agent_version": "1"}}, "tokens": {"prompt_token_ids": [n, 1, 2]},
        },
        {**told, "id": f"an_{n}r", "kind": "reward", "name": "resolved", "value": 0},
        {**told, "id": f"an_{n}d", "kind": "preference", "name": "demonstration",
         "ext": {"demonstration": {"role": "assistant", "content": None, "tool_calls": [call]}}},
    ]  # fmt: skip


def write_letters(model_dir: Path) -> None:
    """A tokenizer whose tokens are letters, and a chat template."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    letters = {chr(c): c for c in range(256)}
    tokenizer = Tokenizer(models.WordLevel(letters, unk_token="\0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.save(str(model_dir / "tokenizer.json"))
    (model_dir / "chat_template.jinja").write_text(TEMPLATE)


@pytest.fixture
def config(tmp_path: Path) -> Settings:
    config = Settings.model_validate({"paths": {"var": str(tmp_path / "var"), "models": str(tmp_path / "models")}})
    config.model_dir.mkdir(parents=True)
    write_letters(config.model_dir)
    folder = snapshot.prepare(config) / "support" / "trajectories"
    folder.mkdir(parents=True)
    texts = [
        "Please stop order {} now.",
        "I do not want {}.",
        "Cancel {} for me please?",
        "Drop {} from my list, thanks.",
    ]
    rows = [trajectory(n, texts[n % 4], f"A{n}0", "deny" if n == 8 else "allow") for n in range(24)]
    lines = [json.dumps({"tools": {"c": []}, "records": r}) for r in rows]
    (folder / "northwind.jsonl").write_text("\n".join(lines) + "\n")
    snapshot.pass_gate(config, "support", PASSED)
    return config


def test_a_training_set_has_captured_prompts_written_answers_and_its_own_hash(config: Settings):
    made = training.make_training_set(config, "support")
    assert made.id.endswith(".dir") and made.id == snapshot.directory_hash(Path(made.path))
    rows = [json.loads(line) for line in (Path(made.path) / "train.jsonl").read_text().splitlines()]
    assert len(rows) == made.train > 0 and made.heldout > 0
    numbers = {row["prompt_token_ids"][0] for row in rows}
    assert all(row["prompt_token_ids"][1:] == [1, 2] for row in rows)
    assert 8 not in numbers  # its tenant denied training
    one = next(row for row in rows)
    order = f"A{one['prompt_token_ids'][0]}0"
    assert one["completion_token_ids"] == [ord(c) for c in f'cancel_order {{"order_id": "{order}"}}<|end|>']


THEIRS = (
    "Kindly withdraw my {} today.",
    "No more {} for us, thanks.",
    "Get rid of {} at once!",
    "My {} must not be sent.",
)
"""Of another tenant; beside them more of the first one's tasks are held out than without them."""


@pytest.mark.parametrize("kind", ["sft", "corrected", "rft"])
def test_a_set_of_some_tenants_holds_out_the_tasks_that_replay_compares_on(
    kind: str, config: Settings, monkeypatch: pytest.MonkeyPatch
):
    folder = config.snapshots_dir / "support"
    mine = [json.loads(line) for line in (folder / "trajectories" / "northwind.jsonl").read_text().splitlines()]
    for n, entry in enumerate(mine):
        tokens = entry["records"][1]["tokens"]
        tokens |= {"completion_token_ids": [n, 9], "logprobs": [-0.1, -0.1], "policy_versions": [[2, "m/1"]]}
        entry["records"][2]["value"] = float(kind == "rft")
        entry["closed"] = True
    theirs = [{"tools": {"c": []}, "records": trajectory(100 + n, THEIRS[n % 4], f"B{n}0")} for n in range(8)]
    for name, lines in (("northwind", mine), ("lumen", theirs)):
        (folder / "trajectories" / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    snapshot.pass_gate(config, "support", PASSED)
    cases = snapshot.read(folder / "trajectories")
    split = dataset.split(cases, 0.25)
    own = [c for c in cases if c.tenant == "northwind"]
    assert split.heldout_tasks(own) != dataset.split(own, 0.25).heldout_tasks(own), "a split of their own would differ"
    params = {"python": "", "model_dir": str(config.model_dir), "heldout_share": 0.25, "limit": 100, "kind": kind,
              "tenants": ["northwind"], "versions": ["m"]}  # fmt: skip
    (folder / "params.yaml").write_text(json.dumps({"training_set": params}))
    monkeypatch.chdir(folder)
    assert training_set.main() == 0
    rows = [json.loads(line) for line in Path("training-set/train.jsonl").read_text().splitlines()]
    tasks = {c.prompt_token_ids[0]: c for c in own}
    taught = [tasks[row["prompt_token_ids"][0]] for row in rows]
    assert taught and not any(split.is_held_out(c) for c in taught)
    report = json.loads(Path("training-set/report.json").read_text())
    assert report["heldout_tasks"] == split.heldout_tasks(own), "and no task of the other tenant is told"


def test_the_same_snapshot_gives_the_same_set_without_running_again(config: Settings):
    first = training.make_training_set(config, "support")
    stamp = (Path(first.path) / "train.jsonl").stat().st_mtime_ns
    assert training.make_training_set(config, "support") == first
    assert (Path(first.path) / "train.jsonl").stat().st_mtime_ns == stamp


def test_no_set_is_made_of_a_snapshot_that_the_data_gate_refused_or_never_saw(config: Settings):
    snapshot.pass_gate(config, "support", QualityResult(False, 24, 1, 1, (Finding("rewards", "3 unexpected of 24"),)))
    with pytest.raises(training.TrainingFailed, match=r"refused the snapshot of support.*3 unexpected"):
        training.make_training_set(config, "support")
    folder = config.snapshots_dir / "support"
    with (folder / "trajectories" / "northwind.jsonl").open("a") as file:
        file.write("\n")
    with pytest.raises(training.TrainingFailed, match="has not judged the present snapshot"):
        training.make_training_set(config, "support")


def test_a_second_writer_waits_for_the_first(config: Settings):
    root = snapshot.prepare(config)
    order: list[str] = []

    def write(name: str, seconds: float) -> None:
        with snapshot.writer_lock(root):
            order.append(f"{name} begins")
            time.sleep(seconds)
            order.append(f"{name} ends")

    first = threading.Thread(target=write, args=("first", 0.3))
    first.start()
    while not order:
        time.sleep(0.01)
    write("second", 0)
    first.join()
    assert order == ["first begins", "first ends", "second begins", "second ends"]


def test_a_writer_that_never_finishes_is_not_waited_for_for_ever(config: Settings, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(snapshot, "_WRITER_WAIT_S", 0.0)
    with snapshot.writer_lock(snapshot.prepare(config)), pytest.raises(snapshot.SnapshotError, match="another process"):
        training.make_training_set(config, "support")


class OneTrajectory:
    """A store with one judged trajectory a tenant, recorded when training was allowed."""

    def __init__(self, _: object):
        pass

    def tenants(self) -> list[str]:
        return ["northwind", "lumen"]

    def trajectories(self, tenant: str, **_: object) -> list[Any]:
        return [SimpleNamespace(trajectory_id=tenant, closed="ended")]

    def records(self, _: str, __: str) -> list[dict[str, Any]]:
        return trajectory(1, "Cancel {} for me.", "A10", "allow")

    def resolve_all(self, _: str, records: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return records

    def tools(self, _: str, __: str) -> list[Any]:
        return []


def test_a_tenant_who_denies_training_now_is_in_no_training_set_whatever_was_recorded(
    config: Settings, monkeypatch: pytest.MonkeyPatch
):
    connection = control.connect(config.control_db)
    tenants.create_tenant(connection, "northwind", train="deny")
    tenants.create_tenant(connection, "lumen", train="allow")
    monkeypatch.setattr(snapshot, "open_reader", OneTrajectory)
    taken = snapshot.take(config, "support")
    trainable = {c.tenant: c.trainable for c in snapshot.read(Path(taken.path))}
    assert trainable == {"northwind": False, "lumen": True}


TRAINER = """#!/bin/sh
echo $$ > {pid}
echo '{{"step": 1}}' > {work}/metrics.jsonl
exec sleep 600
"""
TRAINING = training.TrainingSet("abc.dir", "data", 1, 0, {})


@pytest.fixture
def trainer(config: Settings, tmp_path: Path) -> Path:
    """A program that tells its process id (in the file beside it) and then never ends."""
    script = tmp_path / "trainer"
    work = config.var / "training" / "support" / "abc"
    script.write_text(TRAINER.format(pid=tmp_path / "pid", work=work))
    script.chmod(0o755)
    return script


def ends(pid: int) -> bool:
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        if not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
            return True
        time.sleep(0.05)
    return False


def test_a_trainer_is_stopped_when_following_it_fails(config: Settings, trainer: Path, monkeypatch: pytest.MonkeyPatch):
    def refuse(_: dict[str, Any]) -> None:
        raise ConnectionError("MLflow is away")

    monkeypatch.setattr(sys, "executable", str(trainer))
    with pytest.raises(ConnectionError):
        training.train(config, "support", TRAINING, refuse)
    assert ends(int(trainer.with_name("pid").read_text()))


def test_another_jobs_steps_with_the_same_rows_are_not_told_as_this_ones(
    config: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = config.var / "training" / "support" / "abc"
    work.mkdir(parents=True)
    (work / "metrics.jsonl").write_text('{"step": 1, "loss": 9.0}\n{"step": 2, "loss": 8.0}\n')
    script = tmp_path / "trainer"
    script.write_text(f"""#!/bin/sh
sleep 0.5
echo '{{"step": 1, "loss": 1.0}}' > {work}/new && mv {work}/new {work}/metrics.jsonl
sleep 0.3
exit 2
""")
    script.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(script))
    monkeypatch.setattr(training, "_POLL_S", 0.05)
    told: list[float] = []
    with pytest.raises(training.TrainingFailed, match="status 2"):
        training.train(config, "support", TRAINING, lambda line: told.append(line["loss"]))
    assert told == [1.0]


def test_an_adapter_whose_copying_was_interrupted_is_copied_whole_the_next_time(
    config: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = config.var / "training" / "support" / "abc"
    (work / "adapter").mkdir(parents=True)
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        (work / "adapter" / name).write_text(name)
    digest = policy_digest(work / "adapter")
    (work / "result.json").write_text(json.dumps({"digest": digest}))
    script = tmp_path / "trainer"
    script.write_text("#!/bin/sh\n")
    script.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(script))

    def interrupted(source: Path, target: Path) -> None:
        target.mkdir(parents=True)
        shutil.copy(source / "adapter_config.json", target)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(shutil, "copytree", interrupted)
        training.train(config, "support", TRAINING, lambda _: None)

    kept = training.train(config, "support", TRAINING, lambda _: None)
    assert policy_digest(config.var / kept.path) == digest


def test_a_trainer_does_not_outlive_a_killed_flow(config: Settings, trainer: Path):
    program = (
        "import sys; from evoplane.settings import Settings; from flows import training;"
        f"config = Settings.model_validate({{'paths': {{'var': {str(config.var)!r}}}}});"
        f"sys.executable = {str(trainer)!r};"
        "training.train(config, 'support', training.TrainingSet('abc.dir', 'data', 1, 0, {}), lambda _: None)"
    )
    flow = subprocess.Popen([sys.executable, "-c", program])
    told = trainer.with_name("pid")
    try:
        deadline = time.monotonic() + 30
        while not (told.exists() and told.read_text().strip()) and time.monotonic() < deadline:
            time.sleep(0.05)
    finally:
        flow.kill()
        flow.wait()
    assert ends(int(told.read_text()))


def test_two_trainers_do_not_share_a_folder(config: Settings, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(training, "_FOLDER_WAIT_S", 0.0)
    work = config.var / "training" / "support" / "abc"
    work.mkdir(parents=True)
    with locks.exclusive(work / ".lock", 0), pytest.raises(training.TrainingFailed, match="another process trains"):
        training.train(config, "support", TRAINING, lambda _: None)


def test_registry_and_worker_agree_on_what_an_adapter_is(tmp_path: Path):
    (tmp_path / "adapter_config.json").write_text("{}")
    (tmp_path / "adapter_model.safetensors").write_bytes(b"weights")
    assert versions.adapter_digest(tmp_path) == policy_digest(tmp_path)
