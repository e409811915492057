"""What pyproject.toml cannot say: a wheel carries configs/ and dags/, which lie beside the packages in a checkout."""

from __future__ import annotations

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

SHIPPED = ("configs", "dags")
UNSHIPPED = ("__pycache__", "*.pyc", "environment.py", "hashes.txt", "init.py", "create_catalog.sh", "airflow.env")
"""Parts of the image, which is built from a checkout."""


class BuildWithFolders(build_py):
    """Puts the folders below `magi2/shipped`, where `magi2.config.installed` finds them.

    An editable install finds those of the checkout.
    """

    def run(self) -> None:
        super().run()
        if self.editable_mode:
            return
        for name in SHIPPED:
            target = Path(self.build_lib) / "magi2" / "shipped" / name
            shutil.rmtree(target, ignore_errors=True)  # of an earlier build
            shutil.copytree(name, target, ignore=shutil.ignore_patterns(*UNSHIPPED))


setup(cmdclass={"build_py": BuildWithFolders})
