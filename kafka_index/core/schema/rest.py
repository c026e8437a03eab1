"""The schemas of a registry that runs, by Confluent's REST API.

Karapace, Apicurio (under ``/apis/ccompat/v7``) and Redpanda have the same API. All schemas are read
at once: a run sees one state of the registry, and its tasks ask nothing.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from http.client import HTTPException
from typing import TypeVar
from urllib.error import HTTPError
from urllib.parse import quote, urlencode
from urllib.request import Request, urlopen

from kafka_index.core.errors import InputError, ReadError
from kafka_index.core.format.state_files import MALFORMED, decoder_of
from kafka_index.core.schema.registry import SchemaProblem, Schemas
from kafka_index.core.schema.schemas_topic import SchemaRecord, SchemasTopic

#: The variable with ``USER:PASSWORD`` for a registry, as Confluent's images name it.
USER_VARIABLE = "SCHEMA_REGISTRY_BASIC_AUTH_USER_INFO"
_ACCEPT = "application/vnd.schemaregistry.v1+json, application/json"
_ALL_CONTEXTS = ":*:"
# The most schemas of a response of Confluent (schema.search.max.limit).
_PAGE = 1000
_TIMEOUT_SECONDS = 30
_MAX_RESPONSE_BYTES = 1 << 30
_NOT_FOUND = 404

_Name = tuple[str, int]
_Answer = TypeVar("_Answer")


def schemas_of_url(url: str) -> Schemas:
    """Read all schemas of a registry, with soft-deleted ones.

    Raises `InputError` if there is no registry at the URL, and `ReadError` if it does not answer.
    """
    registry = _Registry(url.rstrip("/"))
    try:
        everything = registry.schemas(with_deleted=True)
        live = registry.schemas(with_deleted=False)
        # A version that was registered meanwhile is in the second list only.
        everything |= live
        names = set(live)
    except _NotFoundError:
        # Apicurio lists no schemas, but subjects.
        names = registry.versions(with_deleted=False)
        everything = registry.schemas_of(names | registry.versions(with_deleted=True))
    found = SchemasTopic()
    for number, ((subject, version), record) in enumerate(everything.items()):
        reason = "the registry lists it, and does not serve it"
        if record is not None:
            record.deleted = (subject, version) not in names
            try:
                found.write(subject, version, record, number)
                continue
            except ValueError as error:
                reason = str(error)
        problem = SchemaProblem(None, f"{subject}, version {version}: {reason}", registry.base)
        found.unreadable.append(problem)
    return found.schemas(registry.base, has_foreign_ids=True)


class _NotFoundError(Exception):
    """A resource that the server does not have."""


@dataclass(frozen=True, slots=True)
class _Registry:
    base: str

    def schemas(self, *, with_deleted: bool) -> dict[_Name, SchemaRecord | None]:
        """Return all schemas; raises `_NotFoundError` if the registry lists none."""
        found: dict[_Name, SchemaRecord | None] = {}
        while True:
            page = self._get(
                "/schemas",
                list[SchemaRecord],
                deleted=with_deleted,
                subjectPrefix=_ALL_CONTEXTS,
                offset=len(found),
                limit=_PAGE,
            )
            new = {
                (one.subject, one.version): one
                for one in page
                if one.subject is not None and one.version is not None
            }
            # A server may have smaller pages, and Karapace has none: it returns everything again.
            if new.keys() <= found.keys():
                return found
            found |= new

    def versions(self, *, with_deleted: bool) -> set[_Name]:
        """Return the versions of all subjects."""
        query = {"deleted": with_deleted}
        try:
            subjects = self._get("/subjects", list[str], subjectPrefix=_ALL_CONTEXTS, **query)
        except _NotFoundError:
            raise _no_registry(self.base, "neither /schemas nor /subjects") from None
        found: set[_Name] = set()
        for subject in subjects:
            # A subject may be deleted meanwhile.
            with suppress(_NotFoundError):
                path = f"/subjects/{quote(subject, safe='')}/versions"
                found |= {(subject, number) for number in self._get(path, list[int], **query)}
        return found

    def schemas_of(self, names: Iterable[_Name]) -> dict[_Name, SchemaRecord | None]:
        """Return the schemas of versions; None for one that the registry does not serve."""
        found: dict[_Name, SchemaRecord | None] = {}
        for subject, number in sorted(names):
            path = f"/subjects/{quote(subject, safe='')}/versions/{number}"
            try:
                found[subject, number] = self._get(path, SchemaRecord, deleted=True)
            except _NotFoundError:
                found[subject, number] = None
        return found

    def _get(self, path: str, kind: type[_Answer], **query: str | int) -> _Answer:
        """Return a decoded answer; raises `_NotFoundError` for HTTP 404."""
        texts = {
            name: str(value).lower() if isinstance(value, bool) else value
            for name, value in query.items()
        }
        url = f"{self.base}{path}?{urlencode(texts)}"
        request = Request(url, headers={"Accept": _ACCEPT})  # noqa: S310, http or https only
        user = os.environ.get(USER_VARIABLE)
        if user:
            token = base64.b64encode(user.encode()).decode()
            # It does not follow a redirection to another host.
            request.add_unredirected_header("Authorization", f"Basic {token}")
        try:
            with urlopen(request, timeout=_TIMEOUT_SECONDS) as response:  # noqa: S310
                data = response.read(_MAX_RESPONSE_BYTES + 1)
        except HTTPError as error:
            with error:
                if error.code == _NOT_FOUND:
                    raise _NotFoundError from None
                raise _failed(self.base, f"HTTP {error.code} {error.reason}") from error
        except (OSError, HTTPException) as error:
            raise _failed(self.base, str(getattr(error, "reason", None) or error)) from error
        if len(data) > _MAX_RESPONSE_BYTES:
            raise _no_registry(self.base, f"a response of more than {_MAX_RESPONSE_BYTES} bytes")
        try:
            return decoder_of(kind).decode(data)
        except MALFORMED as error:
            raise _no_registry(self.base, f"a response of another kind: {error}") from error


def _failed(base: str, reason: str) -> ReadError:
    return ReadError(
        f"the schema registry does not answer: {reason}",
        path=base,
        hint=f"run again; {USER_VARIABLE}=USER:PASSWORD gives a user",
    )


def _no_registry(base: str, found: str) -> InputError:
    return InputError(
        "there is no schema registry at this URL",
        path=base,
        found=found,
        hint="give the URL under which GET /subjects lists its subjects",
    )
