"""Who takes part: clients, the nodes that they live on, and seeded sampling."""

import hashlib
import logging
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from flwr.app import Message, RecordDict
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid

from fedsuite.core.errors import RunError, one_line
from fedsuite.core.logs import ServerLogger, in_own_run, write_line
from fedsuite.core.rng import numpy_stream
from fedsuite.messages.records import EVALUATION_ONLY, HELLO, TRAINING_ROWS, ConfigValue
from fedsuite.rounds.greeting import ColumnMeans, OwnSide, SiteColumns, facts_of, names_of
from fedsuite.rounds.validation import LARGEST_COUNT
from fedsuite.workarounds.sending import REFUSED

Identity = Literal["node", "partition", "registered"]

logger = ServerLogger(__name__)


@dataclass(frozen=True)
class Members:
    """The clients of the federation and where they are now.

    Parameters
    ----------
    client_ids
        All clients, sorted, those whose node is away included.
    nodes
        Client to node, for clients whose node is connected.
    hosted
        Whether a node may host several clients (the *hosted* layout of the records).
    names
        Client to a name for reports, where it has one beside its number.
    evaluation_only
        Clients that never train.
    """

    client_ids: Sequence[int]
    nodes: Mapping[int, int]
    hosted: bool = False
    names: dict[int, str] = field(default_factory=dict)
    evaluation_only: frozenset[int] = frozenset()

    @cached_property
    def training(self) -> Sequence[int]:
        """The clients that train, sorted."""
        new = self.evaluation_only
        return [k for k in self.client_ids if k not in new] if new else self.client_ids


class Hosts(Mapping[int, int]):
    """Client to node, where client c lives on partition c modulo their number.

    Parameters
    ----------
    by_partition
        Partition to node, of nodes that are there.
    num_partitions, num_clients
        How many there are.
    """

    def __init__(
        self, by_partition: Mapping[int, int], num_partitions: int, num_clients: int
    ) -> None:
        self._by_partition = by_partition
        self._num_partitions = num_partitions
        self._clients = range(num_clients)

    def __getitem__(self, client_id: int) -> int:
        if client_id not in self._clients:
            raise KeyError(client_id)
        return self._by_partition[client_id % self._num_partitions]

    def __iter__(self) -> Iterator[int]:
        return (k for k in self._clients if k % self._num_partitions in self._by_partition)

    def __len__(self) -> int:
        clients, step = self._clients, self._num_partitions
        return sum(len(clients[first::step]) for first in self._by_partition)


def sample_clients(
    client_ids: Sequence[int], count: int, seed: int, server_round: int, purpose: str
) -> list[int]:
    """Draw clients uniformly without replacement, the same ones for the same seed.

    Parameters
    ----------
    client_ids
        All clients, sorted.
    count
        How many to draw; as many as there are, or more, takes all.
    seed, server_round, purpose
        Name of the random stream.

    Returns
    -------
    list of int
        Sorted.
    """
    if count >= len(client_ids):
        return list(client_ids)
    stream = numpy_stream(seed, purpose, server_round)
    chosen = stream.choice(len(client_ids), size=count, replace=False)
    return sorted(client_ids[index] for index in chosen)


AGAIN_S = 30.0
"""Seconds after which a wait says again whom it waits for."""

_POLL_SECONDS = 0.2


class Waiting:
    """A wait for nodes: what is lacking is told at once, when it changes, and now and then.

    Parameters
    ----------
    timeout
        Seconds to wait.
    """

    def __init__(self, timeout: float) -> None:
        self._deadline = time.monotonic() + timeout
        self._told = ""
        self._again = 0.0

    @property
    def over(self) -> bool:
        """Whether the time is up."""
        return time.monotonic() > self._deadline

    def pause(self, connected: int, needed: int, lacking: str = "") -> None:
        """Wait a moment.

        Parameters
        ----------
        connected, needed
            How many nodes are there, and how many are to be.
        lacking
            Who is lacking, where names are known.
        """
        words = (
            f"Waiting for nodes to connect: {connected} connected (minimum required: "
            f"{needed})."
        )
        words += f" Not yet: {lacking}." if lacking else ""
        now = time.monotonic()
        if words != self._told or now >= self._again:
            self._told, self._again = words, now + AGAIN_S
            if in_own_run():
                write_line(words)
            else:
                logger.tell("%s", words)
        time.sleep(_POLL_SECONDS)


class Directory:
    """Finds out which clients there are, and waits for them with a deadline.

    Parameters
    ----------
    identity
        What a client is: ``node`` (Flower's node id), ``partition`` (the node says its
        partition id; client c lives on partition c modulo the number of partitions), or
        ``registered`` (the name and key that the SuperLink knows).
    num_clients
        Number of clients, for ``partition``; None means one client a node.
    connect_timeout
        Seconds to wait for nodes.
    source_hash
        Hash of the code that this side runs; nodes that run other code end the run.
        None skips the check.
    plug_ins
        Fingerprint of code that is not fedsuite's; nodes with other code end the run. None
        skips the check.
    public_fingerprint
        Fingerprint of the public data that this side has; nodes with other data end the
        run. None skips the check.
    site_names
        Names of the clients in order. With ``registered`` client k is the node that the
        SuperLink knows by the k-th name; nodes of other names take no part.
    evaluation_only
        Clients that never train; sites may say so of themselves at the hello.
    """

    def __init__(
        self,
        identity: Identity,
        num_clients: int | None,
        connect_timeout: float,
        source_hash: str | None = None,
        public_fingerprint: str | None = None,
        site_names: Sequence[str] = (),
        plug_ins: str | None = None,
        evaluation_only: Collection[int] = (),
    ) -> None:
        if identity not in ("node", "partition", "registered"):
            raise ValueError(
                f"identity {identity!r}: expected node, partition or registered"
            )
        self._identity = identity
        self.num_clients = num_clients
        self.timeout = connect_timeout
        self._ours = OwnSide(source_hash, plug_ins, public_fingerprint)
        self._columns = SiteColumns()
        self.column_means = ColumnMeans()
        self.facts: dict[int, Mapping[str, ConfigValue]] = {}
        self._names = dict(enumerate(site_names))
        self._new = set(evaluation_only)
        self.training_rows: dict[int, int] = {}
        self._greeted: set[int] | None = None
        self._partitions: dict[int, int] = {}
        self._num_partitions = 0
        self._known_nodes: list[int] = []
        self._hosts: Members | None = None
        self._told_errors: set[tuple[str, str]] = set()

    @property
    def columns_hash(self) -> str:
        """Hash of the columns that all sites have; empty where none has told one."""
        return self._columns.told

    def wait(self, grid: Grid, min_nodes: int) -> Members:
        """Return the members once enough nodes are there.

        Parameters
        ----------
        grid
            Flower's grid.
        min_nodes
            Least number of nodes; at the first call all partitions or named sites.

        Raises
        ------
        RunError
            If they do not come before the deadline, run other code, or have other
            public data or columns.
        """
        if self._identity == "partition":
            return self._wait_for_partitions(grid)
        if self._names and self._identity == "registered":
            return self._wait_for_sites(grid)
        find = self._registered if self._identity == "registered" else self._by_node
        members = find(grid)
        waiting = Waiting(self.timeout)
        while len(members.nodes) < max(min_nodes, 1):
            self._pause(waiting, len(members.nodes), max(min_nodes, 1))
            members = find(grid)
        return members

    def _pause(
        self, waiting: Waiting, connected: int, needed: int, lacking: str = ""
    ) -> None:
        if waiting.over:
            others = f"the others, {lacking}," if lacking else "the others"
            raise RunError(
                f"only {connected} of {needed} SuperNodes connected within "
                f"{self.timeout:g} s: start {others} or raise connect-timeout"
            )
        waiting.pause(connected, needed, lacking)

    @staticmethod
    def _by_node(grid: Grid) -> Members:
        nodes = sorted(grid.get_node_ids())
        return Members(nodes, {node: node for node in nodes})

    @staticmethod
    def _registered(grid: Grid) -> Members:
        nodes: dict[int, int] = {}
        names: dict[int, str] = {}
        for info in grid.get_nodes():
            if not info.public_key:
                raise RunError(
                    f"node {info.node_id} has no registered key: start the SuperLink with "
                    "--enable-supernode-auth, or use identity='node'"
                )
            digest = hashlib.sha256(bytes(info.public_key)).digest()
            client_id = int.from_bytes(digest[:8], "big") >> 1
            nodes[client_id] = info.node_id
            if info.name:
                names[client_id] = info.name
        return Members(sorted(nodes), nodes, names=names)

    def _wait_for_sites(self, grid: Grid) -> Members:
        """Return the named nodes, those that are away too; the first call needs all."""
        nodes = self._nodes_of_sites(grid)
        waiting = Waiting(self.timeout)
        while self._greeted is None and len(nodes) < len(self._names):
            away = ", ".join(name for k, name in self._names.items() if k not in nodes)
            if waiting.over:
                raise RunError(
                    f"sites {away} did not connect within {self.timeout:g} s: "
                    "start their SuperNodes, register them under these names, or raise "
                    "connect-timeout"
                )
            waiting.pause(len(nodes), len(self._names), away)
            nodes = self._nodes_of_sites(grid)
        self._greet_sites(grid, nodes)
        greeted = self._greeted or set()
        nodes = {k: node for k, node in nodes.items() if node in greeted}
        clients, new = range(len(self._names)), frozenset(self._new)
        if not set(clients) - new:
            raise RunError("all sites say that they only evaluate: one must train")
        return Members(clients, nodes, True, self._names, new)

    def _nodes_of_sites(self, grid: Grid) -> dict[int, int]:
        """Return client to node, going by what the SuperLink says and the node cannot."""
        by_name: dict[str, int] = {}
        for info in grid.get_nodes():
            # An unregistered node may call itself what it likes.
            if not info.public_key or info.name not in self._names.values():
                continue
            if info.name in by_name:
                raise RunError(
                    f"two SuperNodes are registered as {info.name}: unregister one of them"
                )
            by_name[info.name] = info.node_id
        return {k: by_name[name] for k, name in self._names.items() if name in by_name}

    def _greet_sites(self, grid: Grid, nodes: Mapping[int, int]) -> None:
        """Say hello to nodes that are new; one that fails is fatal only at the start."""
        first = self._greeted is None
        greeted = (self._greeted or set()) & set(nodes.values())
        clients = {node: k for k, node in nodes.items() if node not in greeted}
        for reply in self._hello(grid, list(clients)):
            client_id = clients.get(reply.metadata.src_node_id)
            if client_id is None:
                logger.warning("a hello was answered by a node that was not asked")
                continue
            name = self._names[client_id]
            try:
                self._judge_site(client_id, name, reply)
            except RunError as error:
                # A node that is gone again has not failed: the next round asks it.
                gone = reply.has_error() and reply.error.code == REFUSED
                if first and not gone:
                    raise
                logger.warning("%s", error)
                continue
            greeted.add(reply.metadata.src_node_id)
            self.facts[client_id] = facts_of(reply)
            self._pin_rows(client_id, self.facts[client_id])
        self.column_means.settle([k for k in self._names if k not in self._new])
        self._tell_means(grid, {n: k for n, k in clients.items() if n in greeted}, greeted)
        self._greeted = greeted

    def _tell_means(
        self, grid: Grid, clients: Mapping[int, int], greeted: set[int]
    ) -> None:
        """Tell new nodes the means of the columns; who does not take them is no member."""
        if self.column_means.scaling is None or not clients:
            return
        hellos = [Message(self.column_means.content(), node, HELLO) for node in clients]
        heard = set()
        for reply in grid.send_and_receive(hellos, timeout=self.timeout):
            if not reply.has_error():
                heard.add(reply.metadata.src_node_id)
        for node, client_id in clients.items():
            if node in heard:
                continue
            greeted.discard(node)
            reason = f"site {self._names[client_id]} did not take the means of the columns"
            if self._greeted is None:
                raise RunError(f"{reason}: its operator finds the cause in its log")
            logger.warning("%s", reason)

    def _pin_rows(self, client_id: int, facts: Mapping[str, ConfigValue]) -> None:
        """Show how many rows a site says that it has; what it says first holds."""
        rows = facts.get(TRAINING_ROWS)
        if not isinstance(rows, int) or not 0 <= rows <= LARGEST_COUNT:
            return
        known = self.training_rows.setdefault(client_id, rows)
        more = f", and counts for {known}, which it said first" if rows > known else ""
        logging.getLogger(__name__).info(
            "site %s has %d training rows%s", self._names[client_id], rows, more
        )

    def _judge_site(self, client_id: int, name: str, reply: Message) -> None:
        if reply.has_error():
            raise RunError(
                f"site {name} failed the hello ({one_line(reply.error.reason)}): its "
                "operator finds the cause in its log"
            )
        facts = facts_of(reply)
        reason = self._ours.refusal(facts) or self._columns.refusal(name, facts)
        if reason := reason or self._changed_sides(client_id, facts):
            raise RunError(f"site {name} {reason}")
        if client_id in self._new:
            logging.getLogger(__name__).info("site %s only evaluates", name)
            return
        self.column_means.take(client_id, name, facts, facts.get(TRAINING_ROWS))

    def _changed_sides(self, client_id: int, facts: Mapping[str, ConfigValue]) -> str:
        """Note whether a site only evaluates; return what is wrong if it has trained."""
        if not facts.get(EVALUATION_ONLY):
            return ""
        if client_id in self.facts and client_id not in self._new:
            return (
                "says that it only evaluates, and it has trained in this run: its scores "
                "would not be a new site's"
            )
        self._new.add(client_id)
        return ""

    def _hello(self, grid: Grid, nodes: Sequence[int]) -> Iterable[Message]:
        if not nodes:
            return []
        hellos = [Message(RecordDict(), node, HELLO) for node in nodes]
        return grid.send_and_receive(hellos, timeout=self.timeout)

    def _wait_for_partitions(self, grid: Grid) -> Members:
        connected = sorted(grid.get_node_ids())
        # Most rounds nobody comes or goes, and clients may be very many.
        num_clients = self.num_clients or self._num_partitions
        same = connected == self._known_nodes
        if self._hosts and same and len(self._hosts.client_ids) == num_clients:
            return self._hosts
        first = self._num_partitions == 0
        waiting = Waiting(self.timeout)
        while True:
            self._greet(grid, connected)
            # A SuperNode that came back has a new node id.
            here = {partition: node for node, partition in self._partitions.items()}
            needed = max(self._num_partitions, 1)
            if here and (len(here) >= needed or not first):
                break
            away = [str(p) for p in range(self._num_partitions) if p not in here]
            lacking = f"partitions {', '.join(away)}" if away else ""
            self._pause(waiting, len(here), needed, lacking)
            connected = sorted(grid.get_node_ids())
        num_clients = self.num_clients or self._num_partitions
        nodes = Hosts(here, self._num_partitions, num_clients)
        self._known_nodes = sorted(self._partitions)
        clients = range(num_clients)
        self._hosts = Members(clients, nodes, True, self._names, frozenset(self._new))
        return self._hosts

    def _greet(self, grid: Grid, connected: Sequence[int]) -> None:
        """Ask nodes that are new for their partition; forget nodes that are gone."""
        present = set(connected)
        # In the order in which they came: the newest node of a partition wins.
        self._partitions = {n: p for n, p in self._partitions.items() if n in present}
        strangers = [node for node in connected if node not in self._partitions]
        called = names_of(grid)
        for reply in self._hello(grid, strangers):
            node_id = reply.metadata.src_node_id
            if reply.has_error():
                self._judge_error(called(node_id), reply)
                continue
            facts = facts_of(reply)
            if reason := self._ours.refusal(facts):
                raise RunError(f"{called(node_id)} {reason}")
            partition, total = facts.get("partition-id"), facts.get("num-partitions")
            if not (isinstance(partition, int) and isinstance(total, int)) or not (
                0 <= partition < total
            ):
                raise RunError(
                    f"{called(node_id)} names no partition: start it with "
                    "--node-config 'partition-id=... num-partitions=...'"
                )
            if self._partitions and total != self._num_partitions:
                raise RunError(
                    f"{called(node_id)} says {total} partitions, others "
                    f"say {self._num_partitions}: start all with the same num-partitions"
                )
            self._num_partitions = total
            self._partitions[node_id] = partition

    def _judge_error(self, who: str, reply: Message) -> None:
        reason = one_line(reply.error.reason)
        if reply.error.code == ErrorCode.CLIENT_APP_RAISED_EXCEPTION:
            raise RunError(
                f"{who} failed the hello ({reason}): fix that "
                "node, or use identity='node' where its app is not fedsuite's"
            )
        # A node may be asked several times in a second.
        if (who, reason) not in self._told_errors:
            self._told_errors.add((who, reason))
            logger.warning("%s did not answer the hello: %s", who, reason)
