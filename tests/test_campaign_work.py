"""The work of a campaign: jobs side by side, up to a deadline or a signal. Nothing is trained."""

from __future__ import annotations

import _thread
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import campaign
import campaign_calibrate
import pytest
from campaign_jobs import DONE, ENDED, FAILED, STOPPED, Job, work_off
from rich.console import Console
from turns import StopWatch

from hf_xlsr.utils.errors import XlsrError


@dataclass
class Script(Job):
    """Runs a line of Python; done when its file is there."""

    code: str = ""
    file: Path = field(default_factory=Path)
    tidied: int = 0

    def done(self) -> bool:
        return self.file.is_file()

    def command(self) -> list[str]:
        return [sys.executable, "-c", self.code]

    def tidy(self) -> None:
        self.tidied += 1


def touch(folder: Path, name: str, *needs: Job, before: str = "") -> Script:
    file = folder / name
    return Script(name, needs, f"{before}\nopen({str(file)!r}, 'a').write('x')", file)


def run(jobs: list[Job], folder: Path, **options: Any) -> Any:
    given = {"minutes": 1.0, "parallel": 2, "threads": 1, **options}
    return work_off(jobs, logs=folder / "logs", console=Console(quiet=True), **given)


def test_steps_within_a_time_leave_room_for_what_comes_before_them(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([100.0, 130.0, 140.0, 142.0, 144.0, 146.0])  # made; the first step begins; steps end
    monkeypatch.setattr("turns.time.process_time", lambda: next(times))
    watch = StopWatch()
    for _ in range(4):
        watch.on_step_begin(None, None, None)
        watch.on_step_end(None, None, None)
    assert watch.seconds_before() == 30.0 and watch.seconds_per_step(1) == 2.0
    assert watch.steps_within(50.0, 1) == 10 and watch.steps_within(10.0, 1) == 1


def test_jobs_follow_what_they_need_and_are_not_repeated(tmp_path: Path) -> None:
    first = touch(tmp_path, "first", before="import time; time.sleep(0.5)")
    check = f"assert open({str(tmp_path / 'first')!r}).read() == 'x'"
    second = touch(tmp_path, "second", first, before=check)
    for _ in range(2):
        outcome = run([second, first], tmp_path)
        assert outcome.states == {"first": DONE, "second": DONE} and not outcome.left and not outcome.errors
    assert (tmp_path / "first").read_text() == (tmp_path / "second").read_text() == "x"


def test_a_failure_is_told_and_what_needs_it_waits_while_others_go_on(tmp_path: Path) -> None:
    bad = Script("bad", (), "raise SystemExit('peers: there is no such file')", tmp_path / "never")
    outcome = run([bad, touch(tmp_path, "after", bad), touch(tmp_path, "other")], tmp_path)
    assert outcome.states == {"bad": FAILED, "other": DONE}
    assert outcome.errors == {"bad": "peers: there is no such file"} and outcome.left == ["after"]


def test_a_failure_is_told_by_its_own_call_and_by_its_signal(tmp_path: Path) -> None:
    run([Script("bad", (), "raise SystemExit('of an earlier call')", tmp_path / "never")], tmp_path)
    quiet = Script("bad", (), "import os, signal; os.kill(os.getpid(), signal.SIGKILL)", tmp_path / "never")
    assert run([quiet], tmp_path).errors == {"bad": "ended by signal 9, after it said: it printed nothing"}


def test_a_folder_is_locked_while_a_campaign_or_what_it_left_behind_works_there(tmp_path: Path) -> None:
    lock = campaign.claim(tmp_path / "out")
    code = "import time; time.sleep(60)"
    left_behind = subprocess.Popen([sys.executable, "-c", code], pass_fds=(lock,))
    try:
        os.close(lock)  # the campaign is gone, its job is not
        with pytest.raises(XlsrError, match="another campaign, or a training that one left behind, works in .*out"):
            campaign.claim(tmp_path / "out")
    finally:
        left_behind.kill()
        left_behind.wait()
    os.close(campaign.claim(tmp_path / "out"))


def test_jobs_that_end_while_they_are_stopped_or_were_done_before_are_tidied(tmp_path: Path) -> None:
    code = f"""
import pathlib, signal, time
signal.signal(signal.SIGTERM, lambda *_: (pathlib.Path({str(tmp_path / "whole")!r}).touch(), exit()))
time.sleep(60)
"""
    job = Script("long", (), code, tmp_path / "whole")
    assert run([job], tmp_path, minutes=0.05).states == {"long": DONE} and job.tidied == 1
    assert run([job], tmp_path, minutes=0).states == {"long": DONE} and job.tidied == 2


def test_no_budget_runs_nothing(tmp_path: Path) -> None:
    outcome = run([touch(tmp_path, "one")], tmp_path, minutes=0)
    assert outcome.left == ["one"] and not outcome.states and not (tmp_path / "one").exists()


def wait_for(file: Path) -> None:
    while not file.exists():
        time.sleep(0.05)


@pytest.mark.parametrize("by", ["deadline", "Ctrl-C"])
def test_jobs_are_stopped_once_and_the_next_call_goes_on(by: str, tmp_path: Path) -> None:
    code = f"""
import pathlib, signal, time
part, whole = pathlib.Path({str(tmp_path / "part")!r}), pathlib.Path({str(tmp_path / "whole")!r})
if part.exists():
    whole.touch()
else:
    signal.signal(signal.SIGTERM, lambda *_: (part.touch(), exit()))
    pathlib.Path({str(tmp_path / "begun")!r}).touch()
    time.sleep(60)
"""
    job = Script("long", (), code, tmp_path / "whole")
    begun = time.monotonic()
    if by == "deadline":
        outcome = run([job], tmp_path, minutes=0.25)
    else:
        # Ctrl-C, once the job is under way; a suite that runs in the background ignores it.
        handler = signal.signal(signal.SIGINT, signal.default_int_handler)
        killer = threading.Thread(target=lambda: (wait_for(tmp_path / "begun"), _thread.interrupt_main()))
        killer.start()
        try:
            outcome = run([job], tmp_path)
        finally:
            killer.join()
            signal.signal(signal.SIGINT, handler)
    assert time.monotonic() - begun < 40 and outcome.interrupted == (by == "Ctrl-C")
    assert outcome.states == {"long": STOPPED} and outcome.left == ["long"]
    assert (tmp_path / "part").exists()
    assert run([job], tmp_path).states == {"long": DONE}


STUBBORN = """
import pathlib, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
pathlib.Path({begun!r}).touch()
time.sleep(60)
"""


def test_a_checkpoint_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    code = """
import signal, time
def full(*_):
    raise OSError("No space left on device")
signal.signal(signal.SIGTERM, full)
time.sleep(60)
"""
    outcome = run([Script("long", (), code, tmp_path / "whole")], tmp_path, minutes=0.25)
    assert outcome.states == {"long": FAILED} and outcome.left == []
    assert outcome.errors == {"long": "OSError: No space left on device"}


def test_all_jobs_share_the_patience_of_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("campaign_jobs.PATIENCE", 6)
    jobs = [
        Script(name, (), STUBBORN.format(begun=str(tmp_path / f"{name}-begun")), tmp_path / name)
        for name in ("one", "two", "three")
    ]
    begun = time.monotonic()
    outcome = run(jobs, tmp_path, minutes=0.1, parallel=3)
    assert time.monotonic() - begun < 6 + 6 + 5 and set(outcome.states.values()) == {STOPPED}


def test_a_second_interrupt_ends_the_waiting_and_not_the_call(tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    job = Script("long", (), STUBBORN.format(begun=str(begun)), tmp_path / "whole")
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)

    def twice() -> None:
        wait_for(begun)
        _thread.interrupt_main()
        time.sleep(2)
        os.kill(os.getpid(), signal.SIGINT)

    killer = threading.Thread(target=twice)
    killer.start()
    started = time.monotonic()
    try:
        outcome = run([job], tmp_path)
    finally:
        killer.join()
        signal.signal(signal.SIGINT, handler)
    assert outcome.interrupted and outcome.states == {"long": STOPPED} and time.monotonic() - started < 30


def test_an_interrupt_while_ends_are_judged_loses_no_process_and_no_job(tmp_path: Path) -> None:
    """The second Ctrl-C comes while it is looked whether the first of two jobs is done."""

    class Slow(Script):
        def done(self) -> bool:
            if (tmp_path / "stopping").exists():
                os.kill(os.getpid(), signal.SIGINT)
                time.sleep(0.5)
            return super().done()

    begun = [tmp_path / f"{name}-begun" for name in ("one", "two")]
    ends = f"import pathlib, time\npathlib.Path({str(begun[0])!r}).touch()\ntime.sleep(60)\n"
    jobs = [
        Slow("one", (), ends, tmp_path / "one"),
        Script("two", (), STUBBORN.format(begun=str(begun[1])), tmp_path / "two"),
        Script("three", (), "", tmp_path / "three"),
    ]

    def interrupt() -> None:
        for file in begun:
            wait_for(file)
        (tmp_path / "stopping").touch()
        _thread.interrupt_main()
        time.sleep(2)
        os.kill(os.getpid(), signal.SIGINT)

    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    killer = threading.Thread(target=interrupt)
    killer.start()
    try:
        outcome = run(jobs, tmp_path)
    finally:
        killer.join()
        now = signal.signal(signal.SIGINT, handler)
    assert outcome.interrupted and outcome.states == {"one": STOPPED, "two": STOPPED}
    assert outcome.left == ["one", "two", "three"] and now is signal.default_int_handler


def test_an_interrupt_while_a_place_is_prepared_leaves_the_job(tmp_path: Path) -> None:
    class Large(Script):
        def begin(self) -> None:
            raise KeyboardInterrupt

    outcome = run([Large("one", (), "", tmp_path / "one"), Script("two", (), "", tmp_path / "two")], tmp_path)
    assert outcome.interrupted and outcome.left == ["one", "two"] and outcome.states == {}


def test_a_calibration_that_is_stopped_says_nothing_of_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Stopped:
        stopped_early = True

        def add_callback(self, callback: Any) -> None:
            pass

        def train(self) -> None:
            pass

    for name in ("prepare_data", "get_method"):
        monkeypatch.setattr(campaign_calibrate, name, lambda *_: SimpleNamespace(evaluation_sets=lambda _: {}))
    monkeypatch.setattr(campaign_calibrate, "build_trainer", lambda *_: Stopped())
    with pytest.raises(SystemExit) as ended:
        campaign_calibrate.watched({"method": "lightweight"}, tmp_path / "run")
    assert ended.value.code in ENDED
