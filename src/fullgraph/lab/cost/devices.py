"""Rates from data sheets, for devices that nobody here can measure.

The shares of a sheet's figures that our kernels reach are assumed, not measured. For a device that is at hand,
`fullgraph calibrate` measures them.
"""

from typing import NamedTuple

from fullgraph.errors import InputError, nearest
from fullgraph.lab.cost.rates import Curve, Rates

PASSES, PRODUCTS, NEAR, DENSE = 0.8, 0.5, 1.6, 0.6  # shares of the sheet's figures; of near rows many are in the cache
LAUNCH_S = 6e-6


class Sheet(NamedTuple):
    """Bytes a second, and float32 operations a second."""

    bandwidth: float
    flops: float
    memory_bytes: int


GIB = 1 << 30
DEVICES = {
    "rtx2080ti": Sheet(616e9, 13.4e12, 11 * GIB),
    "t4": Sheet(300e9, 8.1e12, 16 * GIB),
    "v100": Sheet(900e9, 15.7e12, 32 * GIB),
    "a100": Sheet(1555e9, 19.5e12, 40 * GIB),
    "h100": Sheet(3350e9, 67e12, 80 * GIB),
    "h200": Sheet(4800e9, 67e12, 141 * GIB),
}


def sheet_of(name: str) -> Sheet:
    if name not in DEVICES:
        told = f"device {name!r} is unknown{nearest(name, DEVICES)}"
        raise InputError(f"{told}; known: here, a file of `fullgraph calibrate`, {', '.join(DEVICES)}")
    return DEVICES[name]


def rates_of(name: str) -> Rates:
    sheet = sheet_of(name)
    byte = 1 / sheet.bandwidth

    def always(value: float) -> Curve:
        return Curve(sizes=(1.0,), values=(value,))

    return Rates(
        device=name,
        arc=always(4 * byte / PRODUCTS),
        arc_near=always(4 * byte / PRODUCTS / NEAR),
        row=always(8 * byte / PASSES),
        flop=always(1 / (DENSE * sheet.flops)),
        flop_back=always(1 / (DENSE * sheet.flops)),
        byte=always(byte / PASSES),
        chosen=byte / PRODUCTS,
        number=8 * byte / PASSES,
        encode=always(5 * byte / PASSES),
        decode=always(5 * byte / PASSES),
        arc_number=12 * byte / PASSES,
        call=LAUNCH_S,
    )
