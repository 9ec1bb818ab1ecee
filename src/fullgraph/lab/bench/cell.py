"""What was measured at one place of a matrix."""

from dataclasses import dataclass
from typing import Annotated

from fullgraph.lab.bench.matrix import PEERS, Group, Point, Settings
from fullgraph.report.record import Bytes, Seconds
from fullgraph.values import Range, Value

Count = Annotated[int, Range(0, 2**53)]
Key = tuple[Point, str, int, bool]  # cells of one key stand for one another


@dataclass(frozen=True, kw_only=True)
class Cell(Value):
    """One strategy on one graph, model, number of ranks and link.

    Seconds, bytes and packets are of one epoch: a mean over the epochs of a round, then the median over rounds. Fields
    that begin with `rank_` have a number for every rank.
    """

    # where: texts as they were given
    graph: str
    model: str
    strategy: str
    ranks: Annotated[int, Range(1, 65535)]
    rate: str
    device: str = "cpu"
    # how
    epochs: Count
    rounds: Count
    all_rows: bool = False
    threads: Count  # of a rank
    cores: Count  # of this machine, for all ranks together
    # seconds
    epoch_s: Seconds
    compute_s: Seconds  # C: of `none` in the same job, without its waiting, on the slowest rank
    messages_s: Seconds  # M: one step's messages, sent again as they were with nothing else to do
    wait_s: Seconds  # exposed wait, of the rank that waits longest
    sum_wait_s: Seconds = 0.0  # of exposed wait, for the sums of weights, of the rank that waits longest for them
    processor_s: Seconds  # of the busiest rank's process, all threads
    round_s: tuple[Seconds, ...]  # an epoch, by round
    rank_wait_s: tuple[Seconds, ...]
    rank_thread_s: tuple[Seconds, ...]  # processor time of the thread that trains
    rank_processor_s: tuple[Seconds, ...]
    # bytes
    bytes: Bytes  # of feature rows and their gradients, all ranks
    weight_bytes: Bytes  # of weight gradients given to sums, all ranks
    wire_bytes: Bytes | None = None  # that the hosts' links carried, headers and all; None: no links
    wire_packets: Count | None = None
    peak_memory_bytes: Bytes  # of the worst rank
    peak_device_bytes: Bytes
    # score
    score_epochs: Count = 0  # that it was trained for one
    metric: str = ""
    val: float | None = None  # the best validation score; None: none was asked for
    best_epoch: Count = 0
    val_s: Seconds | None = None  # seconds of training until then
    # the graph and its parts
    nodes: Count
    arcs: Count
    features: Count
    classes: Count
    rank_rows: tuple[Count, ...]
    rank_arcs: tuple[Count, ...]
    rank_halo: tuple[Count, ...]
    versions: dict[str, str]

    @property
    def group(self) -> Group:
        return Group(self.graph, self.model, self.ranks, self.rate)

    @property
    def key(self) -> Key:
        return Point(self.group, self.strategy), self.device, self.score_epochs, self.all_rows

    @property
    def is_peer(self) -> bool:
        """Whether it is another library's figure."""
        return self.strategy in PEERS


def key_of(point: Point, settings: Settings) -> Key:
    """The key of the cell that is to be measured."""
    own = point.strategy not in PEERS
    return point, settings.device, settings.score if own else 0, settings.all_rows and own
