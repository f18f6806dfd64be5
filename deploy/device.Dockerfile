# As Dockerfile, for functions that need CUDA's libraries from the system, such as ONNX Runtime or CuPy.
# PyTorch's wheels bring theirs: for them Dockerfile is enough. The host needs NVIDIA's container toolkit.
#     docker build --file deploy/device.Dockerfile --tag app deploy
#     docker run --gpus device=0 --publish 127.0.0.1:8545:8545 app
ARG CUDA=nvidia/cuda:12.9.1-cudnn-runtime-ubuntu24.04
# hadolint ignore=DL3006
FROM ${CUDA}
# CPython 3.12.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends python3-venv \
    && rm -rf /var/lib/apt/lists/* \
    && python3 -m venv /opt/venv
ENV PATH=/opt/venv/bin:$PATH
WORKDIR /srv/app
COPY requirements.txt ./
# A layer of its own: a change of the program or of ucall installs none of these again.
RUN python -m pip install --no-cache-dir --requirement requirements.txt
RUN --mount=type=bind,source=.,target=/context \
    find /context -maxdepth 1 -name '*.whl' \
        -exec python -m pip install --no-cache-dir --no-index --no-deps {} + \
    && useradd --no-create-home --no-log-init --uid 10001 app
COPY ./*.py ./
# By number, so that an orchestrator can tell that it is not root.
USER 10001
ENV PYTHONUNBUFFERED=1 UCALL_HOST=0.0.0.0 UCALL_PORT=8545
EXPOSE 8545
# Asks /healthz: an orchestrator may restart unhealthy containers, but not busy ones. A model has the
# start period to load.
HEALTHCHECK --interval=10s --timeout=3s --start-period=10m --retries=3 \
    CMD ["ucall", "health"]
# Without a shell, so that SIGTERM reaches the server, which drains.
CMD ["python", "-m", "ucall", "app:server"]
