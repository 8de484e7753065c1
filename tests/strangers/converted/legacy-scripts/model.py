import torch
import torch.nn as nn
from sklearn.datasets import load_breast_cancer


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(30, 16), nn.ReLU(), nn.Linear(16, 2))

    def forward(self, x):
        return self.layers(x)


def load_partition(cid, num_clients):
    x, y = load_breast_cancer(return_X_y=True)
    x = (x - x.mean(0)) / x.std(0)
    x, y = x[cid::num_clients], y[cid::num_clients]
    x, y = torch.tensor(x, dtype=torch.float32), torch.tensor(y)
    cut = int(0.8 * len(x))
    return (x[:cut], y[:cut]), (x[cut:], y[cut:])


def train(net, x, y, epochs, proximal_mu=0.0):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    global_params = [p.detach().clone() for p in net.parameters()]
    for _ in range(epochs):
        for batch in torch.randperm(len(x)).split(16):
            optimizer.zero_grad()
            proximal_term = sum(
                (p - g).norm(2) ** 2 for p, g in zip(net.parameters(), global_params)
            )
            loss = (
                nn.functional.cross_entropy(net(x[batch]), y[batch])
                + proximal_mu / 2 * proximal_term
            )
            loss.backward()
            optimizer.step()


def test(net, x, y):
    with torch.no_grad():
        out = net(x)
    return nn.functional.cross_entropy(out, y).item(), (
        out.argmax(1) == y
    ).float().mean().item()
