"""Generated patients of 50 states, in the sizes of the FedAKD paper's private records.

GENERATED DATA: no row is or was a patient. The paper's records (TriNetX: will a patient
develop pancreatic cancer?) are not public. This data set has the same form, and for each
state the numbers of positive and negative patients in the paper's Table 7. Results on this
data set say nothing about medicine.

A patient is a sex, a postal code, and up to 32 events (code, value, age). States differ in
their codes, their patients' ages, and the number of events recorded. The key ``ehr-shift``
sets the strength of this covariate shift. The label follows one rule in all states: a score
of codes, values, age and sex with noise. Each state's highest scores are its positives. So
p(y | x) is the same but for each state's threshold.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedsuite.core.rng import numpy_stream
from fedsuite.core.settings import key
from fedsuite.data.cache import load_or_build
from fedsuite.data.specs import DatasetSpec, IntArray, RawData, Source

EVENTS = 32
CODES = 400
TOPICS = 20
POSTAL_CODES_OF_A_STATE = 5
SHORTEST = 4
NOISE = 0.3

TABLE_7 = """
AK 196 362  AL 1292 2118  AR 842 1499  AZ 2347 3174  CA 7116 12924  CO 1362 2802
CT 1180 1415  DE 342 463  FL 8158 10740  GA 2461 5440  HI 433 627  IA 1093 1858
ID 361 660  IL 3497 5435  IN 1523 2865  KS 524 1333  KY 1396 2714  LA 1150 2166
MA 1453 2039  MD 1959 3186  ME 473 710  MI 3629 6115  MN 1371 2133  MO 1572 2769
MS 710 1536  MT 221 415  NC 2222 5041  ND 179 426  NE 424 1005  NH 344 556
NJ 3762 3585  NM 416 787  NV 792 1202  NY 8134 10134  OH 4339 7295  OK 865 1710
OR 1322 2315  PA 4658 7159  RI 158 265  SC 1194 2192  SD 266 385  TN 2038 3633
TX 5152 10633  UT 495 1622  VA 1924 4133  VT 150 295  WA 2009 4238  WI 1281 1612
WV 617 1095  WY 113 245
"""
"""Positive and negative patients per state (Table 7, without the validation set)."""

_GENERATOR_VERSION = 1  # part of the cache key: raise it when what is made changes
_SEED = 0  # the same patients for all seeds of an experiment


@dataclass(frozen=True)
class State:
    """A state and how many patients of each kind it has."""

    name: str
    positives: int
    negatives: int


@dataclass(frozen=True)
class _World:
    """Topics ``[topics, codes]`` (cumulative) and scores that all states share."""

    topics: npt.NDArray[np.float64]
    topic_weights: npt.NDArray[np.float64]
    risky: npt.NDArray[np.bool_]
    code_risk: npt.NDArray[np.float64]


def states(scale: float = 1.0) -> tuple[State, ...]:
    """Return the states, each with a share of its patients, at least one per kind."""
    words = TABLE_7.split()
    return tuple(
        State(name, *(max(round(scale * int(count)), 1) for count in counts))
        for name, *counts in zip(words[::3], words[1::3], words[2::3], strict=True)
    )


class SyntheticEhr(Source):
    """The generated patients."""

    ehr_scale: float = key(
        default=1.0,
        help="part of Table 7's patients that is generated; 1 is exactly its numbers",
        above=0.0,
        maximum=1.0,
    )
    ehr_shift: float = key(
        default=1.0,
        help="how much the generated states differ in their patients; 0 is not at all",
        minimum=0.0,
    )

    def load(self, spec: DatasetSpec, data_dir: Path | None) -> RawData:
        """Generate the patients, once per scale and shift; ``data_dir`` plays no part.

        Features are ``[patients, 1 + EVENTS, 3]``: first (sex 1 or 2, postal code from 1,
        0), then (code from 1, value, age / 100), all 0 after the last event.
        """
        scale, shift = self.ehr_scale, self.ehr_shift
        entry = f"{spec.name}-{_GENERATOR_VERSION}-{scale!r}-{shift!r}"
        arrays = load_or_build(entry, lambda: _generate(states(scale), shift))
        ids, labels = arrays["ids"], arrays["labels"]
        return RawData(arrays["features"], labels, ids, strata=2 * ids + labels)


def _generate(chosen: tuple[State, ...], shift: float) -> dict[str, npt.NDArray[Any]]:
    world = _world()
    patients = [_patients(world, n, state, shift) for n, state in enumerate(chosen)]
    sizes = [state.positives + state.negatives for state in chosen]
    return {
        "features": np.concatenate([features for features, _ in patients]),
        "labels": np.concatenate([labels for _, labels in patients]),
        "ids": np.repeat(np.arange(len(chosen)), sizes),
    }


def _world() -> _World:
    rng = numpy_stream(_SEED, "synthetic-ehr")
    topics = np.cumsum(rng.dirichlet(np.full(CODES, 0.05), TOPICS), axis=1)
    risky = np.arange(TOPICS) < TOPICS // 4
    # A code's risk is that of the topics that use the code, plus a share of its own.
    use = np.diff(topics, axis=1, prepend=0.0)
    share = use[risky].sum(axis=0) / np.maximum(use.sum(axis=0), 1e-12)
    code_risk = share + 0.3 * rng.standard_normal(CODES)
    return _World(topics, rng.dirichlet(np.full(TOPICS, 5.0)), risky, code_risk)


def _patients(
    world: _World, number: int, state: State, shift: float
) -> tuple[npt.NDArray[np.float32], IntArray]:
    """Return features and labels of one state, in random order."""
    rng = numpy_stream(_SEED, "synthetic-ehr", 0, number + 1)
    count = state.positives + state.negatives
    tilt, age_shift, activity = rng.standard_normal(TOPICS), *rng.standard_normal(2)
    mix = np.log(world.topic_weights) + shift * 0.7 * tilt
    severity = rng.standard_normal(count)
    logits = mix + 0.8 * severity[:, None] * world.risky
    codes = _codes(world, logits, rng)
    mean_length = EVENTS * 0.5 * np.exp(0.2 * shift * activity)
    lengths = np.clip(rng.poisson(mean_length, count), SHORTEST, EVENTS)
    real = np.arange(EVENTS) < lengths[:, None]
    values = rng.standard_normal((count, EVENTS)) + 0.3 * severity[:, None]
    age = np.clip(62 + 4 * shift * age_shift + 12 * rng.standard_normal(count), 18, 95)
    back = np.sort(rng.exponential(3.0, (count, EVENTS)), axis=1)[:, ::-1]
    sex = rng.integers(1, 3, count)
    postal = (
        1
        + number * POSTAL_CODES_OF_A_STATE
        + rng.integers(0, POSTAL_CODES_OF_A_STATE, count)
    )
    risk = world.code_risk[codes - 1] * (1 + 0.3 * values) * real
    score = 3 * risk.sum(axis=1) / lengths + 0.02 * (age - 62) + 0.2 * (sex == 1)
    score += NOISE * rng.logistic(0.0, 1.0, count)
    labels = np.zeros(count, np.int64)
    labels[np.argsort(-score, kind="stable")[: state.positives]] = 1
    features = np.zeros((count, 1 + EVENTS, 3), np.float32)
    features[:, 0, :2] = np.stack([sex, postal], axis=1)
    ages = np.maximum(age[:, None] - back, 0.0) / 100
    events = np.stack([codes, values, ages], axis=2)
    features[:, 1:] = np.where(real[:, :, None], events, 0.0)
    return features, labels


def _codes(
    world: _World, logits: npt.NDArray[np.float64], rng: np.random.Generator
) -> IntArray:
    """Draw a topic and then a code (1 to CODES) per event, ``[patients, EVENTS]``."""
    weights = np.exp(logits - logits.max(axis=1, keepdims=True))
    ends = np.cumsum(weights, axis=1) / weights.sum(axis=1, keepdims=True)
    draws = rng.random((len(logits), EVENTS, 2))
    topic = (draws[:, :, :1] > ends[:, None, :-1]).sum(axis=2)
    codes = np.zeros(topic.shape, np.int64)
    for number, cumulative in enumerate(world.topics):
        of_it = topic == number
        codes[of_it] = np.searchsorted(cumulative[:-1], draws[of_it, 1])
    return codes + 1
