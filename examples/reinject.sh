#!/usr/bin/env bash
# The messages of one topic are taken out of a damaged copy of a store and put into two others:
# once as the records they were (--as-recorded), once as new messages (a plain append).
#
#   examples/reinject.sh [FOLDER]    works in FOLDER, which must not exist (default: a temporary
#                                    one that is removed at the end)
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

if [ $# -gt 0 ]; then
  mkdir "$1"
  folder=$1
else
  folder=$(mktemp -d "${TMPDIR:-/tmp}/rmqctl-reinject.XXXXXX")
  trap 'rm -rf "$folder"' EXIT
fi
topic=TP_fraud_Topic
sizes=(--commitlog-file-size 64KiB --consumequeue-file-size 380 --index-slots 100 --index-max 400)

cp -a "$here/store" "$folder/damaged"
cp -a "$here/store" "$folder/running"
printf m | dd of="$folder/damaged/commitlog/00000000000000065536" bs=1 seek=40301 conv=notrunc \
  2>/dev/null

say "In the store 'damaged' one bit of one body is not what it was. All messages of the topic as" \
  "JSON lines: exit code 1, because of that one."
run 1 read "$folder/damaged" --topic $topic -o jsonl --body base64 >"$folder/all.jsonl"

say "Those whose body matches its CRC. append would refuse the others: with a new CRC nobody could" \
  "see any more that a body is not what its producer sent."
run 0 read "$folder/damaged" --topic $topic -o jsonl --body base64 --where crc_ok=true \
  >"$folder/sound.jsonl"
printf '%s messages, %s of them sound\n' $(wc -l <"$folder/all.jsonl") $(wc -l <"$folder/sound.jsonl")

say "1. Into a new store, as the records they were: times, hosts, flags and properties stay." \
  "Places in the log are new, and behind the lost message the queue offsets move up by one, because" \
  "no broker keeps a queue with a gap in it."
run 0 init "$folder/salvaged" "${sizes[@]}"
run 0 append "$folder/salvaged" "$folder/sound.jsonl" --as-recorded
run 0 verify "$folder/salvaged"

say "The damaged one would not have got in this way:"
run 1 append "$folder/salvaged" "$folder/all.jsonl" --as-recorded --on-error skip --dry-run

say "2. Into a topic that is in use (its broker is stopped for the moment), as if the producers sent" \
  "them now: the store time is new, and consumers get them behind all that is there. Born time and the" \
  "client's id stay, so a consumer that knows what it has seen can tell."
run 0 append "$folder/running" "$folder/sound.jsonl"
run 0 verify "$folder/running"

say "One message behind the lost one, in the three stores."
for store in damaged salvaged running; do
  run 0 read "$folder/$store" --topic $topic --key stock-120 \
    --fields queue_id,queue_offset,physical_offset,store_timestamp,born_timestamp,unique_key
done
