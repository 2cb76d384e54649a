#!/usr/bin/env bash
# Heartbeat of a standby store whose broker is stopped, for cron or a systemd timer: one small
# message a minute goes a broker's whole way to the disk. Says nothing when all is well, so that
# cron sends no mail; else what is wrong, and the exit code is that of rmqctl.
#
#   RMQCTL_STORE=/data/standby/store heartbeat.sh
#
# Optional: RMQCTL (the program), RMQCTL_TOPIC (default: heartbeat), RMQCTL_METRICS (a file for
# node_exporter's textfile collector), RMQCTL_SECONDS (how long it may take; default: 50).
set -uo pipefail

: "${RMQCTL_STORE:?name the store: RMQCTL_STORE=/data/standby/store}"
rmqctl=${RMQCTL:-rmqctl}
topic=${RMQCTL_TOPIC:-heartbeat}
seconds=${RMQCTL_SECONDS:-50}
export RMQCTL_STORE

# The answer comes once the message is on the disk (--flush sync is what write does by itself).
report=$(timeout "$seconds" "$rmqctl" write -o json --topic "$topic" \
  --key "$(uname -n)" --body "$(uname -n) $(date -u +%Y-%m-%dT%H:%M:%SZ)" 2>&1 >/dev/null)
code=$?

case $code in
  0) ;;
  3) echo "no store at $RMQCTL_STORE (is the disk mounted?)" ;;
  4) echo "$RMQCTL_STORE is held: a broker runs on the standby, or another rmqctl" ;;
  5) echo "$RMQCTL_STORE cannot be written to: disk full, read-only or failing" ;;
  6) echo "$RMQCTL_STORE does not take the message" ;;
  124) echo "writing to $RMQCTL_STORE took longer than $seconds s" ;;
  *) echo "rmqctl failed with exit code $code" ;;
esac
if [ -n "$report" ]; then
  printf '%s\n' "$report"
fi

if [ -n "${RMQCTL_METRICS:-}" ]; then
  # Written beside and renamed: the collector never reads a half.
  if ! {
    printf 'rmqctl_heartbeat_exit_code{store="%s"} %s\n' "$RMQCTL_STORE" "$code"
    printf 'rmqctl_heartbeat_timestamp_seconds{store="%s"} %s\n' "$RMQCTL_STORE" "$(date +%s)"
  } >"$RMQCTL_METRICS.new" || ! mv "$RMQCTL_METRICS.new" "$RMQCTL_METRICS"; then
    echo "the metrics file $RMQCTL_METRICS cannot be written"
    [ "$code" -ne 0 ] || code=5
  fi
fi
exit "$code"
