"""Real ranks: processes joined by torch.distributed (gloo, or nccl between GPUs)."""

import os
import re
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor

from fullgraph.errors import InputError
from fullgraph.transport.base import PLAIN, Coding, PeerLost, Pending
from fullgraph.transport.key import Key

# Ranks may wait long for rank 0 to cut the graph.
_PREPARATION = timedelta(hours=4)


class _Exchange:
    """Sends and receives of one key, progressing in the backend's own threads."""

    def __init__(
        self, owner: "ProcessTransport", key: Key, works: list[tuple[str, dist.Work]],
        wires: dict[int, Tensor], sent: dict[int, Tensor],
    ) -> None:  # fmt: skip
        self.owner, self.key, self.works, self.wires = owner, key, works, wires
        self.sent = sent  # these buffers must outlive their sends, so sends are waited for too

    def wait(self) -> dict[int, Tensor]:
        for whom, work in self.works:
            self.owner.finish(work, self.key, whom)
        self.works, self.sent = [], {}
        return self.wires


class _Rows:
    """Rows that another thread is receiving and decoding."""

    def __init__(self, future: Future[dict[int, Tensor]]) -> None:
        self.future = future

    def wait(self) -> dict[int, Tensor]:
        return self.future.result()


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

    Two threads code what crosses, so that the one that trains does not: the first encodes and posts, the second waits
    for what comes and decodes it, both in the order of `begin`.

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
        self.sender, self.receiver = (ThreadPoolExecutor(1, f"fullgraph-{name}") for name in ("sender", "receiver"))
        self.forks: list[ProcessTransport] = []

    def begin(
        self, key: Key, outgoing: dict[int, Tensor], incoming: dict[int, int], coding: Coding = PLAIN
    ) -> Pending[dict[int, Tensor]]:
        posted = self.sender.submit(self._post, key, outgoing, incoming, coding)
        return _Rows(self.receiver.submit(_receive, posted, coding))

    def _post(self, key: Key, outgoing: dict[int, Tensor], incoming: dict[int, int], coding: Coding) -> _Exchange:
        device = "cpu" if self.host_wires else self.device
        wires = {peer: torch.empty(nbytes, dtype=torch.uint8, device=device) for peer, nbytes in incoming.items()}
        sent = {peer: self.to_wire(coding.encode(peer, rows)) for peer, rows in outgoing.items()}
        moves: list[tuple[str, Callable[..., dist.Work | None], Tensor, int]]
        moves = [(f"from rank {peer}", dist.irecv, wire, peer) for peer, wire in wires.items()]
        moves += [(f"to rank {peer}", dist.isend, wire, peer) for peer, wire in sent.items()]
        works = []
        if self.host_wires:
            for whom, move, wire, peer in moves:
                with self._naming(key, whom):
                    works.append((whom, _work(move(wire, peer, group=self.halo, tag=key.tag))))
        elif moves:
            # nccl has no tags, and deadlocks on sends posted one by one.
            group = dist.batch_isend_irecv([dist.P2POp(move, wire, peer, self.halo) for _, move, wire, peer in moves])
            works = [("with its peers", work) for work in group]
        return _Exchange(self, key, works, wires, sent)

    def all_reduce(self, key: Key, x: Tensor) -> Pending[Tensor]:
        wire = self.to_wire(x)
        with self._naming(key, "summed over all ranks"):
            work = _work(dist.all_reduce(wire, group=self.sums, async_op=True))
        return _Sum(self, key, work, wire, x)

    def tell(self, text: str) -> str:
        """Rank 0's text, on every rank; waits as long as rank 0 needs."""
        box = [text]
        dist.broadcast_object_list(box, src=0)
        return box[0]

    def fork(self) -> "ProcessTransport":
        self.forks.append(ProcessTransport(device=self.device, timeout=self.timeout.total_seconds()))
        return self.forks[-1]

    def close(self) -> None:
        for transport in (self, *self.forks):
            transport.sender.shutdown()
            transport.receiver.shutdown()
        if dist.is_initialized():
            dist.destroy_process_group()

    def to_wire(self, x: Tensor) -> Tensor:
        return x.cpu() if self.host_wires else x.to(self.device)

    def finish(self, work: dist.Work, key: Key, whom: str) -> None:
        with self._naming(key, whom):
            work.wait(self.timeout)

    def _naming(self, key: Key, whom: str) -> "_Naming":
        return _Naming(f"rank {self.rank} lost {key} {whom}")


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


def _receive(posted: Future[_Exchange], coding: Coding) -> dict[int, Tensor]:
    return {peer: coding.decode(peer, wire) for peer, wire in posted.result().wait().items()}


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
