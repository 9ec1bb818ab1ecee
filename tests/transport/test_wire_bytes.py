"""The bytes in a run's records are those that its ranks really send, according to the kernel's counts of sockets."""

import os
import socket
import struct

import pytest
import torch

from fullgraph import nn
from fullgraph.data import load
from fullgraph.exchange import Wire
from fullgraph.partition import partition
from fullgraph.testing import run_processes, run_threads
from fullgraph.train.config import TrainConfig
from fullgraph.transport import Counting, Key
from tests.support import trainer_of

TCP_INFO, BYTES_SENT = 11, 200  # of Linux: the option, and where tcpi_bytes_sent lies in what it gives
GRAPH = "sbm:nodes=3000,edges=12000,features=16,classes=8"


def sent_by_sockets():
    """Bytes that this process ever gave to TCP, including messages' headers."""
    total = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            if not os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(name))) as one:
                if one.family in (socket.AF_INET, socket.AF_INET6) and one.type == socket.SOCK_STREAM:
                    (nbytes,) = struct.unpack_from("Q", one.getsockopt(socket.IPPROTO_TCP, TCP_INFO, 256), BYTES_SENT)
                    total += nbytes
        except OSError:  # the folder's own descriptor, closed meanwhile
            continue
    return total


def scattered(parts):
    graph = load(GRAPH)
    return graph, partition(graph, parts, method="random")


def trained(transport, hidden):
    """The bytes in the records of 8 epochs, and the bytes that crossed meanwhile."""
    config = TrainConfig(epochs=8, eval_every=3)
    spec = nn.GraphSAGE(layers=3, hidden=hidden)
    trainer = trainer_of(transport, scattered, spec, config, Wire(), False)
    transport.all_reduce(Key("begin", 0), torch.zeros(1)).wait()
    before = sent_by_sockets()
    trainer.fit([])
    transport.all_reduce(Key("end", 0), torch.zeros(1)).wait()
    return trainer.records, sent_by_sockets() - before


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 5])
def test_records_have_what_crosses(ranks):
    """Rows, sums of weights, long and short ones, evaluations, sums of figures; headers are the rest."""
    found = run_processes(ranks, trained, 200)
    told = {name: sum(record[name] for record in found[0][0]) for name in ("bytes", "grad_bytes", "other_bytes")}
    crossed = sum(nbytes for _, nbytes in found)
    assert sum(told.values()) <= crossed <= 1.02 * sum(told.values())
    assert all(nbytes >= 0.02 * crossed for nbytes in told.values()), "each kind is more than headers are"


def test_threads_count_what_processes_send():
    of_processes, of_threads = (run(3, trained, 32)[0][0] for run in (run_processes, run_threads))
    for name in ("bytes", "grad_bytes", "other_bytes"):
        assert [record[name] for record in of_processes] == [record[name] for record in of_threads]


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("length", [100, 30_000], ids=["swapped", "in a ring"])
def test_a_sum_is_counted_as_it_is_sent(ranks, length):
    """A swap sends n (n-1) times the tensor, a ring 2 (n-1) times, whatever the tensor is for."""
    rounds = 20
    for use in ("weights", "other"):
        found = run_processes(ranks, summed, length, rounds, use)
        counted, crossed = (sum(column) for column in zip(*found, strict=True))
        ring = ranks > 2 and length * 4 * (ranks - 1) > 64 << 10
        assert counted == pytest.approx(rounds * (2 if ring else ranks) * (ranks - 1) * length * 4)
        assert counted <= crossed <= (1.05 if ring else 2.0) * counted


def summed(transport, length, rounds, use):
    told = []
    counting = Counting(transport, lambda key, nbytes: told.append(nbytes))
    counting.all_reduce(Key("begin", 0), torch.zeros(length)).wait()
    told.clear()
    before = sent_by_sockets()
    for step in range(rounds):
        counting.all_reduce(Key("sum", step, use=use), torch.zeros(length)).wait()
    return sum(told), sent_by_sockets() - before
