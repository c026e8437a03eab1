"""The sources of schemas: a topic of the input, files, or a running registry.

A registry is read with Confluent's REST API. Karapace, Apicurio (under ``/apis/ccompat/v7``) and
Redpanda have the same API. All schemas are read at the beginning of a run, page by page. The tasks
of a run send no requests to the registry.
"""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Sequence
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import Request, urlopen

from kafka_index.core.errors import InputError, ReadError, is_retriable
from kafka_index.core.format.config import DEFAULT_MAX_DECOMPRESSED_BYTES
from kafka_index.core.format.state_files import MALFORMED, decoder_of
from kafka_index.core.format.uri_passwords import refuse_passwords
from kafka_index.core.records.decompression import DecompressionBudget, shared_budget
from kafka_index.core.schema.folder import read_folder
from kafka_index.core.schema.registry import SchemaProblem, Schemas
from kafka_index.core.schema.schemas_topic import (
    SCHEMAS_TOPIC,
    SchemaRecord,
    SchemasTopic,
    read_dump_schemas,
)

#: The source that is the topic ``_schemas`` in the input; ``dump:NAME`` is another topic.
FROM_DUMP = "dump"
_URL = re.compile(r"https?://", re.IGNORECASE)
#: The environment variable with ``USER:PASSWORD`` for a registry. Confluent's images use this name.
USER_VARIABLE = "SCHEMA_REGISTRY_BASIC_AUTH_USER_INFO"
_ACCEPT = "application/vnd.schemaregistry.v1+json, application/json"
_ALL_CONTEXTS = ":*:"
# The maximum number of schemas per page in Confluent's registry (schema.search.max.limit).
_PAGE_SCHEMAS = 1000
_TIMEOUT_SECONDS = 30
_MAX_RESPONSE_BYTES = 1 << 30
_NOT_FOUND = 404

_SubjectRecords = dict[tuple[str, int], SchemaRecord]


def open_schemas(
    source: str, inputs: Sequence[str], budget: DecompressionBudget | None = None
) -> Schemas:
    """Read the schemas of a source: ``dump``, a folder, a file, or the URL of a registry.

    Raises `InputError` if there are no schemas, and `ReadError` if a registry does not respond.
    """
    refuse_passwords([source])
    if _URL.match(source):
        return _read_registry(source)
    kind, separator, topic = source.partition(":")
    if kind != FROM_DUMP or (separator and not topic):
        return read_folder(source)
    budget = budget or shared_budget(DEFAULT_MAX_DECOMPRESSED_BYTES)
    try:
        return read_dump_schemas(inputs, budget, topic or SCHEMAS_TOPIC)
    except InputError as error:
        if is_retriable(error):
            raise
        raise InputError(
            f"the input has no schemas: {error}",
            hint="give --schemas a folder of schemas or the URL of a registry",
        ) from error


def _read_registry(url: str) -> Schemas:
    """Read all schemas of a registry, including soft-deleted schemas.

    Raises `InputError` if the URL is not a registry's, and `ReadError` if requests fail.
    """
    base = url.rstrip("/")
    topic = SchemasTopic()
    all_versions = _list_versions(base, with_deleted=True)
    live_versions = _list_versions(base, with_deleted=False)
    # The second list also has versions that were registered after the first request.
    for number, (name, record) in enumerate((all_versions | live_versions).items()):
        record.deleted = name not in live_versions
        try:
            topic.add_version(*name, record, number)
        except ValueError as error:
            reason = f"subject {name[0]}, version {name[1]}: {error}"
            topic.unreadable.append(SchemaProblem(None, reason, base))
    return topic.schemas(base, has_foreign_ids=True)


def _list_versions(base: str, *, with_deleted: bool) -> _SubjectRecords:
    versions: _SubjectRecords = {}
    while True:
        query = {
            "deleted": str(with_deleted).lower(),
            "subjectPrefix": _ALL_CONTEXTS,
            "offset": len(versions),
            "limit": _PAGE_SCHEMAS,
        }
        page = _get_page(f"{base}/schemas?{urlencode(query)}", base)
        new_versions = {name: record for name, record in page.items() if name not in versions}
        # A page without new versions is the end: other pages may be smaller than the limit, and
        # Karapace returns all schemas in each page.
        if not new_versions:
            return versions
        versions |= new_versions


def _get_page(url: str, base: str) -> _SubjectRecords:
    request = Request(url, headers={"Accept": _ACCEPT})  # noqa: S310, http or https only
    user = os.environ.get(USER_VARIABLE)
    if user:
        token = base64.b64encode(user.encode()).decode()
        # The header is not sent after a redirect.
        request.add_unredirected_header("Authorization", f"Basic {token}")
    try:
        with urlopen(request, timeout=_TIMEOUT_SECONDS) as response:  # noqa: S310
            data = response.read(_MAX_RESPONSE_BYTES + 1)
    except HTTPError as error:
        with error:
            if error.code == _NOT_FOUND:
                raise _no_registry_error(base, f"HTTP {error.code}") from None
            raise _request_error(base, f"HTTP {error.code} {error.reason}") from error
    except (OSError, HTTPException) as error:
        raise _request_error(base, str(getattr(error, "reason", None) or error)) from error
    if len(data) > _MAX_RESPONSE_BYTES:
        raise _no_registry_error(base, f"a response of more than {_MAX_RESPONSE_BYTES} bytes")
    try:
        records: list[Any] = decoder_of(list[SchemaRecord]).decode(data)
    except MALFORMED as error:
        raise _no_registry_error(base, f"the response is not a list of schemas: {error}") from error
    return {
        (record.subject, record.version): record
        for record in records
        if record.subject is not None and record.version is not None
    }


def _request_error(base: str, reason: str) -> ReadError:
    return ReadError(
        f"the request to the schema registry failed: {reason}",
        path=base,
        hint=f"run again; if the registry requires a user, set {USER_VARIABLE}=USER:PASSWORD",
    )


def _no_registry_error(base: str, response: str) -> InputError:
    return InputError(
        "the URL is not the URL of a schema registry",
        path=base,
        found=response,
        hint="give the base URL of the registry, without /schemas",
    )
