"""A dry run: the trainer's own steps, on tensors without numbers, written down."""

from dataclasses import replace

import torch

from fullgraph.errors import InputError
from fullgraph.lab.cost.script import Step
from fullgraph.lab.cost.watch import Listed, Watch
from fullgraph.placement import Placement
from fullgraph.placement.counts import META, Counts
from fullgraph.report import Meter
from fullgraph.run import Run, placement_of
from fullgraph.tasks import node_task
from fullgraph.train.trainer import Trainer


def dry_run(run: Run, counts: Counts, rank: int, steps: int, placement: Placement | None = None) -> list[Step]:
    """The first steps of a rank. A wire's schedule shows in them: what is late is waited for in a later step.

    placement: in place of the run's own.
    """
    watch, facts = Watch(), counts.graph
    transport = Listed(watch, rank, len(counts.ranks))
    placement = replace(placement or placement_of(run), device=META)
    taken = []
    try:
        with watch.step():  # what it holds from step to step is counted, too
            shard = placement.place_dry(counts, transport, run.wires, run.model.aggregation)
        task = node_task(classes=facts.classes, multilabel=facts.multilabel, real=facts.real)
        model = run.model.outline(facts.features, facts.classes).to(getattr(torch, run.train.dtype))
        trainer = Trainer(model, shard, task, run.train, Meter(detail=False))
        for _ in range(steps):
            with watch.step() as found:
                trainer.train_step()
            taken.append(found())
    except (NotImplementedError, RuntimeError) as error:  # torch raises either where a number is asked for
        if "meta tensor" not in str(error):
            raise
        told = f"what {run.strategy.name} sends depends on the rows themselves"
        raise InputError(f"{told}, so that it cannot be foretold; measure it with `fullgraph bench`") from error
    return taken
