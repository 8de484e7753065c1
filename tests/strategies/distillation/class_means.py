"""The specification's example of FD: logits, labels, regularisers and mean logits."""

from typing import Any

import numpy as np

L = (
    ((2, 0, -2), (0, 1, 0), (1, 1, -1)),
    ((0, 1, 0), (1, -1, 0), (2, 0, 1)),
    ((1, 2, -1), (-1, 0, 2), (0, 0, 3)),
)
LABELS = ((0, 0, 1), (1, 1, 2), (0, 2, 2))
PHI = {
    ("logit", "ce"): (1.282333, 1.308960, 1.954188),
    ("logit", "kl"): (0.450274, 0.572994, 1.104440),
    ("logit", "mse"): (1.25, 1.722222, 2.25),
    ("prob", "ce"): (1.251844, 1.311480, 1.978828),
}
M_LOGIT = (
    {0: (1, 0.5, -1), 1: (1, 1, -1)},
    {1: (0.5, 0, 0), 2: (2, 0, 1)},
    {0: (1, 2, -1), 2: (-0.5, 0, 2.5)},
)
G_LOGIT = (
    {0: (1, 2, -1), 1: (0.5, 0, 0), 2: (0.75, 0, 1.75)},
    {0: (1, 1.25, -1), 1: (1, 1, -1), 2: (-0.5, 0, 2.5)},
    {0: (1, 0.5, -1), 1: (0.75, 0.5, -0.5), 2: (2, 0, 1)},
)


def table(rows_of: dict[int, Any]) -> tuple[np.ndarray, np.ndarray]:
    found, present = np.zeros((3, 3)), np.zeros(3, bool)
    for label, row in rows_of.items():
        found[label], present[label] = row, True
    return found, present
