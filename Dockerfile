# syntax=docker/dockerfile:1
# Three images of one source, all run as nobody in particular (uid 10001):
#   service     HTTP and advancing jobs: no compiler, no torch
#   worker      compiles, and measures on a CPU
#   gpu-worker  the same, and NVIDIA GPUs (NVRTC from PyPI; the driver comes from the host)
# See docs/how-to/docker.md.
ARG PYTHON_IMAGE=python:3.11.11-slim-bookworm

FROM ${PYTHON_IMAGE} AS packages
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
RUN python -m venv /opt/tuner
ENV PATH=/opt/tuner/bin:$PATH
WORKDIR /src

FROM packages AS service-packages
COPY pyproject.toml README.md ./
COPY catalogs catalogs
COPY search search
COPY migrations migrations
COPY tuner_service tuner_service
RUN pip install '.[postgres]'

FROM packages AS worker-packages
# torch first and pinned. Its usual build carries CUDA libraries of several gigabytes, which a CPU worker does not need:
# name the CPU build, and the index that has it, by build arguments.
ARG TORCH=torch==2.13.0
ARG PIP_EXTRA_INDEX_URL=
RUN pip install "${TORCH}"
COPY pyproject.toml README.md ./
COPY catalogs catalogs
COPY search search
COPY migrations migrations
COPY tuner_service tuner_service
RUN pip install '.[postgres,tune]'

FROM worker-packages AS gpu-worker-packages
RUN pip install '.[postgres,tune,cuda]'

FROM ${PYTHON_IMAGE} AS base
RUN groupadd --gid 10001 tuner \
 && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /data --shell /usr/sbin/nologin tuner \
 && install --directory --owner tuner --group tuner --mode 0750 /data \
 && install --directory --owner tuner --group tuner --mode 0770 /locks
ENV PATH=/opt/tuner/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    HOME=/data \
    TUNER_DATA_DIR=/data \
    TUNER_LOCK_DIR=/locks
VOLUME ["/data", "/locks"]
WORKDIR /data
STOPSIGNAL SIGTERM
ENTRYPOINT ["tuner"]

FROM base AS service
COPY --from=service-packages /opt/tuner /opt/tuner
USER 10001:10001
EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s --retries=3 \
  CMD ["python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:8000/healthz', timeout=4)"]
CMD ["serve"]

FROM base AS worker-base
RUN apt-get update \
 && apt-get install --yes --no-install-recommends gcc g++ libc6-dev binutils \
 && rm -rf /var/lib/apt/lists/*
ENV TUNER_METRICS_PORT=9464
EXPOSE 9464
HEALTHCHECK --interval=10s --timeout=5s --start-period=120s --retries=6 \
  CMD ["python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:9464/metrics', timeout=4)"]
CMD ["worker"]

FROM worker-base AS gpu-worker
COPY --from=gpu-worker-packages /opt/tuner /opt/tuner
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
USER 10001:10001

FROM worker-base AS worker
COPY --from=worker-packages /opt/tuner /opt/tuner
USER 10001:10001
