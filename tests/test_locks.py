"""One writer per output, across threads and processes, and nothing left behind."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from r2no import storage
from r2no.errors import BusyError, StorageError
from r2no.locks import sole_writer


def test_lock_is_gone_when_the_work_is_done(tmp_path: Path) -> None:
    with sole_writer(tmp_path / "out"):
        assert [path.name for path in tmp_path.iterdir()] == [".out.lock"]
        with sole_writer(tmp_path / "out"):  # the same thread again
            pass
        assert (tmp_path / ".out.lock").exists()
    assert not list(tmp_path.iterdir())


def test_second_writer_waits_for_the_first(tmp_path: Path) -> None:
    order = []

    def second() -> None:
        with sole_writer(tmp_path / "out"):
            order.append("second")

    with sole_writer(tmp_path / "out"):
        thread = threading.Thread(target=second)
        thread.start()
        time.sleep(0.3)
        order.append("first")
    thread.join(60)
    assert order == ["first", "second"]


def test_refused_writer_learns_who_works_there(tmp_path: Path) -> None:
    held, done = threading.Event(), threading.Event()

    def first() -> None:
        with sole_writer(tmp_path / "out"):
            held.set()
            done.wait(60)

    thread = threading.Thread(target=first)
    thread.start()
    held.wait(60)
    with pytest.raises(BusyError, match=r"out` is being written by process \d+ on .* since"):
        sole_writer(tmp_path / "out", wait=False).__enter__()
    done.set()
    thread.join(60)


def test_killed_holder_locks_nothing(tmp_path: Path) -> None:
    code = (
        "import sys, time\nfrom r2no.locks import sole_writer\n"
        "with sole_writer(sys.argv[1]):\n    print('held', flush=True)\n    time.sleep(600)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / "out")], stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(BusyError, match=f"process {holder.pid} on"):
            sole_writer(tmp_path / "out", wait=False).__enter__()
        holder.kill()
        holder.wait()
    with sole_writer(tmp_path / "out", wait=False):
        pass
    assert not list(tmp_path.iterdir())


def test_many_writers_of_one_file_leave_one_whole_file(tmp_path: Path) -> None:
    path = tmp_path / "a.json"

    def write(number: int) -> None:
        storage.write_json(path, {"number": number, "text": "x" * 10_000})

    threads = [threading.Thread(target=write, args=(number,)) for number in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert storage.read_json(path)["number"] in range(12)
    assert [file.name for file in tmp_path.iterdir()] == ["a.json"]


def test_place_below_a_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(StorageError, match=r"Could not write .*file/out"):
        sole_writer(tmp_path / "file" / "out").__enter__()


def test_folder_made_for_a_lock_alone_is_removed(tmp_path: Path) -> None:
    with sole_writer(tmp_path / "new" / "folder" / "out"):
        pass
    assert not (tmp_path / "new").exists()
    with sole_writer(tmp_path / "kept" / "out"):
        (tmp_path / "kept" / "out").write_text("x")
    assert (tmp_path / "kept" / "out").exists()


def test_two_paths_to_one_place_share_a_lock(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    refused = []

    def second() -> None:
        try:
            with sole_writer(tmp_path / "link" / "out", wait=False):
                pass
        except BusyError as error:
            refused.append(error)

    with sole_writer(tmp_path / "real" / "out"):
        thread = threading.Thread(target=second)
        thread.start()
        thread.join(60)
    assert len(refused) == 1


def test_forked_child_neither_holds_nor_keeps_its_parents_lock(tmp_path: Path) -> None:
    code = (
        "import os, sys, time\n"
        "from r2no.errors import BusyError\nfrom r2no.locks import sole_writer\n"
        "with sole_writer(sys.argv[1]):\n"
        "    if os.fork() == 0:\n"
        "        try:\n"
        "            sole_writer(sys.argv[1], wait=False).__enter__()\n"
        "        except BusyError:\n"
        "            print('busy', flush=True)\n"
        "        time.sleep(600)\n"
        "    time.sleep(600)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / "out")],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "busy\n"
        holder.kill()  # its child lives on
        os.waitid(os.P_PID, holder.pid, os.WEXITED | os.WNOWAIT)
        with sole_writer(tmp_path / "out", wait=False):
            pass
        os.killpg(holder.pid, signal.SIGKILL)


def test_waiting_process_says_for_whom_and_ends_at_an_interrupt(tmp_path: Path) -> None:
    code = (  # jobs in the background may have been started with interrupts ignored
        "import signal, sys\nfrom r2no.locks import sole_writer\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "with sole_writer(sys.argv[1]):\n    print('mine')\n"
    )
    with (
        sole_writer(tmp_path / "out"),
        subprocess.Popen(
            [sys.executable, "-c", code, str(tmp_path / "out")],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as waiting,
    ):
        assert waiting.stderr is not None
        said = waiting.stderr.readline()
        assert said.startswith("Waiting: ")
        assert f"process {os.getpid()} on" in said
        waiting.send_signal(signal.SIGINT)
        assert "KeyboardInterrupt" in waiting.stderr.read()
        assert waiting.wait(60) != 0
    assert not list(tmp_path.iterdir())


def test_system_without_locks_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fcntl", None)
    with pytest.raises(StorageError, match="Write on Linux or macOS"):
        sole_writer(tmp_path / "out").__enter__()
