"""Measure a matrix: partition the graphs, run one job after another, save every cell as it comes."""

import json
import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from signal import Signals

from fullgraph.cutting import cut, write_shards
from fullgraph.data import Graph, load
from fullgraph.display import SILENT, Display
from fullgraph.errors import Interrupted, PeerLost, RankFailed, explain, one_line
from fullgraph.lab.bench.cell import DOCUMENT, FAILED, LINES, Book, Cell, key_of
from fullgraph.lab.bench.hosts import Hosts
from fullgraph.lab.bench.matrix import PEERS, Group, Matrix, Point, Settings, bits_per_second, model_of, strategy_of
from fullgraph.lab.bench.peers import measure_peer, write_graph
from fullgraph.lab.bench.rank import BASELINE, FOUND, Found, Job
from fullgraph.lab.bench.tables import PAGE, TABLE, markdown, page
from fullgraph.partition import PARTITIONERS, Metis, read_manifest
from fullgraph.preparing import check_placement, require_run_fits
from fullgraph.report import Phases
from fullgraph.run import Run
from fullgraph.storage import FolderLock, read_record, scratch, write_document, write_whole
from fullgraph.tasks import fitted
from fullgraph.train.config import TrainConfig
from fullgraph.train.fork_server import ForkServer
from fullgraph.train.launch import launch
from fullgraph.values import tree_of
from fullgraph.words import count, milliseconds

MOST = 6  # strategies per job, with the baseline: all their trainers are in memory at the same time
SEED = 0  # the seed of partitions
WORKER = "fullgraph.lab.bench.rank"


def carry_out(matrix: Matrix, settings: Settings, out: Path, display: Display = SILENT) -> Book:
    """Measure the cells that `out` lacks, then write all its cells as a document, a table and a page."""
    matrix.check()
    out.mkdir(parents=True, exist_ok=True)
    with FolderLock(out) as lock, scratch(out) as work:
        lock.claim([LINES, FAILED, DOCUMENT, TABLE, PAGE])
        book = Book(out)
        try:
            _Campaign(matrix, settings, book, work, display).run()
        except Interrupted as error:
            kept = f"{count(len(book.cells), 'cell')} in {out}; to go on, give the same command again"
            raise Interrupted(f"interrupted by {Signals(error.number).name}: {kept}", error.number) from None
        cells, failed = list(book.cells.values()), book.failed_lines()
        book.write_document()
        write_whole(out / TABLE, markdown(cells, failed))
        write_whole(out / PAGE, page(cells, failed))
    return book


class _Campaign:
    def __init__(self, matrix: Matrix, settings: Settings, book: Book, work: Path, display: Display) -> None:
        self.matrix, self.settings, self.book, self.work, self.display = matrix, settings, book, work, display
        self.todo = [point for point in matrix.points() if key_of(point, settings) not in book.cells]

    def run(self) -> None:
        for graph in dict.fromkeys(point.group.graph for point in self.todo):
            points = [point for point in self.todo if point.group.graph == graph]
            with self._or_fail(points):
                self._measure(graph, points)
            for made in self.work.iterdir():
                shutil.rmtree(made) if made.is_dir() else made.unlink()

    def _measure(self, graph: str, points: Sequence[Point]) -> None:
        """Measure all points of one graph. It is read once, and is not in memory while ranks work."""
        phases = Phases(display=self.display)
        with phases("read", f"reading {graph}"):
            whole = load(graph)
        own = [point for point in points if point.strategy not in PEERS]
        cuts = _Cuts(whole, self.settings, self.work, phases)
        shards: dict[Point, str] = {}
        for point in own:
            with self._or_fail([point]):
                shards[Point(point.group, BASELINE)] = cuts.of(point.group, BASELINE)
                shards[point] = cuts.of(point.group, point.strategy)
        peers = [point for point in points if point.strategy in PEERS]
        if peers:
            with self._or_fail(peers):
                write_graph(whole, self.work)
        del whole, cuts
        for group in dict.fromkeys(point.group for point in own):
            there = {point.strategy: folder for point, folder in shards.items() if point.group == group}
            wanted = [point.strategy for point in own if point.group == group and point in shards]
            if wanted:
                self._group(group, wanted, there)
        for point in (point for point in peers if point not in self.book.failed):
            with self._or_fail([point]), self.display.phase(f"measuring {point.strategy}: {point.group}"):
                self._keep([measure_peer(point, self.settings, self.work)])

    def _group(self, group: Group, wanted: Sequence[str], shards: dict[str, str]) -> None:
        """Measure every strategy together with the baseline, in as few jobs as memory allows."""
        others = [strategy for strategy in wanted if strategy != BASELINE]
        for first in range(0, len(others), MOST - 1):
            self._try(group, others[first : first + MOST - 1], wanted, shards)
        if BASELINE in wanted and key_of(Point(group, BASELINE), self.settings) not in self.book.cells:
            self._try(group, [BASELINE], wanted, shards)

    def _try(self, group: Group, strategies: Sequence[str], wanted: Sequence[str], shards: dict[str, str]) -> None:
        """Run one job; if it fails, run each strategy in its own job, so that only failing strategies are lost."""
        try:
            cells = self._job(group, list(dict.fromkeys([BASELINE, *strategies])), shards)
        except Exception as error:
            if len(strategies) == 1:
                self.book.fail(Point(group, strategies[0]), _why(error))
            for strategy in strategies if len(strategies) > 1 else ():
                self._try(group, [strategy], wanted, shards)
        else:
            self._keep([cell for cell in cells if cell.strategy in wanted])

    def _job(self, group: Group, strategies: Sequence[str], shards: dict[str, str]) -> Sequence[Cell]:
        """Start the ranks, on emulated hosts if the rate asks for links, and wait for their results."""
        job = Job.of(
            group, strategies=tuple(strategies), shards=tuple(shards[name] for name in strategies),
            settings=self.settings,
        )  # fmt: skip
        file, rate = self.work / "job.json", bits_per_second(group.rate)
        (self.work / FOUND).unlink(missing_ok=True)
        with ExitStack() as stack:
            fork_server = stack.enter_context(ForkServer(self.settings.device, WORKER))
            if rate is not None:
                hosts = stack.enter_context(Hosts(group.ranks))
                hosts.rate(rate)
                job = replace(job, hosts=tuple(hosts.names))
            write_document(file, tree_of(job))
            stack.enter_context(self.display.phase(f"measuring {', '.join(strategies)}: {group}"))
            launch(group.ranks, [str(file)], fork_server=fork_server)
        return read_record(Found, self.work / FOUND, fix="start the campaign again").cells

    def _keep(self, cells: Sequence[Cell]) -> None:
        for cell in cells:
            if cell.key not in self.book.cells:
                self.book.add(cell)
                done = sum(key_of(point, self.settings) in self.book.cells for point in self.todo)
                self.display.line(
                    f"{done}/{len(self.todo)}  {milliseconds(cell.epoch_s)} per epoch, "
                    f"{milliseconds(cell.wait_s)} waiting: {one_line(cell.strategy, 60)}, {one_line(cell.group, 200)}"
                )

    @contextmanager
    def _or_fail(self, points: Sequence[Point]) -> Iterator[None]:
        """If the block fails, record the error for those points that have no cell yet, and go on with the campaign."""
        try:
            yield
        except Exception as error:
            for point in points:
                if key_of(point, self.settings) not in self.book.cells and point not in self.book.failed:
                    self.book.fail(point, _why(error))


class _Cuts:
    """Partitions of one graph; each number of ranks and partitioner is partitioned once."""

    def __init__(self, graph: Graph, settings: Settings, work: Path, phases: Phases) -> None:
        self.task, self.graph = fitted("auto", graph, SEED)
        self.work, self.phases = work, phases
        self.train = TrainConfig(task=self.task, device=settings.device, all_rows=settings.all_rows)
        self.folders: dict[tuple[int, str], Path] = {}

    def of(self, group: Group, strategy: str) -> str:
        """The folder of a strategy's shards; refuse a strategy that cannot be placed, or that does not fit the
        machine.
        """
        run = Run(model=model_of(group.model), strategy=strategy_of(strategy), parts=group.ranks, train=self.train)
        check_placement(run)
        partitioner = run.strategy.partitioner() or Metis()
        key = group.ranks, json.dumps(PARTITIONERS.write(partitioner))
        if key not in self.folders:
            folder = self.work / f"shards-{len(self.folders)}"
            assignment = cut(self.graph, group.ranks, partitioner, SEED, self.phases)
            write_shards(folder, self.graph, assignment, self.phases)
            self.folders[key] = folder
        require_run_fits(read_manifest(self.folders[key]), run.model, self.train)
        return str(self.folders[key])


def _why(error: Exception) -> str:
    """The reason in one line, for the list of failures."""
    known = explain(error) or (error if isinstance(error, RankFailed | PeerLost) else None)
    return one_line(known or f"{type(error).__name__}: {error}")
