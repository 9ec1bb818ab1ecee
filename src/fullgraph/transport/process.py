"""Real ranks: processes joined by torch.distributed (gloo, or nccl between GPUs)."""

import os
import re
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor

from fullgraph.errors import InputError
from fullgraph.transport.base import PeerLost, Pending
from fullgraph.transport.key import Key

# Ranks may wait long for rank 0 to cut the graph.
_PREPARATION = timedelta(hours=4)


class _Exchange:
    """Sends and receives of one key, progressing in the backend's own threads."""

    def __init__(self, owner: "ProcessTransport", key: Key, sends: list[tuple[int, dist.Work, Tensor]],
                 receives: list[tuple[int, dist.Work, Tensor]]) -> None:  # fmt: skip
        self.owner, self.key, self.sends, self.receives = owner, key, sends, receives
        self.wires: dict[int, Tensor] | None = None

    def wait(self) -> dict[int, Tensor]:
        if self.wires is None:
            for peer, work, _ in self.receives:
                self.owner.finish(work, self.key, f"from rank {peer}")
            # A send is waited for too: its buffer must outlive it.
            for peer, work, _ in self.sends:
                self.owner.finish(work, self.key, f"to rank {peer}")
            self.wires = {peer: wire for peer, _, wire in self.receives}
            self.sends = []
        return self.wires


class _Sum:
    """An all-reduce under way."""

    def __init__(self, owner: "ProcessTransport", key: Key, work: dist.Work, wire: Tensor, x: Tensor) -> None:
        self.owner, self.key, self.work, self.wire, self.x = owner, key, work, wire, x
        self.done = False

    def wait(self) -> Tensor:
        if not self.done:
            self.owner.finish(self.work, self.key, "summed over all ranks")
            if self.wire is not self.x:
                self.x.copy_(self.wire)
            self.done = True
        return self.x


class ProcessTransport:
    """One rank among processes: two communicators, so that a sum never queues behind a halo.

    gloo cannot send CUDA tensors: they go through the host, and arrive there. nccl is written to the same protocol
    and untested.
    """

    def __init__(self, *, device: torch.device | None = None, timeout: float = 300.0) -> None:
        assert dist.is_initialized(), "join() first"
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.device = device or torch.device("cpu")
        self.timeout = timedelta(seconds=timeout)
        self.host_wires = dist.get_backend() == "gloo"
        self.halo = dist.new_group(timeout=self.timeout)
        self.sums = dist.new_group(timeout=self.timeout)

    def begin(self, key: Key, outgoing: dict[int, Tensor], incoming: dict[int, int]) -> Pending[dict[int, Tensor]]:
        receives, sends = [], []
        if not self.host_wires:
            return self._begin_grouped(key, outgoing, incoming)
        with self._naming(key):
            for peer, nbytes in incoming.items():
                wire = torch.empty(
                    nbytes,
                    dtype=torch.uint8,
                )
                receives.append((peer, _work(dist.irecv(wire, peer, group=self.halo, tag=key.tag)), wire))
            for peer, wire in outgoing.items():
                wire = self.to_wire(wire)
                sends.append((peer, _work(dist.isend(wire, peer, group=self.halo, tag=key.tag)), wire))
        return _Exchange(self, key, sends, receives)

    def _begin_grouped(
        self, key: Key, outgoing: dict[int, Tensor], incoming: dict[int, int]
    ) -> Pending[dict[int, Tensor]]:
        """nccl has no tags and deadlocks on sends posted one by one: one group of them an exchange."""
        wires = {p: torch.empty(n, dtype=torch.uint8, device=self.device) for p, n in incoming.items()}
        sent = {peer: self.to_wire(wire) for peer, wire in outgoing.items()}
        ops = [dist.P2POp(dist.irecv, wire, peer, self.halo) for peer, wire in wires.items()]
        ops += [dist.P2POp(dist.isend, wire, peer, self.halo) for peer, wire in sent.items()]
        works = dist.batch_isend_irecv(ops) if ops else []
        held = [(self.rank, work, self.to_wire(torch.empty(0))) for work in works]
        return _Exchange(self, key, held, [(peer, works[-1], wire) for peer, wire in wires.items()])

    def all_reduce(self, key: Key, x: Tensor) -> Pending[Tensor]:
        wire = self.to_wire(x)
        with self._naming(key):
            work = _work(dist.all_reduce(wire, group=self.sums, async_op=True))
        return _Sum(self, key, work, wire, x)

    def tell(self, text: str) -> str:
        """Rank 0's text, on every rank; waits as long as rank 0 needs."""
        box = [text]
        dist.broadcast_object_list(box, src=0)
        return box[0]

    def close(self) -> None:
        if dist.is_initialized():
            dist.destroy_process_group()

    def to_wire(self, x: Tensor) -> Tensor:
        return x.cpu() if self.host_wires else x.to(self.device)

    def finish(self, work: dist.Work, key: Key, whom: str) -> None:
        with self._naming(key, whom):
            work.wait(self.timeout)

    def _naming(self, key: Key, whom: str = "") -> "_Naming":
        return _Naming(f"rank {self.rank} lost {key} {whom}".rstrip())


class _Naming:
    """Turns a backend's error into one line that names the message."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, RuntimeError) and not isinstance(error, PeerLost):
            lines = str(error).strip().splitlines() or [type(error).__name__]
            # gloo puts its source line before the cause, and advice behind it.
            cause = re.sub(r"^\[[^]]*\]\s*", "", lines[0]).split(". This is typically")[0]
            raise PeerLost(f"{self.text}: {cause}") from error


def _work(work: dist.Work | None) -> dist.Work:
    assert work is not None, "this rank is not in the group"
    return work


def join(*, backend: str = "gloo", device: torch.device | None = None, timeout: float = 300.0) -> ProcessTransport:
    """Join the job that torchrun (or Slurm) describes in the environment."""
    adopt_slurm()
    missing = [name for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT") if name not in os.environ]
    if missing:
        raise InputError(f"not inside a job: {', '.join(missing)} not set; start with torchrun or `fullgraph train`")
    if not dist.is_initialized():
        dist.init_process_group(backend, timeout=_PREPARATION)
    return ProcessTransport(device=device, timeout=timeout)


def adopt_slurm() -> None:
    """Inside a step that srun started, derive torch's variables from Slurm's; elsewhere do nothing."""
    slurm = {name.removeprefix("SLURM_"): value for name, value in os.environ.items() if name.startswith("SLURM_")}
    if "RANK" in os.environ or int(slurm.get("STEP_NUM_TASKS", "1")) < 2:
        return
    os.environ["RANK"] = slurm["PROCID"]
    os.environ["WORLD_SIZE"] = slurm["STEP_NUM_TASKS"]
    os.environ["LOCAL_RANK"] = slurm.get("LOCALID", "0")
    os.environ["LOCAL_WORLD_SIZE"] = re.match(r"\d+", slurm.get("STEP_TASKS_PER_NODE", "1"))[0]  # type: ignore[index]
    os.environ.setdefault("MASTER_ADDR", first_host(slurm.get("STEP_NODELIST", "127.0.0.1")))
    os.environ.setdefault("MASTER_PORT", str(20000 + int(slurm.get("JOB_ID", "0")) % 20000))


def first_host(nodes: str) -> str:
    """The first name of a Slurm host list:  gpu[03-07,12],login -> gpu03."""
    found = re.match(r"([^\[,]*)(?:\[([^\],-]*))?", nodes)
    assert found is not None
    return found[1] + (found[2] or "")
