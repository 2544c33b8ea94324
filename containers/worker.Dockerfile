# A worker: the core alone, no compiler and no framework. From the clone's root:
#   docker build -f containers/worker.Dockerfile -t pcp-worker .
FROM python:3.12-slim AS build
COPY . /src
RUN python -m venv /opt/pcp && /opt/pcp/bin/pip install --no-cache-dir --no-compile /src

FROM python:3.12-slim
COPY --from=build /opt/pcp /opt/pcp
RUN useradd --create-home --home-dir /pcp --uid 1000 pcp
USER 1000
WORKDIR /pcp
RUN mkdir runs
ENV PATH=/opt/pcp/bin:$PATH
ENTRYPOINT ["pcp"]
CMD ["worker", "--help"]
