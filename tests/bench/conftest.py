"""A campaign of a few cells that several tests look at."""

import sys

import pytest

from fullgraph.cli import main


@pytest.fixture
def say(monkeypatch, capfd, tmp_path):
    """Run a command in this process and this folder: (exit status, standard output, standard error)."""
    monkeypatch.chdir(tmp_path)

    def run(*args):
        monkeypatch.setattr(sys, "argv", ["fullgraph", *map(str, args)])
        with pytest.raises(SystemExit) as stop:
            main()
        return stop.value.code, *capfd.readouterr()

    return run
