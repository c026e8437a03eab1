"""A proxy between us and an S3 server that draws faults, and counts requests and bytes.

It speaks as much HTTP/1.1 as S3 clients do. The Host header passes as it is, so signatures hold.
"""

from __future__ import annotations

import asyncio
import random
import re
import threading
from collections import Counter
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_SLOW_DOWN = (
    b"<?xml version='1.0'?><Error><Code>SlowDown</Code>"
    b"<Message>Please reduce your request rate.</Message></Error>"
)

_DENIED = (
    b"<?xml version='1.0'?><Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"
)


@dataclass(frozen=True)
class Faults:
    """The probability of each fault, for a request; the rest passes untouched.

    `unavailable`: `status` SlowDown, and the server never sees the request. `dropped`: the
    connection closes before the server sees the request. `unanswered`: the server does what is
    asked, and the connection closes before it answers. `cut`: the connection closes in the middle
    of the body. `stalled`: the body stops in its middle, and the connection stays open for
    `delay_seconds`. `delayed`: the answer comes up to `delay_seconds` later. `in_a_row`: a request
    that failed this often passes: a library's retries suffice.
    """

    unavailable: float = 0.0
    dropped: float = 0.0
    unanswered: float = 0.0
    cut: float = 0.0
    stalled: float = 0.0
    delayed: float = 0.0
    delay_seconds: float = 0.2
    status: int = 503
    in_a_row: int = 3


NONE = Faults()
#: A fifth of all requests fails, in every way.
MANY = Faults(unavailable=0.06, dropped=0.05, unanswered=0.04, cut=0.06, delayed=0.05)


@dataclass(frozen=True)
class Request:
    """A request that came to the proxy.

    `method`, `path`, `query`: as in its first line; the path (``/BUCKET/KEY``) is decoded. `range`:
    its Range header. `status`: what was answered; 0 where the connection was closed instead.
    `sent_bytes`: bytes of the body that went back to the client. `fault`: the name of its fault, in
    `Faults`.
    """

    method: str
    path: str
    query: str
    range: str | None
    status: int
    sent_bytes: int
    fault: str | None


@dataclass
class FaultProxy:
    """A proxy in a thread of its own.

    `upstream`: URL of the server. `faults`: what may happen to a request; tests change it while the
    proxy runs. `before`: called with method and path before a request is passed on; may block, and
    may return a status that is answered instead. `listings`: makes another page of objects of the
    server's; `Shuffle` is such a
    callable. What is planned takes the place of what is generated.
    """

    upstream: str
    seed: int = 0
    faults: Faults = NONE
    before: Callable[[str, str], int | None] = lambda _method, _path: None
    listings: Callable[[bytes], bytes] | None = None
    requests: list[Request] = field(default_factory=list)
    endpoint: str = ""
    _failed: Counter[tuple[str, ...]] = field(default_factory=Counter)
    _planned: tuple[str, range] | None = None
    _number: int = 0

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)

    def gets(self, ending: str = "") -> list[Request]:
        """GETs of objects whose key has an ending, in the order in which they ended."""
        return [r for r in self.requests if r.method == "GET" and r.path.endswith(ending)]

    def sent_bytes(self, ending: str = "") -> int:
        """Bytes of bodies that went to the client for objects whose key has an ending."""
        return sum(request.sent_bytes for request in self.gets(ending))

    def clear(self) -> None:
        """Forget the requests so far."""
        self.requests.clear()

    def plan(self, fault: str, numbers: range) -> None:
        """Let the requests with these numbers, from 1 on, have a fault, and no others any."""
        self._planned, self._number = (fault, numbers), 0

    def draw(self, faults: Faults) -> None:
        """Draw faults for the requests from now on."""
        self._planned, self.faults = None, faults

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve the requests of one connection of a client."""
        # Cancelled where the proxy stops while a client keeps its connection.
        with suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            while await self._pass(reader, writer):
                pass
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Pass one request on; False if the connection ends with it."""
        head = await _read_head(reader)
        method, target, _ = head.first.split(" ", 2)
        body = await _read_body(reader, head.fields, none_if_unstated=True)
        url = urlsplit(target)
        path, range_ = unquote(url.path), head.fields.get("range")
        # A range that is continued after a fault still ends where it ended.
        fault = self._draw((method, target, str(range_).rpartition("-")[2]))
        refused = await asyncio.to_thread(self.before, method, path)

        def note(status: int, sent_bytes: int) -> None:
            request = Request(method, path, url.query, range_, status, sent_bytes, fault)
            self.requests.append(request)

        if fault == "unavailable" or refused is not None:
            status = refused or self.faults.status
            content = _SLOW_DOWN if status == self.faults.status else _DENIED
            note(status, 0)
            first = b"HTTP/1.1 %d Refused\r\n" % status
            length = b"Content-Length: %d\r\n\r\n" % len(content)
            writer.write(first + b"Content-Type: application/xml\r\n" + length)
            writer.write(b"" if method == "HEAD" else content)
            await writer.drain()
            return True
        if fault == "dropped":
            note(0, 0)
            return False
        if fault == "delayed":
            await asyncio.sleep(self._random.random() * self.faults.delay_seconds)
        answer, content = await self._ask(head.raw + body, is_head=method == "HEAD")
        if self.listings is not None and method == "GET" and "list-type=2" in url.query:
            content = self.listings(_joined(content, answer.fields))
            answer = answer.of_length(len(content))
        if fault == "unanswered":
            note(0, 0)
            return False
        if fault in {"cut", "stalled"}:
            content = content[: self._random.randrange(len(content))] if content else b""
        note(int(answer.first.split(" ")[1]), len(content))
        writer.write(answer.raw + content)
        await writer.drain()
        if fault == "stalled":
            await asyncio.sleep(self.faults.delay_seconds)
        return fault not in {"cut", "stalled"}

    async def _ask(self, request: bytes, *, is_head: bool) -> tuple[_Head, bytes]:
        address = urlsplit(self.upstream)
        reader, writer = await asyncio.open_connection(address.hostname, address.port)
        try:
            writer.write(request)
            await writer.drain()
            answer = await _read_head(reader)
            has_none = is_head or answer.first.split(" ")[1] in {"204", "304"}
            return answer, b"" if has_none else await _read_body(reader, answer.fields)
        finally:
            writer.close()

    def _draw(self, request: tuple[str, ...]) -> str | None:
        if self._planned is not None:
            self._number += 1
            return self._planned[0] if self._number in self._planned[1] else None
        faults, generated = self.faults, self._random.random()
        if self._failed[request] >= faults.in_a_row:
            self._failed[request] = 0
            return None
        for name in ("unavailable", "dropped", "unanswered", "cut", "stalled", "delayed"):
            generated -= getattr(faults, name)
            if generated < 0:
                self._failed[request] += name != "delayed"
                return name
        self._failed[request] = 0
        return None


@contextmanager
def fault_proxy(upstream: str, faults: Faults = NONE, seed: int = 0) -> Iterator[FaultProxy]:
    """Run a proxy to a server, in a thread."""
    proxy = FaultProxy(upstream, seed, faults)
    loop = asyncio.new_event_loop()
    server = loop.run_until_complete(asyncio.start_server(proxy.serve, "127.0.0.1", 0))
    proxy.endpoint = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        yield proxy
    finally:
        asyncio.run_coroutine_threadsafe(_stop(server), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()


async def _stop(server: asyncio.Server) -> None:
    server.close()
    serving = asyncio.all_tasks() - {asyncio.current_task()}
    for task in serving:
        task.cancel()
    await asyncio.gather(*serving, return_exceptions=True)


class Shuffle:
    """Lists objects in no order, as a directory bucket of S3 does; each once.

    Within a page, and where `across` pages, half of each page comes with a later one.
    """

    def __init__(self, seed: int = 0, *, across: bool = False) -> None:
        self._random = random.Random(seed)
        self._across = across
        self._kept: list[bytes] = []

    def __call__(self, page: bytes) -> bytes:
        entries = _LISTED.findall(page)
        if b"<IsTruncated>" not in page:
            return page
        self._random.shuffle(entries)
        if self._across:
            entries += self._kept
            self._random.shuffle(entries)
            is_last = b"<IsTruncated>true" not in page
            half = len(entries) if is_last else len(entries) // 2
            entries, self._kept = entries[:half], entries[half:]
        rest = _LISTED.sub(b"", page)
        end = rest.rindex(b"</ListBucketResult>")
        return rest[:end] + b"".join(entries) + rest[end:]


_LISTED = re.compile(rb"<Contents>.*?</Contents>|<CommonPrefixes>.*?</CommonPrefixes>", re.DOTALL)


@dataclass(frozen=True)
class _Head:
    raw: bytes
    first: str
    fields: dict[str, str]

    def of_length(self, size_bytes: int) -> _Head:
        """Return it for a body of another length, not in chunks."""
        lines = self.raw.decode("latin-1").rstrip().split("\r\n")
        framing = ("content-length:", "transfer-encoding:")
        kept = [line for line in lines if not line.lower().startswith(framing)]
        head = "\r\n".join([*kept, f"Content-Length: {size_bytes}", "", ""])
        return _Head(head.encode("latin-1"), self.first, self.fields)


async def _read_head(reader: asyncio.StreamReader) -> _Head:
    raw = await reader.readuntil(b"\r\n\r\n")
    first, *lines = raw.decode("latin-1").split("\r\n")
    fields = (line.partition(":") for line in lines if line)
    return _Head(raw, first, {name.lower(): value.strip() for name, _, value in fields})


def _joined(body: bytes, fields: dict[str, str]) -> bytes:
    """Return a body without the framing of its chunks."""
    if fields.get("transfer-encoding", "").lower() != "chunked":
        return body
    parts, at = [], 0
    while (end := body.index(b"\r\n", at)) and (size := int(body[at:end], 16)):
        parts.append(body[end + 2 : end + 2 + size])
        at = end + 4 + size
    return b"".join(parts)


async def _read_body(
    reader: asyncio.StreamReader, fields: dict[str, str], *, none_if_unstated: bool = False
) -> bytes:
    """Read a body as it is on the wire, with the framing of its chunks."""
    if fields.get("transfer-encoding", "").lower() == "chunked":
        body = b""
        while not body.endswith(b"\r\n0\r\n\r\n") and body != b"0\r\n\r\n":
            size = await reader.readuntil(b"\r\n")
            body += size + await reader.readexactly(int(size, 16) + 2)
        return body
    if "content-length" in fields:
        return await reader.readexactly(int(fields["content-length"]))
    return b"" if none_if_unstated else await reader.read()
