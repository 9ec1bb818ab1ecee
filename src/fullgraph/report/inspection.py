"""Describe a graph and a partition in words, and advise where a figure calls for it."""

from collections.abc import Mapping
from typing import Any

from fullgraph.errors import one_line
from fullgraph.words import count

UNEVEN = 1.25  # largest / mean share of ranks, as on a run's page
MUCH_HALO = 1.0  # halo rows per owned row
FEW = 0.2  # smallest class / largest class, in labelled nodes
UNLIKE = 0.3  # homophily below which a note is printed
MOST_SPLITS = 5  # printed at most


def print_graph(about: Mapping[str, Any]) -> None:
    """Print one fact per line. A folder of shards has fewer facts than a graph."""
    for name, text in facts(about):
        print(f"{name:>12}  {text}")


def facts(about: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The known facts, by name."""
    if "relations" in about:
        return _facts_by_type(about, about["types"], about["relations"], about["target"])
    if about.get("types", {}).get("nodes"):  # facts of a manifest
        held = about["types"]
        return _facts_by_type(about, held["nodes"], held["relations"], held["target"])
    kinds = [word for word, there in (("weighted", about["weighted"]), ("sparse features", about["sparse"])) if there]
    if "directed" in about:
        kinds = ["directed" if about["directed"] else "undirected", *kinds]
    found = [("graph", one_line(about["name"], 60) + (f" ({', '.join(kinds)})" if kinds else ""))]
    edges = count(about["arcs"], "edge")
    if "mean_degree" in about:
        edges += f", {about['mean_degree']:.1f} into a node, at most {about['largest_degree']:,}"
    found += [("nodes", f"{about['nodes']:,}"), ("edges", edges), ("features", _features(about))]
    if "isolated" in about:
        found.append(("isolated", f"{count(about['isolated'], 'node')}; {count(about['self_loops'], 'self loop')}"))
    found.append(("labels", _labels(about)))
    found += _splits(about)
    if about.get("homophily") is not None:
        adjusted = about["adjusted_homophily"]
        beside = "" if adjusted is None else f", {adjusted:.2f} adjusted for the sizes of classes"
        found.append(("homophily", f"{about['homophily']:.2f}{beside}"))
    return [*found, *_pairs(about)]


def _facts_by_type(about: Mapping[str, Any], types: Any, relations: Any, target: str | None) -> list[tuple[str, str]]:
    """The facts of a typed graph: a line for each node type and relation."""
    found = [("graph", f"{one_line(about['name'], 60)} (typed)"), ("nodes", f"{about['nodes']:,}")]
    found.append(("edges", count(about["arcs"], "edge")))
    for kind in types:
        sparse = "sparse " if kind.get("sparse") else ""
        held = f"{kind['features']:,} {sparse}features" if kind["features"] else "no features"
        alone = f", {kind['isolated']:,} isolated" if kind.get("isolated") else ""
        found.append(("type", f"{kind['name']}: {count(kind['nodes'], 'node')}, {held}{alone}"))
    for own in relations:
        weighted = ", weighted" if own.get("weighted") else ""
        degree = (
            f", {own['mean_degree']:.1f} into a node, at most {own['largest_degree']:,}" if "mean_degree" in own else ""
        )
        name = f"{own['source']}__{own['name']}__{own['target']}"
        found.append(("relation", f"{name}: {count(own['edges'], 'edge')}{degree}{weighted}"))
    labels = _labels({"largest_class": None, **about})
    sizes = {kind["name"]: kind["nodes"] for kind in types}
    of = f", type {target}" if labels != "none" else ""
    splits = _splits({**about, "nodes": max(1, sizes.get(target or "", 0))})
    return [*found, ("labels", labels + of), *splits, *_pairs(about)]


def _pairs(about: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [("pairs", f"{about['pairs']:,}")] if about["pairs"] else []


def _features(about: Mapping[str, Any]) -> str:
    arcs = about["edge_features"]
    return f"{about['features']:,} per node" + (f", {arcs:,} per edge" if arcs else "")


def _labels(about: Mapping[str, Any]) -> str:
    classes = about["classes"]
    if "labels" not in about:  # facts of a manifest
        kind = "real numbers" if about["real"] else "sets of classes" if about["multilabel"] else "classes"
        return f"{classes:,} {kind}" if classes else "none"
    if about["labels"] == "none":
        return "none"
    text = f"{classes:,} {about['labels']} on {count(about['labelled'], 'node')}"
    if about["largest_class"] is not None:
        text += f"; the largest has {about['largest_class']:.1%} of them, the smallest {about['smallest_class']:.1%}"
    return text


def _splits(about: Mapping[str, Any]) -> list[tuple[str, str]]:
    splits = about["splits"]
    if isinstance(splits, int):  # facts of a manifest
        return [("splits", f"{splits:,}")] if about["labelled"] else []
    lines = [
        f"{split['train']:,} train, {split['val']:,} val, {split['test']:,} test"
        + f" ({split['train'] / about['nodes']:.1%} of nodes train)"
        for split in splits[:MOST_SPLITS]
    ]
    lines += [f"and {len(splits) - MOST_SPLITS} more"] if len(splits) > MOST_SPLITS else []
    return [("split" if len(splits) == 1 else f"split {number}", line) for number, line in enumerate(lines)]


def remarks_on(about: Mapping[str, Any], figures: Mapping[str, Any]) -> list[str]:
    """Advice about a graph and a partition, each with the option to use; empty if no figure calls for it."""
    return [*_on_graph(about), *_on_cut(about, figures)]


def _on_graph(about: Mapping[str, Any]) -> list[str]:
    found = []
    if about.get("isolated", 0) > 0.1 * about["nodes"]:
        share = about["isolated"] / about["nodes"]
        found.append(f"{share:.0%} of the nodes have no neighbour: a model sees only their own features")
    largest, smallest = about.get("largest_class"), about.get("smallest_class")
    if largest and smallest is not None and smallest < FEW * largest:
        found.append("classes are uneven: look at macro scores too (--metric my_file.py:macro_f1, docs/extending.md)")
    same = about.get("adjusted_homophily")
    if same is not None and same < UNLIKE:
        found.append(
            "neighbours are often of other classes: sage and gcnii, which keep a node's own row separate, do better"
        )
    return found


def _on_cut(about: Mapping[str, Any], figures: Mapping[str, Any]) -> list[str]:
    parts = len(figures["nodes"])
    if parts < 2:
        return []
    found = []
    uneven = []
    for what, key in (("edges", "edges"), ("nodes", "nodes"), ("halo rows", "halo")):
        shares = figures[key]
        mean = sum(shares) / parts
        if mean and max(shares) > UNEVEN * mean:
            uneven.append(f"rank {shares.index(max(shares))} has {max(shares) / mean:.1f}x the mean's {what}")
    if uneven:
        found.append(f"{', '.join(uneven)}: whether ranks wait for it is measured by a run, on its report.html")
    if not all(figures["train"]):
        empty = figures["train"].index(0)
        if any(figures["train"]):
            found.append(
                f"rank {empty} has no training node; that is exact, and its part of the last layer stands idle"
            )
    halo = figures["halo_rows"] / max(1, about["nodes"])
    if halo > MUCH_HALO:
        found.append(
            f"{halo:.1f} halo rows per node: most rows that a rank reads belong to others; use fewer parts, another "
            f"partitioner, or a strategy that sends less ({'sylvie-a' if figures['types'] else 'sylvie-a, mixgcn'})"
        )
    return found
