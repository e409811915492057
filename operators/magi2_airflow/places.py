"""Where tasks run: pools, and queues of the same names."""

from __future__ import annotations

CPU, ONE_GPU, ALL_GPUS = "magi2_cpu", "magi2_gpu1", "magi2_gpu8"
"""Pools and queues of stages; what runs no stage is in the first queue."""
PLACES = (CPU, ONE_GPU, ALL_GPUS)
EVERYWHERE = "default_pool"
"""The pool of what runs no stage: every Airflow has it, so that a missing pool of ours can be told of."""
