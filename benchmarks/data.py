"""Reading RealPDEBench rows of real size: random windows, opening 92 rows, extra memory.

Writes one measured row (3990 x 64 x 128, u and v) and one simulated row (3990 x 128 x 256, u, v
and p) to a temporary folder (1.9 GB), then compares ``RealPDEBench`` with a reader that takes a
whole row for each window. The 92 rows are sparse files: full size, no field values on the disk.

    python -m benchmarks.data [--folder DIR] [--brief]
"""

import json
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch

from benchmarks import parser, peak_megabytes, print_conditions
from r2no.realpdebench import RealPDEBench, lookup
from r2no.realpdebench.files.arrow import read_rows

GRIDS = {"real": (64, 128), "numerical": (128, 256)}
COLUMNS = {"real": ("u", "v"), "numerical": ("u", "v", "p")}
REFERENCE_MS = {"real": 260.0, "numerical": 2000.0}  # the benchmark's own loader, one window


@dataclass(frozen=True)
class Size:
    """Frames of a row, windows to read of it, rows to open."""

    frames: int = 3990
    windows: int = 200
    rows: int = 92


BRIEF = Size(frames=100, windows=20, rows=4)


def write_row(root: Path, kind: str, size: Size) -> Path:
    """One trajectory in one shard, and a list of random windows."""
    height, width = GRIDS[kind]
    generator = np.random.default_rng(0)
    values = generator.standard_normal((size.frames, height, width), dtype=np.float32)
    bounds = pa.py_buffer(np.array([0, values.nbytes], np.int32))
    cell = pa.Array.from_buffers(pa.binary(), 1, [None, bounds, pa.py_buffer(values)])
    columns = {"sim_id": pa.array(["10000.h5"])} | dict.fromkeys(COLUMNS[kind], cell)
    for axis, length in zip("thw", values.shape, strict=True):
        columns[f"shape_{axis}"] = pa.array([length], pa.int32())
    path = root / "cylinder" / "hf_dataset" / kind / "data-00000-of-00001.arrow"
    path.parent.mkdir(parents=True)
    batch = pa.RecordBatch.from_pydict(columns)
    with pa.ipc.new_stream(str(path), batch.schema) as sink:
        sink.write_batch(batch)
    starts = random.Random(0).sample(range(size.frames - 40), size.windows)
    write_index(root, kind, [("10000.h5", start) for start in starts])
    return path


def write_index(root: Path, kind: str, pairs: list[tuple[str, int]]) -> None:
    content = [{"sim_id": name, "time_id": start} for name, start in pairs]
    path = root / "cylinder" / "hf_dataset" / f"train_index_{kind}.json"
    path.write_text(json.dumps(content))


def write_sparse(shard: Path, root: Path, kind: str, size: Size) -> None:
    """Copies of ``shard`` under other names, with holes for the fields."""
    (row,) = read_rows(shard, lookup("cylinder"))
    length = 4 * int(np.prod(row.shape))
    edges = [0, *(e for start in sorted(row.offsets.values()) for e in (start, start + length))]
    pieces = list(zip(edges[::2], [*edges[1::2], row.stamp.size], strict=True))
    folder = root / "cylinder" / "hf_dataset" / kind
    folder.mkdir(parents=True)
    names = [f"{10000 + number}.h5" for number in range(size.rows)]
    for number, name in enumerate(names):
        path = folder / f"data-{number:05d}-of-{size.rows:05d}.arrow"
        with shard.open("rb") as source, path.open("wb") as sink:
            sink.truncate(row.stamp.size)
            for start, stop in pieces:
                source.seek(start)
                sink.seek(start)
                sink.write(source.read(stop - start).replace(b"10000.h5", name.encode()))
    write_index(root, kind, [(name, 20 * k) for name in names for k in range(size.frames // 21)])


def naive_window(shard: Path, kind: str, start: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Take the whole row as Python bytes, then the window, as a plain reader does."""
    with pa.memory_map(str(shard)) as source:
        row = pa.ipc.open_stream(source).read_all().to_pylist()[0]
    shape = tuple(row[f"shape_{axis}"] for axis in "thw")
    stride = 1 if kind == "real" else 2
    fields = [np.frombuffer(row[key], np.float32).reshape(shape) for key in COLUMNS[kind]]
    cut = [field[start : start + 40, ::stride, ::stride] for field in fields]
    cut += [np.zeros_like(cut[0])] * (3 - len(cut))
    values = torch.from_numpy(np.stack(cut, axis=-1))
    return values[:20], values[20:]


def resident_megabytes() -> float:
    text = Path("/proc/self/status").read_text()
    return int(text.split("VmRSS:")[1].split()[0]) / 1024


def milliseconds(action: Callable[[int], object], repeats: int) -> float:
    times = []
    for number in range(repeats):
        begin = time.perf_counter()
        action(number)
        times.append(1e3 * (time.perf_counter() - begin))
    return statistics.median(times)


def measure_ours(root: Path, kind: str) -> tuple[float, float]:
    """Median milliseconds of a random window, and megabytes above the start at the peak."""
    torch.set_num_threads(1)
    before = resident_megabytes()
    windows = RealPDEBench(root, "cylinder", kind, mask_prob=0.0)
    median = milliseconds(windows.__getitem__, len(windows))
    return median, peak_megabytes() - before


def measure_naive(root: Path, kind: str) -> tuple[float, float]:
    torch.set_num_threads(1)
    shard = next((root / "cylinder" / "hf_dataset" / kind).glob("*.arrow"))
    pairs = RealPDEBench(root, "cylinder", kind).pairs
    before = resident_megabytes()
    median = milliseconds(lambda number: naive_window(shard, kind, pairs[number][1]), 5)
    return median, peak_megabytes() - before


def measure_opening(root: Path, kind: str) -> tuple[float, float]:
    before = resident_megabytes()
    median = milliseconds(lambda _: RealPDEBench(root, "cylinder", kind), 3)
    return median, peak_megabytes() - before


def measure(function: Callable[[Path, str], tuple[float, float]], root: Path, kind: str):
    """Run in a fresh process, so that peaks do not mix."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(function, root, kind).result()


def check_equal(root: Path, shard: Path, kind: str) -> None:
    windows = RealPDEBench(root, "cylinder", kind, mask_prob=0.0)
    for part, naive in zip(
        windows[7], naive_window(shard, kind, windows.pairs[7][1]), strict=False
    ):
        torch.testing.assert_close(part, naive, rtol=0, atol=0)


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--folder", help="where to put 1.9 GB for a while")
    given = options.parse_args()
    size = BRIEF if given.brief else Size()
    print_conditions(brief=given.brief)
    print("| kind | what | r2no | whole-row reader | ratio | target |")
    print("|---|---|---|---|---|---|")
    for kind, reference in REFERENCE_MS.items():
        with tempfile.TemporaryDirectory(dir=given.folder) as scratch:
            root, sparse = Path(scratch) / "one", Path(scratch) / "many"
            shard = write_row(root, kind, size)
            write_sparse(shard, sparse, kind, size)
            check_equal(root, shard, kind)
            ours, extra = measure(measure_ours, root, kind)
            naive, naive_extra = measure(measure_naive, root, kind)
            opening, opening_extra = measure(measure_opening, sparse, kind)
        print(
            f"| {kind} | random window | {ours:.2f} ms | {naive:.0f} ms | {naive / ours:.0f}x "
            f"| <= {reference / 200:.1f} ms (1/200 of {reference:.0f} ms) |"
        )
        print(f"| {kind} | peak extra memory | {extra:.0f} MB | {naive_extra:.0f} MB | | < 50 MB |")
        print(
            f"| {kind} | opening {size.rows} rows | {opening:.0f} ms, {opening_extra:.0f} MB "
            "| | | <= 1000 ms |"
        )


if __name__ == "__main__":
    main()
