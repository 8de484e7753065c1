import os

os.environ["TOKENIZERS_PARALLELISM"] = "false"

import torch
from torch.utils.data import DataLoader
from transformers import BertConfig, BertForSequenceClassification


def get_model():
    config = BertConfig(
        vocab_size=60,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=16,
        num_labels=2,
    )
    return BertForSequenceClassification(config)


def load_data(partition_id, num_partitions):
    g = torch.Generator().manual_seed(partition_id)
    ids = torch.randint(5, 60, (200, 12), generator=g)
    ids[:, 0] = 1
    labels = ((ids < 25).sum(1) > 4).long()
    rows = [
        {"input_ids": i, "attention_mask": torch.ones_like(i), "labels": l}
        for i, l in zip(ids, labels)
    ]
    return DataLoader(rows[:160], batch_size=16, shuffle=True), DataLoader(
        rows[160:], batch_size=16
    )


def train(net, trainloader, epochs):
    optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3)
    scheduler = torch.optim.lr_scheduler.LinearLR(
        optimizer, 1.0, 0.1, total_iters=epochs * len(trainloader)
    )
    net.train()
    total = 0.0
    for _ in range(epochs):
        for batch in trainloader:
            outputs = net(**batch)
            outputs.loss.backward()
            torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            total += outputs.loss.item()
    return total / (epochs * len(trainloader))


@torch.no_grad()
def test(net, testloader):
    net.eval()
    loss, right, count = 0.0, 0, 0
    for batch in testloader:
        outputs = net(**batch)
        loss += outputs.loss.item()
        right += (outputs.logits.argmax(-1) == batch["labels"]).sum().item()
        count += len(batch["labels"])
    return loss / len(testloader), right / count
