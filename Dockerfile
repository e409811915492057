# One image for every role: Airflow's components, the CPU worker and the GPU workers. What differs is the base image:
#   CPU    python:...-slim-bookworm, torch from TORCH_INDEX_URL or the default index
#   CUDA   the same with EXTRA=cuda: the default index's torch brings CUDA 13 as wheels, all pinned
#   MUSA   registry.mthreads.com/.../vllm-omni:magi-2-preview, its torch, torch_musa and triton are kept
# docker-compose.yml names the exact images.
ARG BASE_IMAGE=python:3.11.14-slim-bookworm@sha256:65a93d69fa75478d554f4ad27c85c1e69fa184956261b4301ebaf6dbb0a3543d
FROM ${BASE_IMAGE}

# An index with a CPU build of torch keeps the CPU image small; empty takes the default index's build. Torch comes from
# it alone, all else by hash from the default index.
ARG TORCH_INDEX_URL=
# cuda adds Triton and FlashAttention-3.
ARG EXTRA=

USER root
# A base image may start a server of its own.
ENTRYPOINT []

# Triton compiles its launchers with the system's C compiler and Python's headers.
RUN if { [ "$EXTRA" = cuda ] || python3 -c 'import importlib.util, sys; sys.exit(not importlib.util.find_spec("triton"))'; } \
        && ! command -v gcc; then \
        apt-get update \
        && apt-get install --yes --no-install-recommends gcc libc6-dev python3-dev \
        && rm -rf /var/lib/apt/lists/*; \
    fi

# Dependencies first: this layer changes only with their lists.
COPY pyproject.toml constraints.txt configs/deploy/environment.py configs/deploy/hashes.txt /opt/magi2/build/
RUN cd /opt/magi2/build \
    && python3 environment.py /opt/magi2/venv pyproject.toml constraints.txt hashes.txt \
        --torch-index "$TORCH_INDEX_URL" --extra "$EXTRA"

# Group 0, so that the folders also work under another uid given at run time.
RUN useradd --uid 50000 --gid 0 --create-home magi2 \
    && install --directory --owner 50000 --group 0 --mode 0770 \
        /var/lib/magi2 /var/lib/magi2/airflow /var/lib/magi2/auth /var/lib/magi2/logs /var/lib/magi2/scratch \
        /srv/magi2 /srv/magi2/inbox

# The package is installed in place: it finds configs/ beside it, and Airflow finds dags/.
COPY . /opt/magi2/app
RUN python3 -m pip --python /opt/magi2/venv/bin/python install --no-cache-dir --no-deps --no-build-isolation \
        --editable /opt/magi2/app

ENV PATH=/opt/magi2/venv/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    AIRFLOW_HOME=/var/lib/magi2/airflow

USER 50000:0
WORKDIR /opt/magi2/app
CMD ["magi2", "doctor"]
