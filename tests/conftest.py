"""Shared by all tests: one thread per worker, and properties that check the same examples on every machine."""

import os

import torch
from hypothesis import HealthCheck, settings

torch.set_num_threads(1)

settings.register_profile(
    "seqloom",
    deadline=None,  # a busy machine is not a failure
    derandomize=True,  # the same examples on every machine; look for new ones with HYPOTHESIS_PROFILE=explore
    max_examples=50,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("explore", deadline=None, max_examples=1000, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "seqloom"))
