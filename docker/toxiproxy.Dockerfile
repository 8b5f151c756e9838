# Toxiproxy: the statically linked server that psconform has found or built (`psconform doctor` says which).
ARG BASE=python:3.11-slim-bookworm
FROM ${BASE}
ARG VERSION=unknown
ARG MADE_OF=unknown
LABEL org.opencontainers.image.title="Toxiproxy for psconform" \
    org.opencontainers.image.version="${VERSION}" \
    psconform.image=toxiproxy \
    psconform.made-of="${MADE_OF}"
COPY toxiproxy-server /usr/local/bin/toxiproxy-server
USER 10001:10001
WORKDIR /tmp
HEALTHCHECK --interval=10s --timeout=3s CMD ["python3", "-c", "import socket; socket.create_connection(('127.0.0.1', 8474), 2)"]
ENTRYPOINT ["toxiproxy-server"]
CMD ["-host", "127.0.0.1", "-port", "8474"]
