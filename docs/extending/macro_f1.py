"""A metric: the mean over classes of 2 TP / (2 TP + FP + FN)."""

import torch


def macro_f1(logits, target, transport, key):
    """Every rank counts its own rows; `all_reduce` adds the counts, so that all ranks return the same number."""
    classes = logits.shape[1]
    said, true = logits.argmax(1), target
    counts = torch.stack([torch.bincount(rows, minlength=classes) for rows in (said[said == true], said, true)])
    hits, said_C, true_C = transport.all_reduce(key, counts).wait().double()
    return float((2 * hits / (said_C + true_C).clamp(min=1)).mean())
