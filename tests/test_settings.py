from __future__ import annotations

import pickle
import re
from pathlib import Path

import pytest

from airflow_lake_provider.errors import SettingsError
from airflow_lake_provider.settings import SETTINGS, Given, Secret, Setting, Settings, parse_size

ROOT = Path(__file__).resolve().parents[1]


def test_without_anything_everything_is_in_one_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    settings = Settings.from_env({})
    assert settings.home == tmp_path / ".lake"
    assert settings.raw == str(tmp_path / ".lake" / "raw")
    assert settings.warehouse == str(tmp_path / ".lake" / "warehouse")
    assert settings.temp_dir == tmp_path / ".lake" / "tmp"
    assert settings.ledger is None
    assert settings == Settings()


def test_places_follow_home_unless_they_are_given(tmp_path: Path) -> None:
    settings = Settings.from_env({"LAKE_HOME": str(tmp_path), "LAKE_RAW": "s3://bucket/prefix/"})
    assert settings.raw == "s3://bucket/prefix"
    assert settings.warehouse == str(tmp_path / "warehouse")
    assert Settings(home=tmp_path).temp_dir == tmp_path / "tmp"


def test_relative_places_become_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/someone")
    settings = Settings.from_env({"LAKE_HOME": "~/data", "LAKE_RAW": "in", "LAKE_WAREHOUSE": "out"})
    assert (str(settings.home), settings.raw, settings.warehouse) == (
        "/home/someone/data",
        str(tmp_path / "in"),
        str(tmp_path / "out"),
    )


def test_a_rest_catalog_names_its_warehouse() -> None:
    environ = {"LAKE_CATALOG_TYPE": "rest", "LAKE_CATALOG_URI": "https://catalog.example/"}
    assert Settings.from_env(environ).warehouse == ""
    assert Settings.from_env(environ | {"LAKE_WAREHOUSE": "main"}).warehouse == "main"


def test_an_empty_text_counts_as_not_set() -> None:
    assert Settings.from_env({"PG_HOST": "", "LAKE_ENGINE": ""}) == Settings.from_env({})


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1", 1),
        ("512MB", 512_000_000),
        ("1GiB", 2**30),
        ("1.5 GiB", 3 * 2**29),
        ("2kb", 2000),
        (" 3 TiB ", 3 * 2**40),
        ("9007199254740993B", 9007199254740993),
    ],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "0", "0MB", "-1MB", "MB", "1 PB", "1,5GB", "1e9", "nan", "12 34", "١MB"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(ValueError, match="512MB, 1GiB"):
        parse_size(text)


WRONG = [
    ("LAKE_ENGINE", "spark", "duckdb"),
    ("LAKE_MAX_FILE_BYTES", "10 elephants", "a size such as 512MB"),
    ("LAKE_BATCH_MAX_FILES", "0", "a whole number of at least 1"),
    ("LAKE_BATCH_MAX_FILES", "2.5", "a whole number of at least 1"),
    ("LAKE_BATCH_MAX_FILES", "٥", "a whole number of at least 1"),
    ("LAKE_DUCKDB_THREADS", "-1", "from 0 to 1024"),
    ("LAKE_LEASE_SECONDS", "1", "a number of seconds of at least 5"),
    ("LAKE_RETRY_SECONDS", "inf", "a number of seconds of at least 0"),
    ("LAKE_RAW", "ftp://host/folder", "s3://BUCKET/PREFIX"),
    ("LAKE_RAW", "s3:///prefix", "s3://BUCKET/PREFIX"),
    ("LAKE_CATALOG_TYPE", "hive", "sql or rest"),
    ("LAKE_MAX_COMPRESSION_RATIO", "0.5", "a number of at least 1"),
]


@pytest.mark.parametrize(("variable", "text", "expected"), WRONG)
def test_a_wrong_value_is_named_with_what_is_expected(variable: str, text: str, expected: str) -> None:
    with pytest.raises(SettingsError) as caught:
        Settings.from_env({variable: text})
    message = str(caught.value)
    assert message.startswith(f"{variable} cannot be {text!r}: it must be ")
    assert expected in message


def test_a_port_has_a_range() -> None:
    with pytest.raises(SettingsError, match=r"PG_PORT cannot be '65536'.*from 1 to 65535"):
        Settings.from_env({"PG_HOST": "db", "PG_PORT": "65536"})


def test_a_long_value_is_cut_in_the_message() -> None:
    with pytest.raises(SettingsError) as caught:
        Settings.from_env({"LAKE_ENGINE": "x" * 5000})
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize(
    ("variable", "text"),
    [
        ("LAKE_LEDGER_DSN", "mysql://u:hunter2@h/d"),
        ("LAKE_CATALOG_URI", "ftp://u:hunter2@h/d"),
        ("LAKE_CATALOG_PROPERTIES", '{"token": "hunter2"'),
        ("LAKE_CATALOG_PROPERTIES", '{"hunter2": 1}'),
        ("LAKE_RAW_OPTIONS", '["hunter2"]'),
        ("LAKE_CATALOG_TOKEN", "hunter2"),
    ],
)
def test_a_wrong_secret_is_named_and_not_shown(variable: str, text: str) -> None:
    with pytest.raises(SettingsError) as caught:
        Settings.from_env({variable: text})
    assert variable in str(caught.value)
    assert "hunter2" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_secrets_are_shown_nowhere() -> None:
    settings = Settings.from_env(
        {
            "PG_HOST": "db",
            "INGEST_DB_PASSWORD": "hunter2",
            "LAKE_RAW_OPTIONS": '{"secret": "hunter2"}',
            "LAKE_CATALOG_URI": "postgresql://u:hunter2@h/d",
        }
    )
    assert "hunter2" not in f"{settings} {settings!r} {settings.ledger} {settings.ledger!r}"
    assert settings.raw_options is not None
    assert settings.raw_options.reveal() == {"secret": "hunter2"}
    assert pickle.loads(pickle.dumps(settings)) == settings


def test_a_secret_equals_by_value() -> None:
    assert Secret("a") == Secret("a")
    assert Secret("a") != Secret("b")
    assert Secret("a") != "a"
    assert len({Secret("a"), Secret("a")}) == 1


def test_a_secret_may_be_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("p ss\n")
    settings = Settings.from_env({"PG_HOST": "db", "INGEST_DB_PASSWORD_FILE": str(file)})
    assert settings.pg_password == Secret("p ss")
    assert settings.unknown == ()


@pytest.mark.parametrize("content", [None, b"", b"\n", b"\xff"])
def test_a_secret_file_that_cannot_be_used(tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "password"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(SettingsError, match=r"INGEST_DB_PASSWORD_FILE names '.*password', which"):
        Settings.from_env({"PG_HOST": "db", "INGEST_DB_PASSWORD_FILE": str(file)})


def test_a_secret_and_its_file_are_one_too_many(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="Both INGEST_DB_PASSWORD and INGEST_DB_PASSWORD_FILE"):
        Settings.from_env({"PG_HOST": "db", "INGEST_DB_PASSWORD": "x", "INGEST_DB_PASSWORD_FILE": str(tmp_path)})


@pytest.mark.parametrize(
    ("environ", "address"),
    [
        ({"PG_HOST": "db"}, "postgresql://lake@db:5432/lake"),
        (
            {
                "PG_HOST": "db",
                "PG_PORT": "6543",
                "PG_DATABASE": "in gest",
                "PG_USER": "a@b",
                "INGEST_DB_PASSWORD": "p:/?#%",
            },
            "postgresql://a%40b:p%3A%2F%3F%23%25@db:6543/in%20gest",
        ),
        ({"PG_HOST": "::1"}, "postgresql://lake@[::1]:5432/lake"),
        (
            {"PG_HOST": "/var/run/postgresql"},
            "postgresql://lake@/lake?host=%2Fvar%2Frun%2Fpostgresql&port=5432",
        ),
        ({"LAKE_LEDGER_DSN": "postgres://u:p@h/d"}, "postgresql://u:p@h/d"),
        ({"LAKE_LEDGER_DSN": "postgresql+psycopg://u:p@h/d?sslmode=require"}, "postgresql://u:p@h/d?sslmode=require"),
    ],
)
def test_the_ledgers_address(environ: dict[str, str], address: str) -> None:
    ledger = Settings.from_env(environ).ledger
    assert ledger is not None
    assert ledger.reveal() == address


def test_libpq_reads_the_address_as_it_was_meant() -> None:
    from psycopg.conninfo import conninfo_to_dict

    environ = {"PG_HOST": "/a b/%", "PG_USER": "ü@:", "INGEST_DB_PASSWORD": "p /?#%&=", "PG_DATABASE": "d/ä"}
    ledger = Settings.from_env(environ).ledger
    assert ledger is not None
    assert conninfo_to_dict(ledger.reveal()) == {
        "host": "/a b/%",
        "port": "5432",
        "user": "ü@:",
        "password": "p /?#%&=",
        "dbname": "d/ä",
    }


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({"PG_PORT": "5433"}, "PG_PORT is set but PG_HOST is not"),
        ({"INGEST_DB_PASSWORD": "x"}, "INGEST_DB_PASSWORD is set but PG_HOST is not"),
        ({"LAKE_LEDGER_DSN": "postgresql://h/d", "PG_HOST": "h"}, "Both LAKE_LEDGER_DSN and PG_HOST are set"),
        ({"LAKE_CATALOG_TYPE": "rest"}, "LAKE_CATALOG_URI is not set"),
        ({"LAKE_CATALOG_URI": "https://c"}, "must start with postgresql://"),
        ({"LAKE_CATALOG_TYPE": "rest", "LAKE_CATALOG_URI": "postgresql://h/d"}, "must start with http://"),
        ({"LAKE_CATALOG_CREDENTIAL": "a:b"}, "LAKE_CATALOG_CREDENTIAL is for REST catalogs only"),
        (
            {
                "LAKE_CATALOG_TYPE": "rest",
                "LAKE_CATALOG_URI": "https://c",
                "LAKE_CATALOG_CREDENTIAL": "a:b",
                "LAKE_CATALOG_TOKEN": "t",
            },
            "Both LAKE_CATALOG_TOKEN and LAKE_CATALOG_CREDENTIAL are set",
        ),
    ],
)
def test_what_does_not_go_together(environ: dict[str, str], message: str) -> None:
    with pytest.raises(SettingsError, match=re.escape(message)):
        Settings.from_env(environ)


def test_unknown_variables_are_reported_with_what_was_meant() -> None:
    settings = Settings.from_env({"LAKE_HOEM": "x", "LAKE_ZZZZZZZZZ": "y", "PG_COLOR": "z", "LAKEHOUSE": "q"})
    assert settings.unknown == ("LAKE_HOEM", "LAKE_ZZZZZZZZZ")
    assert settings.warnings == [
        "LAKE_HOEM is not a setting: did you mean LAKE_HOME?",
        "LAKE_ZZZZZZZZZ is not a setting: it has no effect.",
    ]


class _Options:
    """Another source, as a configuration file would be one."""

    def get(self, setting: Setting) -> Given | None:
        text = {"batch_max_files": "7", "max_attempts": "none"}.get(setting.name)
        return Given(f"[lake] {setting.name}", text) if text else None


class _Attempts:
    def get(self, setting: Setting) -> Given | None:
        return Given("option --attempts", "5") if setting.name == "max_attempts" else None


def test_other_sources_feed_the_same_fields_and_the_first_one_wins() -> None:
    settings = Settings.load([_Attempts(), _Options()])
    assert (settings.batch_max_files, settings.max_attempts) == (7, 5)
    with pytest.raises(SettingsError, match=r"\[lake\] max_attempts cannot be 'none'"):
        Settings.load([_Options()])


def test_the_documentation_has_every_setting_with_its_default_and_no_other() -> None:
    text = (ROOT / "docs" / "settings.md").read_text("utf-8")
    rows = re.findall(r"^\| `([A-Z_]+)`( 🔒)? \|(?: `([^`]*)`)? \| (.+) \|$", text, re.MULTILINE)
    documented = [(name, bool(lock), default) for name, lock, default, _ in rows]
    assert documented == [(setting.env, setting.secret, setting.default) for setting in SETTINGS]
    named = set(re.findall(r"`((?:LAKE|PG)_[A-Z_]+?)(?:_FILE)?[`=]", text))
    assert named <= {setting.env for setting in SETTINGS}


def test_the_defaults_that_are_documented_are_the_ones_that_are_used(tmp_path: Path) -> None:
    untouched = Settings.from_env({"LAKE_HOME": str(tmp_path)})
    for setting in SETTINGS:
        if not setting.default or setting.env.startswith("PG_") or setting.name == "home":
            continue
        text = setting.default.replace("<home>", str(tmp_path))
        given = Settings.from_env({"LAKE_HOME": str(tmp_path), setting.env: text})
        assert given == untouched, setting.env
