"""How many bits: what a row becomes on the wire."""

from fullgraph.codec.base import BFloat16, Codec, Full, Half, Shape

CODECS: dict[str, type[Codec]] = {"full": Full, "half": Half, "bf16": BFloat16}

__all__ = ["CODECS", "BFloat16", "Codec", "Full", "Half", "Shape"]
