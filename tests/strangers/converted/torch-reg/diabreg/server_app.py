from flwr.app import ArrayRecord
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg

from diabreg.task import make_model

app = ServerApp()


@app.main()
def main(grid, context):
    model = make_model()
    strategy = FedAvg(
        fraction_train=1.0,
        fraction_evaluate=1.0,
        min_train_nodes=4,
        min_evaluate_nodes=4,
        min_available_nodes=4,
    )
    result = strategy.start(
        grid,
        ArrayRecord(model.state_dict()),
        num_rounds=context.run_config["num-server-rounds"],
    )
    for r, m in result.evaluate_metrics_clientapp.items():
        print(f"round {r}: MAE {m['mae']:.6f} RMSE {m['rmse']:.6f}")
