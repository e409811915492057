"""A launcher that a test can kill: with FOLDER, STORE and VALUES as JSON it runs one job and tells about it."""

import json
import logging
import sys
from pathlib import Path

from magi2.errors import Magi2Error
from magi2.parallel.layout import ParallelLayout
from magi2.runtime.job import StageJob
from magi2.runtime.launcher import Launcher
from magi2.types import StageName
from tests.runtime.runtime_helpers import QUICK, WORKER


def main() -> None:
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    folder, store, values = Path(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3])
    stage = StageName(values.pop("stage", "preview"))
    layout = ParallelLayout(values.pop("ranks", 1))
    job = StageJob("batch", 0, stage, store, layout=layout, **{"worker_module": WORKER, **values})
    try:
        Launcher(folder=folder, limits=QUICK).run(job, on_event=lambda event: print(type(event).__name__, flush=True))
    except Magi2Error as error:
        print("ended with", error.code, flush=True)
        sys.exit(1)
    print("ended well", flush=True)


main()
