"""The base class of the optimisers."""

from __future__ import annotations

from inspect import unwrap

import torch


class Optimizer(torch.optim.Optimizer):
    """torch's Optimizer, whose methods do not import torch's compiler.

    In torch.optim.Optimizer these methods are wrapped so that the compiler leaves them out. The wrapper imports the compiler
    (some 700 modules) in every process that makes an optimiser, although firetrain compiles models only.
    """

    add_param_group = unwrap(torch.optim.Optimizer.add_param_group)
    zero_grad = unwrap(torch.optim.Optimizer.zero_grad)
    state_dict = unwrap(torch.optim.Optimizer.state_dict)
    load_state_dict = unwrap(torch.optim.Optimizer.load_state_dict)
