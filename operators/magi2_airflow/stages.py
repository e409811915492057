"""One operator per stage; they differ in where they run and how long they may take."""

from __future__ import annotations

from datetime import timedelta

from magi2.types import StageName
from magi2_airflow.base import StageOperator
from magi2_airflow.places import ALL_GPUS, CPU, ONE_GPU


class EnhanceOperator(StageOperator):
    """Turn each prompt into the caption that the model was trained on, by a language model or as configured."""

    stage = StageName.ENHANCE
    place = CPU
    time_limit = timedelta(hours=6)


class EncodeOperator(StageOperator):
    """Embed captions and reference images."""

    stage = StageName.ENCODE
    place = ONE_GPU
    time_limit = timedelta(hours=2)


class PreviewOperator(StageOperator):
    """Denoise picture and sound at preview size on all accelerators of a node."""

    stage = StageName.PREVIEW
    place = ALL_GPUS
    time_limit = timedelta(hours=24)


class RefineOperator(StageOperator):
    """Denoise again at delivery size; returns at once for profiles without refiner."""

    stage = StageName.REFINE
    place = ALL_GPUS
    time_limit = timedelta(hours=24)


class DecodeOperator(StageOperator):
    """Decode latents to a lossless picture and sound."""

    stage = StageName.DECODE
    place = ONE_GPU
    time_limit = timedelta(hours=12)


class MuxOperator(StageOperator):
    """Encode the delivered file, its poster and contact sheet."""

    stage = StageName.MUX
    place = CPU
    time_limit = timedelta(hours=12)
