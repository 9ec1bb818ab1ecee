#!/bin/bash
# sbatch slurm.sh GRAPH RUN [OPTIONS of fullgraph train]; GRAPH and RUN are on a file system that all nodes share.
#SBATCH --nodes=2 --ntasks-per-node=4 --gpus-per-task=1 --job-name=fullgraph
#SBATCH --time=08:00:00 --signal=TERM@120 --requeue --open-mode=append --output=%x-%j.log
if [ -e "$2/config.json" ]; then
    srun --label fullgraph train --resume "$2"
else
    srun --label fullgraph train "$1" --out "$2" "${@:3}"
fi
code=$?
if [ $code -eq 143 ]; then scontrol requeue "$SLURM_JOB_ID"; fi # stopped by SIGTERM, with a checkpoint
exit $code
