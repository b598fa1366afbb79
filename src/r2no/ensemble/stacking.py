"""Stacking: how much each of several fits counts, from held-out Gram sums (M7).

The error of the mean Σ_i a_i w_i on held-out blocks is a quadratic in the shares a. They minimise

    aᵀP a - 2 cᵀa   over   a ≥ 0,  Σ a ≤ 1,

the source having the rest, 1 - Σ a. The programme is convex and small, and is solved to optimality
by an active set, which is exact and deterministic: no step size, no starting point.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from r2no.errors import NonFiniteError

#: A multiplier below this share of the largest entry counts as zero.
_TOLERANCE = 1e-10
#: Fits whose held-out forecasts differ by less than this share of their energy are one fit.
_SAME = 1e-9


def stacking_shares(
    quadratic: Float[Tensor, "fit fit"], linear: Float[Tensor, " fit"]
) -> Float[Tensor, " fit"]:
    """The shares a of lowest aᵀP a - 2 cᵀa with a ≥ 0 and Σ a ≤ 1.

    Of fits that forecast the same the first one gets the share. P is made positive semidefinite
    by leaving out negative eigenvalues, which a correction for variance may bring in.
    """
    if not bool(quadratic.isfinite().all() and linear.isfinite().all()):
        raise NonFiniteError("The held-out sums of the fits hold NaN or infinity.")
    shares = torch.zeros_like(linear)
    kept = _distinct(quadratic)
    if len(kept):
        chosen = torch.tensor(kept)
        shares[chosen] = _solve(_semidefinite(quadratic[chosen][:, chosen]), linear[chosen])
    return shares


def _distinct(quadratic: Tensor) -> list[int]:
    """Numbers of the fits that forecast something, and something else than one before."""
    energy = quadratic.diagonal()
    kept: list[int] = []
    for number in range(len(energy)):
        if float(energy[number]) <= 0:
            continue
        apart = (
            float(energy[number] + energy[other] - 2 * quadratic[number, other])
            > _SAME * float(energy[number])
            for other in kept
        )
        if all(apart):
            kept.append(number)
    return kept


def _semidefinite(quadratic: Tensor) -> Tensor:
    values, vectors = torch.linalg.eigh((quadratic + quadratic.T) / 2)
    values = values.clamp_min(1e-12 * float(values[-1].clamp_min(0)))
    result: Tensor = (vectors * values) @ vectors.T
    return result


def _solve(quadratic: Tensor, linear: Tensor) -> Tensor:
    """First without the bound on the sum; if that is exceeded, on the simplex."""
    shares = _active_set(quadratic, linear, full=False)
    return shares if float(shares.sum()) <= 1 else _active_set(quadratic, linear, full=True)


def _active_set(quadratic: Tensor, linear: Tensor, *, full: bool) -> Tensor:
    """Lawson and Hanson's active set for a ≥ 0, with Σ a = 1 if ``full``.

    Fits enter one by one, the one with the steepest descent first; those whose share would turn
    negative on the way leave. Every set is visited at most once, so it ends.
    """
    number, scale = len(linear), float(quadratic.abs().max().clamp_min(linear.abs().max()))
    shares, passive = torch.zeros_like(linear), []
    if full:  # begin at the best corner of the simplex
        passive = [int((quadratic.diagonal() - 2 * linear).argmin())]
        shares[passive] = 1.0
    for _ in range(20 * number + 20):
        descent = linear - quadratic @ shares
        if full:
            descent = descent - descent[passive].mean()
        descent[passive] = -torch.inf
        if not number - len(passive) or float(descent.max()) <= _TOLERANCE * scale:
            break
        passive = sorted([*passive, int(descent.argmax())])
        while True:
            wanted = _minimum(quadratic, linear, passive, full=full)
            if float(wanted.min()) > 0:
                break
            before = shares[passive]
            blocked = wanted <= 0
            steps = before[blocked] / (before[blocked] - wanted[blocked]).clamp_min(1e-300)
            moved = before + float(steps.min().clamp(0, 1)) * (wanted - before)
            moved[moved <= _TOLERANCE * float(moved.abs().max())] = 0.0
            leaving = moved <= 0
            if not bool(leaving.any()):
                leaving[int(wanted.argmin())] = True
            shares = torch.zeros_like(linear)
            shares[passive] = torch.where(leaving, 0.0, moved)
            passive = [
                place for place, left in zip(passive, leaving.tolist(), strict=True) if not left
            ]
        shares = torch.zeros_like(linear)
        shares[passive] = wanted
    return shares


def _minimum(quadratic: Tensor, linear: Tensor, passive: list[int], *, full: bool) -> Tensor:
    """The minimum over the passive fits, whatever the signs; with Σ a = 1 if ``full``."""
    part, right = quadratic[passive][:, passive], linear[passive]
    solution: Tensor
    if not full:
        solution = torch.linalg.solve(part, right)
        return solution
    ones = torch.ones(len(passive), 1, dtype=part.dtype)
    scale = part.diagonal().mean()
    system = torch.cat(
        [torch.cat([part / scale, ones], 1), torch.cat([ones.T, torch.zeros(1, 1).to(part)], 1)]
    )
    solution = torch.linalg.solve(system, torch.cat([right / scale, ones[0]]))
    return solution[:-1]
