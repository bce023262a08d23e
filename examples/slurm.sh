#!/bin/sh
# Runs a command under outlive in a job of Slurm, and requeues the job until the command has finished:
#
#     sbatch --job-name=heat slurm.sh srun --kill-on-bad-exit ./heat
#
# The variable POOL names the pool.
#
#SBATCH --time=04:00:00
#SBATCH --signal=B:USR1@120
#SBATCH --requeue
#SBATCH --open-mode=append

again=yes ended='' code=127
trap 'again=yes; kill -USR1 $!' USR1
trap 'again=yes; ended=yes; kill -USR1 $!' TERM

task=${SLURM_ARRAY_TASK_ID:+_$SLURM_ARRAY_TASK_ID}
outlive run --pool "${POOL:-$HOME/ckpt}" --job "$SLURM_JOB_NAME$task" --grace 110s -- "$@" &

# A signal ends `wait`. Some shells return a status only once, and 127 after that.
while [ -n "$again" ]; do
    again=''
    wait $!
    status=$?
    [ "$status" = 127 ] || code=$status
done

# 138: SIGUSR1 came before outlive had started. Slurm sends SIGTERM when it ends the job itself; then
# it decides whether the job comes back.
case $ended$code in
75 | 76 | 138) scontrol requeue "${SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID}$task" ;;
esac
exit "$code"
