"""Where the product is tried on an accelerator: stores, batches and the command `magi2`, run as a user runs it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from magi2.batches.batch_file import read_batch
from magi2.config.profiles import Profiles
from magi2.config.settings import Settings
from magi2.inputs.files import InputRoots
from magi2.platform import Accelerator
from tools.demo_clips import DeliveredClip, judgement

REPOSITORY = Path(__file__).parents[1]
EXAMPLES = REPOSITORY / "examples"
BATCH, CHECKPOINT = EXAMPLES / "shapes.jsonl", EXAMPLES / "demo_checkpoint"
_POLL_S = 0.005

Digests = dict[str, dict[str, str]]
"""`stage/key` to the SHA-256 of each payload by name."""


class StepError(Exception):
    """The product did not do what it promises."""


class SkippedError(Exception):
    """This machine lacks what the step needs."""


def require(holds: bool, text: str) -> None:
    """Raise StepError with the text unless the promise holds."""
    if not holds:
        raise StepError(text)


@dataclass(frozen=True)
class Site:
    """A folder for stores and clips, the accelerator, and when everything has to be over (monotonic seconds)."""

    folder: Path
    accelerator: Accelerator
    deadline: float

    def render(self, store: str, *options: str, checkpoint: Path = CHECKPOINT, **variables: str) -> dict[str, Any]:
        """What `magi2 render --json` says, into clips/<store>. Raises StepError when it fails or takes too long."""
        command, environment = self._command(store, options, checkpoint, variables)
        try:
            done = subprocess.run(
                command, env=environment, cwd=REPOSITORY, capture_output=True, text=True, timeout=self._left_s()
            )
        except subprocess.TimeoutExpired as late:
            raise StepError(f"{options} took more than {late.timeout:.0f} s") from late
        require(done.returncode in (0, 1) and bool(done.stdout), f"{options}: {done.stderr[-3000:]}")
        summary: dict[str, Any] = json.loads(done.stdout)
        failed = [f"{row['names']}: {row['error']}" for row in summary["clips"] if row["error"]]
        require(not failed, f"clips failed: {failed}")
        return summary

    def kill_once(self, store: str, *options: str, when: Callable[[], bool], **variables: str) -> None:
        """Start the same command and end it by SIGKILL as soon as `when` holds. Raises StepError when it ends first."""
        command, environment = self._command(store, options, CHECKPOINT, variables)
        with subprocess.Popen(
            command,
            env=environment,
            cwd=REPOSITORY,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        ) as process:
            while not when():
                if process.poll() is not None or time.monotonic() > self.deadline:
                    process.kill()
                    raise StepError(f"{options}: ended, or took too long, before it could be killed")
                time.sleep(_POLL_S)
            os.killpg(process.pid, signal.SIGKILL)

    def magi2(self, *arguments: str) -> None:
        """Run any other command. Raises StepError when it fails."""
        command = [sys.executable, "-m", "magi2.cli.main", *arguments]
        done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=self._left_s())
        require(done.returncode == 0, f"{arguments}: {done.stderr[-3000:]}")

    def store(self, name: str) -> Path:
        """The folder of a store."""
        return self.folder / "stores" / name

    def digests(self, store: str) -> Digests:
        """Of every stored artifact."""
        found: Digests = {}
        for path in sorted(self.store(store).glob("artifacts/*/*/*/manifest.json")):
            manifest = json.loads(path.read_bytes())
            payloads = {name: payload["sha256"] for name, payload in manifest["payloads"].items()}
            found[f"{manifest['recipe']['stage']}/{manifest['key']}"] = payloads
        return found

    def _command(
        self, store: str, options: Sequence[str], checkpoint: Path, variables: Mapping[str, str]
    ) -> tuple[list[str], dict[str, str]]:
        """One rank in the command's own process, unless a layout is among the options."""
        clean = {name: value for name, value in os.environ.items() if not name.startswith("MAGI2_")}
        device = self.accelerator.name if "--layout" in options else f"{self.accelerator.name}:0"
        environment = clean | {
            "MAGI2_CKPT_ROOT": str(checkpoint),
            "MAGI2_STORE": str(self.store(store)),
            "MAGI2_DEVICE": "cpu" if self.accelerator.name == "cpu" else device,
            "MAGI2_DETERMINISTIC": "1",
            **variables,
        }
        self.store(store).mkdir(parents=True, exist_ok=True)
        out = self.folder / "clips" / store
        command = [sys.executable, "-m", "magi2.cli.main", "render", "--json", "--out", str(out), *options]
        return command, environment

    def _left_s(self) -> float:
        return max(self.deadline - time.monotonic(), 1.0)


def judged(summary: Mapping[str, Any], batch: Path = BATCH) -> dict[str, str]:
    """Row's name to what its clip shows and sounds like. Raises StepError when one is not as asked."""
    settings = Settings()
    rows = read_batch(batch, Profiles(settings.configs, "demo"), InputRoots.around(batch)).require_good().clips
    prompts = {name: clip.prompt for clip in rows for name in clip.names}
    found = {}
    for clip in summary["clips"]:
        name = clip["names"][0]
        found[name] = judgement(DeliveredClip(Path(clip["files"]["clip.mp4"]), name, prompts[name])) or "not judged"
    require(all(text.startswith("as asked") for text in found.values()), f"not as asked: {found}")
    return found


def compare(first: Digests, second: Digests) -> int:
    """How many artifacts both stores hold. Raises StepError when they are not the same ones, byte for byte."""
    unlike = sorted(name for name in first.keys() | second.keys() if first.get(name) != second.get(name))
    require(not unlike, f"{len(unlike)} of {len(first)} artifacts differ: {unlike[:6]}")
    require(bool(first), "no artifact was stored")
    return len(first)
