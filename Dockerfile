# rmqctl in a container: reads what is mounted, as a user without rights, with nothing to write to.
#
#   docker build -t rmqctl .
#   docker run --rm --read-only --network none -v /data/rocketmq/store:/store:ro rmqctl verify /store
#
# With extras: docker build --build-arg EXTRAS=data,report -t rmqctl .
#
# The user must be able to read the store: --user "$(stat -c %u:%g /data/rocketmq/store)"
FROM python:3.12-slim AS build
ARG EXTRAS=""
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev \
 && rm -rf /var/lib/apt/lists/*
COPY pyproject.toml hatch_build.py README.md LICENSE /src/
COPY rmqctl /src/rmqctl
COPY pyspark_rocketmq /src/pyspark_rocketmq
RUN python -m venv /opt/rmqctl \
 && RMQCTL_KERNEL=compiled /opt/rmqctl/bin/pip install --no-cache-dir "/src${EXTRAS:+[$EXTRAS]}" \
 && /opt/rmqctl/bin/pip uninstall -y pip

FROM python:3.12-slim
COPY --from=build /opt/rmqctl /opt/rmqctl
ENV PATH=/opt/rmqctl/bin:$PATH RMQCTL_IMAGE=1
USER 65534:65534
ENTRYPOINT ["rmqctl"]
CMD ["--help"]
