"""The keys of every round on the server, and those that several methods share."""

import math
from typing import Any, Literal

from fedsuite.core.keys import Unless, Value, With
from fedsuite.core.search import Between
from fedsuite.core.settings import Declared, key
from fedsuite.messages.compression import DOWN, UP, Codec, Compression
from fedsuite.rounds.epsilon import Sampling

Aggregator = Literal["mean", "median", "trimmed-mean", "geometric-median", "multi-krum"]
Mix = Literal["none", "nearest"]
Way = Literal["uniform", "by-examples", "power-of-choice", "oort", "round-robin"]
"""Who is asked to train: see :mod:`fedsuite.rounds.selection`."""

AVERAGE_KEYS = ("aggregator", "liars", "mix", "max-client-weight")
NOISE, TARGET = "dp-noise-multiplier", "target-epsilon"
OPTIMIZER = "server-optimizer"
SECURE, THRESHOLD = "secure-aggregation", "reconstruction-threshold"
DEVICES, SELECTION = "devices", "selection"

_SUMMED = (Unless(SECURE, "off"),)
_ROBUST = (Unless("aggregator", "mean"),)
_SPARSE = tuple(With(key, kind) for key in (UP, DOWN) for kind in ("top-k", "random-k"))
_REHEARSED = (Unless(DEVICES, ""),)
_CHOSEN = (With(SELECTION, "power-of-choice"), With(SELECTION, "oort"))
_NOISED = (Unless(NOISE, 0.0), Unless(TARGET, 0.0))
_WITH_MOMENTUM = (With(OPTIMIZER, "sgd"), With(OPTIMIZER, "nesterov"))
"""Needs of keys that scale a step, which the adaptive rules would scale back."""
_ADAPTIVE = tuple(With(OPTIMIZER, rule) for rule in ("adam", "yogi", "adagrad"))


class RoundSettings(Declared):
    """Keys of the rounds, which every strategy takes as keywords too."""

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
    server_optimizer: Literal["sgd", "nesterov", "adam", "yogi", "adagrad"] = key(
        default="sgd",
        help="what the server makes of the step that the method would take; sgd takes it "
        "as it is, with server-momentum if that is given",
    )
    server_momentum: float = key(
        default=0.0,
        help="share of the server's last step that is added to the next; 0 is none, 1 "
        "never forgets",
        minimum=0.0,
        maximum=1.0,
        needs=_WITH_MOMENTUM,
    )
    server_adaptive_rate: float = key(
        default=0.1,
        help="step eta of adam, yogi and adagrad: about how far a parameter moves in a "
        "round",
        above=0.0,
        needs=_ADAPTIVE,
        search=Between(0.003, 0.3),
    )
    server_beta1: float | Literal["auto"] = key(
        default="auto",
        help="share of the old mean of steps in the new one of adam, yogi and adagrad; 0 "
        "takes the last step alone; auto is 0.9, and 0 with adagrad",
        minimum=0.0,
        maximum=1.0,
        needs=_ADAPTIVE,
    )
    server_beta2: float = key(
        default=0.99,
        help="share of the old mean of squared steps in the new one of adam and yogi; 0 "
        "takes the last square alone",
        minimum=0.0,
        maximum=1.0,
        needs=(With(OPTIMIZER, "adam"), With(OPTIMIZER, "yogi")),
    )
    server_tau: float = key(
        default=0.001,
        help="number beside the root of the squares; far above it steps lose their length, "
        "far below it they keep it",
        above=0.0,
        needs=_ADAPTIVE,
    )
    aggregator: Aggregator = key(
        default="mean",
        help="what is made of the clients' models: their mean, or a rule that a few liars "
        "cannot move far, for which the server holds all models of a round",
    )
    liars: float = key(
        default=0.2,
        help="clients of a round that may lie: a share below 0.5, rounded up, or a whole "
        "number; 0 trusts all",
        minimum=0.0,
        needs=_ROBUST,
    )
    mix: Mix = key(
        default="none",
        help="what is done to models first: nothing, or each becomes the mean of its "
        "nearest, which helps where clients' data differ",
        needs=_ROBUST,
    )
    max_client_weight: float | Literal["auto"] = key(
        default="auto",
        help="largest share of one client in the average, whatever made the weights; 1 is "
        "no limit; auto is half for the mean of four clients or more, and for other rules "
        "so much that the liars have less than half",
        above=0.0,
        maximum=1.0,
    )
    secure_aggregation: Literal["off", "masked", "unmasked"] = key(
        default="off",
        help="whether the server sees the sum of the clients' changes alone: masked; "
        "unmasked gives the same sum in one message for simulations, and hides nothing",
    )
    reconstruction_threshold: int = key(
        default=0,
        help="fewest clients of a round that can unmask its sum, at least half of them and "
        "one; 0 is above two thirds, and has each of more than 30 mask with some alone",
        minimum=0,
        needs=_SUMMED,
    )
    clipping_range: float = key(
        default=1.0,
        help="largest change of a parameter in a secure sum; a client with a larger one "
        "scales its whole change down",
        above=0.0,
        needs=_SUMMED,
    )
    most_examples: int = key(
        default=10_000,
        help="most examples of a client in a secure sum, which takes no client with more; "
        "the sum's rounding grows with it",
        minimum=1,
        needs=_SUMMED,
    )
    most_loss: float = key(
        default=10.0,
        help="largest loss by which a client weighs itself in a secure sum; a larger one "
        "counts as this, and the sum's rounding grows with it",
        above=0.0,
        needs=_SUMMED,
    )
    quantisation_bits: int = key(
        default=32,
        help="bits of a number in a secure sum, 32 or 16: with 16 half the bytes and "
        "65536 times the rounding",
        minimum=16,
        maximum=32,
        needs=_SUMMED,
    )
    compress_up: Compression = key(
        default="none",
        help="how a client's change of the model is made small before it is sent; top-k, "
        "signs and low-rank keep what is lost for the next one",
    )
    compress_down: Compression = key(
        default="none",
        help="how the model's step is made small before it is sent to the clients that "
        "have the model before it; others get the whole model",
    )
    compress_share: float = key(
        default=0.05,
        help="share of the entries that top-k and random-k send; 1 sends the model",
        above=0.0,
        maximum=1.0,
        needs=_SPARSE,
    )
    compress_bits: int = key(
        default=8,
        help="bits of an entry with qsgd, 2 to 16; 32 sends the model",
        minimum=2,
        maximum=32,
        needs=(With(UP, "qsgd"), With(DOWN, "qsgd")),
    )
    compress_rank: int = key(
        default=2,
        help="rank of each array's change with low-rank",
        minimum=1,
        needs=(With(UP, "low-rank"), With(DOWN, "low-rank")),
    )
    clients_per_round: int = key(
        default=0, help="clients sampled to train in a round; 0 is all", minimum=0
    )
    selection: Way = key(
        default="uniform",
        help="who is asked to train: all alike, by training rows, the largest losses of "
        "some (power-of-choice), who is worth most and fast (oort), or in turn",
        needs=(Unless("clients-per-round", 0),),
    )
    selection_candidates: int = key(
        default=0,
        help="clients d, drawn by their rows, of which those with the largest losses are "
        "asked; 0 is twice as many as are asked, all is the worst of all",
        minimum=0,
        needs=(With(SELECTION, "power-of-choice"),),
    )
    selection_ratio: float | str = key(
        default=2.0,
        help="most times that a client is asked, in means over clients, whatever it "
        "claims; 1 asks all alike",
        minimum=1.0,
        words=("off",),
        needs=_CHOSEN,
    )
    devices: str = key(
        default="",
        help="world of devices in which the run is rehearsed, on a virtual clock: "
        "data-centre, phones-at-night, hospitals, or a TOML file; empty is none",
    )
    over_select: float = key(
        default=1.0,
        help="clients asked over replies that close a round; 1 waits for all",
        minimum=1.0,
        needs=_REHEARSED,
    )
    round_deadline: float = key(
        default=0.0,
        help="virtual seconds that a round waits for trained models; 0 waits for all",
        minimum=0.0,
        needs=_REHEARSED,
    )
    stop_at_seconds: float = key(
        default=0.0,
        help="virtual seconds after which the run ends; 0 goes by num-rounds alone",
        minimum=0.0,
        needs=_REHEARSED,
    )
    evaluate_every: int = key(
        default=1, help="rounds between evaluations on all clients", minimum=1
    )
    quorum: int = key(default=1, help="least good replies for a round to count", minimum=1)
    max_failed_rounds: int = key(
        default=3,
        help="rounds in a row below the quorum before the run ends with an error",
        minimum=1,
    )
    suspect_rounds: int = key(
        default=20,
        help="rounds that a client sits out after the model had to go back to the one "
        "before its far longer update, and twice as many each time again; 0 asks it on",
        minimum=0,
    )
    connect_timeout: float = key(
        local=True, default=600.0, help="seconds to wait for SuperNodes", above=0.0
    )
    seed: int = key(default=0, help="seed of all random streams", minimum=0)
    fedvarp: bool = key(
        default=False,
        help="correct clients' updates by FedVARP's memory of their last ones; the server "
        "keeps one model a client; false is off",
    )
    max_examples: float | str = key(
        default="auto",
        help="most examples that a client counts with: a number, or medians of the round; "
        "auto counts a client that claims more than 100 medians as the median; no client "
        "counts with more than the server knows that it has, unless this is off",
        above=0.0,
        words=("median x 3", "off"),
    )
    max_update_norm: float | str = key(
        default="auto",
        help="longest update of a client, and longest other arrays; longer ones are scaled "
        "down: a number, or medians of the round, which is then held in memory; auto "
        "scales one of more than 10 medians to the median",
        above=0.0,
        words=("median x 3", "off"),
    )

    @property
    def has_server_optimizer(self) -> bool:
        """Whether the model moves by more than the method's own step."""
        return self.server_optimizer != "sgd" or self.server_momentum > 0

    def codec(self, direction: str) -> Codec:
        """Return how changes are coded: of :data:`UP` or :data:`DOWN`."""
        return Codec(
            self.compress_up if direction == UP else self.compress_down,
            self.compress_share,
            self.compress_bits,
            self.compress_rank,
            self.seed,
            direction,
        )

    @property
    def share_ratio(self) -> float:
        """How many times the share of its size a client may have, whatever it claims.

        Infinite for a method without :func:`share_ratio_key`, which claims do not weigh.
        """
        ratio = vars(self).get("max_share_ratio", "off")
        return math.inf if isinstance(ratio, str) else ratio


PRIVACY_KEYS = tuple(
    key for key in RoundSettings.KEYS if key.name == TARGET or key.name.startswith("dp-")
)
"""Those of noise at the server."""

SHARES_OF_PAPERS: dict[str, Value] = {"max-share-ratio": "off", "max-client-weight": 1.0}
"""``PAPER`` of a method with :func:`share_ratio_key`: no paper bounds a client's share."""


def server_rate_key() -> Any:
    """Return the key ``server_learning_rate``, for methods whose server takes a step."""
    return key(
        default=1.0,
        help="step of the server towards what it aggregated; 1 takes it whole",
        above=0.0,
        needs=_WITH_MOMENTUM,
    )


def share_ratio_key(*needs: With | Unless) -> Any:
    """Return the key ``max_share_ratio``, for methods that weigh clients by claims.

    Parameters
    ----------
    *needs
        What other keys of the method must be for an effect.
    """
    return key(
        default=2.0,
        help="largest share of one client, whatever it claims beside its size, such as a "
        "loss: in shares that it has where claims count for nothing",
        minimum=1.0,
        words=("off",),
        needs=needs,
    )
