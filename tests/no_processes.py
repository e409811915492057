"""Fast tests start no process, which would be most of what they cost: one that tries fails there and then.

Not on a machine with an accelerator: Triton's compiler, assembler and linker are processes.
"""

from __future__ import annotations

import os
from collections.abc import Generator
from typing import Any

import pytest

STARTS = (
    "multiprocessing.process.BaseProcess.start",
    "os.fork",
    "os.forkpty",
    "os.posix_spawn",
    "os.posix_spawnp",
    "os.system",
    "subprocess.Popen.__init__",
)
"""The ways to start a process; what else there is in Python goes through one of them."""


def _refusal(start: str) -> Any:
    def refuse(*arguments: Any, **options: Any) -> None:
        pytest.fail(f"a fast test starts a process ({start}): test in this process, or mark the test as slow")

    return refuse


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Refuse every start while a fast test and its fixtures run."""
    with pytest.MonkeyPatch.context() as patch:
        if item.get_closest_marker("fast") and "TRITON_INTERPRET" in os.environ:
            for start in STARTS:
                patch.setattr(start, _refusal(start))
        return (yield)
