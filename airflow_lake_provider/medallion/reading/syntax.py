"""The dialects whose blocks can be read by looking at bytes alone."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_lake_provider.medallion.dialect import Dialect


@dataclass(frozen=True, slots=True)
class ByteSyntax:
    """The bytes that mean something; ``delimiter`` None is one column.

    ``pad`` says that spaces around quotes belong to the dialect, ``skip_space`` that one space after each delimiter
    does.
    """

    delimiter: int | None
    quote: int | None
    escape: int | None
    pad: bool
    skip_space: bool


def byte_syntax(dialect: Dialect) -> ByteSyntax | None:
    """The bytes of a dialect whose every special character is one ASCII character of its own; None for others."""
    delimiter, quote = dialect.delimiter or None, dialect.quote or None
    escape = dialect.escape or None
    if escape == quote:
        escape = None
    special = [text for text in (delimiter, quote, escape) if text is not None]
    if len(set(special)) != len(special) or any(
        len(text) != 1 or not "\0" < text < "\x7f" or text in "\r\n" for text in special
    ):
        return None
    if quote == " " or escape == " " or (dialect.skip_initial_space and delimiter == " "):
        return None
    return ByteSyntax(
        delimiter=ord(delimiter) if delimiter else None,
        quote=ord(quote) if quote else None,
        escape=ord(escape) if escape else None,
        pad=delimiter != " ",
        skip_space=dialect.skip_initial_space and delimiter is not None,
    )
