"""Fixtures of the prompt tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.prompts.fake_endpoint import ChatServer, serve


@pytest.fixture
def chat_server() -> Iterator[ChatServer]:
    """A scripted chat completion server."""
    with serve() as server:
        yield server
