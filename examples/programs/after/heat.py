"""Heat in a plate, by explicit time steps."""

import hashlib

import numpy as np

import outlive

plate = {"u": np.zeros((256, 256)), "step": 0}
plate["u"][100:150, 50:200] = 1.0
job = outlive.open("ckpt").job("heat", every_s=0.1)
job.restore(into=plate)
while plate["step"] < 2000:
    u = plate["u"]
    flow = u[:-2, 1:-1] + u[2:, 1:-1] + u[1:-1, :-2] + u[1:-1, 2:] - 4 * u[1:-1, 1:-1]
    u[1:-1, 1:-1] += 0.2 * flow
    plate["step"] += 1
    job.save(plate)
    if plate["step"] % 100 == 0:
        print("step", plate["step"], flush=True)
print("result", hashlib.sha256(plate["u"].tobytes()).hexdigest())
