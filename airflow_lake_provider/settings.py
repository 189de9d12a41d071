"""One typed configuration for everything in this package, read from the environment.

Each field of :class:`Settings` is declared once, with the variable that sets it, its default as a user would write
it, and how its text is read. ``docs/settings.md`` describes the same table for people.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Generic, Literal, NamedTuple, Protocol, TypeVar
from urllib.parse import quote, urlsplit

from airflow_lake_provider.errors import SettingsError

T = TypeVar("T")

PREFIX = "LAKE_"


class Secret(Generic[T]):
    """A value that shows itself as ``***`` everywhere but in :meth:`reveal`."""

    __slots__ = ("_value",)

    def __init__(self, value: T) -> None:
        self._value = value

    def reveal(self) -> T:
        """The value itself, to be handed to what needs it and to nothing that prints."""
        return self._value

    def __repr__(self) -> str:
        return "***"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and bool(self._value == other._value)

    def __hash__(self) -> int:
        return hash((Secret, repr(self._value)))


@dataclass(frozen=True, slots=True)
class Setting:
    """How one field of Settings is set.

    ``name`` is the field's name, ``env`` the variable, ``default`` the default in a user's spelling (empty: none;
    ``<home>`` stands for LAKE_HOME), ``parse`` turns text into the value and raises ValueError saying what is
    expected, ``secret`` keeps the given text out of every message and lets it come from a file named by ``<env>_FILE``.
    """

    name: str
    env: str
    default: str
    parse: Callable[[str], Any]
    secret: bool


class Given(NamedTuple):
    """A text that was given for a setting, and what the user calls the place where it stands."""

    label: str
    text: str


class Source(Protocol):
    """Somewhere settings come from."""

    def get(self, setting: Setting) -> Given | None:
        """What was given for ``setting``, or None; an empty text counts as not given."""
        ...


class Environment:
    """Environment variables; a secret may instead be in the file that ``<variable>_FILE`` names."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ

    def get(self, setting: Setting) -> Given | None:
        given = Given(setting.env, self._environ.get(setting.env, ""))
        file = self._environ.get(f"{setting.env}_FILE", "") if setting.secret else ""
        if not file:
            return given if given.text else None
        if given.text:
            raise SettingsError(f"Both {setting.env} and {setting.env}_FILE are set: keep one of them.")
        try:
            text = Path(file).read_text("utf-8").rstrip("\r\n")
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
            raise SettingsError(
                f"{setting.env}_FILE names {file!r}, which cannot be read ({why}): name a file that holds the secret."
            ) from None
        if not text:
            raise SettingsError(f"{setting.env}_FILE names {file!r}, which is empty: put the secret into it.")
        return Given(f"{setting.env}_FILE", text)


# --- how texts are read: each takes the text and raises ValueError with what is expected ----------------------------

_UNITS = {"": 1, "b": 1} | {
    f"{letter}{suffix}": base**power
    for power, letter in enumerate("kmgt", start=1)
    for suffix, base in (("b", 1000), ("ib", 1024))
}


def parse_size(text: str) -> int:
    """Bytes from ``512MB``, ``1.5 GiB`` or ``1000``; MB is 1000², MiB 1024². Raises ValueError."""
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*([a-z]*)", text.strip().lower())
    if match and match[2] in _UNITS:
        size = int(float(match[1]) * _UNITS[match[2]]) if "." in match[1] else int(match[1]) * _UNITS[match[2]]
        if size > 0:
            return size
    raise ValueError("a size such as 512MB, 1GiB or a number of bytes, more than 0")


def _path(text: str) -> Path:
    return Path(text).expanduser().absolute()


def _uri(text: str) -> str:
    scheme = text.partition("://")[0] if "://" in text else ""
    if scheme in ("", "file"):
        return str(_path(text.removeprefix("file://")))
    if scheme == "s3" and urlsplit(text).netloc:
        return text.rstrip("/")
    raise ValueError("a folder or s3://BUCKET/PREFIX")


def _text(text: str) -> str:
    return text


def _secret(text: str) -> Secret[str]:
    return Secret(text)


def _secret_options(text: str) -> Secret[Mapping[str, Any]]:
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise ValueError('a JSON object such as {"key": "value"}')
    return Secret(value)


def _secret_properties(text: str) -> Secret[Mapping[str, str]]:
    options = _secret_options(text)
    if not all(isinstance(value, str) for value in options.reveal().values()):
        raise ValueError('a JSON object whose values are texts, such as {"key": "value"}')
    return options


def _integer(least: int, most: int | None = None) -> Callable[[str], int]:
    expected = f"a whole number of at least {least}" if most is None else f"a whole number from {least} to {most}"

    def parse(text: str) -> int:
        if not re.fullmatch(r"[0-9]{1,18}", text.strip()) or not least <= int(text) <= (most or int(text)):
            raise ValueError(expected)
        return int(text)

    return parse


def _number(least: float, unit: str) -> Callable[[str], float]:
    def parse(text: str) -> float:
        if not re.fullmatch(r"[0-9]{1,12}(\.[0-9]+)?", text.strip()) or float(text) < least:
            raise ValueError(f"{unit} of at least {least:g}")
        return float(text)

    return parse


def _choice(*allowed: str) -> Callable[[str], Any]:
    def parse(text: str) -> str:
        if text.strip().lower() not in allowed:
            raise ValueError(" or ".join(allowed))
        return text.strip().lower()

    return parse


def _dsn(text: str) -> Secret[str]:
    scheme, _, rest = text.partition("://")
    if scheme not in ("postgresql", "postgres", "postgresql+psycopg") or not rest:
        raise ValueError("an address such as postgresql://USER:PASSWORD@HOST:5432/DATABASE")
    return Secret(f"postgresql://{rest}")


# --- the fields -----------------------------------------------------------------------------------------------------


def _setting(env: str, default: str, parse: Callable[[str], T]) -> T:
    """A field whose default is read from the same text that the documentation shows."""
    # Read when it is needed, not at import: a relative path means the folder that is current then.
    return field(default_factory=lambda: parse(default), metadata={"env": env, "default": default, "parse": parse})


def _under_home(env: str, default: str, parse: Callable[[str], T], unset: T) -> T:
    """A field whose default is a place in ``home``, filled in once that is known."""
    return field(default=unset, metadata={"env": env, "default": default, "parse": parse})


def _optional(env: str, parse: Callable[[str], T], *, secret: bool = False) -> T | None:
    """A field that is None where nothing is given."""
    return field(default=None, metadata={"env": env, "default": "", "parse": parse, "secret": secret})


_UNSET_PATH = Path()
_LEDGER_PARTS = ("pg_host", "pg_port", "pg_database", "pg_user", "pg_password")


@dataclass(frozen=True, slots=True)
class Settings:
    """Where everything is, what it may use, and when it gives up.

    Sizes are bytes, times seconds. Local places are absolute. Made by :meth:`from_env` or, in code, by naming the
    fields that differ: ``Settings(home=Path("/data/lake"))``.
    """

    # Places
    home: Path = _setting("LAKE_HOME", ".lake", _path)
    raw: str = _under_home("LAKE_RAW", "<home>/raw", _uri, "")
    raw_options: Secret[Mapping[str, Any]] | None = _optional("LAKE_RAW_OPTIONS", _secret_options, secret=True)
    # Under a REST catalog the server knows the place: there the text is a name, and may be empty.
    warehouse: str = _under_home("LAKE_WAREHOUSE", "<home>/warehouse", _text, "")
    temp_dir: Path = _under_home("LAKE_TEMP_DIR", "<home>/tmp", _path, _UNSET_PATH)

    # Ledger: one address, or its parts, or neither (the embedded database)
    ledger_dsn: Secret[str] | None = _optional("LAKE_LEDGER_DSN", _dsn, secret=True)
    pg_host: str | None = _optional("PG_HOST", _text)
    pg_port: int = _setting("PG_PORT", "5432", _integer(1, 65535))
    pg_database: str = _setting("PG_DATABASE", "lake", _text)
    pg_user: str = _setting("PG_USER", "lake", _text)
    pg_password: Secret[str] | None = _optional("INGEST_DB_PASSWORD", _secret, secret=True)

    # Catalog
    catalog_type: Literal["sql", "rest"] = _setting("LAKE_CATALOG_TYPE", "sql", _choice("sql", "rest"))
    catalog_uri: Secret[str] | None = _optional("LAKE_CATALOG_URI", _secret, secret=True)
    catalog_token: Secret[str] | None = _optional("LAKE_CATALOG_TOKEN", _secret, secret=True)
    catalog_credential: Secret[str] | None = _optional("LAKE_CATALOG_CREDENTIAL", _secret, secret=True)
    catalog_properties: Secret[Mapping[str, str]] | None = _optional(
        "LAKE_CATALOG_PROPERTIES", _secret_properties, secret=True
    )

    # Engine
    engine: Literal["duckdb"] = _setting("LAKE_ENGINE", "duckdb", _choice("duckdb"))
    duckdb_memory_limit: int = _setting("LAKE_DUCKDB_MEMORY_LIMIT", "512MB", parse_size)
    duckdb_threads: int = _setting("LAKE_DUCKDB_THREADS", "0", _integer(0, 1024))
    target_file_bytes: int = _setting("LAKE_TARGET_FILE_BYTES", "128MB", parse_size)

    # Limits
    max_file_bytes: int = _setting("LAKE_MAX_FILE_BYTES", "10GB", parse_size)
    max_decompressed_bytes: int = _setting("LAKE_MAX_DECOMPRESSED_BYTES", "50GB", parse_size)
    max_compression_ratio: float = _setting("LAKE_MAX_COMPRESSION_RATIO", "500", _number(1, "a number"))

    # Batches, leases, patience
    batch_max_files: int = _setting("LAKE_BATCH_MAX_FILES", "500", _integer(1))
    batch_max_bytes: int = _setting("LAKE_BATCH_MAX_BYTES", "1GB", parse_size)
    lease_seconds: float = _setting("LAKE_LEASE_SECONDS", "60", _number(5, "a number of seconds"))
    max_attempts: int = _setting("LAKE_MAX_ATTEMPTS", "3", _integer(1))
    retry_seconds: float = _setting("LAKE_RETRY_SECONDS", "60", _number(0, "a number of seconds"))

    # Jobs
    job_timeout_seconds: float = _setting("JOB_TIMEOUT_SECONDS", "1800", _number(1, "a number of seconds"))
    job_memory_limit: int | None = _optional("LAKE_JOB_MEMORY_LIMIT", parse_size)

    unknown: tuple[str, ...] = ()
    """Variables that are named like a setting but are none, sorted."""

    def __post_init__(self) -> None:
        if not self.raw:
            object.__setattr__(self, "raw", str(self.home / "raw"))
        if self.temp_dir == _UNSET_PATH:
            object.__setattr__(self, "temp_dir", self.home / "tmp")
        if self.catalog_type == "sql":
            place = self.warehouse or str(self.home / "warehouse")
            object.__setattr__(self, "warehouse", place if "://" in place else str(_path(place)))

    @classmethod
    def from_env(cls, environ: Mapping[str, str] = os.environ) -> Settings:
        """Read the environment; raises SettingsError for a value, or a combination of values, that cannot be used."""
        return cls.load([Environment(environ)], unknown=_unknown(environ))

    @classmethod
    def load(cls, sources: Iterable[Source], *, unknown: tuple[str, ...] = ()) -> Settings:
        """Read several sources; for each setting the first one that gives something wins. Raises SettingsError."""
        sources = list(sources)
        labels: dict[str, str] = {}
        values: dict[str, Any] = {}
        for setting in SETTINGS:
            given = next((g for g in (source.get(setting) for source in sources) if g and g.text), None)
            if given is None:
                continue
            labels[setting.name] = given.label
            try:
                values[setting.name] = setting.parse(given.text)
            except ValueError as error:
                shown = "its value" if setting.secret else _shown(given.text)
                raise SettingsError(f"{given.label} cannot be {shown}: it must be {error}.") from None
        _check_together(values, labels)
        return cls(**values, unknown=unknown)

    def environment(self, *, ledger: str | None = None) -> dict[str, str]:
        """The variables that give these same settings to another process, secrets among them.

        ``ledger`` is the address of the ledger to use instead of the one that the settings name.
        """
        given: dict[str, str] = {}
        for setting in SETTINGS:
            # Without a host the parts of the address have no meaning, and are refused.
            if setting.name in _LEDGER_PARTS and (ledger is not None or self.pg_host is None):
                continue
            if setting.name == "ledger_dsn" and ledger is not None:
                continue
            value = getattr(self, setting.name)
            if value is None or value == "":
                continue
            value = value.reveal() if isinstance(value, Secret) else value
            given[setting.env] = json.dumps(value) if isinstance(value, dict) else str(value)
        if ledger is not None:
            given["LAKE_LEDGER_DSN"] = ledger
        return given

    @property
    def ledger(self) -> Secret[str] | None:
        """The ledger's address, ``postgresql://…``, or None for the embedded database."""
        if self.ledger_dsn is not None or self.pg_host is None:
            return self.ledger_dsn
        user = quote(self.pg_user, safe="")
        if self.pg_password is not None:
            user += f":{quote(self.pg_password.reveal(), safe='')}"
        database = quote(self.pg_database, safe="")
        if self.pg_host.startswith("/"):  # the folder of a Unix socket
            return Secret(f"postgresql://{user}@/{database}?host={quote(self.pg_host, safe='')}&port={self.pg_port}")
        host = f"[{self.pg_host}]" if ":" in self.pg_host else self.pg_host
        return Secret(f"postgresql://{user}@{host}:{self.pg_port}/{database}")

    @property
    def warnings(self) -> list[str]:
        """One sentence for each unknown variable, naming the setting that was probably meant."""
        import difflib

        sentences = []
        for name in self.unknown:
            close = difflib.get_close_matches(name, [setting.env for setting in SETTINGS], n=1, cutoff=0.8)
            hint = f"did you mean {close[0]}?" if close else "it has no effect."
            sentences.append(f"{name} is not a setting: {hint}")
        return sentences


SETTINGS: tuple[Setting, ...] = tuple(
    Setting(
        name=each.name,
        env=each.metadata["env"],
        default=each.metadata["default"],
        parse=each.metadata["parse"],
        secret=each.metadata.get("secret", False),
    )
    for each in fields(Settings)
    if "env" in each.metadata
)
"""Every setting there is, in the order in which the documentation has them."""


def _shown(text: str) -> str:
    return repr(text if len(text) <= 100 else f"{text[:99]}…")


def _unknown(environ: Mapping[str, str]) -> tuple[str, ...]:
    known = {setting.env for setting in SETTINGS}
    known |= {f"{setting.env}_FILE" for setting in SETTINGS if setting.secret}
    return tuple(sorted(name for name in environ if name.startswith(PREFIX) and name not in known))


def _check_together(values: Mapping[str, Any], labels: Mapping[str, str]) -> None:
    """Refuse what is right one by one but not together, so that nothing that was given is silently left out."""
    parts = [name for name in _LEDGER_PARTS if name in values]
    if "ledger_dsn" in values and parts:
        raise SettingsError(
            f"Both {labels['ledger_dsn']} and {labels[parts[0]]} are set: give the ledger's address in one way."
        )
    if parts and "pg_host" not in values:
        raise SettingsError(
            f"{labels[parts[0]]} is set but PG_HOST is not: set PG_HOST to use a Postgres server, "
            "or remove the other one to use the embedded database."
        )
    rest = values.get("catalog_type", "sql") == "rest"
    uri = values.get("catalog_uri")
    if rest and uri is None:
        raise SettingsError(
            f"{labels['catalog_type']} is 'rest' but LAKE_CATALOG_URI is not set: set it to the catalog's address."
        )
    if uri is not None:
        allowed = ("http", "https") if rest else ("postgresql", "postgresql+psycopg")
        if uri.reveal().partition("://")[0] not in allowed:
            raise SettingsError(
                f"{labels['catalog_uri']} cannot be used with the catalog type '{'rest' if rest else 'sql'}': "
                f"its address must start with {' or '.join(f'{scheme}://' for scheme in allowed)}."
            )
    for name in ("catalog_token", "catalog_credential"):
        if name in values and not rest:
            raise SettingsError(f"{labels[name]} is for REST catalogs only: set LAKE_CATALOG_TYPE=rest or remove it.")
    if "catalog_token" in values and "catalog_credential" in values:
        raise SettingsError(
            f"Both {labels['catalog_token']} and {labels['catalog_credential']} are set: keep one of them."
        )
