import math

import pytest
import torch

from r2no.data.window import Windows
from r2no.errors import ConfigError, FileDamagedError, NonFiniteError
from r2no.training.parallel import run_tasks
from r2no.wake import Domain, LatticeFlow, WakeSettings, make_wake, measure_shedding
from r2no.wake.cylinder import WallLinks
from r2no.wake.lattice import start_shedding
from r2no.wake.runs import wake_domain
from r2no.wake.standin import (
    InflowTurbulence,
    Vibration,
    View,
    add_measurement_errors,
    box_average,
)

SPLITS = ("numerical_train", "numerical_val", "real_train", "real_fit", "real_test")
TINY = WakeSettings(
    0,
    numerical_train=2,
    numerical_val=1,
    numerical_frames=21,
    real_train=2,
    real_fit=2,
    real_test=1,
    real_frames=21,
    spin_up=2.0,
    settle=1.0,
    stride=1,
)


@pytest.fixture
def rng() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def flow_in_box(sides, diameter: float = 0.0, dtype: torch.dtype = torch.float64) -> LatticeFlow:
    domain = Domain(24, 32, diameter, (15.3, 12.1), 0.1, sides=sides, ends="periodic")
    flow = LatticeFlow(domain, torch.tensor([0.01, 0.05], dtype=dtype))
    x, y = (2 * math.pi * axis / 32 for axis in domain.cell_centres())
    rest = torch.zeros(2, 24, 32, dtype=dtype)
    flow.set_state(
        rest + 0.01 * x.sin().to(dtype), rest + 0.1, rest + 0.02 * (x + y).to(dtype).cos()
    )
    return flow


@pytest.mark.parametrize("sides", ["periodic", "slip"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.float64, 1e-12)])
def test_closed_box_conserves_mass(sides, dtype: torch.dtype, tolerance: float) -> None:
    flow = flow_in_box(sides, dtype=dtype)
    before = flow.mass
    for _ in range(300):
        flow.step()
    torch.testing.assert_close(flow.mass, before, rtol=tolerance, atol=0)


def test_cylinder_wall_loses_little_mass() -> None:
    """Interpolated bounce-back is not conservative; what it loses must be small."""
    flow = flow_in_box("slip", diameter=8.0)
    before = flow.mass
    for _ in range(300):
        flow.step()
    torch.testing.assert_close(flow.mass, before, rtol=2e-3, atol=0)


def test_periodic_box_conserves_momentum() -> None:
    flow = flow_in_box("periodic")
    before = flow.velocity.mean((-2, -1))
    for _ in range(300):
        flow.step()
    torch.testing.assert_close(flow.velocity.mean((-2, -1)), before, rtol=0, atol=1e-11)


def test_taylor_green_vortices_decay_at_the_exact_rate() -> None:
    size, steps = 48, 200
    viscosity = torch.tensor([0.01, 0.03], dtype=torch.float64)
    domain = Domain(size, size, speed=0.1, ends="periodic")
    flow = LatticeFlow(domain, viscosity)
    k = 2 * math.pi / size
    x, y = domain.cell_centres()
    rest = torch.zeros(2, size, size, dtype=torch.float64)
    u, v = 0.02 * torch.sin(k * x) * torch.cos(k * y), -0.02 * torch.cos(k * x) * torch.sin(k * y)
    flow.set_state(rest, rest + u, rest + v)
    energies = []
    for _ in range(100 + steps):
        flow.step()
        energies.append((flow.velocity**2).sum((1, 2, 3)))
    rate = (energies[99] / energies[-1]).log() / (4 * k**2 * steps)
    torch.testing.assert_close(rate, viscosity, rtol=0.01, atol=0)


def test_flow_without_disturbance_is_the_free_stream() -> None:
    flow = LatticeFlow(Domain(12, 20, speed=0.1), torch.tensor([0.02]))
    for _ in range(50):
        flow.step()
    torch.testing.assert_close(flow.velocity[:, 0], torch.ones(1, 12, 20), rtol=0, atol=1e-5)
    torch.testing.assert_close(flow.pressure, torch.zeros(1, 12, 20), rtol=0, atol=1e-4)


def test_flows_of_a_batch_do_not_see_each_other() -> None:
    domain = Domain(40, 60, 6.0, (20.0, 20.0), 0.1, sponge=6)
    viscosity, kick = torch.tensor([0.02, 0.01, 0.03]), torch.tensor([0.5, -0.6, 0.7])
    together = LatticeFlow(domain, viscosity)
    alone = LatticeFlow(domain, viscosity[1:2])
    start_shedding(together, kick)
    start_shedding(alone, kick[1:2])
    for _ in range(100):
        together.step()
        alone.step()
    torch.testing.assert_close(together.velocity[1:2], alone.velocity, rtol=0, atol=1e-5)


def test_moving_frame_gives_the_flow_past_a_moving_cylinder() -> None:
    """Seen from a steadily moving frame, a uniform stream stays uniform and only shifts."""
    domain = Domain(20, 30, 0.0, speed=0.1)
    flow = LatticeFlow(domain, torch.tensor([0.02]))
    push = torch.tensor([1e-4])
    for step in range(100):
        inflow = torch.zeros(1, 20, 2) + torch.tensor([0.1, 1e-4 * (step + 1)])
        flow.step(inflow, push)
    expected = torch.full((1, 20, 30), 0.1)  # 100 pushes, in units of the free stream
    torch.testing.assert_close(flow.velocity[:, 1], expected, rtol=0, atol=1e-3)
    torch.testing.assert_close(flow.velocity[:, 0], torch.ones(1, 20, 30), rtol=0, atol=2e-3)


def test_wall_links_lie_between_fluid_and_solid() -> None:
    domain = Domain(30, 30, 9.0, (15.2, 14.7))
    links = WallLinks.around_cylinder(domain, batch=1)
    solid = torch.nn.functional.pad(domain.solid(), (1, 1, 1, 1)).reshape(-1)
    cells = 32 * 32
    assert solid[links.target % cells].all()
    assert not solid[links.first % cells].any()
    assert not solid[links.second % cells].any()
    assert len(links.target.unique()) == len(links.target)
    assert ((links.blend >= 0) & (links.blend <= 1)).all()


def test_strouhal_number_at_reynolds_100_and_flux_balance() -> None:
    domain = Domain(128, 192, 8.0, (56.0, 64.0), 0.125, sides="slip", sponge=24)
    [found] = run_tasks(
        [lambda _: measure_shedding(domain, 100.0, spin_up=40.0, duration=40.0)], work=0
    )
    assert domain.blockage < 0.07
    assert found.strouhal == pytest.approx(0.165, rel=0.05)
    assert abs(found.imbalance) < 2e-3


@pytest.mark.parametrize(("speed", "viscosity"), [(0.5, 0.01), (0.1, 0.0), (0.1, -1.0)], ids=str)
def test_settings_outside_the_model_are_refused(speed: float, viscosity: float) -> None:
    with pytest.raises(ConfigError):
        LatticeFlow(Domain(8, 8, speed=speed), torch.tensor([viscosity]))


def test_unstable_flow_is_reported() -> None:
    flow = LatticeFlow(Domain(8, 8, speed=0.1), torch.tensor([0.01]))
    flow.set_state(*torch.full((3, 1, 8, 8), math.nan))
    with pytest.raises(NonFiniteError, match="finer lattice"):
        flow.check()


def test_turbulence_has_its_intensity_no_mean_flux_and_a_finite_correlation_time(rng) -> None:
    domain = wake_domain(TINY, 2.0)
    turbulence = InflowTurbulence.draw(domain, 8, intensity=0.03, generator=rng)
    steps = torch.arange(0, 20000, 10)
    velocity = turbulence.velocity(steps) / domain.speed
    spread = velocity.pow(2).mean((0, 1, 2)).sqrt()
    assert float(velocity.pow(2).sum(-1).mean() / 2) ** 0.5 == pytest.approx(0.03, rel=0.05)
    assert (spread > 0.015).all()
    assert velocity[..., 0].mean(-1).abs().max() < 1e-5
    lag = round(domain.steps_per_time / 10)  # one D/U
    at_lag = (velocity[lag:] * velocity[:-lag]).mean() / velocity.pow(2).mean()
    next_step = (velocity[1:] * velocity[:-1]).mean() / velocity.pow(2).mean()
    assert next_step > 0.95
    assert at_lag < 0.7


def test_vibration_speed_is_the_derivative_of_its_position(rng: torch.Generator) -> None:
    vibration = Vibration.draw(wake_domain(TINY, 2.0), 4, generator=rng)
    steps = torch.arange(1000)
    moved = vibration.displacement(steps[1:] - 0.5) - vibration.displacement(steps[:1] - 0.5)
    torch.testing.assert_close(vibration.speed(steps[:-1]).cumsum(0), moved)
    assert (vibration.displacement(torch.tensor([0])) == 0).all()


def test_box_average_keeps_constants_and_is_exact_for_lines() -> None:
    lower = torch.tensor([0.0, 1.25, 3.9], dtype=torch.float64)
    weights = box_average(lower, width=2.5, cells=8)
    torch.testing.assert_close(weights.sum(-1), torch.ones(3, dtype=torch.float64))
    whole = box_average(torch.tensor([1.0, 4.0]).double(), width=2.0, cells=8)
    centres = torch.arange(8).double() + 0.5
    torch.testing.assert_close(whole @ centres, torch.tensor([2.0, 5.0]).double())


def test_view_follows_the_displacement() -> None:
    view = View((4, 5), (1, 2), ratio=2.0)
    values = torch.rand(1, 1, 20, 20)
    still = view.record(values, torch.zeros(1, dtype=torch.float64))
    moved = view.record(values.roll(-1, 2), torch.ones(1, dtype=torch.float64))
    torch.testing.assert_close(moved, still)
    torch.testing.assert_close(still[0, 0, 0, 0], values[0, 0, 4:6, 2:4].mean())


def test_measurement_errors_have_their_size_and_spare_the_body(rng: torch.Generator) -> None:
    velocity, visible = torch.zeros(100, 32, 64, 2), torch.ones(100, 32, 64)
    visible[:, :4, :4] = 0.2
    seen = add_measurement_errors(velocity, visible, noise=0.015, outliers=0.0, generator=rng)
    assert float(seen[:, 4:].std()) == pytest.approx(0.015, rel=0.02)
    assert (seen[:, :4, :4] == 0).all()
    seen = add_measurement_errors(velocity, visible, noise=0.0, outliers=0.003, generator=rng)
    assert float((seen[:, 4:] != 0).any(-1).float().mean()) == pytest.approx(0.003, rel=0.2)
    assert seen.abs().max() <= 0.5


@pytest.fixture(scope="module")
def cached(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wake")
    return folder, make_wake(0, settings=TINY, cache=folder)


def test_wake_splits_by_trajectory_on_one_grid(cached) -> None:
    _, data = cached
    for name in SPLITS:
        windows = getattr(data, name)
        assert isinstance(windows, Windows)
        assert windows.fields.grid == (32, 64)
        assert len(windows) == 2 * getattr(TINY, name)
        assert len(data.reynolds[name]) == getattr(TINY, name)
        assert windows[0].history.dtype == torch.float32
    numbers = [number for name in SPLITS for number in data.reynolds[name]]
    assert len(set(numbers)) == len(numbers)
    assert data.numerical_train.fields.measured == (0, 1, 2)
    assert data.real_test.fields.measured == (0, 1)
    assert (data.real_test[0].target[..., 2] == 0).all()
    assert 0.10 <= data.viscosity_offset <= 0.15


def test_same_seed_gives_the_same_bits_and_another_seed_does_not(cached) -> None:
    _, data = cached
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        again = make_wake(0, settings=TINY)
    finally:
        torch.set_num_threads(threads)
    other = make_wake(1, settings=TINY)
    for name in SPLITS:
        assert getattr(again, name).fingerprint == getattr(data, name).fingerprint
        assert getattr(other, name).fingerprint != getattr(data, name).fingerprint
    assert set(other.reynolds["real_test"]).isdisjoint(data.reynolds["real_test"])


def test_cache_is_reused_and_progress_ends_at_its_total(tmp_path) -> None:
    calls: list[tuple[int, int]] = []
    first = make_wake(3, settings=TINY, cache=tmp_path, progress=lambda *at: calls.append(at))
    [file] = tmp_path.iterdir()
    assert [done for done, _ in calls] == list(range(1, calls[-1][1] + 1))
    calls.clear()
    second = make_wake(3, settings=TINY, cache=tmp_path, progress=lambda *at: calls.append(at))
    assert not calls
    assert [*tmp_path.iterdir()] == [file]
    assert first.real_fit.fingerprint == second.real_fit.fingerprint


@pytest.mark.parametrize("damage", ["truncated", "altered"])
def test_damaged_cache_is_refused_by_name(cached, tmp_path, damage: str) -> None:
    folder, _ = cached
    [file] = folder.iterdir()
    content = bytearray(file.read_bytes())
    copy = tmp_path / file.name
    if damage == "truncated":
        content = content[: len(content) // 2]
    else:
        content[-1000] ^= 1
    copy.write_bytes(content)
    with pytest.raises(FileDamagedError, match=f"{file.name}.*[Dd]elete"):
        make_wake(0, settings=TINY, cache=tmp_path)


def test_interrupted_run_stops_and_leaves_no_file(tmp_path) -> None:
    threads = torch.get_num_threads()

    def interrupt(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make_wake(0, settings=TINY, cache=tmp_path, progress=interrupt)
    assert not list(tmp_path.iterdir())
    assert torch.get_num_threads() == threads


def test_wake_settings_that_hold_no_window_are_refused() -> None:
    with pytest.raises(ConfigError):
        WakeSettings(0, real_frames=19)
    with pytest.raises(ConfigError):
        WakeSettings(-1)
    with pytest.raises(ConfigError):
        make_wake(0, quick=True, settings=TINY)
