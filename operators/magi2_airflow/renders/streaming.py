"""A payload on its way from the store to a browser, block by block: neither ever holds more of it, nor a connection.

Each block is a read of its own, so a viewer who stops for a while keeps nothing open at the store.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator

from anyio import fail_after
from fastapi import Request
from fastapi.responses import Response, StreamingResponse

from magi2.artifacts.manifest import Payload
from magi2.artifacts.store import ArtifactStore
from magi2.errors import Magi2Error
from magi2_airflow.renders.asgi import Message, Send
from magi2_airflow.renders.lane import Lane
from magi2_airflow.renders.ranges import UnsatisfiableRangeError, is_known, wanted_part

logger = logging.getLogger(__name__)

BLOCK_BYTES = 2**19
STALLED_S = 120.0
"""A viewer who takes nothing for so long gives their place to others; players ask again where they stopped."""
LANE = Lane("media", threads=8, places=200)
FOR_EVER = {"Cache-Control": "private, max-age=31536000, immutable"}
"""Of files whose address says what is in them: nobody's but the viewer's browser keeps them."""
SHORT = ("Response content shorter than Content-Length", "Too little data for declared Content-Length")
"""What uvicorn raises, by httptools or h11, when a middleware of Airflow's ends an answer that was broken off."""


class WithoutTraceback(logging.Filter):
    """Lets uvicorn say in one line that an answer came short: its traceback shows middlewares, and none is at fault."""

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if str(error) in SHORT:
            record.msg, record.args, record.exc_info = f"the connection is closed: {error}", (), None
        return True


logging.getLogger("uvicorn.error").addFilter(WithoutTraceback())


async def answer(
    request: Request, store: ArtifactStore, stage: str, key: str, payload: Payload, headers: dict[str, str]
) -> Response:
    """The payload, the part of it that is asked for, or that the browser has it already.

    Raises: as `store.read` does, before anything is sent.
    """
    tag, size = f'"{payload.sha256}"', payload.size_bytes
    if is_known(request.headers, tag):
        return Response(status_code=304, headers={"ETag": tag, **FOR_EVER})
    headers = {**headers, "ETag": tag, "Accept-Ranges": "bytes", **FOR_EVER}
    if request.method == "HEAD":
        return Response(headers={**headers, "Content-Length": str(size)})
    try:
        part = wanted_part(request.headers, size, tag)
    except UnsatisfiableRangeError:
        return Response(status_code=416, headers={"Content-Range": f"bytes */{size}"})
    start, stop = part or (0, size)

    async def read(first: int) -> bytes:
        return await LANE.run(store.read, stage, key, payload, first, min(first + BLOCK_BYTES, stop))

    async def blocks(block: bytes) -> AsyncIterator[bytes]:
        yield block
        for first in range(start + BLOCK_BYTES, stop, BLOCK_BYTES):
            yield await read(first)

    headers["Content-Length"] = str(stop - start)
    if part:
        headers["Content-Range"] = f"bytes {start}-{stop - 1}/{size}"
    return Stream(blocks(await read(start)), 206 if part else 200, headers)


class Stream(StreamingResponse):
    """An answer that is broken off where its source ends early: who receives it sees that it came short."""

    async def stream_response(self, send: Send) -> None:
        async def send_in_time(message: Message) -> None:
            with fail_after(STALLED_S):
                await send(message)

        try:
            await super().stream_response(send_in_time)
        except Magi2Error as error:
            logger.error("an answer was broken off: %s", error)
        except TimeoutError:
            logger.info("an answer was broken off: nothing of it was taken for %.0f s", STALLED_S)
