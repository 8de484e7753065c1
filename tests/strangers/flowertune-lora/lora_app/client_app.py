"""The ClientApp: it trains the adapters and sends nothing else."""

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from peft import get_peft_model_state_dict, set_peft_model_state_dict

from lora_app.dataset import load_data
from lora_app.models import get_model

app = ClientApp()


@app.train()
def train(msg: Message, context: Context):
    model = get_model(context.run_config["lora-rank"])
    set_peft_model_state_dict(model, msg.content["arrays"].to_torch_state_dict())
    partition_id = context.node_config["partition-id"]
    trainset = load_data(partition_id, 16 + 8 * partition_id)

    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=msg.content["config"]["learning-rate"])
    model.train()
    training_loss = 0.0
    steps = context.run_config["local-steps"]
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model(input_ids=trainset, labels=trainset).loss
        loss.backward()
        optimizer.step()
        training_loss += loss.item() / steps

    model_record = ArrayRecord(get_peft_model_state_dict(model))
    metrics = {"train_loss": training_loss, "num-examples": len(trainset)}
    content = RecordDict({"arrays": model_record, "metrics": MetricRecord(metrics)})
    return Message(content=content, reply_to=msg)
