"""The routes put together: who may ask, what goes wrong in which way, and headers that keep hostile text harmless."""

from __future__ import annotations

import logging

from airflow.api_fastapi.core_api.security import get_user
from fastapi import Depends, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse

from magi2.catalog import StateError
from magi2.errors import Magi2Error
from magi2_airflow.renders import (
    actions,
    batches,
    bundle,
    clips,
    documents,
    media,
    metrics,
    plain,
    prerequisites,
    start,
    store,
)
from magi2_airflow.renders.asgi import App, Message, Receive, Send
from magi2_airflow.renders.guard import may_read, same_origin
from magi2_airflow.renders.turnstile import Turnstile

logger = logging.getLogger(__name__)

HEADERS = (
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'self'"),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
)


class SafeHeaders:
    """Adds those of `HEADERS` that an answer does not bring itself."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        async def send_safe(message: Message) -> None:
            if message["type"] == "http.response.start":
                given = {name for name, _ in message["headers"]}
                message["headers"] += [header for header in HEADERS if header[0] not in given]
            await send(message)

        await self._app(scope, receive, send_safe)


# A login is required of every route, said once so that none is forgotten.
app = FastAPI(
    docs_url=None,
    redoc_url=None,
    openapi_url=None,
    redirect_slashes=False,
    dependencies=[Depends(get_user), Depends(same_origin)],
)
app.add_middleware(Turnstile, beside=media.PATHS)
app.add_middleware(SafeHeaders)
app.include_router(bundle.router)
for module in (batches, clips, start, actions, media, documents, metrics, plain, prerequisites, store):
    app.include_router(module.router, dependencies=[Depends(may_read)])

# What no login is asked for: names of our own pools and queues, and nothing else.
open_app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False)
open_app.add_middleware(SafeHeaders)
open_app.include_router(prerequisites.open_router)


@app.exception_handler(RequestValidationError)
def as_malformed(request: Request, error: RequestValidationError) -> JSONResponse:
    """What is wrong where. What was sent is not sent back: it may be a NaN, which is no JSON."""
    detail = [{name: each[name] for name in ("type", "loc", "msg")} for each in error.errors()]
    return JSONResponse({"detail": detail}, 422)


@app.exception_handler(StateError)
def as_conflict(request: Request, error: StateError) -> JSONResponse:
    """The batch is in no state for what was asked."""
    return JSONResponse({"detail": str(error)}, 409)


@app.exception_handler(Magi2Error)
def as_unavailable(request: Request, error: Magi2Error) -> JSONResponse:
    """A catalog or store that fails is no fault of the page; where it lies is nobody's business there."""
    logger.error("%s %s: %s", request.method, request.url.path, error)
    return JSONResponse({"detail": f"the catalog or the store cannot answer now ({error.code})"}, 503)
