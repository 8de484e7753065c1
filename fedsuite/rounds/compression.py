"""Compression of what travels: the server's side of ``compress-up`` and ``compress-down``.

Up, a reply is read against the model that was sent, and all else sees what was decoded.

Down, it is the model's step that is coded, and the server takes the decoded step itself:
so its model is the one that clients can have, whoever sends what to whom. What the step
lost is added to the next one. A client that has the model before the step is sent the
step, one that has this model nothing, and any other the whole model. What a client has is
known by its last good reply to a message to train.
"""

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any, ClassVar, Protocol

import numpy as np
from typing_extensions import override

from fedsuite.core.errors import ConfigError
from fedsuite.messages.compression import (
    DOWN,
    FROM,
    STEP,
    UP,
    VERSION,
    CodedModel,
    HalfModel,
    changed,
    coded_names,
    moved,
    not_across,
    packed,
)
from fedsuite.messages.records import ARRAYS, TRAIN, Arrays
from fedsuite.rounds.exchange import Exchange
from fedsuite.rounds.infinite_entries import all_finite
from fedsuite.rounds.round_settings import RoundSettings
from fedsuite.rounds.stage import Stage, State
from fedsuite.rounds.validation import ClientReply


class Round(Protocol):
    """What a round gives the stage."""

    server_round: int


class Compressed(Stage):
    """Codes what travels; a stage of the step, and of each exchange as it is sent.

    Parameters
    ----------
    keys
        The keys, one of which asks for it.
    a_round
        Knows the round's number.
    """

    name: ClassVar[str] = "compression"

    def __init__(self, keys: RoundSettings, a_round: Round) -> None:
        self._up, self._down = keys.codec(UP), keys.codec(DOWN)
        self._round = a_round
        self._version = 0
        self._held: dict[int, int] = {}
        # The model of this version as clients have it; None until it is sent.
        self._model: Arrays | None = None
        # The step to it from the version before; empty where nobody can take it.
        self._step: Arrays = {}
        self._lost: Arrays = {}
        self._sent: list[str] = []
        self._next: tuple[Arrays, Arrays, Arrays] | None = None

    # -------------------------------------------------------------------------------- ask

    def announced(self, exchange: Exchange) -> Exchange:
        """Return an exchange with what its replies are decoded by.

        Raises
        ------
        ConfigError
            If a message to train is not of one model that comes back.
        """
        if exchange.message_type != TRAIN or exchange.expected_of:
            if exchange.message_type == TRAIN:
                self._refuse("clients send back different models")
            return exchange
        sent = exchange.shared.get(ARRAYS)
        if sent is None:
            self._refuse("no shared model is sent")
        assert sent is not None
        config, expected = dict(exchange.config), exchange.expected
        if self._down.is_on:
            self._adopt(sent)
            config[VERSION] = self._version
        if self._up.is_on:
            back = expected.arrays.get(ARRAYS)
            if back is None:
                self._refuse("clients do not send back the model")
            assert back is not None
            own = {name: sent[name] for name in back if name in sent}
            coding = CodedModel(
                self._up,
                own,
                tuple(back),
                tuple(coded_names(own, own)),
                self._round.server_round,
            )
            expected = replace(expected, coding=coding)
        return replace(exchange, config=config, expected=expected)

    def sent(self, exchange: Exchange) -> Exchange:
        """Return an exchange as it is sent: to each client what it lacks of the model."""
        model = exchange.shared.get(ARRAYS)
        known = self._down.is_on and model is not None and list(model) == self._sent
        if not known or model is None or not _same(model, self._model or {}):
            return exchange
        own = dict(exchange.own)
        for client_id in exchange.client_ids:
            record = self._step_from(self._held.get(client_id, -1))
            news = {ARRAYS: model} if record is None else {STEP: record}
            own[client_id] = {**own.get(client_id, {}), **news}
        shared = {name: a for name, a in exchange.shared.items() if name != ARRAYS}
        return replace(exchange, shared=shared, own=own)

    def _step_from(self, held: int) -> Arrays | None:
        """Return what leads from a version to this one; None where nothing small does."""
        version = {FROM: np.array(held)}
        if held == self._version:
            return version
        has_last = held == self._version - 1 and self._step
        return {**version, **self._step} if has_last else None

    def _adopt(self, model: Arrays) -> None:
        """Take note of the model that is sent to train; one that is new is a version."""
        self._sent = list(model)
        if self._model is None or not _same(model, self._model):
            # After a restart it is the checkpoint's, which has this version.
            if self._model is not None or not self._version:
                self._version += 1
                self._step, self._lost = {}, {}
            self._model = dict(model)

    def _refuse(self, why: str) -> None:
        raise ConfigError(
            f"compress-up and compress-down need a method whose clients train one shared "
            f"model and send it back, and here {why}: leave them out"
        )

    # ------------------------------------------------------------------- collect and step

    def accepted(self, exchange: Exchange, reply: ClientReply) -> None:
        """Hear of a good reply: its client has the model that it was sent to train."""
        version = exchange.config.get(VERSION)
        if isinstance(version, int) and reply.stored_state:
            self._held[reply.client_id] = version

    @override
    def step(self, old: Arrays, new: Arrays) -> Arrays:
        self._next = None
        if not self._down.is_on or not all(map(all_finite, new.values())):
            return new
        names = [n for n in coded_names(new, old) if n in self._sent]
        change = changed(new, old, names, self._lost)
        shapes = {name: array.shape for name, array in change.items()}
        # Draws are of the version, which who gets the step knows.
        coded = self._down.encode(change, self._version + 1, 0)
        decoded = self._down.decode(coded, shapes, self._version + 1, 0)
        rest = {n: new[n] for n in self._sent if n not in change}
        taken = {**new, **moved({name: old[name] for name in names}, decoded)}
        lost = not_across(change, decoded) if self._down.feeds_back else {}
        self._next = {n: taken[n] for n in self._sent}, packed(coded, rest), lost
        return taken

    @override
    def counted(self) -> None:
        if self._next is not None:
            self._model, self._step, self._lost = self._next
            self._version += 1
            self._next = None

    @override
    def state(self) -> State:
        return {
            "version": self._version,
            "held-by": list(self._held),
            "held-versions": list(self._held.values()),
            "step": dict(self._step),
            "lost": dict(self._lost),
            "sent": list(self._sent),
        }

    @override
    def restore(self, state: Mapping[str, Any]) -> None:
        self._version = int(state["version"])
        self._held = dict(zip(state["held-by"], state["held-versions"], strict=True))
        self._step, self._lost = dict(state["step"]), dict(state["lost"])
        self._sent, self._model = list(state["sent"]), None


class InBfloat16(Stage):
    """Lets a network's bfloat16 arrays travel as they are, in both directions.

    Parameters
    ----------
    halves
        Their names.
    """

    def __init__(self, halves: Collection[str]) -> None:
        self._coding = HalfModel(frozenset(halves))

    def announced(self, exchange: Exchange) -> Exchange:
        """Return an exchange with what its replies are decoded by."""
        expected = replace(exchange.expected, coding=self._coding)
        of_each = {
            client_id: replace(other, coding=self._coding)
            for client_id, other in exchange.expected_of.items()
        }
        return replace(exchange, expected=expected, expected_of=of_each)

    def sent(self, exchange: Exchange) -> Exchange:
        """Return an exchange as it is sent."""
        own = {k: self._coded(records) for k, records in exchange.own.items()}
        return replace(exchange, shared=self._coded(exchange.shared), own=own)

    def _coded(self, records: Mapping[str, Arrays]) -> Mapping[str, Arrays]:
        if ARRAYS not in records:
            return records
        return {**records, ARRAYS: self._coding.coded(records[ARRAYS])}

    def accepted(self, exchange: Exchange, reply: ClientReply) -> None:
        """Hear of a good reply."""

    @override
    def step(self, old: Arrays, new: Arrays) -> Arrays:
        return self._coding.rounded(new)


def _same(model: Arrays, other: Arrays) -> bool:
    return model.keys() <= other.keys() and all(
        array is other[name] or np.array_equal(array, other[name])
        for name, array in model.items()
    )
