"""The axes of a run: for each axis, our short names, and the methods that a user's own choice must have.

A named class is imported only when it is looked up.
"""

from fullgraph.named import Axis

GRAPH_FORMS = {  # how a user writes a graph of each format, and what reads it
    "pyg:CLASS/NAME": "fullgraph.data.pyg:load_pyg",
    "ogb:NAME": "fullgraph.data.ogb:load_ogb",
    "saint:FOLDER": "fullgraph.data.saint:load_saint",
    "tables:nodes=FILE,edges=FILE": "fullgraph.data.tables:load_tables",
    "sbm:KEY=VALUE,...": "fullgraph.data.sbm:SBM",
    "rmat:KEY=VALUE,...": "fullgraph.data.rmat:RMAT",
    "typed:KEY=VALUE,...": "fullgraph.data.typed.synthetic:Typed",
}
FEATURE_KINDS = ("none", "row", "standard")  # how node features are scaled
TABLE_FORMATS = ("npy", "csv", "parquet")  # formats of predictions
FORMATS = Axis("format of graphs", ("__call__",), {form.partition(":")[0]: kind for form, kind in GRAPH_FORMS.items()})
PARTITIONERS = Axis(
    "partitioner",
    ("assign",),
    {
        "metis": "fullgraph.partition.metis:Metis",
        "metis-cut": "fullgraph.partition.metis:MetisCut",
        "metis-volume": "fullgraph.partition.metis:MetisVolume",
        "random": "fullgraph.partition.simple:Random",
        "contiguous": "fullgraph.partition.simple:Contiguous",
        "banded": "fullgraph.partition.simple:Banded",
        "fennel": "fullgraph.partition.fennel:Fennel",
        "kaminpar": "fullgraph.partition.multilevel:KaMinPar",
        "mtkahypar": "fullgraph.partition.multilevel:MtKaHyPar",
    },
)
MODELS = Axis(
    "model",
    ("layers", "hidden", "aggregation", "encodes", "graph_layers", "hops", "build", "outline"),
    {
        "gcn": "fullgraph.nn.spec:GCN",
        "sage": "fullgraph.nn.spec:GraphSAGE",
        "gin": "fullgraph.nn.spec:GIN",
        "gat": "fullgraph.nn.spec:GAT",
        "gcnii": "fullgraph.nn.spec:GCNII",
        "resgcn": "fullgraph.nn.spec:ResGCN",
        "rgcn": "fullgraph.nn.typed:RGCN",
        "hetero-sage": "fullgraph.nn.typed:HeteroSAGE",
        "rgat": "fullgraph.nn.typed:RGAT",
        "hgt": "fullgraph.nn.typed:HGT",
    },
    adapter="fullgraph.own_model.spec:as_model",
    factories=True,
)
SCHEDULES = Axis(
    "schedule",
    ("depth", "turn"),
    {
        name: f"fullgraph.exchange.schedule:{name.title()}"
        for name in ("sync", "pipelined", "bounded", "skip", "steady")
    },
)
CODECS = Axis(
    "codec",
    ("encode", "decode", "nbytes"),
    {
        "full": "fullgraph.codec.base:Full",
        "half": "fullgraph.codec.base:Half",
        "bf16": "fullgraph.codec.base:BFloat16",
        "lowbit": "fullgraph.codec.lowbit:LowBit",
        "subsample": "fullgraph.codec.subsample:Subsample",
        "adaqp": "fullgraph.codec.variance:MinVariance",
    },
)
RATES = Axis(
    "rate",
    ("at",),
    {name: f"fullgraph.codec.rate:{name.title()}" for name in ("constant", "linear", "exponential", "step")},
)
PLACEMENTS = Axis(
    "placement",
    ("check", "place"),
    {
        "partitioned": "fullgraph.placement.partitioned.placement:Partitioned",
        "mixture": "fullgraph.placement.mixture.placement:Mixture",
    },
)
STRATEGIES = Axis(
    "strategy",
    ("wires", "layout", "partitioner", "devices_of"),
    {
        "vanilla": "fullgraph.recipes.baselines:Vanilla",
        "none": "fullgraph.recipes.baselines:Isolated",
        "pipegcn": "fullgraph.recipes.halos:PipeGCN",
        "pipegcn-f": "fullgraph.recipes.halos:PipeGCNF",
        "pipegcn-g": "fullgraph.recipes.halos:PipeGCNG",
        "pipegcn-gf": "fullgraph.recipes.halos:PipeGCNGF",
        "sylvie-s": "fullgraph.recipes.halos:SylvieS",
        "sylvie-a": "fullgraph.recipes.halos:SylvieA",
        "sylvie-a-bounded": "fullgraph.recipes.halos:SylvieABounded",
        "varco": "fullgraph.recipes.halos:Varco",
        "varco-slow": "fullgraph.recipes.halos:VarcoSlow",
        "fixed": "fullgraph.recipes.halos:Fixed",
        "bns": "fullgraph.recipes.halos:BNS",
        "adaqp": "fullgraph.recipes.halos:AdaQP",
        "sancus": "fullgraph.recipes.halos:Sancus",
        "cd-r": "fullgraph.recipes.halos:DelayedTurns",
        "mixgcn": "fullgraph.recipes.mixgcn:MixGCN",
        "gnnpipe": "fullgraph.recipes.gnnpipe:GNNPipe",
        "gnnpipe-hybrid": "fullgraph.recipes.gnnpipe:GNNPipeHybrid",
        "steady": "fullgraph.recipes.steady:SteadyHalos",
        "free": "fullgraph.recipes.free:Free",
        "auto": "fullgraph.lab.cost.auto:Auto",
    },
)
TASKS = Axis(
    "task",
    ("check", "prepared", "out_width", "equip", "build", "predicts"),
    {
        "classification": "fullgraph.tasks.nodes:Classification",
        "regression": "fullgraph.tasks.nodes:Regression",
        "link": "fullgraph.tasks.link:Link",
    },
)
METRICS = Axis(
    "metric",
    ("__call__",),
    {
        name: f"fullgraph.tasks.metrics:{name}"
        for name in ("accuracy", "micro_f1", "roc_auc", "rmse", "mae", "r2", "mrr")
    },
)
LOSSES = Axis(
    "loss",
    ("__call__",),
    {name: f"fullgraph.tasks.losses:{name}" for name in ("cross_entropy", "bce", "mse", "mae", "huber")},
)
DECODERS = Axis(
    "decoder", ("build",), {"dot": "fullgraph.tasks.decoder:Dot"}, adapter="fullgraph.tasks.decoder:as_decoder"
)
OPTIMIZERS = Axis(
    "optimizer",
    ("build",),
    {
        "adam": "fullgraph.train.optimizer:Adam",
        "adamw": "fullgraph.train.optimizer:AdamW",
        "sgd": "fullgraph.train.optimizer:SGD",
    },
    adapter="fullgraph.train.optimizer:as_optimizer",
)
CALLBACKS = Axis("callback", ("__call__",), {}, handed=True)
