"""Transports: how bytes move between ranks. Only this folder may import torch.distributed."""

from fullgraph.environ import number
from fullgraph.errors import PeerLost
from fullgraph.transport.base import PLAIN, ByPeer, Coding, Pending, Ready, Sizes, Transport
from fullgraph.transport.gather import agree, barrier, exchanged, gather_rows, rank_table, shared_token
from fullgraph.transport.groups import Mesh, SingleRank, SubTransport
from fullgraph.transport.hosts import Hosts, hosts_of
from fullgraph.transport.job import begun, join, note_begun
from fullgraph.transport.key import Key, Use, Way
from fullgraph.transport.machine import Bundle, share
from fullgraph.transport.process import ProcessTransport
from fullgraph.transport.sums import cost_of
from fullgraph.transport.threads import Hub
from fullgraph.transport.wrappers import Counting, Noted, OrderChecking, Recording

__all__ = [
    "PLAIN",
    "Bundle",
    "ByPeer",
    "Coding",
    "Counting",
    "Hosts",
    "Hub",
    "Key",
    "Mesh",
    "Noted",
    "OrderChecking",
    "PeerLost",
    "Pending",
    "ProcessTransport",
    "Ready",
    "Recording",
    "SingleRank",
    "Sizes",
    "SubTransport",
    "Transport",
    "Use",
    "Way",
    "agree",
    "barrier",
    "begun",
    "cost_of",
    "exchanged",
    "gather_rows",
    "hosts_of",
    "join",
    "note_begun",
    "number",
    "rank_table",
    "share",
    "shared_token",
]
