"""A graph's name chooses its loader; an unknown name lists the forms."""

import numpy as np
import pytest

from fullgraph.axes import FORMATS
from fullgraph.data import load
from fullgraph.errors import InputError


def refused(spec):
    with pytest.raises(InputError) as caught:
        load(spec)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("spec", ["", "nothing", "zip:folder", "Demo", "npz"])
def test_unknown_forms_list_the_known_ones(spec):
    text = refused(spec)
    assert all(f"{kind}:" in text for kind in FORMATS)
    assert "demo" in text
    assert ".npz" in text


def test_a_missing_file_and_a_folder(tmp_path):
    assert "does not exist" in refused(str(tmp_path / "gone.npz"))
    assert "is a folder" in refused(str(tmp_path))
    (tmp_path / "manifest.json").write_text("{}")
    assert "`fullgraph train`" in refused(str(tmp_path))
    (tmp_path / "text.csv").write_text("1,2")
    assert "not an .npz" in refused(str(tmp_path / "text.csv"))


@pytest.mark.parametrize("kind", ["sbm", "rmat"])
def test_wrong_options_are_refused(kind):
    assert "features" in refused(f"{kind}:colour=3")  # the list of known keys
    assert "twice" in refused(f"{kind}:seed=1,seed=2")
    assert "VALUE" in refused(f"{kind}:seed")
    assert "whole number" in refused(f"{kind}:nodes=1.5")
    assert "whole number" in refused(f"{kind}:nodes=many")
    assert "finite" in refused(f"{kind}:noise=nan")
    assert "true or false" in refused(f"{kind}:directed=2")
    assert "at least 1" in refused(f"{kind}:features=0")
    assert "at least 0" in refused(f"{kind}:seed=-1")
    assert "split" in refused(f"{kind}:train=0.9,val=0.1")
    assert "do not fit" in refused(f"{kind}:nodes=100,edges=1e6")


def test_wrong_options_of_one_generator():
    assert "p_in" in refused("sbm:p_in=1.5")
    assert "too few" in refused("sbm:nodes=5")
    assert "sum to 1" in refused("rmat:a=0.9")
    assert "both" in refused("rmat:scale=5,nodes=20")
    assert "31" in refused("rmat:scale=40")
    assert "too few" in refused("rmat:nodes=5")


def test_options_are_read():
    graph = load("sbm: nodes=1e3, edges=2_000, features=7, classes=3, seed=4")
    assert (graph.num_nodes, graph.num_arcs, graph.num_features, graph.num_classes) == (1000, 4000, 7, 3)
    assert graph.x.dtype == np.float32
