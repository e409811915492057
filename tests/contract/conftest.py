"""An S3 server for the tests that want one; where there is none, those tests are skipped."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.real_servers import S3Server, seaweedfs


@pytest.fixture(scope="package")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with seaweedfs(tmp_path_factory.mktemp("seaweedfs")) as server:
        yield server
