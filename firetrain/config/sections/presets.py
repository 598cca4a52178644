"""Options in which implementations of LARS differ, and their values in each implementation."""

from __future__ import annotations

from typing import Any

# excluded: kinds of parameters without weight decay and without a trust ratio
# excluded_rate: learning rate of these parameters: that of the small batch (base), or that of LARS (raw)
# rate_in_momentum: v <- m v + rate r (g + d w);  w <- w - v, as in the paper and Caffe; no difference for a constant rate
# decay_in_norm: r = eta |w| / (|g| + d |w|) if True, r = eta |w| / |g| if False (NVIDIA's Caffe)
# zero_norm: r = eta where |w| or |g| is 0 ("coefficient"), or 1 ("one")
# epsilon: added to the denominator of r
# trust_clip: r = min(r / rate, 1), so that a tensor's rate does not exceed the global one (LARC, NVIDIA's Caffe and apex)
PRESETS: dict[str, dict[str, Any]] = {
    "firetrain": {
        "excluded": ("bias", "norm"), "excluded_rate": "base", "trust_coefficient": 0.001, "trust_clip": False,
        "rate_in_momentum": False, "decay_in_norm": True, "zero_norm": "coefficient", "epsilon": 0.0,
    },
    # You, Gitman and Ginsburg 2017, equation 6 and algorithm 1; it does not say which parameters are excluded
    "paper": {
        "excluded": (), "excluded_rate": "raw", "trust_coefficient": 0.001, "trust_clip": False,
        "rate_in_momentum": True, "decay_in_norm": True, "zero_norm": "one", "epsilon": 0.0,
    },
    # NVIDIA/caffe, sgd_solver.cpp: every blob has a trust ratio, with the coefficient times (1 - momentum)
    "nvcaffe": {
        "excluded": (), "excluded_rate": "raw", "trust_coefficient": 0.001, "trust_clip": False,
        "rate_in_momentum": True, "decay_in_norm": False, "zero_norm": "one", "epsilon": 0.0,
    },
    # MLPerf's TensorFlow 2 LARSOptimizer with its skip list
    "mlperf": {
        "excluded": ("bias", "norm"), "excluded_rate": "raw", "trust_coefficient": 0.001, "trust_clip": False,
        "rate_in_momentum": True, "decay_in_norm": True, "zero_norm": "one", "epsilon": 0.0,
    },
    # timm.optim.Lars with timm's parameter groups
    "timm": {
        "excluded": ("bias", "norm"), "excluded_rate": "raw", "trust_coefficient": 0.001, "trust_clip": False,
        "rate_in_momentum": False, "decay_in_norm": True, "zero_norm": "one", "epsilon": 1e-8,
    },
}  # fmt: skip
