# The image for people with Docker: docker build -t kollect --build-arg REVISION=$(git rev-parse HEAD) .
# `make image` makes the same without Docker, and is what releases use.
FROM rust:1.95-bookworm AS build
RUN apt-get update && apt-get install --yes --no-install-recommends musl-tools && rm -rf /var/lib/apt/lists/*
WORKDIR /kollect
COPY . .
RUN mkdir -p /root-fs/etc/ssl/certs && mkdir -m 1777 /root-fs/tmp \
    && cp "$(scripts/static "$(dpkg --print-architecture)")" /root-fs/kollect \
    && cp /etc/ssl/certs/ca-certificates.crt /root-fs/etc/ssl/certs/

FROM scratch
ARG VERSION=0.1.0
ARG REVISION=unknown
ARG CREATED=1970-01-01T00:00:00Z
LABEL org.opencontainers.image.version=$VERSION \
      org.opencontainers.image.revision=$REVISION \
      org.opencontainers.image.created=$CREATED \
      org.opencontainers.image.title=kollect \
      org.opencontainers.image.description="Kubernetes inventory: an operator and a command line around the same engine" \
      org.opencontainers.image.licenses=MIT
COPY --from=build /root-fs/ /
ENV PATH=/ SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt
USER 65532:65532
ENTRYPOINT ["/kollect"]
