"""A real Slurm runs the documented script; `make campaign` stops more jobs, and ends tasks and nodes."""

import os
from unittest.mock import patch

import pytest

from faults import slurm
from faults.slurm_cluster import lacks
from fullgraph.environ import adopt_slurm


@pytest.mark.skipif(bool(lacks()), reason=lacks())
@pytest.mark.cold
@pytest.mark.timeout(400)
def test_a_job_that_is_stopped_and_requeued_ends_like_one_that_was_not(tmp_path):
    """Four tasks on two nodes meet by Slurm's variables; SIGTERM, checkpoint, requeue, the same bits at the end."""
    with slurm.cluster() as own:
        assert slurm.requeued(own, tmp_path, at=12) == "requeued and identical"


STEP = {"SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "1", "SLURM_JOB_ID": "77", "SLURM_STEP_NODELIST": "n[1-2]"}
TORCHS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def port(**changes):
    """The port at which the ranks of a step meet."""
    with patch.dict(os.environ, STEP | changes):
        for name in TORCHS:
            os.environ.pop(name, None)
        adopt_slurm()
        return int(os.environ["MASTER_PORT"])


def test_jobs_and_steps_at_the_same_time_have_ports_of_their_own():
    ports = [port(SLURM_JOB_ID=str(number), SLURM_STEP_ID=str(step)) for number in range(70, 90) for step in range(4)]
    assert len(set(ports)) == len(ports)
    assert all(20000 <= number < 40000 for number in ports)
    assert port() == port(SLURM_STEP_ID="0")
