"""Reddit comments in LEAF's files, one user per client; the task is the next word.

S. Caldas et al., "LEAF: A Benchmark for Federated Settings", arXiv:1812.01097. LEAF cuts
each comment into sequences of ten words, with ``<BOS>`` first, ``<EOS>`` at the end, and
``<PAD>`` behind the end. Targets are the same words, one position on. Files are JSON::

    {"users": ["7"], "user_data": {"7": {"x": [COMMENT, ...], "y": [LABEL, ...]}}}

where COMMENT is a list of sequences of ten words, and LABEL an object whose
``target_tokens`` has the same form.

LEAF's train, val and test files are pooled. A test part is drawn anew per user (key
``test-fraction``). Whole comments are drawn, so that no comment is in both parts. The
vocabulary holds the 9,996 most frequent words of the training part, besides padding,
unknown word, begin and end. LEAF's own vocabulary is a pickle and is not read.
"""

import hashlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from fedsuite.core.errors import DataError, one_line
from fedsuite.core.reading import parsed
from fedsuite.core.settings import key
from fedsuite.core.text import read_text
from fedsuite.data.cache import load_or_build
from fedsuite.data.folders import dataset_folder, file_identity
from fedsuite.data.specs import IGNORED, DatasetSpec, IntArray, RawData, Source

LENGTH = 10
VOCABULARY = 10_000
PADDING, UNKNOWN, BEGIN, END = range(4)
MARKS = ("<PAD>", "<UNK>", "<BOS>", "<EOS>")

_READER_VERSION = 1  # part of the cache key: raise it when reading changes


@dataclass(frozen=True)
class _Comment:
    """A comment's user, input sequences and target sequences."""

    user: str
    words: list[list[str]]
    targets: list[list[str]]


class Reddit(Source):
    """LEAF's comments."""

    reddit_targets: Literal["leaf", "known"] = key(
        default="leaf",
        help="what counts: leaf is all but padding, and a guess at an unknown word is "
        "wrong; known is known words alone, not the end of a comment either",
    )

    def load(self, spec: DatasetSpec, data_dir: Path | None) -> RawData:
        """Read all of LEAF's JSON files below ``data_dir / spec.folder``.

        All words that occur are numbered; :meth:`prepare` makes a vocabulary.
        """
        folder = dataset_folder(spec, data_dir)
        files = sorted(folder.rglob("*.json"))
        if not files:
            raise DataError(
                f"data set {spec.name}: no JSON file below {folder}; put "
                f"{', '.join(spec.file_patterns)} of LEAF's preprocessed Reddit there"
            )
        identity = "\n".join([str(_READER_VERSION), *map(file_identity, files)])
        entry = f"{spec.name}-{hashlib.sha256(identity.encode()).hexdigest()[:20]}"
        arrays = load_or_build(entry, lambda: _read(spec, files))
        return RawData(
            features=arrays["words"],
            labels=arrays["targets"],
            ids=arrays["users"],
            groups=arrays["comments"],
        )

    def prepare(self, raw: RawData, train_rows: IntArray) -> RawData:
        """Renumber words by the training rows' vocabulary; mark targets to ignore.

        The vocabulary is ordered by frequency, then by name.
        """
        size = 1 + int(max(raw.features.max(), raw.labels.max(), len(MARKS)))
        counts = np.bincount(raw.features[train_rows].ravel(), minlength=size)
        counts[: len(MARKS)] = 0
        ranked = np.argsort(-counts, kind="stable")[: VOCABULARY - len(MARKS)]
        kept = ranked[counts[ranked] > 0]
        number_of = np.full(size, UNKNOWN)
        number_of[: len(MARKS)] = np.arange(len(MARKS))
        number_of[kept] = len(MARKS) + np.arange(len(kept))
        targets = number_of[raw.labels]
        leaf = self.reddit_targets == "leaf"
        uncounted = [PADDING, BEGIN] if leaf else [PADDING, UNKNOWN, BEGIN, END]
        return replace(
            raw,
            features=number_of[raw.features],
            labels=np.where(np.isin(targets, uncounted), IGNORED, targets),
            never_right=UNKNOWN if leaf else None,
        )


def _read(spec: DatasetSpec, files: list[Path]) -> dict[str, IntArray]:
    comments = [comment for file in files for comment in _comments(file)]
    if not comments:
        raise DataError(f"data set {spec.name}: the files hold no comments")
    counts = Counter(
        word
        for comment in comments
        for sequence in (*comment.words, *comment.targets)
        for word in sequence
    )
    names = [*MARKS, *sorted(set(counts) - set(MARKS))]
    number_of = {name: number for number, name in enumerate(names)}
    users = {user: n for n, user in enumerate(sorted({c.user for c in comments}))}
    lengths = [len(comment.words) for comment in comments]

    def numbers(sequences: Iterator[list[str]]) -> IntArray:
        rows = [[number_of[word] for word in sequence] for sequence in sequences]
        return np.array(rows, np.int64)

    return {
        "words": numbers(s for comment in comments for s in comment.words),
        "targets": numbers(s for comment in comments for s in comment.targets),
        "users": np.repeat([users[comment.user] for comment in comments], lengths),
        "comments": np.repeat(np.arange(len(comments)), lengths),
    }


def _comments(file: Path) -> Iterator[_Comment]:
    """Yield the comments of one file; refuse another form than LEAF's."""
    try:
        content = parsed(read_text(file))
    except (OSError, ValueError) as error:
        reason = f"not a readable JSON file ({one_line(error)})"
        raise DataError(f"{file}: {reason}") from error
    for user, data in _member(content, "user_data", dict, f"{file}").items():
        where = f"{file}: user {user}"
        inputs, labels = (_member(data, name, list, where) for name in ("x", "y"))
        if len(inputs) != len(labels):
            raise DataError(f"{where}: {len(inputs)} comments but {len(labels)} labels")
        for number, (words, label) in enumerate(zip(inputs, labels, strict=True)):
            place = f"{where}, comment {number}"
            targets = _member(label, "target_tokens", list, place)
            for sequences in (words, targets):
                _check_sequences(sequences, place)
            if len(words) != len(targets):
                raise DataError(
                    f"{place}: {len(words)} sequences but {len(targets)} of targets"
                )
            yield _Comment(user, words, targets)


def _member(content: Any, name: str, kind: type, where: str) -> Any:
    if not isinstance(content, dict) or not isinstance(content.get(name), kind):
        raise DataError(
            f"{where}: no {name!r} that is a JSON {'object' if kind is dict else 'array'}, "
            "as LEAF's preprocessed files have"
        )
    return content[name]


def _check_sequences(sequences: Any, where: str) -> None:
    fine = isinstance(sequences, list) and all(
        isinstance(sequence, list)
        and len(sequence) == LENGTH
        and all(isinstance(word, str) for word in sequence)
        for sequence in sequences
    )
    if not fine:
        raise DataError(
            f"{where}: expected a list of sequences of {LENGTH} words each, as LEAF's "
            "preprocessed files have"
        )
