# A model in a container, of a folder with a wheel of ucall, requirements.txt and model.py, which has
# `server`:
#     docker build --file model.Dockerfile --tag model .
ARG PYTHON=python:3.13-slim-trixie
# hadolint ignore=DL3006
FROM ${PYTHON}
WORKDIR /srv/model
COPY requirements.txt ./
# A layer of its own: a change of the program or of ucall does not install PyTorch again.
RUN python -m pip install --no-cache-dir --requirement requirements.txt
RUN --mount=type=bind,source=.,target=/context \
    python -m pip install --no-cache-dir --no-index --no-deps /context/*.whl \
    && useradd --create-home --no-log-init --uid 10001 model
COPY ./*.py ./
# By number, so that an orchestrator can tell that it is not root.
USER 10001
ENV PYTHONUNBUFFERED=1 UCALL_HOST=0.0.0.0 UCALL_PORT=8545
EXPOSE 8545
# Healthy once the model is loaded, for which it has the start period.
HEALTHCHECK --interval=10s --timeout=3s --start-period=10m --retries=3 \
    CMD ["ucall", "health", "--ready"]
# Without a shell, so that SIGTERM reaches the server, which drains.
CMD ["python", "-m", "ucall", "model:server"]
