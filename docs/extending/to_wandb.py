"""A callback: every number of an epoch goes to Weights & Biases."""

from dataclasses import asdict, dataclass

import wandb

from fullgraph.values import Value


@dataclass(frozen=True)
class WandB(Value):
    """A resumed run sends its epochs again, to a new W&B run. WANDB_MODE=offline keeps them here."""

    project: str = "fullgraph"

    def __call__(self, record):
        if record.epoch == 1:
            wandb.init(project=self.project)
        wandb.log({name: value for name, value in asdict(record).items() if value is not None}, step=record.epoch)

    def close(self):
        wandb.finish()
