"""Loading the default model takes little more memory than the model: no tensor is held twice for long."""

from __future__ import annotations

import subprocess
import sys

import pytest

# Libraries' own pages and compiled bodies are there before the reading begins; what is measured is the model.
PROGRAM = """
import sys, threading, time
import psutil, torch
from threefold.kernels.linear import product
from threefold.models.checkpoint import open_checkpoint
from threefold.models.decoder import Decoder
from threefold.models.locate import locate_model
from threefold.parallel import single_group

dtype = getattr(torch, sys.argv[1])
product(torch.ones(64, 64, dtype=dtype), None)(torch.ones(1, 64, dtype=dtype))
checkpoint = open_checkpoint(locate_model(None))
decoder = Decoder(checkpoint.spec, dtype, torch.device("cpu"), single_group())
process, before, peak = psutil.Process(), psutil.Process().memory_info().rss, 0
is_loading = True

def watch():
    global peak
    while is_loading:
        peak = max(peak, process.memory_info().rss)
        time.sleep(0.002)

thread = threading.Thread(target=watch)
thread.start()
decoder.load(checkpoint.tensors(dtype))
is_loading = False
thread.join()
print((peak - before) / (checkpoint.spec.num_parameters * dtype.itemsize))
"""


@pytest.mark.model
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_peak_stays_below_1_3_of_the_weights(dtype: str) -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM, dtype], capture_output=True, text=True, check=True)

    assert 0.9 < float(done.stdout) < 1.3
