"""LEAF's Reddit: numbers of words, what counts as a target, and files that are refused."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedsuite.core.errors import ConfigError, DataError
from fedsuite.data import DATASETS, RawData, load_federated_data, reddit
from fedsuite.data.specs import IGNORED
from fedsuite.data.splits import split_rows

from . import reddit_files as files

SPEC = DATASETS["reddit"]
PAD, UNK, BOS, EOS = range(4)
OUT = IGNORED


def load(root: Path, targets: str = "leaf") -> RawData:
    return reddit.Reddit(reddit_targets=targets).load(SPEC, root)


def prepared(raw: RawData, train: list[int], targets: str = "leaf") -> RawData:
    return reddit.Reddit(reddit_targets=targets).prepare(raw, np.array(train))


def test_users_of_all_files_are_pooled(tmp_path: Path) -> None:
    folder = tmp_path / "reddit"
    files.write(folder / "train" / "a_train.json", {"7": files.user("x y", "z")})
    files.write(
        folder / "test" / "a_test.json", {"7": files.user("y"), "9": files.user("x")}
    )
    raw = load(tmp_path)
    assert raw.features.shape == raw.labels.shape == (4, 10)
    # The files come in order of their paths, test before train.
    assert raw.ids is not None and raw.ids.tolist() == [0, 1, 0, 0]
    assert raw.groups is not None and raw.groups.tolist() == [0, 1, 2, 3]
    assert raw.num_train is None


def test_words_are_numbered_by_how_often_the_training_part_has_them(
    tmp_path: Path,
) -> None:
    """Counts of the training rows: b 3, a 2, c 2; row 2 is for tests."""
    comments = ("b a b", "a b c c", "rare a b b b b")
    files.write(tmp_path / "reddit" / "one.json", {"u": files.user(*comments)})
    found = prepared(load(tmp_path), [0, 1])
    b, a, c = 4, 5, 6  # a before c: equally often, then by name
    rest = [PAD] * 3
    assert found.features.tolist() == [
        [BOS, b, a, b, EOS, PAD, PAD, *rest],
        [BOS, a, b, c, c, EOS, PAD, *rest],
        [BOS, UNK, a, b, b, b, b, EOS, PAD, PAD],
    ]
    assert found.labels.tolist() == [
        [b, a, b, EOS, OUT, OUT, OUT, *[OUT] * 3],
        [a, b, c, c, EOS, OUT, OUT, *[OUT] * 3],
        [UNK, a, b, b, b, b, EOS, OUT, OUT, OUT],
    ]
    assert found.never_right == UNK


def test_targets_of_known_words_alone(tmp_path: Path) -> None:
    files.write(tmp_path / "reddit" / "one.json", {"u": files.user("b a b", "rare a")})
    found = prepared(load(tmp_path), [0], "known")
    b, a = 4, 5
    assert found.labels.tolist() == [[b, a, b, *[OUT] * 7], [OUT, a, *[OUT] * 8]]
    assert found.features[1, :4].tolist() == [BOS, UNK, a, EOS]
    assert found.never_right is None


def test_vocabulary_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reddit, "VOCABULARY", 6)
    files.write(tmp_path / "reddit" / "one.json", {"u": files.user("a b b c c c")})
    found = prepared(load(tmp_path), [0])
    assert found.features[0, :8].tolist() == [BOS, UNK, 5, 5, 4, 4, 4, EOS]
    assert found.features.max() < 6


def test_no_comment_is_on_both_sides(tmp_path: Path) -> None:
    long = " ".join(f"w{i}" for i in range(34))  # four sequences
    users = {f"u{k}": files.user(*[long] * 5, "short") for k in range(6)}
    files.write(tmp_path / "reddit" / "one.json", users)
    raw = load(tmp_path)
    assert raw.groups is not None and raw.ids is not None
    train, test = split_rows(raw, 0.34)
    assert not set(raw.groups[train]) & set(raw.groups[test])
    assert sorted([*train, *test]) == list(range(6 * 21))
    for owner in range(6):
        tested = set(raw.groups[test][raw.ids[test] == owner])
        assert len(tested) == 2  # of six comments


def test_clients_are_users_and_hold_integers(tmp_path: Path) -> None:
    files.write_users(tmp_path)
    data = load_federated_data(experiment(tmp_path), 0)
    assert data.num_clients == 3 and data.input_shape == (10,)
    for client in (data.client(k) for k in range(3)):
        assert (len(client.train), len(client.test)) == (4, 1)
        for split in (client.train, client.test):
            assert split.features.dtype == split.labels.dtype == torch.int64
            assert split.features.shape == split.labels.shape == (len(split), 10)
            assert split.never_right == UNK
            assert split.features[:, 0].eq(BOS).all()
    assert data.class_counts().tolist() == [[4]] * 3
    assert data.description["train-rows"] == 12
    assert "largest-class-train" not in data.description


def test_all_seeds_share_test_part_and_vocabulary(tmp_path: Path) -> None:
    files.write_users(tmp_path)
    first, second = (load_federated_data(experiment(tmp_path), seed) for seed in (0, 1))
    assert torch.equal(first.test_set().features, second.test_set().features)
    assert torch.equal(first.test_set().labels, second.test_set().labels)


def test_users_with_one_comment_cannot_be_tested(tmp_path: Path) -> None:
    long = "a " * 12  # two sequences
    users = {"one": files.user(long), "two": files.user(long, long)}
    files.write(tmp_path / "reddit" / "one.json", users)
    data = load_federated_data(experiment(tmp_path, num_clients=1), 0)
    assert len(data.client(0).train) == len(data.client(0).test) == 2
    with pytest.raises(DataError, match=r"num-clients = 2 is more than the 1 owners"):
        load_federated_data(experiment(tmp_path, num_clients=2), 0)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        (
            "partitioner",
            "dirichlet",
            "'dirichlet': rows .* choose one of iid, power",
        ),
        ("label_noise", 0.1, r"label-noise = 0\.1: rows of this data set have no class"),
    ],
)
def test_what_needs_classes_is_refused(
    key: str, value: object, message: str, tmp_path: Path
) -> None:
    files.write_users(tmp_path)
    with pytest.raises(ConfigError, match=message):
        load_federated_data(experiment(tmp_path, **{key: value}), 0)


def experiment(root: Path, **changes: Any) -> dict[str, Any]:
    values = {
        "dataset": "reddit",
        "data-dir": str(root),
        "partitioner": "natural-id",
        "natural-ids": "sample",
        "num-clients": 3,
    }
    return values | {name.replace("_", "-"): value for name, value in changes.items()}


# What is refused


def test_missing_folder_says_what_to_put_where(tmp_path: Path) -> None:
    with pytest.raises(DataError) as error:
        load(tmp_path)
    text = str(error.value)
    assert "\n" not in text
    for part in (f"no folder {tmp_path}/reddit", "*.json", "FEDSUITE_DATA", "data-dir"):
        assert part in text
    with pytest.raises(DataError, match="no data folder is named"):
        reddit.Reddit().load(SPEC, None)


def test_empty_folder(tmp_path: Path) -> None:
    (tmp_path / "reddit").mkdir()
    with pytest.raises(DataError, match=r"no JSON file below .*reddit"):
        load(tmp_path)


Spoil = Callable[[dict[str, Any]], object]


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (
            lambda c: c.pop("user_data"),
            "one.json: no 'user_data' that is a JSON object",
        ),
        (lambda c: c["user_data"]["u"].pop("x"), "user u: no 'x' that is a JSON array"),
        (lambda c: c["user_data"]["u"].pop("y"), "user u: no 'y' that is a JSON array"),
        (
            lambda c: c["user_data"]["u"]["y"][1].pop("target_tokens"),
            "user u, comment 1: no 'target_tokens'",
        ),
        (lambda c: c["user_data"]["u"]["x"].pop(), "user u: 1 comments but 2 labels"),
        (
            lambda c: c["user_data"]["u"]["x"][0][0].pop(),
            "user u, comment 0: expected a list of sequences of 10 words each",
        ),
        (
            lambda c: c["user_data"]["u"]["x"][1][0].__setitem__(3, 17),
            "comment 1: expected a list of sequences of 10 words",
        ),
        (
            lambda c: c["user_data"]["u"]["x"][0].append(["w"] * 10),
            "comment 0: 2 sequences but 1 of targets",
        ),
        (lambda c: c["user_data"].clear(), "the files hold no comments"),
    ],
)
def test_bad_content_is_named_in_one_line(
    spoil: Spoil, message: str, tmp_path: Path
) -> None:
    file = files.write(tmp_path / "reddit" / "one.json", {"u": files.user("a b", "c")})
    content = json.loads(file.read_text())
    spoil(content)
    file.write_text(json.dumps(content))
    with pytest.raises(DataError, match=re.escape(message)) as error:
        load(tmp_path)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("text", ["{", "[1, 2]", "", "\xff"])
def test_what_is_no_such_file_at_all(text: str, tmp_path: Path) -> None:
    folder = tmp_path / "reddit"
    folder.mkdir()
    (folder / "one.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(DataError, match=r"one\.json") as error:
        load(tmp_path)
    assert "\n" not in str(error.value)
