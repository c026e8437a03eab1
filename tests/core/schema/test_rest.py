"""Schemas from a registry that runs: pages, deleted versions, users, and servers that fail."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from kafka_index.core.errors import InputError, KafkaIndexError, ReadError, is_retriable
from kafka_index.core.schema.registry import KeyKind, SchemaKey, VersionState
from kafka_index.core.schema.sources import USER_VARIABLE, open_schemas

Listed = dict[str, Any]


class Registry(ThreadingHTTPServer):
    """Answers ``GET /schemas`` from a list."""

    def __init__(self, schemas: list[Listed], *, has_pages: bool) -> None:
        self.schemas, self.has_pages = schemas, has_pages
        self.answer: tuple[int, bytes] | None = None
        self.requests: list[dict[str, str]] = []
        self.authorizations: set[str | None] = set()
        super().__init__(("127.0.0.1", 0), _Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/"


class _Handler(BaseHTTPRequestHandler):
    server: Registry

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        self.server.requests.append(query)
        self.server.authorizations.add(self.headers.get("Authorization"))
        code, body = self.server.answer or self._list(parts.path, query)
        self.send_response(code)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _list(self, path: str, query: dict[str, str]) -> tuple[int, bytes]:
        if path != "/schemas":
            return 404, b'{"error_code":404,"message":"HTTP 404 Not Found"}'
        result = [
            {name: value for name, value in schema.items() if name != "gone"}
            for schema in self.server.schemas
            if query["deleted"] == "true" or not schema.get("gone")
        ]
        if self.server.has_pages:
            start = int(query["offset"])
            result = result[start : start + int(query["limit"])]
        return 200, json.dumps(result).encode()

    def log_message(self, *_: object) -> None:
        return


@contextmanager
def serving(schemas: list[Listed], *, has_pages: bool = True) -> Iterator[Registry]:
    with Registry(schemas, has_pages=has_pages) as server:
        thread = Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def listed(subject: str, version: int, schema_id: int, **more: object) -> Listed:
    return {
        "subject": subject,
        "version": version,
        "id": schema_id,
        "schema": f'"{schema_id}"',
        **more,
    }


@pytest.mark.parametrize("has_pages", [True, False])
def test_registry_pages_are_all_read_once(*, has_pages: bool) -> None:
    schemas = [listed(f"s{number}", 1, number) for number in range(1, 2501)]
    with serving(schemas, has_pages=has_pages) as server:
        result = open_schemas(server.url, [])
    assert [each.schema_id for each in result] == list(range(1, 2501))
    assert result.find(SchemaKey(KeyKind.ID, 2500)).text == '"2500"'
    # Contexts other than the default one are asked for.
    assert {request["subjectPrefix"] for request in server.requests} == {":*:"}
    assert len(server.requests) == (8 if has_pages else 4)


def test_registry_schemas_have_versions_states_and_references() -> None:
    reference = {"name": "n", "subject": "b", "version": 1}
    schemas = [
        listed("a", 1, 1, gone=True),
        listed("a", 2, 2, references=[reference], guid="b7b4a7f0-0000-0000-0000-000000000001"),
        listed("b", 1, 3, schemaType="JSON", deleted=False),
        listed("c", 1, 4, schemaType="XSD"),
        listed(":.ctx:a", 1, 1),
    ]
    with serving(schemas) as server:
        result = open_schemas(server.url, [])
    assert [(each.version, each.state) for each in result.list_versions("a")] == [
        (1, VersionState.DELETED),
        (2, VersionState.LIVE),
    ]
    assert list(result.find_references(result.find(SchemaKey(KeyKind.ID, 2)))) == ["n"]
    assert (
        result.find(SchemaKey(KeyKind.GUID, "b7b4a7f0-0000-0000-0000-000000000001")).schema_id == 2
    )
    assert result.find(SchemaKey(KeyKind.ID, 1), ".ctx").context == ".ctx"
    assert [each.reason for each in result.unreadable] == [
        "subject c, version 1: unknown schema type 'XSD'"
    ]
    # Apicurio has the same API, and its ids are those of its serializers.
    assert result.find(SchemaKey(KeyKind.CONTENT_ID, 3)).schema_id == 3


def test_registry_user_is_read_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(USER_VARIABLE, "me:secret")
    with serving([listed("a", 1, 1)]) as server:
        open_schemas(server.url, [])
        server.answer = 401, b""
        with pytest.raises(ReadError) as error:
            open_schemas(server.url, [])
    assert server.authorizations == {f"Basic {base64.b64encode(b'me:secret').decode()}"}
    assert "secret" not in str(error.value)


FAILURES: dict[str, tuple[tuple[int, bytes], type[KafkaIndexError], str]] = {
    "server error": ((503, b"<html>"), ReadError, "registry failed: HTTP 503"),
    "forbidden": ((403, b""), ReadError, "registry failed: HTTP 403"),
    "no registry": ((404, b""), InputError, r"not the URL of a schema registry .*HTTP 404"),
    "page of HTML": ((200, b"<html>"), InputError, "the response is not a list of schemas"),
    "object": ((200, b'{"schemas":[]}'), InputError, "the response is not a list of schemas"),
}


@pytest.mark.parametrize("case", FAILURES)
def test_registry_error_is_retriable_only_for_server_errors(case: str) -> None:
    answer, kind, reason = FAILURES[case]
    with serving([]) as server:
        server.answer = answer
        with pytest.raises(kind, match=reason) as error:
            open_schemas(server.url, [])
    assert is_retriable(error.value) == (kind is ReadError)


def test_unreachable_registry_is_retriable() -> None:
    with serving([]) as server:
        url = server.url
    with pytest.raises(ReadError, match="request to the schema registry failed"):
        open_schemas(url, [])
