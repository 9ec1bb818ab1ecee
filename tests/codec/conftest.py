"""All implementations of the codecs that have a kernel."""

from collections.abc import Callable, Iterator

import pytest
import torch


@pytest.fixture(params=["numba", "torch", "triton"])
def kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "triton":
        request.getfixturevalue("interpreted")
    monkeypatch.setenv("FULLGRAPH_KERNELS", request.param)
    return str(request.param)


@pytest.fixture
def set_threads() -> Iterator[Callable[[int], None]]:
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)
