# The image of the daemon: one file on a base without shell or package manager. How it is released, and how its base images
# are pinned by digest: docs/release.md. Not built in CI, where no image registry can be reached.
ARG BUILD_IMAGE=docker.io/library/rust:1.95.0-bookworm
ARG BASE_IMAGE=gcr.io/distroless/cc-debian12:nonroot

FROM ${BUILD_IMAGE} AS build
# Writes the list of crates into the binary, where scanners of images look for it.
RUN cargo install --locked cargo-auditable@0.7.7
WORKDIR /src
COPY . .
ARG COMMIT=unknown
# Of the workspace the daemon alone: no demo, no testbed, and nothing that only they need.
RUN MOORING_COMMIT=${COMMIT} cargo auditable build --release --locked --package mooring --bin mooring

FROM ${BASE_IMAGE}
ARG BASE_IMAGE
ARG COMMIT=unknown
ARG VERSION=0.2.0-dev
LABEL org.opencontainers.image.title="mooring" \
      org.opencontainers.image.description="Attach/detach controller and PV binder for Kubernetes" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${COMMIT}" \
      org.opencontainers.image.base.name="${BASE_IMAGE}"
COPY --from=build /src/target/release/mooring /usr/local/bin/mooring
USER 65532:65532
ENTRYPOINT ["/usr/local/bin/mooring"]
CMD ["run"]
