#!/usr/bin/env bash
# What repairs keep below STORE/.rmqctl/repairs: when, by which command, how much space. Removes
# nothing. With a number of days it also shows the commands that would remove what is older and
# settled; whether nobody will want it back is a person's decision.
#
#   RMQCTL_STORE=/data/rocketmq/store kept.sh [DAYS]
#
# Optional: RMQCTL (the program).
set -euo pipefail

: "${RMQCTL_STORE:?name the store: RMQCTL_STORE=/data/rocketmq/store}"
rmqctl=${RMQCTL:-rmqctl}
days=${1:-}
case $days in
  *[!0-9]*) echo "usage: kept.sh [DAYS]" >&2; exit 2 ;;
esac

list=$("$rmqctl" undo "$RMQCTL_STORE" --list -q -o tsv)
printf '%-22s %-12s %-12s %s\n' repair command state size
removable=()
# The columns, by their names: id, time (ms), command, state.
while IFS=$'\t' read -r id time command state; do
  folder=$RMQCTL_STORE/.rmqctl/repairs/$id
  size=$(du -sh -- "$folder" 2>/dev/null | cut -f1) || size="?"
  printf '%-22s %-12s %-12s %s\n' "$id" "$command" "$state" "$size"
  case $state in
    applied | undone | abandoned) ;;
    *) continue ;;  # not finished: the next repair goes on with it
  esac
  if [ -n "$days" ] && [ "$((time / 1000))" -lt "$(($(date +%s) - days * 86400))" ]; then
    removable+=("$folder")
  fi
done < <(awk -F '\t' 'NR == 1 { for (i = 1; i <= NF; i++) at[$i] = i; next }
  { print $at["id"] FS $at["time"] FS $at["command"] FS $at["state"] }' <<<"$list")

if [ "${#removable[@]}" -gt 0 ]; then
  printf '\nOlder than %s days and settled. To remove them, for good, by hand:\n\n' "$days"
  printf 'rm -r -- %q\n' "${removable[@]}"
fi
