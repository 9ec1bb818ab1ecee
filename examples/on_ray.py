"""Train on a Ray cluster:  python on_ray.py RANKS GRAPH --out RUN [OPTIONS of fullgraph train].

Each rank is an actor that runs `fullgraph train` on its machine. GRAPH and RUN are on a file system that all machines
share. With `--device cuda` each actor has one GPU, which Ray shows it as the only one.
"""

import os
import socket
import subprocess
import sys

import ray


@ray.remote
class Rank:
    """A place for one rank on some machine."""

    def address(self) -> tuple[str, int]:
        """This machine's address, and a port that is free now."""
        with socket.socket() as free:
            free.bind(("", 0))
            return ray.util.get_node_ip_address(), free.getsockname()[1]

    def train(self, environ: dict[str, str], arguments: list[str]) -> int:
        command = [sys.executable, "-m", "fullgraph", "train", *arguments]
        return subprocess.run(command, env={**os.environ, **environ}, check=False).returncode


def main(ranks: int, arguments: list[str]) -> int:
    """Start all ranks; return the largest exit status."""
    ray.init()
    gpus = 1 if "cuda" in arguments else 0
    actors = [Rank.options(num_cpus=1, num_gpus=gpus).remote() for _ in range(ranks)]
    host, port = ray.get(actors[0].address.remote())
    job = {"MASTER_ADDR": host, "MASTER_PORT": str(port), "WORLD_SIZE": str(ranks), "LOCAL_RANK": "0"}
    working = [actor.train.remote({**job, "RANK": str(rank)}, arguments) for rank, actor in enumerate(actors)]
    return max(ray.get(working))


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
