"""Gaussian noise on what a client uploads (Gaussian mechanism, client level).

M. Abadi et al., "Deep Learning with Differential Privacy", CCS 2016, arXiv:1607.00133, for
clipping and noise; applied once to each array record that leaves a client, as the
robustness experiment of FedEBA+ does. Equation used: u min(1, C / ||u||) + N(0, (z C)^2 I).
There u is the change to a model, or the record itself where it holds none (gradients,
logits).

FedEBA+ gives its noise as sigma_2 C_0 / L with L the batch size: z = sigma_2 / L here.

This shows what noise does to a method; it protects nobody, and no epsilon is ever printed
for it. Losses and counts are sent as they are, the privacy spent over rounds is not added
up, and the noise comes from the experiment's own streams, so that a run can be repeated.
Noise at the server, which has an epsilon, is :mod:`fedsuite.rounds.central_privacy`.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsuite.core.keys import Unless
from fedsuite.core.settings import Settings, key
from fedsuite.core.vectors import norm
from fedsuite.messages.records import Arrays


class UploadNoise(Settings):
    """Options of clipping and noise at the clients."""

    upload_noise_multiplier: float = key(
        default=0.0,
        help="noise on what clients upload: standard deviation over upload-clip; 0 neither "
        "clips nor adds noise",
        minimum=0.0,
    )
    upload_clip: float = key(
        default=1.0,
        help="largest norm of an upload that gets noise; a very large one does not clip",
        above=0.0,
        needs=(Unless("upload-noise-multiplier", 0.0),),
    )


def _change(array: NDArray[Any], start: NDArray[Any] | float) -> NDArray[np.float64]:
    """Return how far an array is from its start; infinities that stayed have not moved."""
    with np.errstate(invalid="ignore"):
        change = np.subtract(array, start, dtype=np.float64)
    stayed = np.isinf(start) & (array == start)
    return np.where(stayed, 0.0, change)


def privatise(
    arrays: Arrays, start: Arrays, options: UploadNoise, rng: np.random.Generator
) -> Arrays:
    """Return one upload's arrays, their distance from ``start`` clipped, with noise.

    ``start`` is the received model that they were trained from; 0 where a name is missing.
    The noise falls array by array in their order.
    """
    change = {name: _change(array, start.get(name, 0.0)) for name, array in arrays.items()}
    length = norm(*change.values())
    scale = options.upload_clip / max(length, options.upload_clip)
    deviation = options.upload_noise_multiplier * options.upload_clip
    protected: Arrays = {}
    for name, array in arrays.items():
        noise = rng.normal(0.0, deviation, array.shape)
        moved = start.get(name, 0.0) + (scale * change[name] + noise)
        protected[name] = moved.astype(array.dtype)
    return protected
