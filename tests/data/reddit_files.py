"""Small files in the form of LEAF's preprocessed Reddit."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

LENGTH = 10


def sequences(words: Sequence[str]) -> list[list[str]]:
    """Cut words into sequences of ten, padded as LEAF does."""
    padded = [*words, *["<PAD>"] * (-len(words) % LENGTH)]
    return [padded[i : i + LENGTH] for i in range(0, len(padded), LENGTH)]


def user(*comments: str) -> dict[str, Any]:
    """Return one user's entry; a comment is words with blanks between them."""
    cut = [comment.split() for comment in comments]
    return {
        "x": [sequences(["<BOS>", *words, "<EOS>"]) for words in cut],
        "y": [
            {
                "subreddit": "askmath",
                "target_tokens": sequences([*words, "<EOS>", "<PAD>"]),
                "count_tokens": [],
            }
            for words in cut
        ],
    }


def write(file: Path, users: Mapping[str, dict[str, Any]]) -> Path:
    """Write one file of users, and return it."""
    file.parent.mkdir(parents=True, exist_ok=True)
    counts = [len(data["y"]) for data in users.values()]
    content = {"users": list(users), "num_samples": counts, "user_data": users}
    file.write_text(json.dumps(content))
    return file


def write_users(root: Path, count: int = 3, comments: int = 5) -> None:
    """Write ``count`` users, each with its own words, below ``root / "reddit"``."""
    users = {
        f"u{k}": user(*[f"the w{k} is w{k} of w{j}" for j in range(comments)])
        for k in range(count)
    }
    write(root / "reddit" / "train" / "reddit_0_train.json", users)
