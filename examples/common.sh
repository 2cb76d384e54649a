# What make-fixture.sh and reinject.sh share; sourced, not run.
# RMQCTL names the program (more than one word is fine: "python3 -m rmqctl"); else the one in
# PATH, else the one that `make demo` installed.
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

fail() { printf '%s: %s\n' "$(basename "$0" .sh)" "$*" >&2; exit 1; }

if [ -n "${RMQCTL:-}" ]; then
  read -r -a program <<<"$RMQCTL"
elif command -v rmqctl >/dev/null; then
  program=(rmqctl)
else
  program=("$here/../.venv/bin/rmqctl")
fi
command -v "${program[0]}" >/dev/null || fail "there is no ${program[0]}; run 'make demo'"

exec 3>&1  # what is shown goes here, also while stdout goes to a file

say() { printf '\n' >&3; printf '# %s\n' "$@" >&3; }

# run EXPECTED-EXIT-CODE ARGUMENTS: shows the command, runs it, insists on the exit code.
run() {
  local expected=$1 code=0
  shift
  { printf '\n$ rmqctl'; printf ' %s' "$@"; echo; } >&3
  "${program[@]}" "$@" || code=$?
  [ "$code" -eq "$expected" ] || fail "exit code $code where $expected was promised: rmqctl $*"
}
