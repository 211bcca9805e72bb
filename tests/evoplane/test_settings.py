from __future__ import annotations

from pathlib import Path

import pytest

from evoplane.settings import SettingsError, read_settings


def test_an_unknown_key_is_an_error_that_names_it(tmp_path: Path) -> None:
    file = tmp_path / "evoplane.toml"
    file.write_text("[gateway]\nprot = 8000\n")
    with pytest.raises(SettingsError, match=r"gateway\.prot"):
        read_settings(file, {})


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
    file.write_text("[gateway")
    with pytest.raises(SettingsError, match=r"evoplane\.toml"):
        read_settings(file, {})
