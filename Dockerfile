# One static program, without a shell, packages or root.
FROM scratch
ARG VERSION
ARG COMMIT
LABEL org.opencontainers.image.title="hostformat" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${COMMIT}"
COPY bin/image/webhook /webhook
USER 65532:65532
ENTRYPOINT ["/webhook"]
