"""Create and inspect tokens and API keys for endpoints."""

from __future__ import annotations

import json as jsonlib
import sys
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli.terminal.output import printer, usage_error
from headrace.cli.terminal.project_args import Json, Name, ProjectTarget, project_options
from headrace.core.durations import parse_duration
from headrace.core.errors import Exit, RequestError, did_you_mean
from headrace.core.lazy import lazy_modules
from headrace.serve.access.auth import Tokens, grant_of
from headrace.serve.access.grants import SCOPES
from headrace.serve.access.issue import claims_of, new_api_key, signed

if TYPE_CHECKING:
    from headrace.project.loader import Project
    from headrace.serve.base import settings as base_settings
    from headrace.store.query import filters as query_filters
else:
    base_settings, query_filters = lazy_modules("headrace.serve.base.settings", "headrace.store.query.filters")

app = typer.Typer(help=__doc__, rich_markup_mode=None)

_STDIN = "-"
_Endpoints = Annotated[
    list[str] | None,
    typer.Option("--endpoint", metavar="E[=F,F]", help="Only this endpoint, or only these fields of it; repeatable."),
]
_Fields = Annotated[
    list[str] | None, typer.Option("--field", metavar="E.F", help="Only this field of an endpoint; repeatable.")
]
_Filters = Annotated[
    list[str] | None,
    typer.Option("--filter", metavar="E=JSON", help="Only rows of an endpoint that meet this filter."),
]
_Tables = Annotated[
    list[str] | None,
    typer.Option("--table", metavar="T", help="With the scope write: only this table; may be repeated."),
]
_Scopes = Annotated[
    list[str] | None,
    typer.Option("--scope", metavar="S", help="read (default), events, sql, write or admin; may be repeated."),
]


@app.command()
@project_options(Name)
def create(
    target: ProjectTarget,
    endpoint: _Endpoints = None,
    field: _Fields = None,
    row_filter: _Filters = None,
    table: _Tables = None,
    scope: _Scopes = None,
    expires: Annotated[str, typer.Option("--expires", metavar="TIME", help="How long the token is valid.")] = "24h",
    holder: Annotated[str | None, typer.Option("--name", metavar="NAME", help="The holder of the token.")] = None,
    rate: Annotated[float | None, typer.Option("--rps", help="Requests per second; else the project's limit.")] = None,
    api_key: Annotated[bool, typer.Option("--api-key", help="A key without expiry, for the project file.")] = False,
    private_key: Annotated[
        Path | None,
        typer.Option("--private-key", metavar="FILE", help="The private key, if the project has only the public key."),
    ] = None,
    json: Json = False,
) -> None:
    """Create a token for the header `Authorization: Bearer TOKEN`. Only the token is printed on stdout.

    A token is signed and expires. An API key is valid until its hash is removed from the project file.
    """
    loaded = target.load()
    access = _access(endpoint, field, row_filter)
    for unknown in _unknown(loaded, access):
        printer.note(f"note: {unknown}")
    scopes = _scopes(scope)
    if rate is not None and not 0 < rate < float("inf"):
        raise usage_error("--rps is a number above 0")
    if api_key:
        _print_key(holder or "caller", scopes, access, table, rate, json)
        return
    claims: dict[str, Any] = {"scopes": scopes}
    claims |= {"sub": holder} if holder else {}
    claims |= {"endpoints": access} if access else {}
    claims |= {"tables": table} if table else {}
    claims |= {"rps": rate} if rate is not None else {}
    _print_token(loaded, claims, expires, private_key, json)


@app.command()
@project_options()
def show(
    target: ProjectTarget,
    token: Annotated[str, typer.Argument(metavar="TOKEN", help="The token; - reads it from stdin.")],
    json: Json = False,
) -> None:
    """Show the claims of a token, and whether the project's servers accept it. Exits with 1 if not."""
    text = sys.stdin.readline().strip() if token == _STDIN else token
    header, claims = claims_of(text)
    loaded = target.load()
    reasons = list(_reasons(loaded, text))
    if json:
        printer.document({"holds": not reasons, "reasons": reasons, "header": header, "claims": claims})
    else:
        printer.data(jsonlib.dumps(claims, indent=2, ensure_ascii=False))
        for line in reasons or ["the project's servers accept it"]:
            printer.note(line)
    if reasons:
        raise typer.Exit(Exit.FAILED)


def _print_token(loaded: Project, claims: dict[str, Any], expires: str, private_key: Path | None, json: bool) -> None:
    try:
        duration = parse_duration(expires)
    except ValueError as error:
        raise usage_error(f"--expires: {error}") from None
    now = datetime.now(UTC)
    token, signed_claims = signed(
        loaded.spec.serve.auth,
        loaded.spec.project,
        loaded.root,
        claims,
        now=now,
        expires=duration,
        private_key=private_key,
    )
    until = datetime.fromtimestamp(signed_claims["exp"], UTC).isoformat().replace("+00:00", "Z")
    if json:
        printer.document({"token": token, "expires": until, "claims": signed_claims})
        return
    printer.data(token)
    printer.note(
        f"valid until {until}; allows {', '.join(signed_claims['scopes'])} of {_endpoints_text(signed_claims)}"
    )


def _print_key(
    holder: str, scopes: list[str], access: dict[str, Any], tables: list[str] | None, rate: float | None, json: bool
) -> None:
    key, digest = new_api_key()
    entry: dict[str, Any] = {"name": holder, "sha256": digest, "scopes": scopes}
    entry |= {"endpoints": access} if access else {}
    entry |= {"tables": tables} if tables else {}
    entry |= {"requests_per_second": rate} if rate is not None else {}
    if json:
        printer.document({"key": key, "entry": entry})
        return
    printer.data(key)
    # JSON is valid YAML, so names and filters need no other quoting
    printer.note(f"serve:\n  auth:\n    keys:\n      - {jsonlib.dumps(entry, ensure_ascii=False)}")


def _scopes(names: Sequence[str] | None) -> list[str]:
    for scope in names or ():
        if scope not in SCOPES:
            raise usage_error(f"scope '{scope}' does not exist", did_you_mean(scope, SCOPES, "scopes"))
    return list(dict.fromkeys(names or ["read"]))


def _access(
    endpoints: Sequence[str] | None, fields: Sequence[str] | None, filters: Sequence[str] | None
) -> dict[str, Any]:
    """Return the permissions of the options by endpoint, in the form of a token's claims."""
    access: dict[str, Any] = {}
    for option in endpoints or ():
        name, separator, listed = option.partition("=")
        entry = access.setdefault(name, {})
        if separator:
            entry.setdefault("fields", []).extend(column.strip() for column in listed.split(",") if column.strip())
    for option in fields or ():
        name, separator, column = option.partition(".")
        if not separator or not column:
            raise usage_error(f"--field '{option}' is not ENDPOINT.FIELD")
        access.setdefault(name, {}).setdefault("fields", []).append(column)
    for option in filters or ():
        name, separator, text = option.partition("=")
        access.setdefault(name, {})["filter"] = _filter(option, text if separator else "")
    return access


def _filter(option: str, text: str) -> dict[str, Any]:
    try:
        document = jsonlib.loads(text)
    except ValueError:
        document = None
    if not isinstance(document, dict):
        raise usage_error(f"--filter '{option}' is not ENDPOINT=JSON", """as in --filter 'films={"region": "EU"}'""")
    return document


def _unknown(loaded: Project, access: dict[str, Any]) -> Iterator[str]:
    """Yield a note for each name or filter that does not match the current endpoints; they may change later."""
    settings = base_settings.Settings.of(loaded)
    logs = settings.logs
    try:
        written = logs.names()
    except OSError as error:
        yield f"the logs cannot be read, so names and filters are not checked: {error.strerror}"
        return
    for name, entry in access.items():
        if name not in written:
            if name not in settings.endpoints:
                known = did_you_mean(name, {*written, *settings.endpoints}, "endpoints")
                yield f"endpoint '{name}' does not exist yet; {known}"
            continue
        endpoint = logs.versions(name)[-1]
        for column in entry.get("fields") or ():
            if column not in endpoint.columns.names:
                yield f"'{name}' has no column '{column}'; {did_you_mean(column, endpoint.columns.names, 'columns')}"
        try:
            if entry.get("filter") is not None:
                query_filters.parse_filter(entry["filter"], endpoint)
        except RequestError as error:
            yield f"the filter of '{name}' does not match its columns, so no rows are returned: {error.message}"


def _reasons(loaded: Project, token: str) -> Iterator[str]:
    """Yield the reasons why a server would reject a token, or return less than intended."""
    spec = loaded.spec.serve.auth.jwt
    if spec is None:
        yield "the project accepts no signed tokens: serve.auth.jwt is not set"
        return
    try:
        verified = Tokens(spec, loaded.spec.project, loaded.root).verified(token)
        grant = grant_of(verified, None, "")
    except RequestError as error:
        yield error.message
        return
    access = {name: permission.model_dump() for name, permission in (grant.endpoints or {}).items()}
    yield from _unknown(loaded, access)


def _endpoints_text(claims: dict[str, Any]) -> str:
    return ", ".join(claims.get("endpoints", {})) or "all endpoints"
