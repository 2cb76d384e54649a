#!/usr/bin/env bash
# Makes a small store for tests, without a broker: topics, tags, keys, a delayed message, a batch
# and a transaction. Clock and hosts stand in fixture.jsonl, so every run leaves the same messages,
# offsets and ids.
#
#   examples/make-fixture.sh [FOLDER]      FOLDER (default: fixture) must be empty or not exist
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

store=${1:-fixture}

say "An empty store. Its files are small, so that a few messages fill more than one."
run 0 init "$store" --commitlog-file-size 2KiB --consumequeue-file-size 100 \
  --index-slots 100 --index-max 400
run 0 topic create "$store" orders --read-queues 4 --write-queues 4
run 0 topic create "$store" bills --read-queues 1 --write-queues 1

say "Ten messages with tags and keys, one of another topic, one delayed by level 3, three as a batch," \
  "and a transaction as brokers keep it since 4.3: the half message in a topic of its own, then" \
  "the whole one, which names the place of the half."
run 0 append "$store" "$here/fixture.jsonl" --replay -o csv

say "What is in it now, and that it is sound."
run 0 read "$store" --fields physical_offset,topic,queue_id,queue_offset,tags,keys,body
run 0 info "$store"
run 0 verify "$store"
