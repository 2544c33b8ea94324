# A shepherd: the compiler too, for the targets of its workers. From the clone's root:
#   docker build -f containers/shepherd.Dockerfile -t pcp-shepherd .
# The whole image, not the slim one: a C compiler makes the loops of sockets.
FROM python:3.12 AS build
COPY . /src
# Neither pip nor IREE's build for the Tracy profiler is of use there.
RUN python -m venv --without-pip /opt/pcp \
 && pip --python /opt/pcp/bin/python install --no-cache-dir --no-compile '/src[train,metrics]' \
 && rm -r /opt/pcp/lib/python3*/site-packages/iree/_runtime_libs_tracy

FROM python:3.12-slim
COPY --from=build /opt/pcp /opt/pcp
RUN useradd --create-home --home-dir /pcp --uid 1000 pcp
USER 1000
WORKDIR /pcp
RUN mkdir runs
ENV PATH=/opt/pcp/bin:$PATH
ENTRYPOINT ["pcp"]
CMD ["shepherd", "--help"]
