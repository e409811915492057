"""Who may import whom: every module has its row, and a row imports only from rows further down.

The order holds for all imports, also those inside functions and those for type checkers alone, so no two rows can need
each other. A new module needs a row or a place in one; an import that a row no longer makes leaves the row.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache


@dataclass(frozen=True)
class Row:
    """One or more modules, each with all below it, but for those that a longer name in another row covers."""

    modules: str
    magi2: str = ""
    """What they may import of magi2, besides what lies below their own names."""
    others: str = ""
    """What else: libraries, other folders, and `magi2` for the version alone."""
    heavy: bool = False
    """Whether importing them may load torch or another heavy library; all others load none, not even in turn."""

    def __str__(self) -> str:
        return self.modules

    @property
    def names(self) -> list[str]:
        """The modules of the row."""
        return self.modules.split()

    @property
    def may_import(self) -> list[str]:
        """Modules and libraries by full name."""
        return [f"magi2.{name}" for name in self.magi2.split()] + self.others.split()


def covers(name: str, module: str) -> bool:
    """Whether a name of the table stands for a module: itself or, except for `magi2`, what lies below it."""
    return module == name or (name != "magi2" and module.startswith(f"{name}."))


@cache
def row_of(module: str) -> Row | None:
    """The row that speaks for a module, None when there is none."""
    named = [(name, row) for row in TABLE for name in row.names if covers(name, module)]
    return max(named, key=lambda pair: len(pair[0]))[1] if named else None


def is_allowed(importer: str, module: str) -> bool:
    """Whether the importer's row lets it import a module, the order of rows apart."""
    row = row_of(importer)
    return row is not None and any(covers(name, module) for name in (*row.names, *row.may_import))


def goes_down(importer: str, module: str) -> bool:
    """Whether an import stays in its row or leads to one further down; libraries lie below all."""
    row, target = row_of(importer), row_of(module)
    return row is not None and (target is None or TABLE.index(target) >= TABLE.index(row))


TABLE = [
    # Airflow's side: the files of DAGs, the operators, the page Renders.
    Row("dags", "", "airflow magi2_airflow"),
    Row(
        "magi2_airflow",
        "artifacts batches catalog checkpoints.fit config delivery deployment errors inputs jobs "
        "media.fitness recipes report runtime stages.layouts types",
        "airflow httpx magi2",
    ),
    Row(
        "magi2_airflow.renders",
        "artifacts batches catalog checkpoints.fit config deployment errors inputs jobs.delete prompts quality recipes "
        "report stages.snapshots types",
        "airflow anyio fastapi httpx magi2_airflow prometheus_client pydantic",
    ),
    Row("magi2_airflow.mount magi2_airflow.places"),
    # Around the product: benchmarks, the demonstration, and the world that its checkpoint and its judge know.
    Row(
        "benchmarks.long_histories",
        "artifacts catalog config quality report types",
        "alembic benchmarks sqlalchemy",
    ),
    Row(
        "benchmarks",
        "acceptance artifacts batches catalog checkpoints config deployment errors inputs jobs kernels media models "
        "parallel platform prompts recipes report runtime stages types",
        "PIL ffmpeg httpx minio safetensors tools torch transformers urllib3",
        heavy=True,
    ),
    Row(
        "tools",
        "artifacts batches catalog checkpoints.layout cli config delivery deployment errors files jobs.render kernels "
        "media models.preview.config recipes report runtime sampling stages types",
        "PIL demo_world rich torch triton",
        heavy=True,
    ),
    Row(
        "demo_world",
        "artifacts batches checkpoints.layout checkpoints.whole config deployment errors files jobs.render media "
        "models prompts quality sampling stages types",
        "PIL magi2 numpy safetensors tokenizers torch transformers",
        heavy=True,
    ),
    # The command line. It renders in its own process; only then does it load torch.
    Row(
        "magi2.cli",
        "acceptance artifacts batches catalog checkpoints config delivery deployment errors files inputs jobs.by_hand "
        "jobs.delete jobs.render media.delivery media.fitness media.marks models.preview.config parallel.layout "
        "platform prompts quality recipes report stages types",
        "httpx magi2 rich typer yaml",
    ),
    # Acceptance: whether a node can do the work. What the command line starts with loads no torch.
    Row(
        "magi2.acceptance",
        "artifacts.recipe artifacts.store catalog checkpoints config deployment errors kernels media models "
        "parallel platform recipes.book runtime.meeting sampling stages",
        "torch",
        heavy=True,
    ),
    Row(
        "magi2.acceptance.runner magi2.acceptance.work magi2.acceptance.report magi2.acceptance.expect "
        "magi2.acceptance.reference magi2.acceptance.scrub magi2.acceptance.plan",
        "config errors files models.preview.config parallel.layout recipes.book runtime sampling.schedule "
        "stages.layouts types",
        "magi2",
    ),
    # Jobs: one stage of one shard, from permission to its entry in the catalog, for Airflow and the command line.
    Row(
        "magi2.jobs.render",
        "artifacts batches catalog.gate config delivery deployment errors jobs parallel.layout platform recipes "
        "runtime.events runtime.job runtime.lock runtime.process runtime.progress runtime.store_wait stages types",
        heavy=True,
    ),
    Row(
        "magi2.jobs",
        "artifacts batches catalog checkpoints.whole config delivery deployment errors files parallel.layout recipes "
        "report runtime types",
    ),
    # What a run leaves behind: reports, status, figures.
    Row("magi2.report", "artifacts batches catalog config errors files quality recipes types", "prometheus_client"),
    Row("magi2.report.plain"),
    # Clips rendered again from their sidecars.
    Row(
        "magi2.delivery.again", "artifacts batches config delivery deployment errors files inputs media.delivery types"
    ),
    # Process groups that run the stages of one shard.
    Row(
        "magi2.runtime",
        "artifacts batches catalog config deployment errors files platform recipes stages types",
        "torch",
    ),
    Row("magi2.runtime.meeting", "config errors parallel platform stages", "torch", heavy=True),
    # The deployment: store and catalog, opened together.
    Row("magi2.deployment", "artifacts batches.told catalog checkpoints.layout config errors quality recipes types"),
    # The database, and the gate that asks it whether work may go on.
    Row(
        "magi2.catalog",
        "artifacts batches config errors files quality recipes.result stages.contracts types",
        "alembic psycopg2 sqlalchemy",
    ),
    Row("magi2.runtime.lock magi2.runtime.run_folder", "artifacts errors files runtime.job"),
    Row("magi2.runtime.events magi2.runtime.exit_codes", "errors", "pydantic"),
    # Delivery: one clip brought to its targets.
    Row("magi2.delivery", "artifacts batches config errors files media.marks prompts recipes types"),
    # Batches: from a file to a plan, the documents in the store, and again.
    Row(
        "magi2.batches",
        "artifacts checkpoints.fit checkpoints.layout checkpoints.whole config delivery.credentials delivery.names "
        "delivery.targets errors files inputs media.colours media.delivery media.image models.preview.config "
        "models.text_encoder.tokenizer parallel.layout prompts recipes sampling.schedule stages.layouts "
        "stages.snapshots types",
        "pyarrow pydantic",
    ),
    Row("magi2.runtime.job", "errors parallel.layout types"),
    # The stages, and the checkpoints that they load.
    Row(
        "magi2.stages",
        "artifacts checkpoints.layout checkpoints.whole config errors files inputs kernels media models parallel "
        "platform prompts quality.measures recipes sampling types",
        "torch",
        heavy=True,
    ),
    Row("magi2.checkpoints.whole", "checkpoints.headers checkpoints.layout config errors types"),
    Row("magi2.checkpoints.fit", "checkpoints.headers checkpoints.layout config errors models.preview.config"),
    Row("magi2.checkpoints", "config errors files models", "safetensors torch", heavy=True),
    Row("magi2.stages.snapshots", "artifacts errors parallel.layout", "torch"),
    Row(
        "magi2.stages.layouts",
        "config models.preview.footprint models.preview.lengths models.refiner.footprint parallel.layout platform "
        "stages.contracts types",
        "torch",
    ),
    Row("magi2.stages.progress", "recipes types"),
    # Delivery of finished clips: signatures, and the record of how each was made.
    Row(
        "magi2.delivery.check magi2.delivery.credentials magi2.delivery.record magi2.delivery.sidecar "
        "magi2.delivery.signing",
        "artifacts config errors files inputs media.delivery media.marks parallel.layout recipes types",
        "PIL c2pa cryptography magi2 pydantic",
    ),
    # Delivery: targets, and names that every file system takes.
    Row(
        "magi2.delivery.targets magi2.delivery.places",
        "artifacts config delivery.names errors files inputs",
        "minio pydantic",
    ),
    # What determines an artifact, and what of it is stored.
    Row(
        "magi2.recipes",
        "artifacts config errors media.delivery media.label media.marks media.watermarks models.preview.config "
        "models.preview.lengths prompts quality.measures stages.contracts types",
    ),
    Row("magi2.stages.contracts", "artifacts config errors models.preview.lengths types"),
    # What of a clip counts as a defect, when its measures are read.
    Row("magi2.quality", "config.strict errors types", "pydantic yaml"),
    Row(
        "magi2.config",
        "delivery.names errors inputs media.delivery models.preview.config models.refiner.config "
        "models.video_vae.config sampling.guidance_config sampling.schedule types",
        "pydantic",
    ),
    Row("magi2.checkpoints.layout", "artifacts checkpoints.headers errors files"),
    Row("magi2.checkpoints.headers"),
    Row("magi2.artifacts", "errors files inputs types", "magi2 minio safetensors torch urllib3"),
    # What the stages compute with. Neither stores nor plans are known here, nor one of these to another but models,
    # which are spread over ranks and take kernels.
    Row("magi2.prompts", "errors inputs media.colours", "PIL json_repair openai pydantic"),
    Row("magi2.media", "errors files media quality.measures", "PIL numpy torch", heavy=True),
    Row("magi2.sampling", "errors types", "torch", heavy=True),
    Row("magi2.models.text_encoder", "errors models", "safetensors tokenizers torch transformers", heavy=True),
    Row("magi2.models", "errors kernels parallel", "safetensors torch", heavy=True),
    Row("magi2.kernels", "", "torch triton", heavy=True),
    Row("magi2.parallel", "errors", "torch", heavy=True),
    Row("magi2.platform", "errors", "torch", heavy=True),
    # What of that is read where nothing is computed: settings of models, layouts of ranks, files.
    Row(
        "magi2.media.fitness",
        "errors files media.audio media.deliver media.delivery media.ffmpeg media.lossless media.marks media.probe",
    ),
    Row("magi2.media.marks.read", "errors files media.marks media.reading"),
    Row(
        "magi2.media.lossless magi2.media.deliver magi2.media.audio magi2.media.probe magi2.media.reading",
        "errors files media.delivery media.ffmpeg media.marks",
        "av ffmpeg torch",
    ),
    Row("magi2.media.marks", "errors inputs"),
    Row("magi2.media.watermarks", "errors files", "numpy"),
    Row("magi2.media.label", "errors media.delivery", "PIL"),
    Row(
        "magi2.media.ffmpeg magi2.media.image magi2.media.colours magi2.media.integrity magi2.media.jpeg "
        "magi2.media.damage magi2.media.other_files",
        "errors files",
        "PIL ffmpeg imageio_ffmpeg numpy torch",
    ),
    Row("magi2.media.delivery", "errors"),
    Row("magi2.sampling.guidance_config magi2.sampling.schedule", "errors"),
    Row("magi2.models.text_encoder.tokenizer", "errors", "tokenizers"),
    Row(
        "magi2.models.audio_vae.config magi2.models.preview.config magi2.models.preview.lengths "
        "magi2.models.refiner.config magi2.models.turbo_vae.config magi2.models.video_vae.config "
        "magi2.models.video_vae.statistics",
        "errors",
        "torch",
    ),
    Row("magi2.parallel.layout magi2.parallel.memory", "errors"),
    Row("magi2.delivery.names", "errors inputs types"),
    # Known to all.
    Row("magi2.quality.measures"),
    Row("magi2.inputs", "errors files", "regex yaml"),
    Row("magi2.files", "errors"),
    Row("magi2.types", "errors"),
    Row("magi2.errors"),
    Row("magi2"),
]
