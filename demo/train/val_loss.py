"""Mean loss on held-out rows (teacher part and programmatic part of val.bin)."""

import sys, numpy as np, torch, torch.nn.functional as F
from model import Cfg, Model

torch.set_num_threads(1)
v = np.fromfile(sys.argv[1] + "/val.bin", np.uint16).astype(np.int64)
n = np.load(sys.argv[1] + "/val_parts.npy")
parts = {"teacher": v[: n[0]], "programmatic": v[n[0] :]}
for ck in sys.argv[2:]:
    m = Model(Cfg())
    m.load_state_dict(torch.load(ck, map_location="cpu")["model"])
    m = m.float().eval()
    r = {}
    for k, a in parts.items():
        x = torch.from_numpy(a[: 6 * 1025].reshape(6, 1025))
        t = 0
        with torch.no_grad():
            for row in x:
                t += F.cross_entropy(m(row[None, :-1])[0], row[1:]).item()
        r[k] = round(t / 6, 4)
    print(ck.split("/")[-1], r, flush=True)
