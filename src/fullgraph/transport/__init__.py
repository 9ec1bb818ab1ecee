"""Transports: how bytes move between ranks. Only this folder may import torch.distributed."""

from fullgraph.environ import MEETING, adopt_slurm, number
from fullgraph.errors import PeerLost
from fullgraph.transport.agree import agree
from fullgraph.transport.base import PLAIN, Coding, Pending, Ready, Transport
from fullgraph.transport.gather import gather_rows
from fullgraph.transport.job import begun, join, note_begun
from fullgraph.transport.key import Key, Use, Way
from fullgraph.transport.machine import Bundle, share
from fullgraph.transport.mesh import Mesh
from fullgraph.transport.process import ProcessTransport
from fullgraph.transport.single import SingleRank
from fullgraph.transport.subgroup import SubTransport
from fullgraph.transport.sums import cost_of
from fullgraph.transport.threads import Hub, ThreadTransport
from fullgraph.transport.token import shared_token
from fullgraph.transport.wrappers import Counting, Delaying, Noted, OrderChecking, Recording

__all__ = [
    "MEETING",
    "PLAIN",
    "Bundle",
    "Coding",
    "Counting",
    "Delaying",
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
    "SubTransport",
    "ThreadTransport",
    "Transport",
    "Use",
    "Way",
    "adopt_slurm",
    "agree",
    "begun",
    "cost_of",
    "gather_rows",
    "join",
    "note_begun",
    "number",
    "share",
    "shared_token",
]
