import torch
from toy import Model, batch, criterion, report

torch.manual_seed(0)
model = Model()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for step in range(1, 13):
    x, y = batch(step)
    loss = criterion(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    report(step, loss)
