#!/usr/bin/env bash
# What a store holds and how far consumers are behind, for node_exporter's textfile collector:
# reads the ends of the files only, so it can run every minute, also beside the broker.
#
#   RMQCTL_STORE=/data/rocketmq/store RMQCTL_METRICS=/var/lib/…/rmqctl-store.prom metrics.sh
#
# Optional: RMQCTL (the program). Says nothing when all is well; else the exit code is rmqctl's,
# and the old metrics stay: alert on rmqctl_store_timestamp_seconds.
set -euo pipefail

: "${RMQCTL_STORE:?name the store: RMQCTL_STORE=/data/rocketmq/store}"
: "${RMQCTL_METRICS:?name the file: RMQCTL_METRICS=/var/lib/node_exporter/…/rmqctl-store.prom}"
rmqctl=${RMQCTL:-rmqctl}
export RMQCTL_STORE

info=$("$rmqctl" info --view disk -q -o tsv)
offsets=$("$rmqctl" offsets -qq -o tsv)

# Tables of rmqctl: a line of names, then the values, separated by tabs.
store_metrics() {
  awk -F '\t' -v store="$RMQCTL_STORE" '
    function label(text) { gsub(/\\/, "\\\\", text); gsub(/"/, "\\\"", text); return text }
    function gauge(name, help, value) {
      if (value == "") return
      printf "# HELP %s %s\n# TYPE %s gauge\n", name, help, name
      printf "%s{store=\"%s\"} %s\n", name, label(store), value
    }
    { found[$1] = $2 }
    /^structures\[[0-9]+\]\.kind\t/ { split($1, part, "."); kind[part[1]] = $2 }
    /^troubles\[[0-9]+\]/ { split($1, part, "."); trouble[part[1]] = 1 }
    END {
      gauge("rmqctl_store_messages", "Messages in the commitlog.", found["messages"])
      gauge("rmqctl_store_min_phy_offset", "First physical offset.", found["min_phy_offset"])
      gauge("rmqctl_store_max_phy_offset", "End of the commitlog.", found["max_phy_offset"])
      if (found["last_store_timestamp"] != "")
        gauge("rmqctl_store_last_message_timestamp_seconds", "Store time of the newest message.",
              sprintf("%.3f", found["last_store_timestamp"] / 1000))
      gauge("rmqctl_store_abort", "1: the abort file is there.", found["abort"] == "true" ? 1 : 0)
      gauge("rmqctl_store_held", "1: a process holds the lock.",
            found["lock.held"] == "true" ? 1 : 0)
      count = 0
      for (one in trouble) count++
      gauge("rmqctl_store_troubles", "Things that could not be read.", count)
      print "# HELP rmqctl_store_bytes Bytes on the disk by structure."
      print "# TYPE rmqctl_store_bytes gauge"
      for (one in kind)
        printf "rmqctl_store_bytes{store=\"%s\",structure=\"%s\"} %s\n", label(store),
               label(kind[one]), found[one ".allocated"]
    }' <<<"$info"
}

group_metrics() {
  awk -F '\t' -v store="$RMQCTL_STORE" '
    function label(text) { gsub(/\\/, "\\\\", text); gsub(/"/, "\\\"", text); return text }
    NR == 1 { for (i = 1; i <= NF; i++) column[$i] = i; next }
    $column["group"] != "" && $column["diff"] != "" {
      behind[$column["group"] "\t" $column["topic"]] += $column["diff"]
    }
    END {
      print "# HELP rmqctl_group_diff Messages a group has not consumed; negative: it is ahead."
      print "# TYPE rmqctl_group_diff gauge"
      for (key in behind) {
        split(key, part, "\t")
        printf "rmqctl_group_diff{store=\"%s\",group=\"%s\",topic=\"%s\"} %.0f\n", label(store),
               label(part[1]), label(part[2]), behind[key]
      }
    }' <<<"$offsets"
}

# Written beside and renamed: the collector never reads a half.
{
  store_metrics
  group_metrics
  echo "# HELP rmqctl_store_timestamp_seconds When this was read."
  echo "# TYPE rmqctl_store_timestamp_seconds gauge"
  printf 'rmqctl_store_timestamp_seconds{store="%s"} %s\n' "$RMQCTL_STORE" "$(date +%s)"
} >"$RMQCTL_METRICS.new"
mv "$RMQCTL_METRICS.new" "$RMQCTL_METRICS"
