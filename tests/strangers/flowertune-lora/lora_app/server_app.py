"""The ServerApp."""

from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from peft import get_peft_model_state_dict, set_peft_model_state_dict

from lora_app.dataset import load_data
from lora_app.models import get_model
from lora_app.strategy import FlowerTuneLora

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    cfg = context.run_config
    num_rounds = cfg["num-server-rounds"]
    init_model = get_model(cfg["lora-rank"])
    arrays = ArrayRecord(get_peft_model_state_dict(init_model))

    strategy = FlowerTuneLora(
        num_rounds,
        cfg["learning-rate-max"],
        cfg["learning-rate-min"],
        fraction_train=cfg["fraction-train"],
        fraction_evaluate=0.0,
    )

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        model = get_model(cfg["lora-rank"])
        set_peft_model_state_dict(model, arrays.to_torch_state_dict())
        model.eval()
        testset = load_data(1000, 64)
        loss = model(input_ids=testset, labels=testset).loss.item()
        if server_round == num_rounds:
            model.save_pretrained(f"peft_{server_round}")
        return MetricRecord({"loss": loss})

    strategy.start(
        grid=grid,
        initial_arrays=arrays,
        num_rounds=num_rounds,
        evaluate_fn=evaluate,
    )
