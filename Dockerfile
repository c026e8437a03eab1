# kafka-index with a Java runtime for Spark, and its kernels compiled: no run compiles any. Build it
# on the kind of machine that it runs on, whose instructions the kernels use.
#
#   docker build -t kafka-index .
#   docker run --rm -v /dumps:/dumps:ro kafka-index verify --input /dumps/broker-1
#
# BASE is any image of Debian or Ubuntu with pip for a Python of pyproject.toml.
ARG BASE=python:3.13-slim
FROM ${BASE} AS wheel
COPY . /src
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels /src

FROM ${BASE}
RUN apt-get update \
    && apt-get install -y --no-install-recommends default-jre-headless \
    && rm -rf /var/lib/apt/lists/*
COPY --from=wheel /wheels /wheels
# The Python of Debian and Ubuntu refuses packages for all users that are not its own.
ENV PIP_BREAK_SYSTEM_PACKAGES=1
RUN pip install --no-cache-dir "$(ls /wheels/*.whl)[backup,s3,gcs,azure,hdfs,html,tiered,write,typed,iceberg,delta]" && rm -r /wheels
RUN kafka-index warm-up --shared
RUN useradd --create-home kafka-index
USER kafka-index
WORKDIR /home/kafka-index
ENTRYPOINT ["kafka-index"]
