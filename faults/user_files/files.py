"""User files from docs/extending, and possible errors in each."""
# ruff: noqa: E501  # one edit per line

from dataclasses import dataclass, field
from pathlib import Path

DOCS = Path(__file__).resolve().parents[2] / "docs" / "extending"
GRAPH = "sbm:nodes=60,edges=200,features=8,classes=3"
TRAIN = ("train", GRAPH, "--parts", "2", "--epochs", "5", "--eval-every", "2", "--checkpoint-every", "2",
         "--threads", "1", "--out", "run")  # fmt: skip
LAYERS = ("--hidden", "8", "--layers", "3")

NET = '''"""A model for PyG."""

import torch
from torch_geometric.nn import SAGEConv


class Net(torch.nn.Module):
    def __init__(self, in_channels, hidden=8, out_channels=2):
        super().__init__()
        self.first = SAGEConv(in_channels, hidden)
        self.last = SAGEConv(hidden, out_channels)
        self.scale = torch.nn.Parameter(torch.ones(hidden))

    def forward(self, x, edge_index):
        h = self.first(x, edge_index).relu() * self.scale
        h = torch.nn.functional.dropout(h, 0.2, self.training)
        return self.last(h, edge_index)
'''
OPTIONS = """epochs = 5
eval_every = 2
hidden = 8
layers = 2
lr = 0.01
model = "sage"
strategy = "pipegcn"
parts = 2
"""


@dataclass(frozen=True)
class Kind:
    """One kind of file: its text, the command that names it, and wrong results of its functions."""

    text: str
    command: tuple[str, ...]  # FILE stands for the file
    wrong: dict[str, tuple[str, ...]] = field(default_factory=dict)  # by function, expressions
    swaps: tuple[tuple[str, str], ...] = ()  # texts for others, which make the file wrong


def _shown(name: str) -> str:
    return (DOCS / f"{name}.py").read_text()


NOTHING = ("None", "3", "'text'", "object()")
KINDS = {
    "net": Kind(
        NET,
        (*TRAIN, "--model", "FILE:Net"),
        {
            "forward": (*NOTHING, "x[:3]", "(x, x)", "x.sum()", "x.detach()", "self.first(x, edge_index)[:, :1]",
                        "{'logits': x}", "x.long()", "x.argmax(1)", "torch.zeros(len(x), 3)", "[x]", "x.numpy()"),
            "__init__": ("3",),
        },
        (("super().__init__()", "pass"), ("SAGEConv(hidden, out", "SAGEConv(hidden + 1, out"),
         ("edge_index).relu()", "edge_index).nothing()"), ("* self.scale", "@ self.scale[:3]"),
         ("* self.scale", "* self.scal"), ("self.last(h, edge_index)", "self.last(h)"), ("hidden, out_channels)", "hidden, 1)"),
         ("h = torch.nn", "h += 1; h.relu_().exp_(); h = torch.nn"), ("(torch.nn.Module)", ""),
         ("    def forward", "    def __getattr__(self, name):\n        return {}[name]\n\n    def forward"),
         ("    def forward", "    def __getattr__(self, name):\n        return getattr(self.inner, name)\n\n    def forward"),
         ("    def forward", "    def parameters(self, recurse=True):\n        return 3\n\n    def forward"),
         ("    def forward", "    def state_dict(self, *args, **kwargs):\n        return None\n\n    def forward"),
         ("    def forward", "    def train(self, mode=True):\n        raise ValueError(mode)\n\n    def forward"),
         ("self.scale = torch.nn.Parameter(torch.ones(hidden))", "self.scale = torch.ones(hidden + 1)"),
         ("x, edge_index).relu()", "x.double(), edge_index).relu()"), ("hidden=8", "hidden"), ("in_channels, hidden=8", "width, hidden=8")),
    ),
    "codec": Kind(
        _shown("topk"),
        (*TRAIN, *LAYERS, "--strategy", "free", "-o", "codec=FILE:TopK", "-o", "k=4"),
        {
            "encode": (*NOTHING, "x", "torch.zeros(3)", "torch.zeros(1, dtype=torch.uint8)", "x.numpy()", "b'bytes'"),
            "decode": (*NOTHING, "wire", "torch.zeros(1)", "torch.zeros(shape, dtype=torch.int64)",
                       "torch.zeros(shape[0] + 1, *shape[1:], dtype=dtype)"),
            "nbytes": ("None", "-1", "'7'", "3.5", "0", "7", "torch.tensor(3)"),
        },
        (("frozen=True", "frozen=False"), ("(Value)", ""), ("Range(", "Rnge("), ("k: ", "name: ")),
    ),
    "schedule": Kind(
        _shown("fresh_first"),
        (*TRAIN, *LAYERS, "--strategy", "free", "-o", "schedule=FILE:FreshFirst", "-o", "first=2"),
        {"turn": (*NOTHING, "(True, step)", "Turn(send=True, read=step + 1)", "Turn(send=True, read=step - 5)",
                  "Turn(send=True, read='x')", "Turn(send=False, read=step)", "Turn(True)")},
        (("ClassVar[int] = 1", "ClassVar[int] = None"), ("ClassVar[int] = 1", "ClassVar[int] = -1"), ("depth: ", "deep: "),
         ("ClassVar[int] = 1", "ClassVar[int] = 0")),
    ),
    "partitioner": Kind(
        _shown("by_degree"),
        (*TRAIN, *LAYERS, "--partitioner", "FILE:ByDegree"),
        {"assign": (*NOTHING, "np.zeros(graph.num_nodes, dtype=int)", "[0] * graph.num_nodes", "(1, 2)",
                    "Assignment(np.zeros(3, dtype=int), parts)", "Assignment(np.zeros(graph.num_nodes), parts)",
                    "Assignment(np.full(graph.num_nodes, parts), parts)", "Assignment(None, parts)",
                    "Assignment(np.zeros(graph.num_nodes, dtype=int), parts + 1)",
                    "Assignment(np.zeros(graph.num_nodes, dtype=int), str(parts))",
                    "Assignment(np.zeros(graph.num_nodes, dtype=int), parts, position=np.zeros(3, dtype=int))",
                    "Assignment(np.zeros(graph.num_nodes, dtype=int), parts, position=np.zeros(graph.num_nodes, dtype=int))",
                    "Assignment(np.zeros((graph.num_nodes, 1), dtype=int), parts)")},
        (("graph.num_nodes", "graph.nodes"), ("frozen=True", "eq=False"), ("seed):", "sed):")),
    ),
    "metric": Kind(
        _shown("macro_f1"),
        (*TRAIN, *LAYERS, "--metric", "FILE:macro_f1"),
        {"macro_f1": (*NOTHING[:1], *NOTHING[2:], "logits", "[1.0]", "1j", "target", "logits[0]", "(0.5, 0.5)")},
        (("logits.shape[1]", "logits.shape[7]"), (".wait()", ".wait"), ("minlength=classes", "minlength=-1")),
    ),
    "loss": Kind(
        _shown("focal"),
        (*TRAIN, *LAYERS, "--loss", "FILE:Focal", "-t", "gamma=1.5"),
        {"__call__": (*NOTHING, "logits.sum(1).detach()", "logits[:1]", "target", "torch.zeros(len(target))", "[logits]",
                      "F.cross_entropy(logits, target)", "logits.mean()", "logits.argmax(1)", "float(logits.sum())")},
        (("logits, target, reduction", "logits, target[:3], reduction"), ("F.cross", "f.cross"), ("self.gamma", "self.gama"),
         ("frozen=True", "frozen=False"), ("tuple[float, ...]", "Tuple[float]"), ("def __call__", "def call")),
    ),
    "optimizer": Kind(
        _shown("lion"),
        (*TRAIN, *LAYERS, "--optimizer", "FILE:Lion", "-t", "betas=0.9,0.95"),
        {},
        (("        super().__init__", "        print"), ("def step(self, closure=None)", "def step(self, closure)"),
         ("def step", "def stop"), ('kept["average"] = torch.zeros_like(weight)', 'kept["average"] = "text"'),
         ('kept["average"] = torch.zeros_like(weight)', 'kept["average"] = torch.zeros(1, 2, 3, 4, 5)'),
         ("    @torch.no_grad()\n", ""), ("self.param_groups", "self.groups"), ("(torch.optim.Optimizer)", ""),
         ("def step(self, closure=None):", "def zero_grad(self, set_to_none=True):\n        raise ValueError('no')\n\n    def step(self, closure=None):"),
         ("def step(self, closure=None):", "def state_dict(self):\n        return None\n\n    def step(self, closure=None):"),
         ("def step(self, closure=None):", "def step(self, closure=None):\n        del self.param_groups\n        return\n")),
    ),
    "callback": Kind(
        _shown("good_enough"),
        (*TRAIN, *LAYERS, "--callback", "FILE:GoodEnough,val=0.99"),
        {},
        (("record.val is", "record.value is"), ("(self, record)", "(self)"), ("def __call__", "def call"),
         ("return record.val", "import numpy; return numpy.zeros(3); return record.val"),
         ("    def __call__", "    def close(self):\n        raise ValueError('close')\n\n    def __call__"),
         ("    def __call__", "    def close(self, why):\n        pass\n\n    def __call__"), ("float = 0.9", "float = 'x'")),
    ),
    "decoder": Kind(
        _shown("distance"),
        (*TRAIN, *LAYERS, "--task", "link", "--decoder", "FILE:Distance", "-t", "out=8"),
        {"forward": (*NOTHING, "u", "(u, v)", "u.sum()", "(u * v).sum(1)[:1]", "(u * v).sum(1).long()", "(u * v).sum(0)")},
        (("super().__init__()", "pass"), ("self.lin(v)", "self.linear(v)"), ("width, out,", "width + 1, out,"),
         ("(self, u, v)", "(self, u)"), ("(torch.nn.Module)", ""), ("def forward", "def forwards")),
    ),
    "stack": Kind(
        _shown("contrast"),
        (*TRAIN, *LAYERS, "--model", "FILE:Contrast", "-m", "share=0.5"),
        {"conv": (*NOTHING, "torch.nn.Linear(in_width, out_width)", "ContrastConv(in_width, out_width + 1, 1.0)",
                  "ContrastConv(in_width + 1, out_width, 1.0)"),
         "forward": (*NOTHING, "(x, x)", "self.own(row_map(x, view.ids))[:, :1]", "self.own(row_map(x, view.ids))[:3]",
                     "self.own(row_map(x, view.ids)).sum()")},
        (('ClassVar[str] = "mean"', 'ClassVar[str] = "most"'), ('ClassVar[str] = "mean"', "ClassVar[str] = None"),
         ("self.own_and_neighbours(", "self.own_and_neighbour("), ("x, view, layer, row_map)\n", "x, view, layer)\n"), ("super().__init__(in_width, out_width)", "super().__init__()"),
         ("super().__init__(in_width, out_width)", "torch.nn.Module.__init__(self)"), ("out_width, bias=False", "out_width + 1, bias=False"),
         ("*, last", "last"), ("(Stack)", ""), ("frozen=True, ", "")),
    ),
    "strategy": Kind(
        _shown("thrifty"),
        (*TRAIN, *LAYERS, "--strategy", "FILE:Thrifty", "-o", "every=3"),
        {"wires": (*NOTHING, "LowBit(4)", "[Wire()]", "Wire(schedule=3)", "Wire(codec=None)", "Wire(codec='lowbit')",
                   "Except(wire=None, layer=0, other=3)", "Wire")},
        (("(Strategy)", ""), ("frozen=True, ", ""), ("*, epochs, layers", "epochs"), ("LowBit(self.bits)", "LowBit(self.bit)"),
         ("    def wires", "    def layout(self):\n        return None\n\n    def wires"),
         ("    def wires", "    def layout(self):\n        return 'partitioned'\n\n    def wires"),
         ("    def wires", "    def partitioner(self):\n        return 'metis'\n\n    def wires"),
         ("    def wires", "    def devices_of(self, rank):\n        return 3\n\n    def wires"),
         ("    def wires", "    def devices_of(self):\n        return ()\n\n    def wires"), ("LowBit(self.bits)", "LowBit(77)")),
    ),
    "options": Kind(
        OPTIONS,
        ("train", GRAPH, "--config", "FILE", "--threads", "1", "--out", "run"),
        {},
        (("epochs = 5", "epochs = 'five'"), ("epochs = 5", "epochs = [1, 2]"), ("lr = 0.01", "lr = 0.01.2"),
         ('"sage"', "sage"), ("layers = 2", "layers = {a = 1}"), ("hidden = 8", "hiden = 8"), ("parts = 2", "parts = 2\nparts = 3"),
         ("hidden = 8", "hidden = 8.5"), ("eval_every = 2", "eval_every = 2026-01-01"), ("parts = 2", "[parts]")),
    ),
}  # fmt: skip
