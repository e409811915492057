"""HTML from values: every text is escaped unless it is markup that was made here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from fastapi.responses import HTMLResponse

CLOSED = "base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
VOID = {"img", "link", "meta"}


class Markup(str):
    """Text that is markup already."""


def element(name: str, /, *children: object, **attributes: object) -> Markup:
    """An element; a trailing underscore of an attribute's name is left out, and so is an attribute that is None."""
    given = {key.removesuffix("_"): value for key, value in attributes.items() if value is not None}
    opening = "".join(f' {key}="{escape(str(value))}"' for key, value in given.items())
    closing = "" if name in VOID else f"{''.join(_text(child) for child in children)}</{name}>"
    return Markup(f"<{name}{opening}>{closing}")


def link(address: str, text: object) -> Markup:
    """A link to an address that was made here."""
    return element("a", text, href=address)


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> Markup:
    """A table with a header."""
    head = element("tr", *(element("th", cell, scope="col") for cell in header))
    return element("table", head, *(element("tr", *(element("td", cell) for cell in row)) for row in rows))


def page(title: str, root: str, media_origin: str, *parts: object) -> HTMLResponse:
    """A whole page, in which no script runs; `root` is where this app is mounted, `media_origin` where links lead."""
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width"),
        element("title", title),
        element("link", rel="stylesheet", href=f"{root}/static/plain.css"),
    )
    body = element("body", element("h1", title), *parts)
    own = f"'self' {media_origin}".strip()
    policy = f"default-src 'none'; style-src 'self'; img-src {own}; media-src {own}; {CLOSED}"
    return HTMLResponse(
        f"<!doctype html>{element('html', head, body, lang='en')}", headers={"Content-Security-Policy": policy}
    )


def _text(value: object) -> str:
    return value if isinstance(value, Markup) else escape(str(value))
