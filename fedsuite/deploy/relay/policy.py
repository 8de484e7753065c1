"""A site's rules for apps and for what leaves it: ``policy.toml`` of a node's folder.

Each key is declared once, below: the file that ``deploy init`` writes, its comments and its
checks follow. Lists are texts with commas, and ``*`` in a name stands for any letters.
"""

import hashlib
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Literal

from fedsuite.core.errors import ConfigError, nearest
from fedsuite.core.keys import Value, toml_text
from fedsuite.core.reading import read_named
from fedsuite.core.settings import Settings, key
from fedsuite.core.tasks import SCORES
from fedsuite.core.text import LARGEST_TOML, toml

_DTYPES = "float16, float32, float64, int8, int16, int32, int64, uint8, bool"
_METRICS = ", ".join(
    (
        *("num-examples", "num-steps", "loss", "one-class", "stored-state"),
        *("train_loss", "eval_loss", "eval_acc", "validation-loss"),
        *("validation-one-class", "validation-examples", "loss-before", "loss-after"),
        *("personal-loss", "local-loss", "distilled-loss", "transfer-loss"),
        *("selected", "learning-rate"),
        *SCORES,
        *(f"validation-{name}" for name in SCORES),
    )
)
_HELLO = (
    "hello.source, hello.plug-ins, hello.public, hello.columns, hello.partition-id, "
    "hello.num-partitions, hello.training-rows"
)


class Apps(Settings):
    """Which apps may run."""

    allow: str = key(
        default="*",
        help="bundles that may run: sha256:HASH, PUBLISHER/NAME or "
        "PUBLISHER/NAME==VERSION; a hash alone proves what runs, a name is the bundle's "
        "own word; * is any",
    )
    code: str = key(
        default="",
        help="module:name of own code that an experiment may name; empty allows none",
    )


class Leave(Settings):
    """What replies may hold."""

    message_types: str = key(
        default="train, train.*, evaluate, evaluate.*, query, query.*",
        help="types of messages that apps may answer",
    )
    records: str = key(
        default="arrays, metrics, followed, error, hello",
        help="names of records that may leave beside those of the question",
    )
    arrays: str = key(
        default="",
        help="names of arrays that may leave beside those of the question, whose shapes "
        "are then free; an array of the question leaves in the shape and dtype it came in",
    )
    dtypes: str = key(default=_DTYPES, help="number formats of arrays that may leave")
    metrics: str = key(default=_METRICS, help="names of numbers that may leave")
    strings: str = key(
        default=_HELLO,
        help="entries of settings that may leave, as RECORD.NAME, without rounding; what "
        "repeats the question always may; hello.column-sums-* are the sums of columns that "
        "scaling = 'federated' needs",
    )
    longest_string: int = key(
        default=64, minimum=0, help="letters of a text; longer ones are refused"
    )
    longest_list: int = key(
        default=0, minimum=0, help="members of a list of numbers or texts; 0 allows no list"
    )
    least_rows: int = key(
        default=5,
        minimum=0,
        help="rows (num-examples) below which a reply's other numbers stay here; 0 lets "
        "all leave",
    )
    most_rows: int = key(
        default=0,
        minimum=0,
        help="rows of this site: a larger num-examples is refused; 0 sets no bound",
    )
    digits: int = key(
        default=6, minimum=0, maximum=17, help="digits of a number; 0 rounds nothing"
    )
    most_value: float = key(
        default=1e12, above=0.0, help="size of a number beyond which it is refused"
    )
    reply_megabytes: float = key(
        default=4096.0, above=0.0, help="megabytes of arrays in a reply, at most"
    )
    day_megabytes: float = key(
        default=0.0, minimum=0.0, help="megabytes of arrays a day (UTC); 0 sets no bound"
    )
    run_replies: int = key(default=0, minimum=0, help="replies in a run; 0 sets no bound")
    reason: bool = key(
        default=False,
        help="whether the server hears which rule refused a reply; an app could choose the "
        "rule, and so tell something",
    )


class Change(Settings):
    """What is done to arrays on their way out, whatever the app did."""

    clip_norm: float = key(
        default=0.0,
        minimum=0.0,
        help="longest change of a reply against the question (L2, all arrays together); a "
        "longer one is scaled down; 0 clips nothing",
    )
    noise_multiplier: float = key(
        default=0.0,
        minimum=0.0,
        help="Gaussian noise on each changed number, in clip-norms; 0 adds none",
    )
    largest_share: float = key(
        default=1.0,
        above=0.0,
        maximum=1.0,
        help="share of the changed numbers that leave, the largest ones; the others keep "
        "the question's value; 1 sends all",
    )


class Shelter(Settings):
    """Where apps run."""

    shelter: Literal["bwrap", "landlock", "none"] = key(
        default="bwrap",
        help="bwrap: apps reach no network, no other process and no file but those below; "
        "landlock: the same where a container or systemd forbids namespaces, and apps "
        "start no process of their own; none: apps reach all that this user may",
    )
    read: str = key(default="", help="files and folders that apps may read, as the data")
    write: str = key(
        default="", help="folders that apps may write, beside the node's own state"
    )
    devices: str = key(default="", help="devices, as /dev/nvidia0, /dev/nvidiactl")


class Limits(Settings):
    """What apps may use."""

    seconds: float = key(default=3600.0, above=0.0, help="seconds for a message")
    megabytes: int = key(
        default=0, minimum=0, help="megabytes of memory of each process; 0 sets no bound"
    )
    hours: str = key(
        default="0-24", help="hours of the day (UTC) in which messages are taken, as 20-6"
    )


@dataclass(frozen=True)
class Policy:
    """A site's rules.

    Parameters
    ----------
    apps, leave, change, shelter, limits
        The tables of the file.
    digest
        SHA-256 of the file, as 64 hexadecimal digits; empty for rules that no file holds.
    """

    apps: Apps = field(default_factory=Apps)
    leave: Leave = field(default_factory=Leave)
    change: Change = field(default_factory=Change)
    shelter: Shelter = field(default_factory=Shelter)
    limits: Limits = field(default_factory=Limits)
    digest: str = ""

    @classmethod
    def load(cls, path: Path) -> "Policy":
        """Read a file, or raise :class:`ConfigError` that names file and key."""
        try:
            # One reading: the hash is of what was taken.
            content = read_named(path, LARGEST_TOML)
            tables, digest = toml(content), hashlib.sha256(content).hexdigest()
        except OSError as error:
            raise ConfigError(f"cannot read {path}: {error.strerror}") from error
        except ValueError as error:
            raise ConfigError(f"{path} is not valid TOML: {error}") from None
        for name in tables:
            if name not in TABLES:
                raise ConfigError(f"{path}: {_unknown(name, TABLES)}")
        try:
            parts = {name: _table(name, tables.get(name, {})) for name in TABLES}
            policy = cls(**parts, digest=digest)  # type: ignore[arg-type]
            policy.check()
        except ConfigError as error:
            raise ConfigError(f"{path}: {error}") from None
        return policy

    def check(self) -> None:
        """Refuse values that are wrong together; :class:`ConfigError`."""
        if self.change.noise_multiplier and not self.change.clip_norm:
            raise ConfigError(
                "change.noise-multiplier has no effect without a bound of the change: set "
                "change.clip-norm above 0"
            )
        if self.change.noise_multiplier and self.change.largest_share < 1:
            raise ConfigError(
                "change.noise-multiplier with largest-share below 1: no noise hides which "
                "numbers are the largest; set change.largest-share = 1.0"
            )
        allowed_hours(self.limits.hours)
        for path in (*words(self.shelter.read), *words(self.shelter.write)):
            if not Path(path).is_absolute():
                raise ConfigError(f"shelter: {path} is no absolute path")


TABLES: Mapping[str, type[Settings]] = {
    "apps": Apps,
    "leave": Leave,
    "change": Change,
    "shelter": Shelter,
    "limits": Limits,
}
"""Tables of the file."""


def default_text() -> str:
    """Return a policy file with all keys at their defaults, and a comment for each."""
    lines = [
        "# What this site lets apps do, and what it lets out. The site's operator decides,",
        "# and no message changes it. `fedsuite deploy check-policy` checks it.",
        "# Lists have commas; * in a name stands for any letters.",
    ]
    for name, table in TABLES.items():
        summary = (table.__doc__ or "").partition("\n")[0]
        lines += ["", f"# {summary}", f"[{name}]"]
        for declared in table.KEYS:
            lines += _comment(declared.help)
            lines.append(f"{declared.name} = {toml_text(declared.default)}")
    return "\n".join([*lines, ""])


def words(text: str) -> list[str]:
    """Return the members of a list with commas."""
    return [word.strip() for word in text.split(",") if word.strip()]


def matches(name: str, patterns: str) -> bool:
    """Return whether a name fits one of the patterns of a list with commas."""
    return any(fnmatchcase(name, pattern) for pattern in words(patterns))


def allowed_hours(text: str) -> frozenset[int]:
    """Return the hours of the day from ``START-END``, the end left out; 20-6 is the night.

    Raises
    ------
    ConfigError
        If the text is something else.
    """
    start, dash, end = text.partition("-")
    try:
        first, last = int(start), int(end)
    except ValueError:
        first = last = -1
    if not dash or not (0 <= first <= 23 and 0 <= last <= 24) or first == last:
        raise ConfigError(f"limits.hours = {text!r}: expected hours as 0-24 or 20-6")
    count = (last - first) % 24 or 24
    return frozenset((first + hour) % 24 for hour in range(count))


def _table(name: str, values: object) -> Settings:
    table = TABLES[name]
    if not isinstance(values, Mapping):
        raise ConfigError(f"{name} is no table: write [{name}] on a line of its own")
    known = {declared.name: declared for declared in table.KEYS}
    parsed: dict[str, Value] = {}
    for key_name, value in values.items():
        if key_name not in known:
            raise ConfigError(f"{name}.{_unknown(key_name, known)}")
        parsed[known[key_name].argument] = known[key_name].parse(value)
    return table(**parsed)


def _unknown(name: str, known: Mapping[str, object]) -> str:
    near = nearest(name, known)
    hint = f"did you mean {near}? " if near else ""
    return f"{name} is unknown: {hint}known are {', '.join(known)}"


def _comment(text: str) -> list[str]:
    return textwrap.wrap(text, 92, initial_indent="# ", subsequent_indent="#   ")
