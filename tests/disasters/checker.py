"""Judges a run from outside: by what it left, and by what the network carried."""

import json
import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsuite.core.errors import FedsuiteError
from fedsuite.core.files import safetensors_arrays
from fedsuite.messages.records import ARRAYS, TRAIN
from fedsuite.messages.versions import exchange_of
from fedsuite.results.writer import CHECKPOINTS
from fedsuite.rounds.checkpoint import Checkpoint, list_checkpoints
from fedsuite.training.store import FileStore
from tests.disasters.network import round_of
from tests.disasters.play import Played
from tests.disasters.world import NUM_CLIENTS, NUM_ROUNDS, STAGES, TIMEOUT_S

Arrays = Mapping[str, NDArray[Any]]
Row = dict[str, Any]

STOPS = (
    *("rounds in a row had fewer", "rounds in a row had no good", "SuperNodes connected"),
    *("No space left", "Input/output error", "other fedsuite code"),
    # All who answered the first question lack the model: they run another app.
    *("array record 'arrays' is missing", "array record 'secure-sum' is missing"),
)
"""What a run may stop with, of all that happens here."""

OF_TABLES = {"rest:rounds", "rest:clients", "rest:events", "rest:summary"}
"""Files at rest in which a digit that changes is another digit."""

_TOLD_OF_ANOTHER = (
    *("in use", "exists and is not empty"),
    # The other one was faster, and has finished the run.
    "no checkpoint to go on from, and they would be lost",
)
"""What a server is told whose folder another one has."""

_OF_A_LIAR = ("the lists are not", "stands there twice", "keys were changed")
"""What clients answer to a server that tells them another story of a sum."""

UNREADABLE = (FedsuiteError, OSError, ValueError, LookupError, TypeError)
"""What reading a run's folder may raise that is damaged."""

FEWEST = 3
"""Clients below which a sum tells one of them what another sent."""

BY_BITS = ("feddc", "ifca", "fedeba-plus")
_MEASURED = ("num-examples", "num-steps", "loss", "accuracy")
_SCORES = ("loss", "accuracy")
LATE = ("fedbuff", "fedbuff-real")


def rows_of(folder: Path, name: str) -> list[Row]:
    """Return the rows of a table."""
    path = folder / f"{name}.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return [json.loads(line) for line in lines]


def is_close(arrays: Arrays, wanted: Arrays, atol: float = 1e-6) -> bool:
    """Return whether arrays are what an independent sum gives."""
    return all(
        np.allclose(arrays[n], wanted[n], rtol=5e-6, atol=atol, equal_nan=True)
        for n in wanted
    )


def mean_of(models: Sequence[Arrays], weights: Sequence[float]) -> Arrays:
    """Return a weighted mean in double precision."""
    shares = np.asarray(weights, dtype=np.float64) / np.sum(weights)
    return {
        name: sum(
            s * m[name].astype(np.float64) for s, m in zip(shares, models, strict=True)
        )
        for name in models[0]
    }


def delta_of(epsilon: float, releases: int, noise: float) -> float:
    """Return the delta of so many releases with Gaussian noise (Balle and Wang, 2018)."""
    mu = math.sqrt(releases) / noise

    def normal(x: float) -> float:
        return math.erfc(-x / math.sqrt(2)) / 2

    beyond = math.exp(epsilon) * normal(-mu / 2 - epsilon / mu)
    return normal(mu / 2 - epsilon / mu) - beyond


def problems(played: Played) -> list[str]:
    """Return all that is wrong."""
    kinds = set(played.world.fired.values())
    if kinds & {"lost-state", "old-state"} and played.crash.startswith("stuck"):
        # Of a lost state no run can know; it says so, and how to go back.
        return [] if "cannot be read" in played.crash else [f"crash: {played.crash}"]
    if played.crash:
        return [f"crash: {played.crash.strip().splitlines()[-1]}"]
    known = list(STOPS)
    if not all(second.late for second in played.second):
        known += _TOLD_OF_ANOTHER
    wrong = [f"left: {name}" for name in played.left]
    # Who changes a file has locked the folder. Who comes before that may have it and leave.
    late = [second.words for second in played.second if second.late]
    wrong += [f"second: {words}" for words in late if not _refused(words)]
    flipped = {p.partition(" ")[0] for p, k in played.world.fired.items() if k == "flip"}
    if flipped & OF_TABLES:
        # No hash guards a table: what one says is checked, what it says wrongly is not.
        wrong = [problem for problem in wrong if problem.startswith("left")]
        wrong += [f"stop: more than a line: {s!r}" for s in played.stops if "\n" in s]
        with suppress(*UNREADABLE):
            wrong += _Checker(played).files()
        return wrong
    attempts = played.attempts
    if "rest:manifest" not in flipped and attempts != sorted(attempts):
        wrong += [f"attempts: {attempts} do not rise"]
    if not flipped:
        stops = [s for s in played.stops if not any(words in s for words in known)]
        wrong += [f"stop: {stop}" for stop in stops]
    wrong += [f"stop: no command: {s}" for s in played.failures if "resume=true" not in s]
    lines = [*played.stops, *played.failures]
    wrong += [f"stop: more than a line: {s!r}" for s in lines if "\n" in s]
    try:
        return [*wrong, *_Checker(played).problems()]
    except UNREADABLE as error:
        return [*wrong, f"unreadable: {error}"]


def _refused(words: str) -> bool:
    """Return whether a second server was told that the folder is another's."""
    return any(told in words for told in _TOLD_OF_ANOTHER)


class _Checker:
    """Recomputes a run that is finished."""

    def __init__(self, played: Played) -> None:
        self.played = played
        self.plan = played.world.plan
        self.wire = played.wire
        self.folder = played.folder
        self.kinds = set(played.world.fired.values())
        self.rounds = rows_of(self.folder, "rounds")
        self.clients = rows_of(self.folder, "clients")
        self.events = rows_of(self.folder, "events")
        data = (self.folder / "model.safetensors").read_bytes()
        self.unseen: set[int] = set()
        """Rounds whose model travelled to nobody: late replies may have changed it."""
        self.models: dict[int, Arrays] = {NUM_ROUNDS + 1: safetensors_arrays(data)[0]}
        paths = list_checkpoints(self.folder / CHECKPOINTS)
        self.last = Checkpoint.load(paths[-1]) if paths else None
        self.quorum = int(self.plan.keys.get("quorum", 1))
        self.sums = self.plan.keys.get("secure-aggregation", "off")
        # Keys and shares travel before what is trained.
        self.train_exchange = 1 + 2 * self.plan.has_masks
        self.rejected: dict[tuple[int, str], set[Any]] = defaultdict(set)
        for event in self.events:
            if event["kind"] == "rejected-reply":
                self.rejected[event["round"], event["phase"]].add(event["client"])
        # Where most replies of a round are long, its rows blame nobody.
        self.bounded = {
            event["round"]
            for event in self.events
            if event["kind"] == "bounded-reply" and event["phase"] == "train"
        }

    def problems(self) -> Iterator[str]:
        """Yield what is wrong."""
        told = [row["round"] for row in self.rounds]
        if told != list(range(1, NUM_ROUNDS + 1)):
            yield f"rounds: {told}"
            return
        yield from self.files()
        yield from self._tables()
        for server_round in range(NUM_ROUNDS, 0, -1):
            # Without messages, a round has the next one's model.
            train = self.wire.sent.get(("train", server_round))
            sent = train or self.wire.sent.get(("evaluate", server_round - 1))
            later = self.models[server_round + 1]
            self.models[server_round] = sent["arrays"] if sent else later
            if not sent:
                self.unseen.add(server_round)
        if self.plan.method in LATE:
            yield from self._late_models()
        elif self.plan.method not in BY_BITS:
            yield from self._models()
        yield from self._metrics()
        yield from self._best()
        yield from self._ledger()
        yield from self._secrets()

    def files(self) -> Iterator[str]:
        """Yield what is wrong with files that have hashes, and with what is left over."""
        if left := [path.name for path in self.folder.rglob(".*.tmp")]:
            yield f"left: {left}"
        checkpoints = list_checkpoints(self.folder / CHECKPOINTS)
        # A deletion that was not flushed may be lost, until the next server tidies up.
        if len(checkpoints) > 2 + ("power" in self.kinds):
            yield f"grown: {len(checkpoints)} checkpoints"
        every = self.plan.keys.get("checkpoint-every", 1)
        if every and (self.last is None or self.last.server_round != NUM_ROUNDS):
            yield f"checkpoint: the last is of round {self.last and self.last.server_round}"
        if self.last is not None and self.last.server_round == NUM_ROUNDS:
            final = self.models[NUM_ROUNDS + 1]
            if not all(np.array_equal(self.last.arrays[n], final[n]) for n in final):
                yield "final: model.safetensors is not the last checkpoint's"
        for folder in self.played.states.glob("*"):
            # Those of two checkpoints, what was sent since, and one by a repeated message.
            if len(list(folder.glob("*.safetensors"))) > 6:
                yield f"grown: {len(list(folder.iterdir()))} states of client {folder.name}"

    def _tables(self) -> Iterator[str]:
        keys = Counter((c["round"], c["phase"], c["client"]) for c in self.clients)
        if twice := [key for key, count in keys.items() if count > 1]:
            yield f"twice: rows {twice}"
        counted = Counter((c["round"], c["phase"]) for c in self.clients)
        for row in self.rounds:
            trained = counted[row["round"], "train"]
            if row["clients_trained"] != trained:
                yield f"rows: round {row['round']} has {trained} of its clients"
            rejected = [
                e
                for e in self.events
                if e["round"] == row["round"] and e["kind"] == "rejected-reply"
            ]
            if row["replies_rejected"] != len(rejected):
                yield f"rows: round {row['round']} has {len(rejected)} of its events"

    def _rows(self, server_round: int, phase: str) -> list[Row]:
        wanted = server_round, phase
        return [c for c in self.clients if (c["round"], c["phase"]) == wanted]

    def _heard(self, kind: str, server_round: int) -> dict[int, list[Any]]:
        """Return the replies to a round's exchange, of whichever attempt.

        Of what goes into a sum, it is what the clients trained.
        """
        heard: dict[int, list[Any]] = {}
        number = self.train_exchange if kind == TRAIN else 1
        for (known, group), replies in self.wire.got.items():
            if known != kind or exchange_of(group) != f"{server_round}.{number}":
                continue
            heard.update(replies)
            if self.sums != "off":
                heard.update({k: [self._trained(group, k)] for k in replies})
        return heard

    def _trained(self, group: str, client_id: int) -> tuple[Any, Any]:
        """Return what a client trained, its change scaled into the range of a sum."""
        reply = self.wire.trained[group, client_id]
        limit = float(self.plan.keys["clipping-range"])
        old = self.models[round_of(group)]
        moves = {n: a.astype(np.float64) - old[n] for n, a in reply.arrays[ARRAYS].items()}
        scale = limit / max(limit, *(float(np.abs(m).max()) for m in moves.values()))
        scaled = {n: old[n] + scale * move for n, move in moves.items()}
        return {**reply.arrays, ARRAYS: scaled}, reply.metrics

    def _opens(self, server_round: int, accepted: Collection[int]) -> bool:
        """Return whether a round's sum has enough clients at each stage, and no liar."""
        groups = {g for k, g in self.wire.got if round_of(g) == server_round}
        if any((g, k) in self.wire.tampered for g in groups for k in accepted):
            return False
        # Who is not connected is asked too, and nothing travels.
        sent_to = self._of_exchange(self.wire.asked, server_round, 1)
        asked = len(sent_to | self.rejected[server_round, "train"] - {None})
        opening = self.train_exchange + 1 if self.plan.has_masks else self.train_exchange
        openers = self._of_exchange(self.wire.got, server_round, opening)
        # Above two thirds of those who were asked.
        return 3 * min(len(accepted), len(openers)) > 2 * asked

    def _of_exchange(
        self, table: Mapping[Any, Collection[int]], server_round: int, number: int
    ) -> set[int]:
        """Return the clients of an exchange of a round, of whichever attempt."""
        name = f"{server_round}.{number}"
        known = [v for (_, group), v in table.items() if exchange_of(group) == name]
        return {client_id for clients in known for client_id in clients}

    # ------------------------------------------------------------------------ the models

    def _models(self) -> Iterator[str]:
        control: dict[str, Any] = {}
        own: dict[int, dict[str, Any]] = {}
        velocity: dict[str, Any] = {}
        for server_round in range(1, NUM_ROUNDS + 1):
            rows = self._rows(server_round, "train")
            heard = self._heard("train", server_round)
            accepted = {row["client"] for row in rows}
            for (kind, group), asked in self.wire.asked.items():
                if kind not in STAGES or round_of(group) != server_round:
                    continue
                # Before and after what is trained, who answered has said enough.
                heard_of = accepted if kind == TRAIN else set(self.wire.got[kind, group])
                if lost := asked - heard_of - self.rejected[server_round, "train"]:
                    yield f"silent: round {server_round}: nothing of {sorted(lost)}"
            if ghosts := accepted - set(heard):
                yield f"ghost: round {server_round}: replies of {sorted(ghosts)} never came"
                continue
            if any(not _alike(heard[client]) for client in accepted):
                yield f"two-bits: round {server_round}: copies of one reply differ"
            old, new = self.models[server_round], self.models[server_round + 1]
            replies = [heard[row["client"]][0] for row in rows]
            counts = len(rows) >= self.quorum and bool(rows)
            if self.sums != "off":
                counts = counts and self._opens(server_round, accepted)
                yield from self._summed(self.rounds[server_round - 1], replies, counts)
            if self.plan.method == "noise":
                continue
            wanted = old
            back = self.rounds[server_round - 1].get("went_back_to")
            if back is not None:
                counts, wanted = False, self.models[int(back) + 1]
            if counts:
                wanted = self._function(old, rows, replies)
            if counts and self.plan.method == "momentum":
                step = {n: wanted[n] - old[n].astype(np.float64) for n in wanted}
                velocity = {n: 0.5 * velocity.get(n, 0.0) + step[n] for n in step}
                wanted = {n: old[n] + velocity[n] for n in step}
            if server_round in self.bounded:
                return
            if not is_close(new, wanted):
                yield f"model: round {server_round} is not the function of its replies"
            if back is not None and self.plan.method in ("scaffold", "momentum"):
                return  # the server's memory went back too
            if self.plan.method == "scaffold" and counts:
                for row, (arrays, _) in zip(rows, replies, strict=True):
                    change = arrays["control-change"]
                    control = {n: control.get(n, 0.0) + change[n] for n in change}
                    mine = own.setdefault(row["client"], {})
                    own[row["client"]] = {n: mine.get(n, 0.0) + change[n] for n in change}
            sent = self.wire.sent.get(("train", server_round + 1), {}).get("control")
            mean = {n: control[n] / NUM_CLIENTS for n in control}
            # Words of control variates have a wider range.
            if sent and not is_close(sent, mean, 1e-6 if self.sums == "off" else 2e-5):
                yield f"control: round {server_round + 1} sent another c"
        if self.plan.method == "scaffold" and "lost-state" not in self.kinds:
            yield from self._states(own)

    def _function(
        self, old: Arrays, rows: Sequence[Row], replies: Sequence[tuple[Any, Any]]
    ) -> Arrays:
        """Return the method's new model, before a step of the server's optimiser."""
        models = [arrays["arrays"] for arrays, _ in replies]
        if self.plan.method == "scaffold":
            return mean_of(models, [1.0] * len(models))
        if self.plan.method != "qffl":
            return mean_of(models, [metrics["num-examples"] for _, metrics in replies])
        # T. Li et al., Algorithm 2, with q = 1.
        losses = [metrics["loss-before"] + 1e-10 for _, metrics in replies]
        rate = 1.0 / float(np.median([metrics["learning-rate"] for _, metrics in replies]))
        steps = [
            {n: rate * (old[n].astype(np.float64) - model[n]) for n in model}
            for model in models
        ]
        lengths = [sum(float(np.sum(a * a)) for a in step.values()) for step in steps]
        divisor = sum(g + rate * f for g, f in zip(lengths, losses, strict=True))
        moved = {
            n: sum(f * step[n] for f, step in zip(losses, steps, strict=True)) for n in old
        }
        return {n: old[n] - moved[n] / divisor for n in old}

    def _summed(
        self, row: Row, replies: Sequence[tuple[Any, Any]], counts: bool
    ) -> Iterator[str]:
        """Check what a round's row says of its sum."""
        examples = sum(metrics["num-examples"] for _, metrics in replies)
        wanted = (len(replies), examples) if counts else (None, None)
        told = row.get("summed_clients"), row.get("summed_examples")
        if told != wanted:
            yield f"metric: round {row['round']}: a sum of {told}, not of {wanted}"

    def _secrets(self) -> Iterator[str]:
        """Check that nothing left a client but under masks, and that no sum opens twice."""
        if not self.plan.has_masks:
            return
        for event in self.events:
            if any(words in str(event.get("reason")) for words in _OF_A_LIAR):
                yield f"secret: clients refuse what the server tells: {event['reason']}"
        vectors: dict[Any, set[bytes]] = defaultdict(set)
        opened: dict[Any, set[Any]] = defaultdict(set)
        for said in self.wire.of_sums:
            who = f"client {said.client_id} in {said.group}"
            if said.more:
                yield f"secret: {who} sends {said.more} beside its vector"
            if said.kind == TRAIN and "body" in said.arrays:
                vectors[said.session, said.client_id].add(_bytes(said.arrays))
                if _is_bare(said.arrays["body"]):
                    yield f"secret: the vector of {who} has no mask"
            elif said.kind == STAGES[-1]:
                opened[said.session].add(said.lists)
        for (_, client_id), copies in vectors.items():
            if len(copies) > 1:
                yield f"secret: client {client_id} sends two vectors under one mask"
        for session, lists in opened.items():
            if len(lists) > 1:
                yield f"secret: sum {session} is opened for {sorted(lists)}"
            for active, gone in lists:
                both = sorted({*active} & {*gone})
                if both or 2 * len(active) <= len({*active, *gone}) or len(active) < FEWEST:
                    yield f"secret: sum {session} is opened of {active}, without {gone}"

    def _states(self, own: Mapping[int, Arrays]) -> Iterator[str]:
        """Compare what the clients keep with the sum of what they sent."""
        if self.last is None or self.last.server_round != NUM_ROUNDS:
            return
        store = FileStore(self.played.states)
        for client_id, vector in own.items():
            version = self.last.client_versions.get(client_id, "")
            try:
                kept = store.load(client_id, version)
            except FedsuiteError:
                if not self.kinds & {"old-state", "flip"}:
                    yield f"state-lost: client {client_id} has no {version!r}"
                continue
            named = {n.split("/")[-1]: array for n, array in kept.items()}
            if not all(
                np.allclose(named[n], vector[n], rtol=1e-3, atol=1e-5) for n in vector
            ):
                yield f"state: {version} of {client_id} is not the sum of its changes"

    def _late_models(self) -> Iterator[str]:
        """Check rounds whose replies come in any later one."""
        counted: Counter[tuple[int, int]] = Counter()
        for server_round in range(1, NUM_ROUNDS + 1):
            rows, replies = self._rows(server_round, "train"), []
            old = self.models[server_round]
            for row in rows:
                began = server_round - int(row["staleness"])
                counted[began, row["client"]] += 1
                heard = self._heard("train", began).get(row["client"])
                if heard is None:
                    yield f"ghost: round {server_round}: {row['client']} of {began}"
                    return
                replies.append((began, heard[0]))
            wanted = old
            if rows and len(rows) >= self.quorum:
                moved = []
                for began, (arrays, _) in replies:
                    share = (1 + server_round - began) ** -0.5
                    start = self.models[began]
                    change = {
                        n: a.astype(np.float64) - start[n]
                        for n, a in arrays["arrays"].items()
                    }
                    moved.append({n: old[n] + share * change[n] for n in change})
                wanted = mean_of(moved, [m["num-examples"] for _, (_, m) in replies])
            back = self.rounds[server_round - 1].get("went_back_to")
            if server_round in self.bounded or back is not None:
                return
            if self.unseen & {server_round, server_round + 1}:
                continue
            if not is_close(self.models[server_round + 1], wanted):
                yield f"model: round {server_round} is not the function of its replies"
        if again := [key for key, count in counted.items() if count > 1]:
            yield f"twice: replies counted again {again}"
        # A server that goes on asks anew those who were at work for the one that died.
        for (kind, group), refused in self.wire.refused.items():
            server_round = int(group.split(".")[0])
            if kind == "train" and refused - self.rejected[server_round, "train"]:
                yield f"silent: round {server_round}: nothing of refused {sorted(refused)}"
        if self.plan.method == "fedbuff-real" and self.played.world.attempt == 1:
            yield from self._silent(counted)

    def _silent(self, counted: Counter[tuple[int, int]]) -> Iterator[str]:
        """Tell clients that were asked, and have neither row nor event nor wait."""
        heard_of: Counter[Any] = Counter(client for _, client in counted.elements())
        if self.last is not None:
            heard_of.update(self.last.states["method"]["scalars"].get("clients", []))
        heard_of.update(e["client"] for e in self.events if e["phase"] == "train")
        for key, asked in self.wire.asked.items():
            if (
                key[0] == "train"
                and self.wire.sent_at[key] + TIMEOUT_S < self.wire.trained_at
            ):
                heard_of.subtract(asked)
        if lost := [client for client, count in heard_of.items() if count < 0]:
            yield f"silent: {lost} were asked, and there is neither row nor event"

    # ------------------------------------------------------------------------- the others

    def _metrics(self) -> Iterator[str]:
        """Recompute what a round's row says of its clients' rows, and those of the wire."""
        for row in self.rounds:
            wanted = {**self._means(row["round"]), **self._over_clients(row["round"])}
            for name, value in wanted.items():
                told = row.get(name)
                if told is None or not np.isclose(told, value, rtol=1e-9, atol=1e-12):
                    yield f"metric: round {row['round']}: {name} {told}, not {value}"
            for phase in ("train", "evaluate"):
                for client in self._rows(row["round"], phase):
                    # Of an earlier round, where replies may wait.
                    began = row["round"] - int(client.get("staleness", 0))
                    heard = self._measured(phase, began, client["client"])
                    # Of replies that count later the rows of models tell.
                    unknown = not heard and phase == "evaluate"
                    if unknown or (heard and not any(_says(m, client) for m in heard)):
                        yield f"metric: round {row['round']}: nobody sent {client}"

    def _means(self, server_round: int) -> dict[str, float]:
        """Return the means in which clients weigh by their examples."""
        wanted = {}
        phases = {"train": ["loss", "num_steps"], "evaluate": ["loss", "accuracy"]}
        for phase, names in phases.items():
            clients = self._rows(server_round, phase)
            if clients:
                total = sum(c["num_examples"] for c in clients)
                wanted[f"{phase}_num_examples"] = total
            for name in names:
                having = [c for c in clients if isinstance(c.get(name), float)]
                if len(having) < len(clients) or not having:
                    continue
                weights = np.array([c["num_examples"] for c in having])
                values = np.array([c[name] for c in having])
                wanted[f"{phase}_{name}"] = float(np.sum(weights * values) / weights.sum())
        return wanted

    def _over_clients(self, server_round: int) -> dict[str, float]:
        """Return the measures in which each client that was evaluated counts once."""
        clients = self._rows(server_round, "evaluate")
        whole = all(isinstance(c.get(n), float) for c in clients for n in _SCORES)
        if not clients or not whole:
            return {}
        scores = [c["accuracy"] for c in clients]
        return {
            "evaluate_loss_median": float(np.median([c["loss"] for c in clients])),
            "accuracy_mean": float(np.mean(scores)),
            "accuracy_median": float(np.median(scores)),
            "accuracy_worst10": min(scores),
            "accuracy_variance": float(np.var(100 * np.array(scores))),
        }

    def _measured(self, phase: str, server_round: int, client_id: int) -> list[Any]:
        return [
            metrics
            for (kind, group), replies in self.wire.got.items()
            if kind == phase and group.startswith(f"{server_round}.")
            for _, metrics in replies.get(client_id, [])
        ]

    def _best(self) -> Iterator[str]:
        path = self.folder / "best-model.safetensors"
        if not self.plan.keys.get("best-model-metric") or not path.exists():
            return
        arrays, note = safetensors_arrays(path.read_bytes())
        choice = json.loads(note)
        row = self.rounds[choice["round"] - 1]
        if row.get("accuracy_mean") != choice["value"]:
            yield f"best: {choice}, and the round has {row.get('accuracy_mean')}"
        # A method whose model travels otherwise is judged by bits.
        model = self.models[choice["round"] + 1]
        if self.plan.method not in BY_BITS and not is_close(arrays, model):
            yield f"best: it is not the model of round {choice['round']}"

    def _ledger(self) -> Iterator[str]:
        if self.plan.method != "noise":
            return
        for earlier, later in zip(
            self.played.ledgers, self.played.ledgers[1:], strict=False
        ):
            if later[: len(earlier)] != earlier:
                yield "ledger: an entry is gone"
        lines = self.played.ledgers[-1] if self.played.ledgers else []
        entries = [json.loads(line) for line in lines]
        if [entry["release"] for entry in entries] != list(range(1, len(entries) + 1)):
            yield "ledger: its chain is broken"
        # Each model that anybody saw after the first one is a release.
        initial = self.models[1]
        seen = {model for _, model in self.wire.models}
        seen.add(_bytes(self.models[NUM_ROUNDS + 1]))
        seen.discard(_bytes(initial))
        if len(entries) < len(seen):
            yield f"ledger: {len(entries)} entries of {len(seen)} models that were seen"
        for number, entry in enumerate(entries, 1):
            groups = Counter(e["group"] for e in entries[:number])
            shown = delta_of(
                entry["epsilon"], max(groups.values()), entry["noise_multiplier"]
            )
            if shown > entry["delta"] * 1.0001:
                yield f"ledger: epsilon {entry['epsilon']} of release {number} is too low"
        spent = [row["epsilon"] for row in self.rounds if "epsilon" in row]
        if spent and entries and abs(max(spent) - entries[-1]["epsilon"]) > 1e-9:
            yield f"ledger: rounds say epsilon {max(spent)}, it {entries[-1]['epsilon']}"


def _bytes(arrays: Arrays) -> bytes:
    return b"".join(array.tobytes() for array in arrays.values())


def _is_bare(body: NDArray[Any]) -> bool:
    """Return whether a vector is a client's change, as anybody can read it.

    Bare words are so small that those of all clients add up; masked ones may be any.
    """
    return bool(np.mean(body < 2**32 // FEWEST) > 0.9)


def _says(metrics: Mapping[str, Any], row: Row) -> bool:
    """Return whether a reply's metrics are a client's row; NaN is None in a row."""
    named = {name: row.get(name.replace("-", "_")) for name in _MEASURED if name in metrics}
    return all(
        value is None or math.isclose(value, metrics[name], rel_tol=1e-12)
        for name, value in named.items()
    )


def _alike(copies: Sequence[tuple[Any, Any]]) -> bool:
    first = copies[0][0]["arrays"]
    return all(is_close(arrays["arrays"], first) for arrays, _ in copies[1:])
