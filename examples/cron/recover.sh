#!/usr/bin/env bash
# Repairs a store whose broker is stopped, for cron or between a broker's stop and its start. Says
# nothing when there is nothing to do or a broker runs; else what was done, and how to take it back.
#
#   RMQCTL_STORE=/data/standby/store recover.sh
#
# Optional: RMQCTL (the program), RMQCTL_STRATEGY (salvage, the default: nothing intact is lost; or
# broker: what its own recovery would leave).
set -euo pipefail

: "${RMQCTL_STORE:?name the store: RMQCTL_STORE=/data/standby/store}"
rmqctl=${RMQCTL:-rmqctl}

code=0
report=$("$rmqctl" recover "$RMQCTL_STORE" --strategy "${RMQCTL_STRATEGY:-salvage}" \
  --apply --yes --no-progress 2>&1) || code=$?

case $code in
  0) [ -n "$report" ] || exit 0
     echo "rmqctl repaired $RMQCTL_STORE" ;;
  1) echo "rmqctl repaired $RMQCTL_STORE; messages are lost" ;;
  3) echo "rmqctl: $RMQCTL_STORE is no store (is the disk mounted?)" ;;
  4) exit 0 ;;  # a broker runs on it: the store is in good hands
  5) echo "rmqctl could not finish: disk full, read-only or failing; the next run goes on" ;;
  6) echo "rmqctl refused to repair $RMQCTL_STORE" ;;
  130 | 143) echo "the repair of $RMQCTL_STORE was interrupted; the next run goes on" ;;
  *) echo "rmqctl failed with exit code $code" ;;
esac
printf '\n%s\n' "$report"
exit "$code"
