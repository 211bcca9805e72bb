from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from evoplane.settings import SettingsError, place_of, read_settings


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


_SECRET = "hunter2"


@pytest.mark.parametrize(
    "url",
    [
        f"http://user:{_SECRET}@host:port",
        f"http://user:{_SECRET}@host:99999",
        f"http://user:{_SECRET}@host:0",
        f"http://user:{_SECRET}@[::bad/v1",
        f"http://user:{_SECRET}@",
        f"http://user:{_SECRET}@a..b",
        f"http://user:{_SECRET}@xn--a/",
        f"http://user:{_SECRET}#x@host",
        f"http://user:1#{_SECRET}@host",
        f"http://user:{_SECRET}/x@host",
        f"http://us er:{_SECRET}@host",
        f"http:/user:{_SECRET}@host",
        f"ftp://user:{_SECRET}@host",
        f"user:{_SECRET}@host",
        f"//user:{_SECRET}@host",
        "",
    ],
)
def test_a_url_that_nothing_can_be_sent_to_is_refused_and_not_shown(tmp_path: Path, url: str) -> None:
    for section in ("upstreams", "mcp", "a2a", "alert_hooks"):
        rest = {"upstreams": ', models=["m"]', "alert_hooks": ', secret_env="A"'}.get(section, "")
        with pytest.raises(SettingsError, match=rf"{section}\.x\.url") as refused:
            read_settings(tmp_path / "absent", {f"EVOPLANE_{section.upper()}__X": f"{{url={json.dumps(url)}{rest}}}"})
        assert _SECRET not in str(refused.value)


@pytest.mark.parametrize("url", ["http://user:p%23@host:8000/v1", "https://[::1]/@own/mcp?a=b", "HTTP://ü.example"])
def test_a_url_that_requests_can_be_sent_to_is_taken(tmp_path: Path, url: str) -> None:
    assert read_settings(tmp_path / "absent", {"EVOPLANE_MCP__X": f'{{url="{url}"}}'}).mcp["x"].url == url


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("EVOPLANE_UPSTREAMS__X", '{url="http://a", models=["m"], key_env="sk-proj-hunter2"}'),
        ("EVOPLANE_MCP__X", '{url="http://a", headers={authorization="Bearer hunter2"}}'),
        ("EVOPLANE_OTLP__HEADERS", '{authorization="Bearer hunter2"}'),
        ("EVOPLANE_ALERT_HOOKS__X", '{url="http://a", secret_env="whsec-hunter2"}'),
        ("EVOPLANE_WEBHOOKS__X", '{secret_env=["whsec-hunter2"], tenant="a", agent="a", rules=[]}'),
        ("EVOPLANE_JUDGE__KEY_ENV", '"sk-hunter2"'),
    ],
)
def test_a_secret_where_its_variables_name_belongs_is_refused_and_not_shown(
    tmp_path: Path, name: str, value: str
) -> None:
    with pytest.raises(SettingsError, match=r"must be the name of an environment variable") as refused:
        read_settings(tmp_path / "absent", {name: value})
    assert _SECRET not in str(refused.value)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("x=" + "[" * 3000, "is nested too deeply"),
        ("x=" + "9" * 5000, "has a number of too many digits"),
    ],
)
def test_a_file_that_python_does_not_take_is_refused_in_one_line(tmp_path: Path, text: str, says: str) -> None:
    file = tmp_path / "evoplane.toml"
    file.write_text(text)
    with pytest.raises(SettingsError, match=says):
        read_settings(file, {})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("EVOPLANE_GATEWAY__PORT", "-1"),
        ("EVOPLANE_GATEWAY__PORT", "70000"),
        ("EVOPLANE_WORKER__VLLM_PORT", "0"),
        ("EVOPLANE_CONSOLE__PORT", "9" * 5000),
        ("EVOPLANE_MLFLOW__PORT", "[" * 3000),
        ("EVOPLANE_GATEWAY__HOST", '"a\\u0000b"'),
        ("EVOPLANE_PATHS__VAR", '"a\\u0000b"'),
    ],
)
def test_ports_hosts_and_folders_that_can_be_none_are_refused(tmp_path: Path, name: str, value: str) -> None:
    with pytest.raises(SettingsError, match=f"wrong settings in {name}"):
        read_settings(tmp_path / "absent", {name: value})


def test_a_file_that_was_named_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"EVOPLANE_CONFIG names .*absent\.toml, which does not exist"):
        read_settings(None, {"EVOPLANE_CONFIG": str(tmp_path / "absent.toml")})


def test_a_variable_of_an_unknown_section_is_named_and_the_file_is_not_blamed(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"^wrong settings in EVOPLANE_GATWAY__PORT: gatway is not known"):
        read_settings(tmp_path / "evoplane.toml", {"EVOPLANE_GATWAY__PORT": "1"})


@pytest.mark.parametrize(
    ("variables", "says"),
    [
        ({"EVOPLANE_PATHS__VAR": "/dev/null"}, "paths.var: /dev/null can't be made: File exists"),
        ({"EVOPLANE_PATHS__VAR": "/dev/null/x"}, "paths.var: /dev/null/x can't be made: Not a directory"),
        ({"EVOPLANE_GATEWAY__HOST": "no.such.host.invalid"}, "gateway.host: no.such.host.invalid can't be resolved"),
        (
            {"EVOPLANE_MASTER_KEY": _SECRET},
            "the variable EVOPLANE_MASTER_KEY holds no key: 32 bytes in base64 or hexadecimal are needed",
        ),
        (
            {"EVOPLANE_UPSTREAMS__X": '{url="http://a", models=["m"], key_env="NOT_SET_ANYWHERE"}'},
            "upstreams.x.key_env: NOT_SET_ANYWHERE is not set in the environment",
        ),
        (
            {"EVOPLANE_STORE__ENGINE": "postgres", "EVOPLANE_STORE__DSN": f"postgresql://u:{_SECRET}%zz@h/x"},
            "EVOPLANE_STORE__DSN is no connection string of PostgreSQL, such as postgresql://user:password@host/name"
            " (what is special in a password, as %, @, / and #, is percent-encoded)",
        ),
    ],
)
def test_a_gateway_whose_settings_turn_out_to_be_wrong_ends_with_one_line_and_status_2(
    tmp_path: Path, variables: dict[str, str], says: str
) -> None:
    environ = {**os.environ, "EVOPLANE_CONFIG": os.devnull, "EVOPLANE_PATHS__VAR": str(tmp_path), **variables}
    done = subprocess.run(
        [sys.executable, "-m", "services.gateway"], env=environ, capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stderr.splitlines()) == (2, [f"error: {says}"])


def test_a_urls_place_is_told_without_its_password() -> None:
    assert place_of("https://user:p%40ss@host:4318/v1/traces?key=s3cret") == "https://host:4318/v1/traces"
    assert place_of("http://[::1]:9") == "http://[::1]:9"
