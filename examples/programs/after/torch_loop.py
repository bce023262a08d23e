"""A training loop of PyTorch."""

import hashlib

import torch

import outlive.torch

torch.manual_seed(1)
model = torch.nn.Sequential(
    torch.nn.Linear(32, 256), torch.nn.ReLU(), torch.nn.Dropout(0.2), torch.nn.Linear(256, 4)
)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 800)
progress = {"step": 0}
job = outlive.open("ckpt").job("training", every_s=0.1)
run = outlive.torch.capture(
    model=model, optimizer=optimizer, scheduler=scheduler, progress=progress
)
run.restore(job)
while progress["step"] < 800:
    inputs = torch.randn(64, 32)
    loss = torch.nn.functional.cross_entropy(model(inputs), inputs[:, :4].argmax(1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    scheduler.step()
    progress["step"] += 1
    run.save(job)
    if progress["step"] % 40 == 0:
        print("step", progress["step"], flush=True)
weights = b"".join(each.numpy().tobytes() for each in model.state_dict().values())
print("result", hashlib.sha256(weights).hexdigest())
