# What the trainer's image is built on: TensorFlow, and what else of Python psconform takes there, but not psconform.
# `psconform images build` makes the context (wheels of requirements.txt), so that no package of Python is fetched while
# it builds.
# BASE: any image with the Python that the wheels are for: the slim image, TensorFlow's GPU image (whose TensorFlow is
# used then), or the Debian base of base.sh.
ARG BASE=python:3.11-slim-bookworm

FROM ${BASE} AS build
LABEL psconform.stage=build
COPY wheels /wheels
COPY requirements.txt /requirements.txt
# System packages are seen, for a base that brings its TensorFlow. Compiled, for nobody can write later. Headers of C++
# are a fifth of TensorFlow, and for compilers.
RUN python3 -m venv --system-site-packages /opt/psconform \
    && /opt/psconform/bin/python -m pip install --quiet --no-color --no-deps --no-index --find-links /wheels -r /requirements.txt \
    && rm -rf /opt/psconform/lib/python3*/site-packages/tensorflow/include

FROM ${BASE}
# The helper sets rules with it. The Debian base has it; nothing else is ever fetched here.
RUN command -v iptables >/dev/null || { apt-get update -qq && apt-get install -y -qq --no-install-recommends iptables \
    && rm -rf /var/lib/apt/lists/*; }
COPY --from=build /opt/psconform /opt/psconform
ARG MADE_OF=unknown
LABEL psconform.stage=libraries \
    psconform.made-of="${MADE_OF}"
