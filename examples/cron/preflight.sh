#!/usr/bin/env bash
# Before a broker's start, for ExecStartPre= of its systemd unit: what would it do to the store?
#
#   RMQCTL_STORE=/data/rocketmq/store preflight.sh warn     says it, and never stands in the way
#   RMQCTL_STORE=/data/rocketmq/store preflight.sh refuse   exit code 1 if messages would be lost
#
# Both say what is lost already. That alone is no reason to refuse, unless this start would cut off
# the rows which tell of it.
#
# What could not be found out never keeps a broker from starting. Optional: RMQCTL (the program),
# RMQCTL_BROKER_VERSION, RMQCTL_SECONDS (how long it may take; default: 60, systemd itself gives up
# after 90), RMQCTL_PREFLIGHT=off (start whatever it would cost).
set -euo pipefail

: "${RMQCTL_STORE:?name the store: RMQCTL_STORE=/data/rocketmq/store}"
rmqctl=${RMQCTL:-rmqctl}
mode=${1:-warn}
case $mode in
  warn | refuse) ;;
  *) echo "usage: preflight.sh [warn|refuse]" >&2; exit 2 ;;
esac
if [ "${RMQCTL_PREFLIGHT:-on}" = off ]; then
  echo "preflight of $RMQCTL_STORE: switched off (RMQCTL_PREFLIGHT=off)"
  exit 0
fi

arguments=(preflight "$RMQCTL_STORE" --quick --no-progress)
if [ -n "${RMQCTL_BROKER_VERSION:-}" ]; then
  arguments+=(--broker-version "$RMQCTL_BROKER_VERSION")
fi

code=0
report=$(timeout "${RMQCTL_SECONDS:-60}" "$rmqctl" "${arguments[@]}" 2>&1) || code=$?

# What is lost already, and a start that costs nothing more.
if [ "$code" = 1 ] && timeout "${RMQCTL_SECONDS:-60}" "$rmqctl" "${arguments[@]}" --start-only \
  >/dev/null 2>&1; then
  printf 'preflight of %s: this start costs nothing more\n\n%s\n' "$RMQCTL_STORE" "$report"
  exit 0
fi

case $code in
  0) exit 0 ;;
  1) printf 'preflight of %s: this start costs something\n\n%s\n' "$RMQCTL_STORE" "$report" ;;
  3) echo "preflight: no store at $RMQCTL_STORE yet (or the disk is not mounted)"; exit 0 ;;
  124) echo "preflight of $RMQCTL_STORE took too long and was given up"; exit 0 ;;
  *) printf 'preflight of %s failed with exit code %s\n\n%s\n' "$RMQCTL_STORE" "$code" "$report"
     exit 0 ;;
esac
if [ "$mode" = refuse ]; then
  cat <<END

The broker is not started. To keep what it would lose, look at what

  $rmqctl recover $RMQCTL_STORE

would do, and let it do so with --apply. To start all the same:

  systemctl set-environment RMQCTL_PREFLIGHT=off
END
  exit 1
fi
