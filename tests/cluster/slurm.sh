#!/usr/bin/env bash
# A Slurm of one node on this machine, from Debian's packages, as root: `apt-get install slurm-wlm munge`, then
#   bash tests/cluster/slurm.sh start /tmp/slurm    sbatch, squeue and scancel work, until
#   bash tests/cluster/slurm.sh stop /tmp/slurm     stops it and its jobs
# Two partitions: cpu, and gpu with two pretended GPUs, which Slurm hands out and which compute nothing.
set -euo pipefail
[[ $# = 2 && $1 =~ ^(start|stop)$ ]] || { sed -n '2,5s/^# //p' "$0" >&2; exit 2; }
mkdir -p "$2"
folder=$(realpath "$2") conf=/etc/slurm/slurm.conf host=$(uname -n)

stop() {
  for name in slurmd slurmctld munge; do
    [[ -s $folder/$name.pid ]] || continue
    pid=$(<"$folder/$name.pid")
    kill "$pid" 2>/dev/null || true
    while kill -0 "$pid" 2>/dev/null; do sleep 0.1; done
    rm -f "$folder/$name.pid"
  done
  [[ $(readlink $conf) != "$folder/slurm.conf" ]] || rm $conf
}

if [[ $1 = stop ]]; then
  [[ ! -L $conf ]] || scancel --state=RUNNING --quiet --partition=cpu,gpu 2>/dev/null || true
  stop
  exit
fi
[[ ! -e $conf ]] || { echo "$conf is there: this machine has a Slurm already" >&2; exit 1; }
trap stop ERR
mkdir -p "$folder"/{munge,state,spool,log} /etc/slurm
chmod 700 "$folder/munge"
(umask 077; head -c 128 /dev/urandom > "$folder/munge/key")
munged --force --socket="$folder/munge/socket" --key-file="$folder/munge/key" --pid-file="$folder/munge.pid" \
  --log-file="$folder/log/munge" --seed-file="$folder/munge/seed"

cores=$(env --unset=OMP_NUM_THREADS nproc)  # nproc would take that for the number of cores
cat > "$folder/slurm.conf" <<END
ClusterName=one
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=16817
SlurmdPort=16818
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket=$folder/munge/socket
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool
SlurmctldPidFile=$folder/slurmctld.pid
SlurmdPidFile=$folder/slurmd.pid
SlurmctldLogFile=$folder/log/slurmctld
SlurmdLogFile=$folder/log/slurmd
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=1
JobAcctGatherParams=OverMemoryKill
AccountingStorageType=accounting_storage/none
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_interval=1,bf_interval=1,bf_resolution=1,bf_continue
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
ReturnToService=2
MinJobAge=7200
KillWait=5
GresTypes=gpu
NodeName=$host NodeAddr=127.0.0.1 CPUs=$cores RealMemory=$(awk '/^MemTotal/ {print int($2 * 0.9 / 1024)}' /proc/meminfo) Gres=gpu:2 State=UNKNOWN
PartitionName=cpu Nodes=$host Default=YES MaxTime=INFINITE State=UP
PartitionName=gpu Nodes=$host MaxTime=INFINITE State=UP
END
printf 'NodeName=%s Name=gpu File=/dev/%s\n' "$host" null "$host" zero > "$folder/gres.conf"
ln -s "$folder/slurm.conf" $conf
slurmctld -f "$folder/slurm.conf"
slurmd -f "$folder/slurm.conf"
for _ in {1..100}; do
  if sinfo --noheader --format=%T 2>/dev/null | grep -q idle; then exit; fi
  sleep 0.2
done
echo "no node of this Slurm became idle: see $folder/log" >&2
false
