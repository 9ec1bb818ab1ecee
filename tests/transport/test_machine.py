"""Memory that the ranks of a machine share exists once, and is freed with them."""

import os
from pathlib import Path

import pytest
import torch

from fullgraph.testing import anew, run_processes, run_threads
from fullgraph.transport import Bundle, machine, share

TENSORS = [torch.arange(300_000), torch.zeros(0), torch.ones(4, 5, dtype=torch.float64), torch.ones(3).to(torch.int8)]


def mappings():
    """Address ranges of shared memory, with its inode and the kilobytes of it that this process has copied."""
    found, inode = [], None
    for line in Path("/proc/self/smaps").read_text().splitlines():
        words = line.split()
        if "-" in words[0]:
            inode = words[4] if "memfd:fullgraph" in line else None
            span = [int(end, 16) for end in words[0].split("-")]
        elif inode is not None and words[0] == "Anonymous:":
            found.append((*span, inode, int(words[1])))
    return found


def shared(transport):
    def make(leaders):
        assert leaders == (0,)
        return Bundle({"rank": transport.rank}, TENSORS) if transport.rank == 0 else None

    text, tensors = share(make, transport, "test")
    assert text == {"rank": 0}
    for tensor, like in zip(tensors, TENSORS, strict=True):
        assert tensor.dtype == like.dtype
        assert tensor.shape == like.shape
    here = [inode for low, high, inode, copied in mappings() if low <= tensors[0].data_ptr() < high and not copied]
    files = [link for link in Path("/proc/self/fd").iterdir() if "memfd" in _target(link)]
    assert len(files) == 1  # that of the mapping
    return tensors[0], here


def _target(link):
    try:
        return os.readlink(link)
    except OSError:  # that of the listing itself
        return ""


def in_thread(transport):
    text, tensors = share(lambda _: Bundle(7, TENSORS) if transport.rank == 0 else None, transport, "test")
    return text, tensors


@pytest.mark.parametrize("ranks", [1, 3])
def test_threads_share_too(ranks):
    values = run_threads(ranks, in_thread)
    assert all(text == 7 for text, _ in values)
    assert all(torch.equal(a, b) for _, tensors in values for a, b in zip(tensors, TENSORS, strict=True))


def apart(transport):
    """Ranks 0 and 1 on one machine, 2 on another."""
    seen = []

    def make(leaders):
        seen.append(leaders)
        return Bundle(transport.rank, []) if transport.rank in leaders else None

    text, _ = share(make, transport, "test")
    return seen, text


def everywhere(transport):
    one = anew(transport, shared)
    own, machine.machine = machine.machine, lambda: transport.rank // 2
    try:
        two = anew(transport, apart)
    finally:
        machine.machine = own
    opened, machine._open = machine._open, lambda *_: None
    try:
        return one, two, anew(transport, apart)
    finally:
        machine._open = opened


def test_processes_map_one_file_without_a_name():
    """Every machine has a leader, and a rank that may not open another's memory leads itself."""
    ranks = run_processes(3, everywhere)
    assert not list(Path("/dev/shm").glob("*fullgraph*"))
    for (tensor, inodes), _, _ in ranks:
        assert torch.equal(tensor, TENSORS[0])
        assert len(inodes) == 1
        assert inodes == ranks[0][0][1]
    assert [two for _, two, _ in ranks] == [([(0, 2)], 0), ([(0, 2)], 0), ([(0, 2)], 2)]
    assert [none for _, _, none in ranks] == [([(0, 1, 2)], rank) for rank in range(3)]
