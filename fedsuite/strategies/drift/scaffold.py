"""SCAFFOLD: stochastic controlled averaging.

S. P. Karimireddy, S. Kale, M. Mohri, S. J. Reddi, S. U. Stich, A. T. Suresh, "SCAFFOLD:
Stochastic Controlled Averaging for Federated Learning", ICML 2020, arXiv:1910.06378.

Equations used (Algorithm 1), with m clients of M in the round, K_k steps of rate eta:
client, K_k times: y <- y - eta (g(y) - c_k + c), from y = w_t, so that w_k = y;
c_k+ = c_k - c + (w_t - w_k) / (K_k eta) (option II), or grad F_k(w_t) (option I);
server: w_{t+1} = w_t + eta_g (1/m) sum_S (w_k - w_t), c <- c + (1/M) sum_S (c_k+ - c_k).

Known to hold: c = (1/M) sum_k c_k; the first round is FedAvg with equal weights.

Deviations. The means are plain, as in the paper, unless ``scaffold-mean`` says "rows": then
client k of n_k rows weighs n_k in the mean of the models and in c = sum_k n_k c_k / sum_k
n_k, where a client that has not answered yet counts with the mean n_k. Each client uses its
own number of steps K_k. Weight decay and clipping act on the corrected gradient, and so
enter c_k of option II, as in the ports that we read; option I adds weight decay, does not
clip, and takes its gradient in evaluation mode. Momentum and Adam are refused: (w_t - w_k)
/ (K_k eta) is the mean gradient of plain SGD alone. Noise on uploads is refused: c would no
longer be the mean of the c_k. Statistics of normalisation layers get the mean at any server
rate.
"""

from collections.abc import Sequence
from typing import ClassVar, Literal

from typing_extensions import override

from fedsuite.method import (
    ARRAYS,
    CONTROL,
    CONTROL_CHANGE,
    TRAIN,
    Arrays,
    ClientNeeds,
    ClientReply,
    Exchange,
    Summed,
    key,
    server_rate_key,
)
from fedsuite.strategies.drift.corrected import (
    WITHOUT_SIZES,
    CorrectedStrategy,
    moved_mean,
    steps_to,
)


class Scaffold(CorrectedStrategy):
    """Plain averaging of models whose clients' drift is corrected by control variates."""

    SUMS: ClassVar[Summed | None] = Summed(
        "clients",
        records=(CONTROL_CHANGE,),
        exact=True,
        needs={"scaffold-mean": ("clients", WITHOUT_SIZES)},
    )
    NEEDS_OF_CLIENT: ClassVar[ClientNeeds] = ClientNeeds(
        "ScaffoldClient", "keeps a control variate"
    )

    server_learning_rate: float = server_rate_key()

    scaffold_option: Literal["gradient", "steps"] = key(
        default="steps", help="option I: full gradient, II: mean of the steps", told=TRAIN
    )
    scaffold_mean: Literal["clients", "rows"] = key(
        default="clients",
        help="what counts in the means of models and control variates: clients alike, as "
        "in the paper, or rows",
    )

    @override
    def total_weight(self) -> float:
        each = self.mean_size() if self.scaffold_mean == "rows" else 1.0
        return each * self.num_known_clients

    @override
    def train_exchange(self, arrays: Arrays, client_ids: Sequence[int]) -> Exchange:
        return self.with_control(super().train_exchange(arrays, client_ids), arrays)

    @override
    def take(self, reply: ClientReply) -> None:
        if reply.num_examples == 0:
            return
        weight: float = reply.num_summed
        if self.scaffold_mean == "rows":
            self._sizes[reply.client_id] = weight = reply.num_examples
        self.models.add(reply.arrays[ARRAYS], weight)
        change = reply.arrays[CONTROL_CHANGE]
        if weight != 1:
            change = {name: weight * array for name, array in change.items()}
        self.add_to_sum(CONTROL, change)

    @override
    def aggregate(self, arrays: Arrays) -> Arrays | None:
        mean = self.models.result()
        if mean is None:
            return None
        if self.server_learning_rate == 1.0:
            return moved_mean(mean, {}, arrays)
        beyond = steps_to(mean, arrays, self.server_learning_rate - 1.0)
        return moved_mean(mean, beyond, arrays)
