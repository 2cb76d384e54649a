#!/usr/bin/env bash
# The main job of rmqctl in a minute, on the store in examples/store: look, read, query, verify;
# then one bit is flipped in a copy, and verify has to find exactly that record.
# Exits with 0 only if everything came out as it should. Needs no network and no broker.
set -euo pipefail

fail() { printf 'demo: %s\n' "$*" >&2; exit 1; }

# RMQCTL names the program (more than one word is fine: "python3 -m rmqctl"); else the one in
# PATH, where `make demo` puts its own first, else the one that `make demo` installed.
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
if [ -n "${RMQCTL:-}" ]; then
  read -r -a program <<<"$RMQCTL"
elif command -v rmqctl >/dev/null; then
  program=(rmqctl)
else
  program=("$here/../.venv/bin/rmqctl")
fi
case ${program[0]} in
  /*) ;;
  */*) program[0]=$PWD/${program[0]} ;;
esac
cd "$here/.."
command -v "${program[0]}" >/dev/null || fail "there is no ${program[0]}; run 'make demo'"

store=examples/store
log=commitlog/00000000000000065536
record=105738     # physical offset of the message to be damaged
start=40202       # its place in the file
length=227        # its size
position=40301    # the last byte of its body

scratch=$(mktemp -d "${TMPDIR:-/tmp}/rmqctl-demo.XXXXXX")
trap 'rm -rf "$scratch"' EXIT
copy=$scratch/store

bold='' dim='' plain=''
if [ -t 1 ] && [ -z "${NO_COLOR:-}" ]; then
  bold=$'\e[1m' dim=$'\e[2m' plain=$'\e[0m'
fi

say() { printf '\n%s# %s%s\n' "$dim" "$*" "$plain"; }

# run EXPECTED-EXIT-CODE ARGUMENTS: shows the command, runs it, insists on the exit code.
run() {
  local expected=$1 code=0
  shift
  printf '\n%s$ rmqctl' "$bold"
  printf ' %s' "$@"
  printf '%s\n' "$plain"
  "${program[@]}" "$@" || code=$?
  if [ "$code" -ne 0 ]; then
    printf '%s[exit code %s]%s\n' "$dim" "$code" "$plain"
  fi
  [ "$code" -eq "$expected" ] || fail "exit code $code where $expected was promised: rmqctl $*"
}

# A sum over the names and bytes of all files of a folder.
sums() { (cd "$1" && find . -type f -exec sha256sum {} + | LC_ALL=C sort -k 2 | sha256sum); }

before=$(sums "$store")

say "A store as RocketMQ 5.3.3 wrote it: what is in it?"
run 0 info "$store"

say "Three messages of one queue, through its consumequeue."
run 0 read "$store" --topic TP_fraud_Topic --queue 0 --offset 24 --limit 3 \
  --fields queue_offset,physical_offset,tags,keys,body

say "By a key, through the index files, as a broker answers queryMessage."
run 0 query key "$store" --topic TP_fraud_Topic --key audit-88

say "By time: the queue offset a consumer would be reset to, and what lies there."
run 0 query time "$store" --topic TP_fraud_Topic --queue 0 --time 2024-06-21T19:52:00Z
run 0 query time "$store" --topic TP_fraud_Topic --queue 0 --time 2024-06-21T19:52:00Z \
  --messages --limit 2 --fields queue_offset,physical_offset,store_timestamp,total_size

say "How much is there of what?"
run 0 stats "$store"

say "Is it sound? Every byte of the log, the consumequeues and the index, in both directions."
run 0 verify "$store"

say "Now a copy, and in it one bit of one message body: the last byte of the message above."
cp -a "$store" "$copy"
value=$(od -An -tu1 -j "$position" -N 1 "$copy/$log" | tr -d ' ')
old=$(printf '%02x' "$value") new=$(printf '%02x' $((value ^ 1)))
printf '%b' "\\x$new" | dd of="$copy/$log" bs=1 seek="$position" conv=notrunc 2>/dev/null
printf '%s: byte %s is %s now, it was %s\n' "$log" "$position" "$new" "$old"

say "verify finds that record, and nothing else. Findings make exit code 1."
run 1 verify "$copy"
found=$("${program[@]}" verify "$copy" -o tsv | tail -n +2 | cut -f 1,5,6) || true
[ "$found" = "$(printf 'body-crc\t%s\t%s' "$record" "$length")" ] ||
  fail "verify should have found body-crc at $record alone, but found: $found"

say "The damaged record, field by field. Its neighbours are as readable as before."
run 1 dump "$copy/$log" --at "$start" --hex
run 1 read "$copy" --topic TP_fraud_Topic --queue 0 --offset 24 --limit 3 \
  --fields queue_offset,physical_offset,tags,keys,body

say "And the example itself was only read:"
after=$(sums "$store")
printf 'sha256 before  %s\nsha256 after   %s\n' "${before%% *}" "${after%% *}"
[ "$before" = "$after" ] || fail "$store has changed"

say "All of it came out as promised."
