#!/bin/bash
#SBATCH --job-name=squeezenet-digits-20260102-030405-1a2b3c4d
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=2
#SBATCH --cpus-per-task=1
#SBATCH --time=00:30:00
#SBATCH --partition=debug
#SBATCH --signal=B:USR1@60
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=/shared/results/squeezenet-digits-20260102-030405-1a2b3c4d/job-%j.log
# The job of a run of firetrain 0.1.0, as submitted. Called with `rank`, this script is the wrapper of one rank.
set -uo pipefail

run=/shared/results/squeezenet-digits-20260102-030405-1a2b3c4d

if [ "${1-}" = rank ]; then # run a rank, write its output to a log, and record its exit
  shift
  rank=$(printf %04d "${HOROVOD_RANK:-${OMPI_COMM_WORLD_RANK:-$SLURM_PROCID}}")
  exec >"$FIRETRAIN_ATTEMPT/logs/rank-$rank.log" 2>&1
  trap terminated=1 TERM # the rank gets this signal, too, and saves
  trap '' USR1 USR2
  left=3 # the others go on without this rank, which is started again if it dies; not after 2 (a mistake), 74 (a full disk) and 143 (terminated)
  terminated=
  a_server_has_ended() {
    local number
    for ((number = 0; number < 1; number++)); do
      [ ! -e "$FIRETRAIN_ATTEMPT/ranks/$(printf %04d "$number").exit" ] || return 0
    done
    return 1
  }
  while :; do
  # not in the background: of a process that dies while a signal is handled, `wait` of bash 5.2 may not know the exit code
  "$@" </dev/null
  code=$?
    case $code in 0 | 2 | 74 | 143) break ;; esac
    if [ "$((10#$rank))" -lt 1 ] || [ "$left" -eq 0 ]; then break; fi
    [ "$code" -ne 69 ] || sleep 5 # it has lost a server, which may be writing its record
    if [ -n "$terminated" ] || [ -e "$run/summary.json" ] || a_server_has_ended; then break; fi
    left=$((left - 1))
    echo "firetrain: rank $((10#$rank)) has died with exit code $code; it is started again"
  done
  trap '' TERM # inherited by `date`, which would otherwise end without a word when the step is terminated
  record=$FIRETRAIN_ATTEMPT/ranks/$rank
  ended=$(date +%s.%N) && printf '%s %s %s %s\n' "$ended" "$((10#$rank))" "$SLURMD_NODENAME" "$code" >"$record.draft" &&
    mv "$record.draft" "$record.exit"
  if [ "$((10#$rank))" -eq 0 ]; then # srun waits for all ranks, also for a worker that hangs
    for ((second = 0; second < 20; second++)); do
      ended=("$FIRETRAIN_ATTEMPT"/ranks/*.exit)
      [ "${#ended[@]}" -lt 8 ] || break
      sleep 1
    done
    [ "$second" -lt 20 ] || scancel --signal=KILL "$SLURM_JOB_ID.$SLURM_STEP_ID"
  fi
  exit "$code"
fi

fail() { # CODE TEXT
  echo "firetrain: $2" >&2
  exit "$1"
}

[ -d "$run" ] || fail 78 "$run does not exist on $(hostname): it must be on a shared file system"
if [ -e "$run/summary.json" ]; then
  echo "firetrain: the run is already complete"
  exit 0
fi

# the folder of an attempt gets its name when it has the job's number, so that of two jobs that start at once one sees the other
claimed=$run/.attempt-$SLURM_JOB_ID
{ mkdir -p "$claimed/logs" "$claimed/ranks" && printf '%s\n' "$SLURM_JOB_ID" >"$claimed/job"; } || fail 73 "cannot write to $run on $(hostname)"

give_up() { # CODE TEXT
  rm -r "$claimed"
  fail "$1" "$2"
}

# a launcher on another machine holds such a lock as long as it trains; one that submits this job, for a moment
for lock in "$run/lock" "$run/../lock"; do
  [ -e "$lock" ] || continue
  flock --shared --wait 600 --conflict-exit-code 42 "$lock" true 2>/dev/null
  [ $? -ne 42 ] || give_up 2 "the run is training already, without a job: end it first"
done

# other jobs of the run, which sbatch may have started twice, and under other names
refuse_others() { # LIMIT: only jobs of attempts below it
  local path number other shown second
  for path in "$run"/attempt-*/job; do
    number=${path%/job}
    number=${number##*-}
    other=$(cat "$path" 2>/dev/null)
    [[ $number =~ ^[0-9]+$ && $other =~ ^[0-9]+$ && $((10#$number)) -lt $1 && $other != "$SLURM_JOB_ID" && " $seen " != *" $other "* ]] || continue
    for ((second = 0; second < 120; second++)); do # a job that ends may still be saving
      shown=$(scontrol --oneliner show job "$other" 2>&1)
      [[ $shown == *JobState=COMPLETING* ]] || break
      sleep 1
    done
    if [[ $shown =~ JobState=(RUNNING|SUSPENDED|COMPLETING) ]]; then # numbers return, and other clusters have the same
      [[ $shown != *"StdOut=$run/"* && $shown != *"Command=$run/job.sh"* ]] ||
        give_up 2 "job $other is training the run already: cancel it first (scancel $other)"
    elif [[ $shown != *JobState=* && $shown != *"Invalid job id"* ]]; then
      echo "firetrain: Slurm does not say whether job $other is still training the run: $shown"
    fi
    seen="$seen $other"
  done
}

seen=
refuse_others 999999999
attempt=0
for path in "$run"/attempt-*; do
  number=${path##*-}
  [[ ! $number =~ ^[0-9]+$ || $((10#$number)) -lt $attempt ]] || attempt=$((10#$number + 1))
done
until mv --no-target-directory "$claimed" "$run/attempt-$attempt" 2>/dev/null; do
  [ -e "$run/attempt-$attempt" ] || give_up 73 "cannot write to $run on $(hostname)"
  attempt=$((attempt + 1))
done
claimed=$run/attempt-$attempt
export FIRETRAIN_ATTEMPT=$claimed
seen=
refuse_others "$attempt" # which have begun meanwhile
if [ -e "$run/summary.json" ]; then
  rm -r "$claimed"
  echo "firetrain: the run is already complete"
  exit 0
fi
FIRETRAIN_ATTEMPT_BEGAN=$(date +%s.%N)
export FIRETRAIN_ATTEMPT_BEGAN
if [[ ! $run/CANCEL -ot $claimed/job ]]; then
  rm -r "$claimed"
  echo "firetrain: the run was cancelled while this job waited"
  exit 0
fi
touch "$claimed/job" # whose date is that of the beginning
rm -f "$run/STOP" "$run/CANCEL"

# the environment
export OMP_NUM_THREADS='1'
export PYTHONUNBUFFERED='1'
export PYTHONSAFEPATH='1'
export GLOO_SOCKET_IFNAME='eth0'
export NCCL_SOCKET_IFNAME='=eth0'
export SLURM_EXPORT_ENV=ALL
export SRUN_CPUS_PER_TASK=1 # srun 22.05 to 23.02 does not read SLURM_CPUS_PER_TASK

# rendezvous address: the allocation's first node, which runs this script and rank 0
mapfile -t hosts < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
[ "${#hosts[@]}" -eq "$SLURM_JOB_NUM_NODES" ] || fail 71 "cannot expand the node list $SLURM_JOB_NODELIST"
export MASTER_ADDR=${hosts[0]}
MASTER_PORT=$(/env/bin/python -m firetrain.launch.port 20000 29999) || exit 71
export MASTER_PORT


newest() {
  find -H "$run/checkpoints" -maxdepth 1 -name 'step-*.pt' -printf '%f\n' 2>/dev/null | grep -E '^step-[0-9]+-[0-9a-f]{8}\.pt$' |
    sort -t- -k2,2n -k3 | tail -n 1
}

before=$(newest)
signals=
interrupted=
trap 'signals=$signals.USR1 interrupted=1; : >"$run/STOP"' USR1
trap 'signals=$signals.TERM interrupted=1; : >"$run/STOP"' TERM

echo "firetrain: attempt $attempt, job $SLURM_JOB_ID on ${hosts[*]}"
srun --kill-on-bad-exit=0 --wait=15 --distribution=block --cpus-per-task=1 \
  /env/bin/python -m firetrain preflight --seconds 60 --expect-version 0.1.0 --interface eth0 ||
  fail 69 "preflight failed, see above; nothing was trained"
srun --kill-on-bad-exit=0 --wait=0 --distribution=block --cpus-per-task=1 \
  bash /shared/results/squeezenet-digits-20260102-030405-1a2b3c4d/job.sh rank \
  /env/bin/python -m firetrain train /shared/results/squeezenet-digits-20260102-030405-1a2b3c4d/config.yaml --into /shared/results/squeezenet-digits-20260102-030405-1a2b3c4d &
child=$!
while :; do
  interrupted=
  wait "$child"
  code=$?
  [ -n "$interrupted" ] || break
done
[ "$code" -ge 0 ] || code=143 # what bash 5.2 does not know: see above

verdict=$(/env/bin/python -m firetrain.launch.verdict "$run" --tasks 8 --srun-code "$code" --signals "$signals" \
  --checkpoint-before "$before" --requeues-left $((3 - ${SLURM_RESTART_COUNT:-0})) --expendable-from 1 --hosts "${hosts[@]}") || verdict="exit $code"
[ ! -e "$FIRETRAIN_ATTEMPT/verdict.txt" ] || echo "firetrain: $(cat "$FIRETRAIN_ATTEMPT/verdict.txt")"
if [ "$verdict" = requeue ]; then
  scontrol requeue "$SLURM_JOB_ID" || exit 75
  sleep 300 & # until Slurm ends this script
  wait
  exit 75
fi
exit "${verdict#exit }"
