"""A home for Airflow that is not the user's."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile

# Airflow reads its settings when it is first imported.
if "AIRFLOW_HOME" not in os.environ:
    os.environ["AIRFLOW_HOME"] = tempfile.mkdtemp(prefix="magi2-airflow-")
    atexit.register(shutil.rmtree, os.environ["AIRFLOW_HOME"], ignore_errors=True)
