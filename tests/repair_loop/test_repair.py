import copy

import pytest
import torch

from r2no import RepairUNet, repair
from r2no.errors import ConfigError, ShapeError
from r2no.repair_loop import RepairObjective, repair_steps, spectral_weight
from r2no.spectral import forward, wavenumber_radius
from r2no.spectral.transforms import space_last


def tensors(grid=(8, 12), batch=2, kind=torch.float64):
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(batch, 2, *grid, 3, generator=generator).to(kind) for _ in range(3)]


def small(padding="zeros", depth=2, kind=torch.float64):
    torch.manual_seed(0)
    return RepairUNet(6, 6, width=4, depth=depth, padding=padding).to(kind)


def test_published_module_has_8672028_parameters():
    with torch.device("meta"):
        module = RepairUNet(60, 60, width=32, depth=4)
    assert sum(p.numel() for p in module.parameters()) == 8_672_028


def test_channels_are_history_frames_then_estimate_frames():
    """The first convolution sees the concatenation along the channel axis, frame by frame."""
    module, (history, estimate, _) = small(), tensors()
    plain = torch.cat([history, estimate], 1).permute(0, 1, 4, 2, 3).flatten(1, 2)
    split = module.first.split(module._plane("history", history, 6), 0) + module.first.split(
        module._plane("estimate", estimate, 6), 6
    )
    expected = torch.nn.functional.conv2d(plain, module.first.conv.weight, padding=1)
    torch.testing.assert_close(split, expected)


def test_first_update_starts_small():
    torch.manual_seed(0)
    module, (history, estimate, _) = small(), tensors()
    assert float(module(history, estimate).detach().std()) < 0.2
    assert torch.equal(module.last.bias, torch.zeros_like(module.last.bias))


@pytest.mark.parametrize("padding", ["zeros", "circular", "replicate", "reflect"])
@pytest.mark.parametrize("grid", [(8, 12), (9, 13), (5, 6)], ids=str)
def test_any_grid_and_padding_gives_the_fields_shape(grid, padding):
    history, estimate, _ = tensors(grid)
    if padding == "reflect":
        grid_ok = small(padding, depth=1)
        assert grid_ok(history, estimate).shape == estimate.shape
    else:
        assert small(padding)(history, estimate).shape == estimate.shape


def test_circular_padding_commutes_with_shifts_in_eval():
    """On a grid that pooling divides, wrapping makes the module equivariant to shifts of 2^depth.

    Bilinear up-sampling with aligned corners does not wrap, so this holds for depth 1 away from
    the edges only; here the check is on the convolutions, with a module of no pooling levels.
    """
    block = small("circular").second.eval()
    values = torch.randn(1, 4, 8, 8, dtype=torch.float64)
    torch.testing.assert_close(block(values.roll(3, -1)), block(values).roll(3, -1))


def test_folded_module_equals_the_evaluated_one():
    module, (history, estimate, _) = small(), tensors()
    for _ in range(3):
        module.train()(history, estimate)
    fast = module.folded()
    torch.testing.assert_close(fast(history, estimate), module.eval()(history, estimate))
    assert not any(isinstance(m, torch.nn.BatchNorm2d) for m in fast.modules())
    assert any(isinstance(m, torch.nn.BatchNorm2d) for m in module.modules())


def test_loop_iterates_the_update_and_keeps_everything():
    module, (history, estimate, _) = small().eval(), tensors()
    trajectory = repair(module, history, estimate, steps=3, step_size=0.2)
    assert torch.equal(trajectory[0], estimate)
    for step in range(3):
        expected = trajectory[step] + 0.2 * module(history, trajectory[step])
        torch.testing.assert_close(trajectory[step + 1], expected)


def test_loop_takes_any_callable():
    history, estimate, _ = tensors()
    trajectory = repair(lambda _, h: -h, history, estimate, steps=2, step_size=0.5)
    torch.testing.assert_close(trajectory[2], estimate / 4)


def test_iterates_keep_the_modules_memory_order():
    """So that no iterate after the first is copied on its way into the network."""
    module, (history, estimate, _) = small(kind=torch.float32).folded(), tensors(kind=torch.float32)
    *_, last = repair_steps(module, history, estimate, steps=2, step_size=0.2)
    assert last.permute(0, 2, 3, 1, 4).is_contiguous()


def test_spectral_weight_has_unit_mean_and_the_published_ratio():
    for depth, ratio in ((1, 2.41), (12, 3.00)):
        weight = spectral_weight((64, 128), depth=depth, steps=12)
        assert float(weight.mean()) == pytest.approx(1)
        assert float(weight.max() / weight[0, 0]) == pytest.approx(ratio, abs=0.005)


@pytest.mark.parametrize("grid", [(8, 12), (9, 13)], ids=str)
@pytest.mark.parametrize("norm", ["ortho", "forward"])
def test_objective_matches_its_formula(grid, norm):
    module, (history, source, target) = small().eval(), tensors(grid)
    objective = RepairObjective(steps=3, norm=norm)
    terms = objective(module, history, source, target, measured=(0, 2))
    filled = target.clone()
    filled[..., 1] = source[..., 1]
    trajectory = repair(module, history, source, steps=3, step_size=0.2)
    scale = 1.0 if norm == "ortho" else (grid[0] * grid[1]) ** -0.5
    spatial = spectral = 0.0
    for depth in range(1, 4):
        h, y = trajectory[depth][..., [0, 2]], target[..., [0, 2]]
        spatial += ((h - y) ** 2).mean() / 3
        mu = 1 + wavenumber_radius(grid) ** (1 + (depth - 1) / 2)
        gap = scale * (forward(space_last(h)).abs() - forward(space_last(y)).abs())
        spectral += (mu / mu.mean() * gap**2).mean() / 3
    still = (module(history, filled)[..., [0, 2]] ** 2).mean()
    torch.testing.assert_close(terms.spatial, spatial)
    torch.testing.assert_close(terms.spectral, spectral)
    torch.testing.assert_close(terms.fixed_point, still)
    torch.testing.assert_close(terms.total, spatial + spectral + 0.01 * still)


def test_objective_gradient_is_right():
    torch.manual_seed(1)
    weight = torch.randn((), dtype=torch.float64, requires_grad=True)
    history, source, target = tensors((4, 6), batch=1)
    objective = RepairObjective(steps=2)

    def total(w):
        return objective(
            lambda x, h: w * (x - h) + w**2, history, source, target, measured=(0,)
        ).total

    assert torch.autograd.gradcheck(total, (weight,))


def test_hidden_values_do_not_move_the_objective():
    module, (history, source, target) = small(), tensors()
    mask = torch.rand(target.shape, generator=torch.Generator().manual_seed(2)) > 0.3

    def value(hidden):
        shown = torch.where(mask, target, hidden)
        shown[..., 1] = hidden
        return RepairObjective(steps=2)(
            copy.deepcopy(module), history, source, shown, measured=(0, 2), mask=mask
        ).total

    assert torch.equal(value(0.0), value(1e9))
    assert torch.equal(value(0.0), value(float("nan")))


def test_checkpointing_changes_neither_loss_nor_gradients_nor_statistics():
    history, source, target = tensors()
    found = []
    for checkpointing in (False, True):
        module = small()
        objective = RepairObjective(steps=4, checkpointing=checkpointing)
        terms = objective(module, history, source, target, measured=(0, 2))
        terms.total.backward()
        gradients = [p.grad for p in module.parameters()]
        found.append((terms.total.detach(), gradients, list(module.buffers())))
    for plain, saved in zip(*found, strict=True):
        torch.testing.assert_close(plain, saved, rtol=1e-12, atol=1e-12)
    assert int(found[1][2][2]) == 5  # four steps and the fixed point, each counted once


def test_bad_shapes_and_sizes_are_refused():
    history, estimate, _ = tensors()
    with pytest.raises(ShapeError, match="`history`"):
        small()(history[:, :1], estimate)
    with pytest.raises(ShapeError, match="`estimate`"):
        small()(history, estimate[..., :2])
    with pytest.raises(ConfigError, match="width"):
        RepairUNet(6, 6, width=0)
