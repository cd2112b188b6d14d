#!/usr/bin/env bash
# Takes one worker away from an elastic training in a cluster, gives it back, and reports what the
# training made of it.
#
#     examples/disrupt.sh [-n NAMESPACE] [-c CONTAINER] [-t SECONDS] [-i] [FILE]
#
# FILE is a PathwaysJob (default: yamls/elastic-training.yaml). It is created as it is where the
# cluster knows PathwaysJobs, else as the JobSet that `sps render` makes of it. Then:
#
#   1. the training makes steps on all its slices;
#   2. the node of a random worker is cordoned, and the worker killed by SIGILL;
#   3. the training goes on with a slice less;
#   4. the node is uncordoned;
#   5. the training has all slices again: same process, no restart.
#
# The report is a line a change: Step: 5, Old Slice Count: 3, New Slice Count: 2
# It is read from lines of the training's log that have
#     step=5 elastic_manager.good_slice_count=2 elastic_manager.elastic_down_event_count=1
#
#   -n  namespace; by default that of the kubeconfig's context
#   -c  the container that trains (default: main)
#   -t  seconds that each wait may take (default: 900)
#   -i  leave the dead worker to be restarted in place. By default its pod is deleted as well: the
#       kubelet restarts containers on cordoned nodes too, so that the cordon alone holds nothing.
#
# The job is left running; its name and how to delete it are said. Needs kubectl (KUBECTL names
# another) and, without PathwaysJob's controller, sps (SPS names another command). Who runs it must
# be allowed to create the job, read pods and logs, exec into pods, delete them, and patch nodes.

set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
read -ra kubectl <<<"${KUBECTL:-kubectl}"
read -ra sps <<<"${SPS:-sps}"
container=main
patience_s=900
in_place=false

usage() {
  sed -n '2,/^$/{s/^# \{0,1\}//;p;}' "${BASH_SOURCE[0]}"
}

say() {
  printf '%s\n' "$*"
}

fail() {
  printf 'error: %s\n' "$*" >&2
  exit 1
}

while getopts n:c:t:ih option; do
  case $option in
    n) kubectl+=(--namespace "$OPTARG") ;;
    c) container=$OPTARG ;;
    t) patience_s=$OPTARG ;;
    i) in_place=true ;;
    h) usage && exit 0 ;;
    *) usage >&2 && exit 2 ;;
  esac
done
shift $((OPTIND - 1))
file=${1:-$here/../yamls/elastic-training.yaml}
[[ $# -le 1 ]] || { usage >&2 && exit 2; }
[[ $patience_s =~ ^[1-9][0-9]*$ ]] || fail "-t $patience_s: a whole number of seconds is needed"
[[ -r $file ]] || fail "$file cannot be read"

# ---- whatever happens, the node is given back

work=$(mktemp -d)
log=$work/log
cordoned=
follower=

clean_up() {
  trap - EXIT
  if [[ -n $follower ]]; then
    kill "$follower" 2>/dev/null || true
    wait "$follower" 2>/dev/null || true
  fi
  if [[ -n $cordoned ]]; then
    uncordon || printf 'error: node %s is still cordoned\n' "$cordoned" >&2
  fi
  rm -rf "$work"
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

uncordon() {
  "${kubectl[@]}" uncordon "$cordoned" && cordoned=
}

# ---- waiting

# Waits until a command succeeds: wait_for WHAT COMMAND...
wait_for() {
  local what=$1 deadline=$((SECONDS + patience_s))
  shift
  say "waiting for $what"
  until "$@"; do
    if ((SECONDS >= deadline)); then
      [[ ! -s $log ]] || tail -n 20 "$log" >&2
      [[ ! -s $work/kill ]] || cat "$work/kill" >&2
      fail "no $what within $patience_s s; see: ${kubectl[*]} describe pods -l $selector"
    fi
    sleep 1
  done
}

# Says what of the log's lines from number FROM on are numbers of slices, the last one first.
counts_from() {
  awk -v from="$1" '
    NR >= from && match($0, /elastic_manager\.good_slice_count=[0-9]+/) {
      found = substr($0, RSTART, RLENGTH); sub(/.*=/, "", found); print found
    }' "$log" 2>/dev/null
}

head_runs() {
  head=$("${kubectl[@]}" get pods -l "$selector,$role=pathways-head" \
    --field-selector=status.phase=Running -o 'jsonpath={.items[*].metadata.name}') && [[ -n $head ]]
}

# The log is followed into a file. A stream that breaks is begun anew: the whole log comes again.
follow() {
  local stream=
  trap '[[ -z $stream ]] || kill "$stream" 2>/dev/null; exit' TERM
  while true; do
    "${kubectl[@]}" logs --follow "$head" -c "$container" >"$log" 2>/dev/null &
    stream=$!
    wait "$stream" || true
    stream=
    sleep 1
  done
}

# Fails once the training has ended, or was started again: neither is what is waited for.
still_the_same() {
  local state
  state=$("${kubectl[@]}" get pod "$head" -o "jsonpath={range .status.containerStatuses[?(@.name==\"$container\")]}{.restartCount} {.state.terminated.exitCode}{end}") ||
    fail "the head's pod $head is gone"
  case $state in
    "0 ") ;;
    "") fail "pod $head has no container $container (-c names another)" ;;
    "0 "*) fail "the training ended with exit code ${state#0 } before it had all its slices again: $(tail -n 5 "$log")" ;;
    *) fail "container $container was restarted: this is no elastic recovery" ;;
  esac
}

full_since() {
  still_the_same
  [[ $(counts_from "$1" | tail -n 1) == "$slices" ]]
}

fell_since() {
  still_the_same
  local count
  for count in $(counts_from "$1"); do
    ((count < slices)) && return 0
  done
  return 1
}

# Whether the worker that was deleted has a successor, which may be pending.
replaced() {
  local now
  now=$("${kubectl[@]}" get pods -l "$selector,$role=worker" -o 'jsonpath={.items[*].metadata.name}') &&
    [[ $(wc -w <<<"$now") -ge ${#workers[@]} && " $now " != *" $worker "* ]]
}

lines() {
  wc -l <"$log"
}

# ---- the job

command -v "${kubectl[0]}" >/dev/null || fail "there is no ${kubectl[0]}"
# (Not from what kubectl remembers of the cluster.)
if "${kubectl[@]}" get --raw /apis/pathways-job.pathways.domain >/dev/null 2>&1; then
  cp "$file" "$work/manifest"
else
  command -v "${sps[0]}" >/dev/null || fail "the cluster knows no PathwaysJobs, and there is no ${sps[0]}"
  "${sps[@]}" render -f "$file" >"$work/manifest"
fi
"${kubectl[@]}" create -f "$work/manifest" \
  -o 'jsonpath={.kind} {.metadata.name} {.metadata.namespace}{"\n"}' >"$work/created"
read -r kind name namespace < <(grep -E '^(JobSet|PathwaysJob) ' "$work/created") ||
  fail "$file has no PathwaysJob"
kubectl+=(--namespace "$namespace")
say "created $kind $name; to delete it: ${kubectl[*]} delete $kind $name"
selector=jobset.sigs.k8s.io/jobset-name=$name
role=jobset.sigs.k8s.io/replicatedjob-name

wait_for "running head of $name" head_runs
slices=$("${kubectl[@]}" get jobset "$name" -o 'jsonpath={.spec.replicatedJobs[?(@.name=="worker")].replicas}')
((slices > 1)) || fail "$name has $slices slice: with one less there is none"
touch "$log"
follow &
follower=$!
wait_for "first step on $slices slices" full_since 1

# ---- the disruption

workers=()
while read -r found; do
  workers+=("$found")
done < <("${kubectl[@]}" get pods -l "$selector,$role=worker" --field-selector=status.phase=Running \
  -o 'jsonpath={range .items[*]}{.metadata.name} {.spec.nodeName}{"\n"}{end}')
((${#workers[@]})) || fail "$name has no running worker"
read -r worker node <<<"${workers[RANDOM % ${#workers[@]}]}"
say "taking worker $worker on node $node"
cordoned=$node
"${kubectl[@]}" cordon "$node"
before=$(($(lines) + 1))
# Some shells know the signal by the one name, some by the other. The command dies with process 1.
code=0
"${kubectl[@]}" exec "$worker" -c pathways-worker -- \
  sh -c 'kill -s SIGILL 1 2>/dev/null || kill -s ILL 1' >"$work/kill" 2>&1 || code=$?
((code == 0 || code == 137)) || fail "cannot kill $worker: $(cat "$work/kill")"
if ! $in_place; then
  "${kubectl[@]}" delete pod "$worker" --grace-period=0 --force --wait=false 2>/dev/null
fi
wait_for "step on fewer than $slices slices" fell_since "$before"
fallen=$(($(lines) + 1))
$in_place || wait_for "successor of $worker, which the cordon keeps away" replaced
uncordon
wait_for "step on $slices slices again" full_since "$fallen"

# ---- the report

say "report of $name:"
awk -f "$here/slice_counts.awk" "$log"
