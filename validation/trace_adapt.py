"""The way of `r2no adapt CONFIG` and of `r2no predict` through the layers, from a trace.

    python -m validation.trace_adapt [--modules]

A tiny run on the docs' toy files, with every call of a function of r2no recorded. Prints the steps
that `runs` takes in turn, the parts that each reaches, in which order parts are first entered and
last left, how often each is entered from above, and the calls that lead upwards: into things that
were handed down. With ``--modules`` also every module in the order in which it is first entered.
The page docs/architecture.md shows the output, and its picture is drawn from the same trace. Only
calls of the main thread are seen.
"""

import argparse
import contextlib
import datetime
import importlib
import io
import os
import pkgutil
import sys
import tempfile
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torch
import typer

import r2no

ROOT = Path(__file__).parent.parent
PACKAGE = Path(r2no.__file__).parent
CONFIG = """
data: {path: piv.nc, history: 4, horizon: 4, stride: 8}
source: {python: "mynet:Forecaster", checkpoint: weights.pt, layout: B (T C) H W}
adapt:
  members: 1
  repair: {width: 4, depth: 2, steps: 2, train: {epochs: 1}}
  ensemble: {radial: 4, angular: 2}
out: run
"""
#: Below this layer stand tools that everybody uses; they are no part of the way.
GROUND = "torch_files"


def layers() -> list[list[str]]:
    """The layers of the import contract, the highest first; siblings stand together."""
    contract = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    (listed,) = [one["layers"] for one in contract["contracts"] if one["type"] == "layers"]
    return [[name.strip() for name in layer.split("|")] for layer in listed]


def heights() -> dict[str, int]:
    """Height of every package and module directly under r2no; 0 is the top."""
    return {name: height for height, layer in enumerate(layers()) for name in layer}


@dataclass(frozen=True)
class Call:
    """A call from one part of r2no into another: who called, what was entered, how deep."""

    caller: str  # dotted, without r2no; empty for the outside
    module: str
    function: str
    depth: int

    @property
    def part(self) -> str:
        """The package or module directly under r2no."""
        return self.module.split(".")[0]

    @property
    def caller_part(self) -> str:
        """The same of the caller."""
        return self.caller.split(".")[0]


@dataclass
class Trace:
    """Calls between parts, modules as they are first entered, parts as they are last left."""

    calls: list[Call] = field(default_factory=list)
    modules: list[str] = field(default_factory=list)
    left: dict[str, None] = field(default_factory=dict)  # in the order of the last exit
    _stack: list[str] = field(default_factory=list)

    @contextlib.contextmanager
    def recording(self) -> Iterator[None]:
        """Record every call while this is open."""
        sys.setprofile(self._see)
        try:
            yield
        finally:
            sys.setprofile(None)

    def _see(self, frame: object, event: str, _: object) -> None:
        if event not in ("call", "return"):
            return
        code = frame.f_code  # type: ignore[attr-defined]
        module = _module(code.co_filename)
        if module is None or code.co_name == "<module>":
            return
        if event == "return":
            self._leave()
            return
        caller = self._stack[-1] if self._stack else ""
        if module.split(".")[0] != caller.split(".")[0]:
            self.calls.append(Call(caller, module, code.co_qualname, len(self._stack)))
        if module not in self.modules:
            self.modules.append(module)
        self._stack.append(module)

    def _leave(self) -> None:
        if not self._stack:
            return
        part = self._stack.pop().split(".")[0]
        if not self._stack or self._stack[-1].split(".")[0] != part:
            self.left.pop(part, None)
            self.left[part] = None


_KNOWN: dict[str, str | None] = {}


def _module(filename: str) -> str | None:
    """Dotted name of a file of r2no, without r2no itself."""
    if filename not in _KNOWN:
        path, found = Path(filename), None
        if path.is_relative_to(PACKAGE):
            parts = path.relative_to(PACKAGE).with_suffix("").parts
            found = ".".join(part for part in parts if part != "__init__") or "r2no"
        _KNOWN[filename] = found
    return _KNOWN[filename]


def traces() -> dict[str, Trace]:
    """Traces of ``r2no adapt`` and ``r2no predict`` on toy files, in a folder that is removed."""
    for name in (module.name for module in pkgutil.walk_packages(r2no.__path__, "r2no.")):
        if not name.endswith("__main__"):
            importlib.import_module(name)  # so that imports are no part of the trace
    from r2no.cli.main import app

    found, command = {}, typer.main.get_command(app)
    with tempfile.TemporaryDirectory() as folder, _toys(Path(folder)):
        for line in (
            "adapt own.yaml",
            "predict run/model.r2no piv.nc --out forecast.nc --trust-source",
        ):
            trace = found[line.split()[0]] = Trace()
            with contextlib.redirect_stdout(io.StringIO()), trace.recording():
                command.main(line.split(), "r2no", standalone_mode=False)
    return found


@contextlib.contextmanager
def _toys(folder: Path) -> Iterator[None]:
    """The docs' toy files in ``folder``, which is where we are while this is open."""
    before, examples = Path.cwd(), str(ROOT / "docs" / "examples")
    sys.path.insert(0, examples)
    threads = torch.get_num_threads()
    try:
        import toy

        toy.main(folder)
        (folder / "own.yaml").write_text(CONFIG)
        os.chdir(folder)
        torch.set_num_threads(1)
        yield
    finally:
        os.chdir(before)
        sys.path.remove(examples)
        torch.set_num_threads(threads)


def steps(trace: Trace, base: str = "runs") -> list[tuple[Call, list[str]]]:
    """What ``base`` calls below itself, in order, each with the parts that it reaches in turn.

    Calls of the same function in a row are one step; the ground is left out.
    """
    height = heights()
    ground = height[GROUND]
    found: list[tuple[Call, list[str]]] = []
    for call in trace.calls:
        if call.caller_part == base and height[base] < height[call.part] < ground:
            if not found or found[-1][0].function != call.function:
                found.append((call, [call.part]))
        elif found and call.depth > found[-1][0].depth and height.get(call.part, 99) < ground:
            reached = found[-1][1]
            if call.part not in reached:
                reached.append(call.part)
    return found


def road(trace: Trace) -> list[str]:
    """The way of a window in a trace of `predict`: from reading it to writing its forecast.

    Modules above the ground that are entered from another part, each once; before it the module
    that calls it, so that one may come back to a caller.
    """
    functions = [call.function for call in trace.calls]
    start = functions.index("gather")
    stop = functions.index("ForecastFile.write")
    ground, height = heights()[GROUND], heights()
    way, seen = [trace.calls[start].caller], set()
    for call in trace.calls[start : stop + 1]:
        if height[call.part] < ground and call.module not in seen:
            seen.add(call.module)
            way += [call.module] if way[-1] == call.caller else [call.caller, call.module]
    return way


def entries(trace: Trace) -> Counter[str]:
    """How often each part is entered by a call from above."""
    height = heights()
    above = (c for c in trace.calls if height.get(c.caller_part, -1) < height.get(c.part, -1))
    return Counter(call.part for call in above)


def upward(trace: Trace) -> Counter[tuple[str, str]]:
    """Calls into a higher layer, by (caller, what was entered)."""
    height = heights()
    return Counter(
        (call.caller, f"{call.module}.{call.function}")
        for call in trace.calls
        if call.caller and height.get(call.caller_part, -1) > height.get(call.part, -1)
    )


def show(trace: Trace, say: Callable[[str], None], *, modules: bool) -> None:
    base = "runs" if any(call.part == "runs" for call in trace.calls) else "cli"
    for call, reached in steps(trace, base):
        say(f"  {base} > {call.module}.{call.function}")
        if len(reached) > 1:
            say(f"      reaches {', '.join(reached[1:])}")
    on_the_way = {name for layer in layers()[: heights()[GROUND]] for name in layer}
    down = dict.fromkeys(call.part for call in trace.calls if call.part in on_the_way)
    say("  first entered: " + ", ".join(down))
    say("  last left: " + ", ".join(name for name in trace.left if name in on_the_way))
    order = [name for layer in layers() for name in layer]
    counted = entries(trace)
    say("  entered from above: " + ", ".join(f"{n} {counted[n]}" for n in order if counted[n]))
    for (caller, entered), number in upward(trace).most_common():
        say(f"  upwards: {caller} > {entered}, {number} x")
    if modules:
        say("  modules: " + ", ".join(trace.modules))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--modules", action="store_true", help="list every module as well")
    wanted = parser.parse_args()
    print(datetime.date.today())
    for name, trace in traces().items():
        print(
            f"\nr2no {name}: {len(trace.modules)} modules, {len(trace.calls)} calls between parts"
        )
        show(trace, print, modules=wanted.modules)


if __name__ == "__main__":
    main()
