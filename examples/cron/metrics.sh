#!/usr/bin/env bash
# What a store holds and how far consumers are behind, for node_exporter's textfile collector:
# reads the ends of the files only, so it can run every minute, also beside the broker.
#
#   RMQCTL_STORE=/data/rocketmq/store RMQCTL_METRICS=/var/lib/…/rmqctl-store.prom metrics.sh
#
# Optional: RMQCTL (the program). Says nothing when all is well; else the exit code is rmqctl's,
# and the old metrics stay: alert on rmqctl_store_timestamp_seconds. `rmqctl exporter` without
# --once answers Prometheus itself.
set -euo pipefail

: "${RMQCTL_STORE:?name the store: RMQCTL_STORE=/data/rocketmq/store}"
: "${RMQCTL_METRICS:?name the file: RMQCTL_METRICS=/var/lib/node_exporter/…/rmqctl-store.prom}"
export RMQCTL_STORE

# Written beside and renamed: the collector never reads a half.
"${RMQCTL:-rmqctl}" exporter --once >"$RMQCTL_METRICS.new"
mv "$RMQCTL_METRICS.new" "$RMQCTL_METRICS"
