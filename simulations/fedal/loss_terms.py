"""FedAL's loss terms per client, one local phase after a run's last checkpoint."""

from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch
from flwr.app import Context, RecordDict
from numpy.typing import NDArray
from torch import Tensor, nn

from fedsuite.clients.distillation.fedmd import REFERENCE, FedMDClient
from fedsuite.core.errors import RunError
from fedsuite.experiment.data_and_models import network_model
from fedsuite.messages.records import (
    ADVERSARIAL_GRADIENT,
    LOCAL_PHASE,
    LOGITS,
    MEAN_OUTPUTS,
    SERVER_ROUND,
    TRANSFER,
    Arrays,
    ConfigValue,
    Request,
)
from fedsuite.models.arrays import load_arrays, model_arrays
from fedsuite.models.distillation import kl_divergence
from fedsuite.models.evaluation_mode import evaluation_mode
from fedsuite.running.server import build_strategy
from fedsuite.running.server_parts import server_parts
from fedsuite.running.worker import Worker
from fedsuite.strategies.distillation.discriminator import Discriminator, discriminator_loss
from fedsuite.strategies.distillation.fedal import LABELS, FedAL
from fedsuite.strategies.distillation.fedmd import FedMD
from fedsuite.strategies.distillation.public_exchange import mean_outputs
from simulations.fedal.final_models import FinalModels, all_outputs

if TYPE_CHECKING:
    from fedsuite.rounds.strategy import FederatedStrategy

NAMES = (
    *("labels", "local less-forgetting", "distillation", "adversarial"),
    *("transfer less-forgetting", "discriminator"),
)
"""Names of the terms, in the tables' order."""

Array = NDArray[Any]
Loss = Callable[[Tensor], Tensor]
"""Mean loss over some rows, given their numbers."""


class Term(NamedTuple):
    """A loss term of one client, with the parameters of its gradient.

    ``batch_size`` 0 is all rows.
    """

    name: str
    loss: Loss
    parameters: list[nn.Parameter]
    num_rows: int
    batch_size: int

    @property
    def is_private(self) -> bool:
        """Whether the rows are the client's own, not public ones."""
        return self.name in NAMES[:2]


@dataclass(frozen=True)
class Answers:
    """The server's answers to all clients' outputs on all public rows.

    Parameters
    ----------
    config
        The strategy's config of each message.
    logits, mean
        Logits (rows, classes) by client, and their mean.
    discriminator, labels
        The discriminator, if the method has one, and its labels by client.
    """

    config: Mapping[str, ConfigValue]
    logits: Mapping[int, Array]
    mean: Array
    discriminator: Discriminator | None
    labels: Mapping[int, int]

    def adversarial_gradient(self, client_id: int) -> Array:
        """Return (rows, classes) G of a client under the discriminator."""
        assert self.discriminator is not None
        logits, label = self.logits[client_id][None], self.labels[client_id]
        gradient: Array = self.discriminator.gradient(logits, [label])[0]
        return gradient


def client_terms(
    client: FedMDClient, reference: nn.Module, answers: Answers
) -> Iterator[Term]:
    """Yield the loss terms of a client's current model.

    The client has public data, and its reference outputs are replaced by those of
    ``reference``.
    """
    parameters = [p for p in client.model.parameters() if p.requires_grad]
    size, count = client.training.batch_size, len(client.train_data)
    for name, loss in _private_terms(client, reference, answers.config).items():
        if count:
            yield Term(name, loss, parameters, count, size)
    size = int(cast(int, answers.config["public-batch-size"]))
    count = len(answers.mean)
    for name, loss in _public_terms(client, reference, answers).items():
        yield Term(name, loss, parameters, count, size)
    discriminator = answers.discriminator
    if discriminator is not None and client.client_id in answers.labels:
        weights = list(discriminator.network.parameters())
        loss = _discriminator_term(client.client_id, answers)
        yield Term("discriminator", loss, weights, count, size)


def _private_terms(
    client: FedMDClient, reference: nn.Module, config: Mapping[str, ConfigValue]
) -> dict[str, Loss]:
    data, model = client.train_data, client.model

    def labels(rows: Tensor) -> Tensor:
        loss_function = client.training.loss_on(data.labels)
        return loss_function(model, data.features[rows], data.labels[rows])

    def less_forgetting(rows: Tensor) -> Tensor:
        features = data.features[rows]
        temperature = float(cast(float, config["distillation-temperature"]))
        return kl_divergence(model(features), reference(features), temperature)

    terms: dict[str, Loss] = {"labels": labels}
    if _forgets_less(config, "local"):
        terms["local less-forgetting"] = less_forgetting
    return terms


def _public_terms(
    client: FedMDClient, reference: nn.Module, answers: Answers
) -> dict[str, Loss]:
    """Return the client's terms on public rows, one at a time.

    There is no mean without other clients, and no reference at step 0.
    """
    public = client.public
    assert public is not None
    kept = all_outputs(reference, public).cpu().numpy()

    def term(rows: Tensor, step: int, responders: int, **sent: Array) -> Tensor:
        arrays = {record: {LOGITS: array[rows.numpy()]} for record, array in sent.items()}
        config = {**answers.config, "num-responders": responders}
        request = Request(TRANSFER, client.client_id, arrays, config)
        client.memory = {REFERENCE: kept[rows.numpy()][None]}
        client.heard = request.config
        (loss,) = client.transfer_terms(request, step, client.model(public[rows]))
        return loss

    terms: dict[str, Loss] = {}
    others = len(answers.logits)
    if others > 1:
        mean = {MEAN_OUTPUTS: answers.mean}
        terms["distillation"] = lambda rows: term(rows, 0, others, **mean)
    if answers.discriminator is not None and client.client_id in answers.labels:
        sent = {ADVERSARIAL_GRADIENT: answers.adversarial_gradient(client.client_id)}
        terms["adversarial"] = lambda rows: term(rows, 0, 1, **sent)
    if _forgets_less(answers.config, "transfer"):
        terms["transfer less-forgetting"] = lambda rows: term(rows, 1, 1)
    return terms


def _discriminator_term(client_id: int, answers: Answers) -> Loss:
    discriminator = answers.discriminator
    assert discriminator is not None
    logits = torch.from_numpy(answers.logits[client_id])
    label = torch.tensor([answers.labels[client_id]])

    def loss(rows: Tensor) -> Tensor:
        network, temperature = discriminator.network, discriminator.temperature
        return discriminator_loss(network, logits[rows][None], label, temperature)

    return loss


class NextPhase:
    """Clients of a run of FedMD, FedMD-LF or FedAL after the next round's local phase.

    The run's folder stays unchanged.
    """

    def __init__(self, final: FinalModels) -> None:
        experiment = final.experiment
        if not issubclass(experiment.strategy, FedMD):
            raise RunError(
                f"{final.run.path}: method {experiment['method']} has none of FedAL's "
                "terms: give runs of fedal, fedmd-lf or fedmd"
            )
        self.server_round = final.checkpoint.server_round
        self._final = final
        self._worker = Worker(experiment, final.store)
        self._trained: dict[int, Arrays] = {}
        self._answers = self._answered(_restored_strategy(final))

    def clients(self) -> Iterator[tuple[FedMDClient, list[Term]]]:
        """Yield clients with their terms, which are valid until the next client."""
        for client_id, trained in self._trained.items():
            client = self._client(client_id)
            load_arrays(client.model, trained)
            with evaluation_mode(client.model):
                reference = deepcopy(client.model).requires_grad_(False)
                load_arrays(reference, self._final.arrays(client_id))
                yield client, list(client_terms(client, reference, self._answers))

    def _answered(self, strategy: "FederatedStrategy") -> Answers:
        """Have all clients train; return the server's answers."""
        assert isinstance(strategy, FedMD)
        config = {**strategy.settings, SERVER_ROUND: self.server_round + 1}
        checkpoint = self._final.checkpoint
        logits: dict[int, Array] = {}
        for client_id in range(self._final.num_clients):
            client = self._client(client_id)
            version = checkpoint.client_versions.get(client_id, "")
            client.answer(
                Request(LOCAL_PHASE, client_id, config=config, start_version=version)
            )
            assert client.public is not None
            self._trained[client_id] = model_arrays(client.model)
            logits[client_id] = all_outputs(client.model, client.public).cpu().numpy()
        mean = mean_outputs({k: {LOGITS: held} for k, held in logits.items()})[LOGITS]
        method = checkpoint.states["method"]
        has_one = isinstance(strategy, FedAL) and bool(method["arrays"])
        by_label = cast(list[int], method["scalars"].get(LABELS, []))
        return Answers(
            config,
            logits,
            mean,
            strategy.discriminator if has_one else None,  # type: ignore[attr-defined]
            {client_id: label for label, client_id in enumerate(by_label)},
        )

    def _client(self, client_id: int) -> FedMDClient:
        context = Context(1, 1, node_config={}, state=RecordDict(), run_config={})
        return cast(FedMDClient, self._worker.client(context, client_id))


def _restored_strategy(final: FinalModels) -> "FederatedStrategy":
    experiment, data = final.experiment, final.data
    parts = server_parts(experiment, data, network_model(experiment, data))
    strategy = build_strategy(experiment, parts)
    method = final.checkpoint.states["method"]
    strategy.restore(method["arrays"], method["scalars"])
    return strategy


def _forgets_less(config: Mapping[str, ConfigValue], phase: str) -> bool:
    first = cast(int, config["less-forgetting-from"])
    begun = cast(int, config[SERVER_ROUND]) >= first
    return begun and config["less-forgetting"] in ("both", phase)
