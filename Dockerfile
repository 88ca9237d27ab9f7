# Not built in CI, where no image registry can be reached.
FROM rust:1.95-bookworm AS build
WORKDIR /src
COPY . .
# Without the demo and its API server.
RUN cargo build --release --locked --no-default-features --bin mooring

FROM debian:bookworm-slim
COPY --from=build /src/target/release/mooring /usr/local/bin/mooring
USER 65532:65532
ENTRYPOINT ["/usr/local/bin/mooring"]
CMD ["run"]
