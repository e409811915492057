from __future__ import annotations

from pathlib import Path

import pytest

from magi2.config.settings import Settings
from magi2.errors import ConfigError


def test_settings_come_from_the_environment(tmp_path: Path) -> None:
    settings = Settings.from_environment(
        {"MAGI2_CKPT_ROOT": str(tmp_path), "MAGI2_STORE": "/data", "MAGI2_DETERMINISTIC": "1", "HOME": "/root"}
    )
    assert settings.checkpoint_root() == tmp_path
    assert (settings.store, settings.deterministic) == ("/data", True)


def test_input_roots_are_folders_between_colons_and_airflows_home_is_its_own_variable(tmp_path: Path) -> None:
    settings = Settings.from_environment({"MAGI2_INPUT_ROOTS": f"{tmp_path}/a:{tmp_path}/b:", "AIRFLOW_HOME": "/af"})
    assert settings.input_roots == (tmp_path / "a", tmp_path / "b")
    assert settings.airflow_home == Path("/af")
    with pytest.raises(ConfigError, match="unknown variable MAGI2_AIRFLOW_HOME"):
        Settings.from_environment({"MAGI2_AIRFLOW_HOME": "/af"})


def test_a_misspelt_variable_is_refused_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"MAGI2_CKPTROOT.*did you mean 'MAGI2_CKPT_ROOT'"):
        Settings.from_environment({"MAGI2_CKPTROOT": "/weights"})


def test_the_credential_never_shows() -> None:
    assert "s3cret" not in repr(Settings.from_environment({"MAGI2_PE_API_KEY": "s3cret"}))


@pytest.mark.parametrize(
    "variable",
    ["MAGI2_DETERMINISTIC", "MAGI2_PE_TIMEOUT_S", "MAGI2_SNAPSHOT_EVERY", "MAGI2_LEASE_DAYS", "MAGI2_QUARANTINE_DAYS"],
)
def test_bad_values_name_the_variable(variable: str) -> None:
    with pytest.raises(ConfigError, match=variable):
        Settings.from_environment({variable: "perhaps"})


def test_missing_weights_say_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="make-tiny"):
        Settings().checkpoint_root()
    with pytest.raises(ConfigError, match="is not a folder"):
        Settings(ckpt_root=tmp_path / "absent").checkpoint_root()
