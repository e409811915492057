"""`python -m tests.contract.lease_racer renders|collects STORE ROUNDS`: two sides of a race for one old artifact."""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from magi2.artifacts import ManifestDraft, Recipe, open_store
from magi2.artifacts.store import ArtifactStore
from magi2.batches.retention import RetentionPolicy, collect_garbage
from magi2.errors import Magi2Error
from magi2.types import StageName

DECODE, MUX = StageName.DECODE, StageName.MUX
INTERMEDIATE = Recipe(DECODE, 1)
FILE = "a.bin"


def publish(store: ArtifactStore, recipe: Recipe) -> None:
    with store.stage_folder(recipe.stage, recipe.key) as folder:
        (folder / FILE).write_bytes(b"abc")
        store.publish(ManifestDraft(recipe), {FILE: folder / FILE})


def render(store: ArtifactStore, rounds: int) -> str:
    """As stages do, for three deliveries in turn: find the intermediate or make it, then read it; what was seen."""
    from magi2.batches.leases import end_lease, take_lease

    made = reused = 0
    for number in range(rounds):
        delivered = Recipe(MUX, 1, config={"number": number % 3}, inputs={"decode": INTERMEDIATE.key})
        take_lease(store, "race", 0, {"clip": {DECODE: INTERMEDIATE.key, MUX: delivered.key}})
        if store.find(DECODE, INTERMEDIATE.key) is None:
            publish(store, INTERMEDIATE)
            made += 1
        else:
            reused += 1
        time.sleep(0.004 * (number % 3))
        try:
            store.fetch(DECODE, INTERMEDIATE.key, FILE)
        except Magi2Error as error:
            return f"lost in round {number}, after {made} made and {reused} reused: {error}"
        publish(store, delivered)
        end_lease(store, "race", 0)
        time.sleep(0.02 * (number % 5))
    return f"made {made} reused {reused}"


def main() -> None:
    side, url, rounds = sys.argv[1], sys.argv[2], int(sys.argv[3])
    with tempfile.TemporaryDirectory() as scratch:
        store = open_store(url, scratch=Path(scratch))
        if side == "renders":
            print(render(store, rounds))
            return
        print("ready", flush=True)
        while True:  # until it is ended
            collect_garbage(store, policy=RetentionPolicy({DECODE: 0}), dry_run=False)


if __name__ == "__main__":
    main()
