import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import ServerApp

from ownloop.task import build

app = ServerApp()


def ask(grid, kind, model, lr, node_ids, rnd):
    content = RecordDict(
        {
            "model": ArrayRecord(model),
            "settings": ConfigRecord({"lr": lr, "round": rnd}),
        }
    )
    messages = [
        Message(content=content, message_type=kind, dst_node_id=n, group_id=str(rnd))
        for n in node_ids
    ]
    replies = grid.send_and_receive(messages, timeout=60)
    return [r.content for r in replies if not r.has_error()]


@app.main()
def main(grid, context):
    rounds, lr = context.run_config["num-server-rounds"], context.run_config["lr"]
    model = build().state_dict()
    best, best_model, bad = 0.0, model, 0
    for rnd in range(1, rounds + 1):
        node_ids = sorted(grid.get_node_ids())
        # train
        contents = ask(grid, MessageType.TRAIN, model, lr, node_ids, rnd)
        total = sum(c["stats"]["rows"] for c in contents)
        new = {}
        for key in model:
            new[key] = sum(
                c["model"].to_torch_state_dict()[key] * (c["stats"]["rows"] / total)
                for c in contents
            )
        model = new
        # evaluate
        contents = ask(grid, MessageType.EVALUATE, model, lr, node_ids, rnd)
        acc = sum(c["stats"]["correct"] for c in contents) / sum(
            c["stats"]["rows"] for c in contents
        )
        print(f"[{rnd}] accuracy {acc:.6f}")
        # keep the best, halve the rate when it gets worse, stop early
        if acc > best:
            best, best_model, bad = acc, model, 0
        else:
            bad, lr = bad + 1, lr / 2
            if bad >= context.run_config["patience"]:
                break
    torch.save(best_model, "best.pt")
    print(f"best accuracy {best:.6f}")
