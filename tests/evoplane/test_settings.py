from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from evoplane.settings import SettingsError, read_settings


def test_an_unknown_key_is_an_error_that_names_it(tmp_path: Path) -> None:
    file = tmp_path / "evoplane.toml"
    file.write_text("[gateway]\nprot = 8000\n")
    with pytest.raises(SettingsError, match=r"evoplane\.toml: gateway\.prot is not known \(did you mean port\?\)"):
        read_settings(file, {})


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('[gateway]\nport = "abc"', "gateway.port: Input should be a valid integer"),
        ("gateway = 3", "gateway must be a section, [gateway]"),
        ('[upstreams.x]\nurl = "http://a"', "upstreams.x.models is missing"),
        ("[model]\nzzz = 1", "model.zzz is not known (there are name, wheel, gguf)"),
        ("[rewards.a]\nclauses = [{ wieght = 2 }]", "rewards.a.clauses.0.wieght is not known (did you mean weight?)"),
        ('[otlp]\nheaders = "x"', "otlp.headers must be a section, [otlp.headers]"),
    ],
)
def test_what_is_wrong_is_told_with_what_is_expected(tmp_path: Path, text: str, says: str) -> None:
    file = tmp_path / "evoplane.toml"
    file.write_text(text)
    with pytest.raises(SettingsError) as refused:
        read_settings(file, {"EVOPLANE_GATEWAY__HOST": "::1"})
    assert says in str(refused.value)


def test_a_wrong_variable_is_named_and_the_file_is_not_blamed(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"^wrong settings in EVOPLANE_GATEWAY__PORT: gateway\.port"):
        read_settings(tmp_path / "evoplane.toml", {"EVOPLANE_GATEWAY__PORT": "abc"})


@pytest.mark.parametrize(
    "module", ["services.gateway", "services.worker", "dashboards.console", "evoplane.stack", "flows.train"]
)
def test_a_process_with_wrong_settings_ends_with_one_line_and_status_2(tmp_path: Path, module: str) -> None:
    file = tmp_path / "evoplane.toml"
    file.write_text("[gateway]\nprot = 8000\n")
    arguments = ["--agent", "a"] if module == "flows.train" else []
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        env={**os.environ, "EVOPLANE_CONFIG": str(file)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 2
    said = f"error: wrong settings in {file}: gateway.prot is not known (did you mean port?)"
    assert done.stderr.splitlines() == [said]


def test_the_environment_overrides_the_file(tmp_path: Path) -> None:
    file = tmp_path / "evoplane.toml"
    file.write_text("[gateway]\nport = 8000\n")
    assert read_settings(file, {"EVOPLANE_GATEWAY__PORT": "9000"}).gateway.port == 9000


def test_an_environment_value_may_be_a_plain_string(tmp_path: Path) -> None:
    read = read_settings(tmp_path / "absent.toml", {"EVOPLANE_PATHS__VAR": "some/where"})
    assert read.var == Path("some/where")


def test_an_unknown_environment_section_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="gatway"):
        read_settings(tmp_path / "absent.toml", {"EVOPLANE_GATWAY__PORT": "1"})


def test_a_secret_in_the_file_is_refused_and_one_in_the_environment_is_not_shown(tmp_path: Path) -> None:
    file = tmp_path / "evoplane.toml"
    file.write_text('[store]\ndsn = "postgresql://user:hidden@db/evoplane"\n')
    with pytest.raises(SettingsError, match="EVOPLANE_STORE__DSN") as refused:
        read_settings(file, {})
    assert "hidden" not in str(refused.value)
    read = read_settings(tmp_path / "absent.toml", {"EVOPLANE_STORE__DSN": "postgresql://user:hidden@db/evoplane"})
    assert read.store.dsn is not None
    assert read.store.dsn.get_secret_value() == "postgresql://user:hidden@db/evoplane"
    assert "hidden" not in repr(read)


def test_broken_toml_is_an_error_with_the_file_name(tmp_path: Path) -> None:
    file = tmp_path / "evoplane.toml"
    for content in (b"[gateway", b"\xff\xfe"):
        file.write_bytes(content)
        with pytest.raises(SettingsError, match=r"evoplane\.toml is not TOML"):
            read_settings(file, {})
