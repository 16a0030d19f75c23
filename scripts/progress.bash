# For scripts that start long commands: source it, then use `supervise` or `with_progress`.
# A command runs in a process group of its own; when this shell is interrupted the whole group is
# ended and waited for, so that nothing outlives an interruption.

supervised_pid=

stop_supervised() {
  [[ -n $supervised_pid ]] || return 0
  kill -TERM -- "-$supervised_pid" 2>/dev/null || true
  wait "$supervised_pid" 2>/dev/null || true
}

trap 'stop_supervised; exit 130' INT
trap 'stop_supervised; exit 143' TERM

# supervise COMMAND...: runs a command; its status is the status.
supervise() {
  local status=0
  set -m
  "$@" </dev/null &
  supervised_pid=$!
  set +m
  wait "$supervised_pid" || status=$?
  supervised_pid=
  return "$status"
}

# with_progress LABEL LOG COMMAND...: runs a long command with its output in LOG, and says every
# 15 seconds how far it is. If it fails, the end of LOG follows and the status is the command's.
with_progress() {
  local label=$1 log=$2 status=0 start=$SECONDS reporter
  shift 2
  mkdir -p "$(dirname "$log")"
  printf 'seedpod: %s ...\n' "$label"
  report_progress "$label" "$log" "$start" $$ &
  reporter=$!
  supervise "$@" >"$log" 2>&1 || status=$?
  kill "$reporter" 2>/dev/null || true
  if ((status != 0)); then
    tail -n 25 "$log" >&2
    printf 'seedpod: %s FAILED (status %d). The whole output: %s\n' "$label" "$status" "$log" >&2
  fi
  return "$status"
}

report_progress() {
  local label=$1 log=$2 start=$3 owner=$4 elapsed percent
  # Ends by itself within a second if the shell that it reports for is gone.
  while kill -0 "$owner" 2>/dev/null; do
    sleep 1
    elapsed=$((SECONDS - start))
    ((elapsed > 0 && elapsed % 15 == 0)) || continue
    # CMake writes "[ 42%] Building CXX object ..." for each file.
    percent=$(grep -oE '\[ *[0-9]+%\]' "$log" 2>/dev/null | tail -n 1 | tr -cd '0-9' || true)
    printf 'seedpod: %s ...%s %d:%02d\n' "$label" "${percent:+ $percent % done,}" \
      $((elapsed / 60)) $((elapsed % 60))
  done
}
