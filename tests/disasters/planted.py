"""Bugs that are planted into fedsuite, to know that the checker sees such as they are.

Each is a change of a function's text, so one that no longer fits fails loudly.
"""

import argparse
import csv
import importlib
import inspect
import logging
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FunctionType
from typing import Any, NamedTuple

from tests.disasters.judge import judge
from tests.disasters.remembered import forget
from tests.disasters.world import DEATHS, LINK_KINDS, Plan

TABLE = Path(__file__).parent / "planted.csv"


class Bug(NamedTuple):
    """A planted bug: a function, some of its text, and what stands there instead.

    Without one of ``kinds`` of faults, with none of ``methods``, or without the masks of
    secure sums if it is of ``masks``, it changes nothing.
    """

    name: str
    where: str
    text: str
    instead: str
    kinds: frozenset[str] = frozenset()
    methods: tuple[str, ...] = ()

    masks: bool = False

    def may_show(self, plan: Plan) -> bool:
        """Return whether a plan's method and faults can reach the bug; empty is any."""
        if self.masks and not plan.has_masks:
            return False
        drawn = {kind for kind, rate in plan.rates.items() if rate}
        drawn |= {kind for kind, _, _ in plan.aims}
        reached = not self.kinds or bool(self.kinds & drawn)
        return reached and (not self.methods or plan.method in self.methods)


POWER = frozenset({"power"})
DISK = frozenset({"full", "eio"})
STOPS = DEATHS | DISK
STATEFUL = ("scaffold", "fedakd", "feddc")
NOISE = ("noise",)
LATE = ("fedbuff", "fedbuff-real")

BUGS = (
    Bug(
        "a file is renamed before it is flushed",
        "fedsuite.core.files:atomic_write",
        "os.fsync(file.fileno())",
        "pass",
        kinds=POWER,
    ),
    Bug(
        "a rename is not flushed",
        "fedsuite.core.files:atomic_write",
        "sync_folder(path.parent)",
        "pass",
        kinds=POWER,
    ),
    Bug(
        "a new folder is not flushed",
        "fedsuite.core.files:make_folder",
        "sync_folder(path.parent)",
        "pass",
        kinds=POWER,
    ),
    Bug(
        "a failed write leaves its temporary file",
        "fedsuite.core.files:atomic_write",
        "temporary.unlink(missing_ok=True)",
        "pass",
        kinds=DISK | {"interrupt"},
    ),
    Bug(
        "leftovers of a killed server stay",
        "fedsuite.results.writer:RunFolder.resume",
        "remove_file(leftover)",
        "pass",
        kinds=frozenset({"kill", "power"}),
    ),
    Bug(
        "a hash is not compared",
        "fedsuite.core.files:safetensors_arrays",
        "if zeroed.hexdigest() != seal[0].decode():",
        "if False:",
        kinds=frozenset({"flip"}),
    ),
    Bug(
        "lines are not flushed before a checkpoint",
        "fedsuite.results.writer:RunFolder.sync",
        "path = self.path\n",
        "return\n",
        kinds=POWER,
    ),
    Bug(
        "a run is finished before its lines are flushed",
        "fedsuite.results.writer:RunFolder.finish",
        "self.sync()",
        "pass",
        kinds=POWER,
    ),
    Bug(
        "rows of a lost round are kept",
        "fedsuite.results.writer:RunFolder.truncate_after",
        "<= server_round)",
        "<= server_round + 1)",
        kinds=STOPS,
    ),
    Bug(
        "tables are shortened in place",
        "fedsuite.results.writer:RunFolder.truncate_after",
        'atomic_write(path, _lines(row for row in rows if row["round"] <= server_round))',
        'path.write_bytes(_lines([row for row in rows if row["round"] <= server_round]))',
        kinds=STOPS,
    ),
    Bug(
        "the lock is not taken",
        "fedsuite.results.writer:_locked",
        "lock.acquire(timeout=0)",
        "pass",
        kinds=frozenset({"second-server"}),
    ),
    Bug(
        "all attempts have one number",
        "fedsuite.results.writer:_later_than",
        "max(time.time_ns() // 1_000_000, attempt + 1)",
        "1",
        kinds=STOPS,
    ),
    Bug(
        "an attempt's number is the wall clock's alone",
        "fedsuite.results.writer:_later_than",
        "max(time.time_ns() // 1_000_000, attempt + 1)",
        "time.time_ns() // 1_000_000",
        kinds=frozenset({"clock"}),
    ),
    Bug(
        "clients' states are not written for a checkpoint",
        "fedsuite.callbacks.checkpoint_writer:CheckpointWriter.write",
        "state.grid.persist_clients(strategy.client_versions)",
        "pass",
        kinds=STOPS,
        methods=STATEFUL,
    ),
    Bug(
        "states are deleted before the checkpoint is written",
        "fedsuite.callbacks.checkpoint_writer:CheckpointWriter.write",
        "latest.save(self._folder)\n"
        "    strategy.keep_states_of([*earlier, latest.client_versions])\n"
        "    self._tidy(state)",
        "strategy.keep_states_of([latest.client_versions])\n"
        "    self._tidy(state)\n"
        "    latest.save(self._folder)",
        kinds=STOPS,
        methods=STATEFUL,
    ),
    Bug(
        "checkpoints pile up",
        "fedsuite.callbacks.checkpoint_writer:CheckpointWriter._tidy",
        "[: -self._keep]",
        "[:0]",
    ),
    Bug(
        "a checkpoint names versions one checkpoint old",
        "fedsuite.rounds.checkpoint:Checkpoint.capture",
        "client_versions=dict(state.strategy.client_versions)",
        "client_versions=dict([state.strategy.client_versions, *earlier_versions][-1])",
        methods=STATEFUL,
    ),
    Bug(
        "stages forget what they remembered",
        "fedsuite.rounds.round:RoundStrategy.restore_states",
        "for stage in self.keepers():",
        "for stage in ():",
        kinds=STOPS,
        methods=("momentum",),
    ),
    Bug(
        "replies that wait are doubled by a resume",
        "fedsuite.strategies.averaging.fedbuff:FedBuff.restore",
        "held_of(arrays, columns)",
        "held_of(arrays, columns) * 2",
        kinds=STOPS,
        methods=LATE,
    ),
    Bug(
        "one reply that waits is not in the checkpoint",
        "fedsuite.strategies.averaging.fedbuff:FedBuff.state",
        "state_of(self.held)",
        "state_of(self.held[:-1])",
        kinds=STOPS,
        methods=LATE,
    ),
    Bug(
        "a late reply counts as a model, not as a change",
        "fedsuite.strategies.averaging.fedbuff:FedBuff._hold",
        "if began != self.server_round:",
        "if False:",
        methods=("fedbuff-real",),
    ),
    Bug(
        "a second reply ends a run with late replies",
        "fedsuite.rounds.outstanding:Outstanding.pull",
        "self._sent.pop(message_id, None)",
        "self._sent.pop(message_id)",
        kinds=frozenset({"twice-reply"}),
        methods=("fedbuff-real",),
    ),
    Bug(
        "refused messages are forgotten",
        "fedsuite.rounds.outstanding:Outstanding.push",
        "self._refused += [",
        "_ = [",
        kinds=frozenset({"refused", "push-fails"}),
        methods=("fedbuff-real",),
    ),
    Bug(
        "a reply to another round counts",
        "fedsuite.rounds.exchange:ReplyReader._take",
        "if group_id != self.group_id and",
        "if False and",
        kinds=frozenset({"old-group", "other-run"}),
    ),
    Bug(
        "a second reply counts again",
        "fedsuite.rounds.exchange:ReplyReader._take",
        "self._reject(client_id, second)",
        "self._waiting.insert(0, client_id); self._settle(client_id, outcome)",
        kinds=frozenset({"twice-reply"}),
    ),
    Bug(
        "a reply that never comes leaves no event",
        "fedsuite.rounds.exchange:ReplyReader._lacking",
        "self._settle(client_id, BadReply(Kind.LATE, self.no_reply))",
        "pass",
        kinds=frozenset({"lose", "lose-reply", "late", "old-group", "other-run"}),
    ),
    Bug(
        "deadlines go by the wall clock",
        "fedsuite.workarounds.prompt_grid:PromptGrid._replies",
        "time.monotonic()",
        "time.time() - 1.8e9",
        kinds=frozenset({"clock"}),
    ),
    Bug(
        "a round steps below its quorum",
        "fedsuite.rounds.quorum:Quorum.check",
        "if good < self.needed:",
        "if good < self.needed - 1:",
    ),
    Bug(
        "means of metrics have no weights",
        "fedsuite.rounds.report:PhaseReport.means",
        'means = mean_metrics(rows, "num_examples")',
        'means = mean_metrics([{**r, "num_examples": 1.0} for r in rows], "num_examples")',
    ),
    Bug(
        "a file store drops newer versions",
        "fedsuite.training.store:FileStore.save",
        "and is_older(path.stem, version)",
        "and path.stem != version",
        kinds=STOPS | {"reorder", "late", "twice-request"},
        methods=STATEFUL,
    ),
    Bug(
        "a store in memory drops all that a message does not need",
        "fedsuite.training.store:MemoryStore.save",
        "if is_older(other, version)",
        "if other != version",
        kinds=STOPS | {"reorder", "late", "twice-request"},
        methods=STATEFUL,
    ),
    Bug(
        "the best model of a lost round stays",
        "fedsuite.callbacks.best_model:BestModel.on_start",
        "self._write()",
        "pass",
        kinds=STOPS,
    ),
    Bug(
        "the ledger is not written",
        "fedsuite.rounds.release_ledger:ReleaseLedger.add",
        "if self._path is not None:",
        "if False:",
        methods=NOISE,
    ),
    Bug(
        "the ledger begins anew with each server",
        "fedsuite.rounds.release_ledger:ReleaseLedger._read",
        "read_bytes(path).decode().splitlines()",
        "[]",
        kinds=STOPS,
        methods=NOISE,
    ),
    Bug(
        "a damaged entry of the ledger counts",
        "fedsuite.rounds.release_ledger:ReleaseLedger._read",
        "if line != _line(entry, before):",
        "if False:",
        kinds=frozenset({"flip"}),
        methods=NOISE,
    ),
    Bug(
        "the final model is that of the round before",
        "fedsuite.callbacks.final_model:FinalModel.on_round_end",
        "if report.server_round == state.num_rounds:",
        "if report.server_round >= state.num_rounds - 1:",
    ),
    Bug(
        "nodes that are gone are kept",
        "fedsuite.rounds.membership:Directory._greet",
        "for n, p in self._partitions.items() if n in present",
        "for n, p in self._partitions.items()",
        kinds=frozenset({"leave"}),
    ),
    Bug(
        "all masks are zero",
        "fedsuite.messages.secure_sums:mask",
        "cipher.update(bytes(num_bytes))",
        "bytes(num_bytes)",
        masks=True,
    ),
    Bug(
        "a sum is not asked whether its words add up",
        "fedsuite.rounds.secure_sums:SecureSums.rest",
        "and is_whole(total, terms)",
        "",
        kinds=frozenset({"nan"}),
        masks=True,
    ),
    Bug(
        "nobody is told who is gone from a sum",
        "fedsuite.rounds.secure_sums:SecureSums._unmasked",
        "k for k in self._sharers if k not in active",
        "k for k in ()",
        masks=True,
    ),
    Bug(
        "a sum's number is the wall clock's alone",
        "fedsuite.rounds.secure_sums:SecureSums._new_terms",
        "self._round.attempt * _PER_ATTEMPT or time.time_ns()",
        "time.time_ns()",
        kinds=frozenset({"clock"}),
        masks=True,
    ),
    Bug(
        "clients keep what a round without a sum has made",
        "fedsuite.rounds.round:RoundStrategy.exchange",
        "reader, messages = self._open(exchange, TRAIN)",
        "self.start_versions = dict(self.client_versions)\n"
        "    reader, messages = self._open(exchange, TRAIN)",
        methods=STATEFUL,
        masks=True,
    ),
    Bug(
        "a lost SuperLink ends a run without the command to go on",
        "fedsuite.running.server:_naming_superlink",
        "if not isinstance",
        "if isinstance",
        kinds=frozenset(LINK_KINDS),
    ),
)


@contextmanager
def planted(bug: Bug) -> Iterator[None]:
    """Plant a bug into its function, wherever that is imported, and take it out again."""
    module_name, _, qualified = bug.where.partition(":")
    module = importlib.import_module(module_name)
    owner: Any = module
    *outer, name = qualified.split(".")
    for part in outer:
        owner = getattr(owner, part)
    function = inspect.unwrap(getattr(owner, name))
    function = getattr(function, "__func__", function)
    text = textwrap.dedent(inspect.getsource(function))
    text = text[text.index("def ") :]
    assert bug.text in text, f"{bug.name}: {bug.where} has changed"
    names: dict[str, Any] = {}
    # The text is this repository's own.
    changed = f"from __future__ import annotations\n{text.replace(bug.text, bug.instead)}"
    exec(compile(changed, bug.where, "exec"), function.__globals__ | {}, names)
    other = names[name]
    assert isinstance(other, FunctionType)
    before = function.__code__
    function.__code__ = other.__code__
    # Nor may one code's answers and settings serve the other.
    forget()
    try:
        yield
    finally:
        function.__code__ = before
        forget()


def seeds_needed(bug: Bug, most: int, first: int = 0) -> tuple[int, str]:
    """Return how many seeds show a bug that the clean code does not fail at, and how.

    0 is that none of ``most`` does.
    """
    numbers = iter(range(1, most + 1))
    while True:
        with planted(bug):
            for number in numbers:
                plan = Plan.drawn(first + number - 1)
                if bug.may_show(plan) and (wrong := judge(plan).problems):
                    break
            else:
                return 0, ""
        if not judge(plan).problems:
            return number, wrong[0]


def main() -> int:
    """Write the table of planted bugs, with the number of seeds that each one took."""
    parser = argparse.ArgumentParser(prog="python -m tests.disasters.planted")
    parser.add_argument("--most", type=int, default=2000, help="seeds to try for each")
    parser.add_argument("--only", default="", help="those with these words, known or not")
    given = parser.parse_args()
    logging.disable(logging.CRITICAL)
    with TABLE.open() if TABLE.exists() else open("/dev/null") as file:
        known = {row["bug"]: row for row in csv.DictReader(file)}
    for bug in BUGS:
        seen = bug.name in known and int(known[bug.name]["seeds"]) > 0
        if (seen and not given.only) or given.only not in bug.name:
            continue
        seeds, problem = seeds_needed(bug, given.most)
        kind = problem.partition(":")[0]
        known[bug.name] = {
            "bug": bug.name,
            "where": bug.where,
            "seeds": seeds,
            "seen": kind,
        }
        print(seeds, bug.name, problem[:120], sep="\t", flush=True)
        with TABLE.open("w", newline="") as file:
            writer = csv.DictWriter(
                file, ["bug", "where", "seeds", "seen"], lineterminator="\n"
            )
            writer.writeheader()
            writer.writerows(known.values())
    return int(any(not int(row["seeds"]) for row in known.values()))


if __name__ == "__main__":
    sys.exit(main())
