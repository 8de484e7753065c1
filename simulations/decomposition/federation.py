"""A federation in this process, without a run's folder."""

from collections.abc import Callable, Sequence

from flwr.app import Context

from fedsuite.core.errors import ConfigError
from fedsuite.core.logs import log_scope
from fedsuite.engines.local import LocalGrid
from fedsuite.experiment.data_and_models import experiment_model, federated_data
from fedsuite.experiment.experiment import Experiment
from fedsuite.experiment.run_settings import RunSettings
from fedsuite.messages.array_records import to_record
from fedsuite.messages.records import (
    Reply,
    Request,
)
from fedsuite.models.arrays import model_arrays
from fedsuite.rounds.events import Callback
from fedsuite.rounds.strategy import FederatedStrategy
from fedsuite.running.server import build_strategy
from fedsuite.running.server_parts import server_parts
from fedsuite.running.worker import Worker
from fedsuite.training.app import Answering, make_client_app
from fedsuite.training.store import MemoryStore
from fedsuite.workarounds.identity import flower_identity

Watch = Callable[[Request, Reply], None]
"""Function that sees each request to a client, and the reply."""


class Federation:
    """The parts of a local run, for an analysis; all grids share the clients' stored state.

    Raises
    ------
    ConfigError
        If the clients do not share one model.
    """

    def __init__(self, experiment: Experiment) -> None:
        strategy = experiment.strategy
        if strategy.PRIVATE_MODELS or strategy.takes("networks"):
            raise ConfigError(
                f"method {experiment['method']}: its clients share no model, and this "
                "analysis needs one; choose a method whose clients do"
            )
        self.experiment = experiment
        self.data = federated_data(experiment)
        self.model = experiment_model(experiment, self.data)
        self._store = MemoryStore()

    def grid(self, watch: Watch | None = None, client_seed: int | None = None) -> LocalGrid:
        """Return a grid with new clients; ``client_seed`` None is the experiment's seed."""
        worker = Worker(self.experiment, self._store, client_seed)

        def client(context: Context, client_id: int) -> Answering:
            answering = worker.client(context, client_id)
            return answering if watch is None else _Watched(answering, watch)

        app = make_client_app(client, worker.actions, fingerprints=worker.fingerprints)
        return LocalGrid(
            app,
            self.experiment.num_clients,
            dict(self.experiment.values),
            self._store,
        )

    def strategy(self, seed: int | None = None) -> FederatedStrategy:
        """Return a new strategy; ``seed`` None is the experiment's."""
        chosen = self.experiment if seed is None else self.experiment.replace(seed=seed)
        return build_strategy(chosen, server_parts(chosen, self.data, self.model))

    def run(self, grid: LocalGrid, callbacks: Sequence[Callback]) -> None:
        """Run the experiment, the same bits as ``fedsuite run``."""
        with flower_identity(), log_scope(run="analysis"):
            self.strategy().start(
                grid,
                to_record(model_arrays(self.model)),
                num_rounds=self.experiment.group(RunSettings).num_rounds,
                callbacks=callbacks,
            )


class _Watched:
    """A client with a watched exchange."""

    def __init__(self, client: Answering, watch: Watch) -> None:
        self._client = client
        self._watch = watch

    def answer(self, request: Request) -> Reply:
        reply = self._client.answer(request)
        self._watch(request, reply)
        return reply
