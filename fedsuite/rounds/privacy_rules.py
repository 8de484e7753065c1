"""Keys of noise at the server, and what a method's round releases.

An epsilon is a promise about whatever was released. So a method takes part only where its
class says itself what a round of it releases, and why the accounting holds.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from fedsuite.core.keys import Unless, Value
from fedsuite.core.settings import Declared, key
from fedsuite.rounds.epsilon import Sampling

NOISE, TARGET = "dp-noise-multiplier", "target-epsilon"

_NOISED = (Unless(NOISE, 0.0), Unless(TARGET, 0.0))


@dataclass(frozen=True)
class Release:
    """What a round of a method releases.

    Parameters
    ----------
    kind
        ``mean``: the sum of the clients' clipped changes of one shared model, over a fixed
        number; one client moves it by C at most. ``weighted``: their mean with weights that
        each depend on one client's reply, up to a common factor; one client moves it by
        2 C times the largest weight. ``refused``: something else.
    why
        Why that holds, or why the method is refused; a clause without a subject's name.
    needs
        Values of the method's own keys without which the weights are of another form.
    """

    kind: Literal["mean", "weighted", "refused"]
    why: str
    needs: Mapping[str, Value] = field(default_factory=dict)


UNARGUED = Release(
    "refused",
    "its class does not say what a round of it releases: see PRIVACY in "
    "fedsuite.rounds.declaration",
)


class PrivacyKeys(Declared):
    """Keys of noise at the server."""

    dp_noise_multiplier: float = key(
        default=0.0,
        help="noise at the server on the sum of clipped updates: standard deviation over "
        "what one client can move; 0 is none",
        minimum=0.0,
    )
    target_epsilon: float = key(
        default=0.0,
        help="epsilon after all rounds, for which the noise is solved; 0 leaves the noise "
        "to dp-noise-multiplier",
        minimum=0.0,
    )
    dp_clipping_norm: float = key(
        default=1.0,
        help="largest norm of a client's update under dp-noise-multiplier; the first one "
        "where it adapts",
        above=0.0,
        needs=_NOISED,
    )
    dp_adaptive_clipping: bool = key(
        default=False,
        help="let dp-clipping-norm follow a quantile of the updates' norms; false keeps it",
        needs=_NOISED,
    )
    dp_clipping_quantile: float = key(
        default=0.5,
        help="share of updates that adaptive clipping leaves whole",
        minimum=0.0,
        maximum=1.0,
        needs=(Unless("dp-adaptive-clipping", False),),
    )
    dp_clipping_rate: float = key(
        default=0.2,
        help="rate of adaptive clipping; 0 keeps the norm",
        minimum=0.0,
        needs=(Unless("dp-adaptive-clipping", False),),
    )
    dp_count_noise: float = key(
        default=0.0,
        help="standard deviation of the noise on the number of updates left whole; 0 is a "
        "20th of the round's clients",
        minimum=0.0,
        needs=(Unless("dp-adaptive-clipping", False),),
    )
    dp_delta: float = key(
        default=1e-5,
        help="probability delta beside epsilon; below 1 over the number of clients",
        above=0.0,
        maximum=0.1,
        needs=_NOISED,
    )
    dp_sampling: Sampling = key(
        default="cycles",
        help="who takes part: public groups in turn (cycles), each client by a secret coin "
        "(poisson), or a secret sample of clients-per-round (fixed)",
        needs=_NOISED,
    )
    dp_epsilon_max: float = key(
        default=0.0,
        help="epsilon that ends the run before the round that would pass it; 0 is no limit",
        minimum=0.0,
        needs=_NOISED,
    )
    dp_max_weight: float = key(
        default=0.0,
        help="largest share of a client under noise, for methods with weights by losses: "
        "the noise grows with it; 0 refuses them",
        minimum=0.0,
        maximum=1.0,
        needs=_NOISED,
    )
