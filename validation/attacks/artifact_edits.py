"""Edit an artifact: cut, swap and delete files; then lie in it, with all hashes redone.

    python -m validation.attacks.artifact_edits [--thin 5]

Damage must be refused. An artifact whose author lies must be refused by name, or load and predict
finite numbers within seconds. ``--thin N`` tries every Nth lie.
"""

import argparse
import copy
import json
import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from validation.attacks.common import Tally, history, run_script, silence, toy_model

import r2no
from r2no import replacing, storage
from r2no.adaptation.stored import write_manifest
from r2no.cli.artifact import inspect

SECONDS = 20  # per load and prediction
DEEP = "[" * 100_000 + "]" * 100_000
LIES: tuple[Any, ...] = (
    None, True, -1, 0, 7, 10**9, 10**30, -0.5, 1e308, "x", "../../x", "\0", [], [1],
    [[]], {}, {"x": 1},
)  # fmt: skip


class Endless(Exception):
    """A load or a prediction did not end."""


def _stop(*_: object) -> None:
    raise Endless


def judge(tally: Tally, folder: Path, detail: str, *, damaged: bool = False) -> None:
    """Inspect, load and predict; ``damaged`` says that only a refusal is right."""
    signal.signal(signal.SIGALRM, _stop)
    signal.alarm(SECONDS)
    with silence():
        tally.no_raw(f"inspect: {detail}", partial(inspect, [str(folder)], as_json=True))
    with tally.trial(detail):
        found = r2no.load(folder).predict(history())
        sound = not damaged and bool(found.isfinite().all())
        tally.add("right" if sound else "wrong", detail)
    signal.alarm(0)


def damages(folder: Path, other: Path) -> Iterator[tuple[str, Callable[[], object]]]:
    """Truncations, additions, swaps and deletions of every file."""
    files = sorted(path.name for path in folder.iterdir())
    for name in files:
        path, size = folder / name, (folder / name).stat().st_size
        content = path.read_bytes()
        cuts = {0, 1, 7, 8, 9, 100, size - 8, size - 1, *(part * size // 9 for part in range(1, 9))}
        for keep in sorted(cuts):
            yield f"{name} cut to {keep}", partial(path.write_bytes, content[:keep])
        yield f"{name} with a byte more", partial(path.write_bytes, content + b"\0")
        yield f"{name} gone", path.unlink
        yield f"{name} a folder", lambda path=path: (path.unlink(), path.mkdir())
        yield f"{name} a pipe", lambda path=path: (path.unlink(), os.mkfifo(path))
        yield f"{name} of another", partial(shutil.copyfile, other / name, path)
        for second in files:
            if second != name:
                yield f"{name} from {second}", partial(shutil.copyfile, folder / second, path)


def leaves(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Places of all values in nested JSON, containers included."""
    if at:
        yield at
    items = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    for key, item in items:
        yield from leaves(item, (*at, key))


def with_lie(content: Any, at: tuple[Any, ...], lie: Any) -> Any:
    """A copy with another value, or without it if ``lie`` is ``leaves``."""
    changed = copy.deepcopy(content)
    place = changed
    for key in at[:-1]:
        place = place[key]
    if lie is leaves:
        del place[at[-1]]
    else:
        place[at[-1]] = lie
    return changed


def json_lies(content: Any) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Every value of a JSON object replaced by every lie, and left out; made when called for."""
    for at in leaves(content):
        for lie in (*LIES, leaves):
            what = "(gone)" if lie is leaves else repr(lie)
            yield f"{at} = {what}", partial(with_lie, content, at, lie)


def texts(manifest: Path) -> Iterator[tuple[str, str]]:
    """Manifests that are no object, or no JSON that Python should take; these have no seal."""
    sound = manifest.read_text()
    step = '"step_size": 0.2'
    assert step in sound
    yield from {
        "list": "[]", "text": '"x"', "null": "null", "number": "3", "empty": "", "nothing": "{}",
        "deep": DEEP, "deep inside": '{"format": "r2no.artifact/3", "files": ' + DEEP + "}",
        "NaN": sound.replace(step, '"step_size": NaN'),
        "infinite": sound.replace(step, '"step_size": 1e999'),
        "twice": sound.replace(step, step + ", " + step),
        "digits": sound.replace(step, '"step_size": ' + "9" * 10_000),
        "unsealed": sound.replace("artifact/3", "artifact/2"),
        "older": sound.replace("artifact/3", "artifact/1"),
        "newer": sound.replace("artifact/3", "artifact/9"),
    }.items()  # fmt: skip


def tensor_lies(name: str, value: Tensor) -> Iterator[tuple[str, dict[str, Tensor]]]:
    """Other tensors under the same name, none, and the same one under another."""
    yield f"{name} gone", {}
    yield f"{name} renamed", {name + "x": value}
    yield f"{name} and one more", {name: value, "extra": torch.zeros(3)}
    yield f"{name} empty", {name: value.flatten()[:0]}
    yield f"{name} flat", {name: value.flatten()}
    yield f"{name} doubled", {name: torch.cat([value.flatten(), value.flatten()])}
    yield f"{name} with an axis more", {name: value[None]}
    yield f"{name} turned", {name: value.movedim(0, -1) if value.ndim > 1 else value.flip(0)}
    for dtype in (torch.float16, torch.float64, torch.int64, torch.bool, torch.uint8):
        yield f"{name} as {dtype}", {name: value.to(dtype)}
    for number in (float("nan"), float("inf"), 3e38, -3e38, -1.0, 0.0):
        if value.is_floating_point():
            yield f"{name} = {number}", {name: torch.full_like(value, number)}
    if not value.is_floating_point():
        for whole in (-1, 2**40):
            yield f"{name} = {whole}", {name: torch.full_like(value.long(), whole)}


def file_lies(path: Path) -> Iterator[tuple[str, dict[str, Tensor], Callable[[], Any]]]:
    """A safetensors file with one tensor or one value of its metadata changed."""
    tensors, metadata = storage.load_tensors(path)
    names = list(tensors)
    if path.name.startswith(("repair", "source")):  # many alike
        names = names[:: max(len(names) // 3, 1)]
    for name in names:
        rest = {key: value for key, value in tensors.items() if key != name}
        for what, changed in tensor_lies(name, tensors[name]):
            yield f"{path.name}: {what}", {**rest, **changed}, lambda: metadata
    for what, lie in json_lies(metadata):
        yield f"{path.name}: {what}", tensors, lie


def reseal(folder: Path) -> None:
    """Redo all hashes, as somebody would who can read this."""
    manifest = json.loads((folder / "manifest.json").read_text())
    for name in manifest["files"]:
        manifest["files"][name] = storage.file_sha256(folder / name)
    write_manifest(folder, manifest)


def attack(options: argparse.Namespace) -> list[Tally]:
    """All of it, each on a fresh copy."""
    damage = Tally("truncation, swap from another artifact, swap inside, delete")
    manifests = Tally("hostile manifests (load, inspect)")
    files = Tally("edited safetensors, hashes redone")
    with tempfile.TemporaryDirectory() as work:
        sound = toy_model().save(Path(work) / "a.r2no")
        other = toy_model(1).save(Path(work) / "b.r2no")
        folder = Path(work) / "c.r2no"
        shutil.copytree(sound, folder)

        def afresh(name: str) -> None:
            replacing.remove(folder / name)
            for each in {name, "manifest.json"}:
                shutil.copyfile(sound / each, folder / each)

        for detail, harm in damages(folder, other):
            harm()
            judge(damage, folder, detail, damaged=True)
            afresh(detail.split()[0])
        for detail, text in texts(sound / "manifest.json"):
            (folder / "manifest.json").write_text(text)
            judge(manifests, folder, detail, damaged=True)
        manifest = json.loads((sound / "manifest.json").read_text())
        del manifest["sha256"], manifest["format"]
        for detail, lie in list(json_lies(manifest))[:: options.thin]:
            write_manifest(folder, lie())
            judge(manifests, folder, detail)
        afresh("manifest.json")
        for name in sorted(manifest["files"]):
            for detail, tensors, metadata in list(file_lies(sound / name))[:: options.thin]:
                storage.save_tensors(folder / name, tensors, metadata())
                reseal(folder)
                judge(files, folder, detail)
            afresh(name)
    return [damage, manifests, files]


if __name__ == "__main__":
    run_script(attack, thin=5)
