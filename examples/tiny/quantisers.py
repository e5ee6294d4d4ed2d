# SPDX-License-Identifier: MIT
"""The model's block quantisers in PyTorch, with straight-through gradients: caches, and weights in their stored form."""
import numpy as np
import torch


class StraightThrough(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, rounding):
        return rounding(x)

    @staticmethod
    def backward(ctx, g):
        return g, None


def pow2ceil(t):
    bits = t.contiguous().view(torch.int32)
    return (((bits >> 23) + ((bits & 0x7FFFFF) != 0).int()) << 23).view(torch.float32)


def e4m3(x):
    return x.to(torch.float8_e4m3fn).float()


def e2m1(x):
    """x within +-6; the spacing is .5 below 2, 1 below 4, 2 above, and torch.round's even ties are the even codes."""
    a = x.abs()
    spacing = torch.where(a < 2, .5, torch.where(a < 4, 1., 2.))
    return torch.round(x / spacing) * spacing


def window_rounding(x):
    b = x.float().unflatten(-1, (-1, 32))
    s = pow2ceil(b.abs().amax(-1, keepdim=True).clamp(min=1e-4) * np.float32(1 / 448))
    return (e4m3((b / s).clamp(-448, 448)) * s).flatten(-2)


def entry_rounding(x):
    b = x.float().unflatten(-1, (-1, 16))
    s = e4m3((b.abs().amax(-1, keepdim=True).clamp(min=6 * 2.**-9) / 6).clamp(max=448))
    return (e2m1((b / s).clamp(-6, 6)) * s).flatten(-2)


def index_rounding(x):
    b = x.float().unflatten(-1, (-1, 32))
    s = pow2ceil(b.abs().amax(-1, keepdim=True).clamp(min=6 * 2.**-126) * np.float32(1 / 6))
    return (e2m1((b / s).clamp(-6, 6)) * s).flatten(-2)


def fp4_rounding(w):
    """Weights with one power-of-two scale per row and 32 inputs."""
    b = w.unflatten(-1, (-1, 32))
    s = pow2ceil(b.abs().amax(-1, keepdim=True).clamp(min=2.**-100) * np.float32(1 / 6))
    return (e2m1((b / s).clamp(-6, 6)) * s).flatten(-2)


def row_rounding(w):
    b = w.unflatten(-1, (-1, 32))
    s = pow2ceil(b.abs().amax(-1, keepdim=True).clamp(min=2.**-100) * np.float32(1 / 448))
    return (e4m3((b / s).clamp(-448, 448)) * s).flatten(-2)


def tile_rounding(w):
    """Weights with one power-of-two scale per 32 x 32 tile; both sizes must be multiples of 32."""
    b = w.unflatten(-2, (-1, 32)).unflatten(-1, (-1, 32))
    s = pow2ceil(b.abs().amax((-3, -1), keepdim=True).clamp(min=2.**-100) * np.float32(1 / 448))
    return (e4m3((b / s).clamp(-448, 448)) * s).flatten(-2).flatten(-3, -2)


WEIGHT_ROUNDING = {"fp8": tile_rounding, "fp4": fp4_rounding, "table": row_rounding, "bf16": lambda w: w.bfloat16().float()}


def cache(x, rounding, block):
    return x if x.shape[-1] % block else StraightThrough.apply(x, rounding)
