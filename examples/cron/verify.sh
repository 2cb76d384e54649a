#!/usr/bin/env bash
# Nightly check of a store, for cron or a systemd timer. Says nothing when all is well, so that
# cron sends no mail; else the report goes to stdout and the exit code is that of rmqctl.
#
#   RMQCTL_STORE=/data/rocketmq/store verify.sh          what is new since the last run
#   RMQCTL_STORE=/data/rocketmq/store verify.sh --full   everything
#
# Optional: RMQCTL (the program), RMQCTL_STATE (folder for the place of the last run and the lock),
# RMQCTL_METRICS (the file for node_exporter's textfile collector).
set -uo pipefail

: "${RMQCTL_STORE:?name the store: RMQCTL_STORE=/data/rocketmq/store}"
rmqctl=${RMQCTL:-rmqctl}
folder=${RMQCTL_STATE:-${XDG_STATE_HOME:-$HOME/.local/state}/rmqctl}
export RMQCTL_STORE

mkdir -p "$folder" || exit 5

# One check at a time: a run that takes longer than a day must not meet the next one.
exec 9>"$folder/cron.lock" || exit 5
if ! flock -n 9; then
  echo "rmqctl: the last check of $RMQCTL_STORE is still running" >&2
  exit 6
fi

arguments=(verify --no-progress --quiet)
case ${1:-} in
  --full) ;;
  '') arguments+=(--since-last --state "$folder/verify.json") ;;
  *) echo "usage: verify.sh [--full]" >&2; exit 2 ;;
esac
if [ -n "${RMQCTL_METRICS:-}" ]; then
  arguments+=(--format-prometheus "$RMQCTL_METRICS")
fi

# Out of the way of the broker, where the system can do that.
gently=(nice -n 19)
if command -v ionice >/dev/null; then
  gently+=(ionice -c 3)
fi

report=$("${gently[@]}" "$rmqctl" "${arguments[@]}" 2>&1)
code=$?

case $code in
  0) exit 0 ;;
  1) echo "rmqctl found damage in $RMQCTL_STORE" ;;
  3) echo "rmqctl: $RMQCTL_STORE is no store (is the disk mounted?)" ;;
  5) echo "rmqctl could not read the store, or not write its state or metrics" ;;
  130 | 143) echo "the check of $RMQCTL_STORE was interrupted; the next run begins where it began" ;;
  *) echo "rmqctl failed with exit code $code" ;;
esac
printf '\n%s\n' "$report"
exit "$code"
