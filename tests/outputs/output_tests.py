"""The tests that every command which writes an output inherits.

A command is killed at each call that changes something, each call fails, it gets a signal, runs
twice at a time, and runs again. At any moment its output is the old one or the complete new one,
the input is unchanged, and the same command line finishes the work.
"""

from __future__ import annotations

import re
import shlex
import signal
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest

from tests.outputs.places import NEVER, CommandWorkspace, Files
from tests.support.campaign import sample_evenly
from tests.support.command_line import SETTINGS, run_here
from tests.support.killed_runs import SIGNALS, EndedRun, Failure

#: The output before a run: nothing, or what an earlier run over older inputs has written.
NONE, OLD = "none", "old"
_USAGE, _ENVIRONMENT = 2, 3
_STOPPED = {Failure.TERMINATE: 143, Failure.INTERRUPT: 130}
#: Open files that a run lacks at most.
_FEW_FILES = 24
#: The number of steps of each kind; `make campaign` takes all.
_KILLS, _FAILED_CALLS, _SIGNALS, _SECOND_RUNS = 6, 2, 2, 4


class OutputTests:
    """Tests of a command that writes an output; a subclass has the command as data.

    `command`: a command line in which ``{data}`` holds the inputs, and ``{out}`` the outputs.
    `earlier`: the command line that wrote the old output; `command` if empty. `starts`: what the
    output may be at first. `code`: the exit code of a run that nothing interrupts. `varying`: files
    of the output whose bytes differ from run to run, such as manifests with times. `hidden`: files
    that no reader of the output looks at. `is_locked`: a second run at the same time is refused.
    `skips_unchanged`: a rerun over unchanged inputs writes nothing. `in_bucket`: inputs and outputs
    are in a bucket.
    """

    command: ClassVar[str]
    earlier: ClassVar[str] = ""
    starts: ClassVar[tuple[str, ...]] = (NONE, OLD)
    code: ClassVar[int] = 0
    varying: ClassVar[re.Pattern[str]] = re.compile(r"kafka-index|summary|report")
    hidden: ClassVar[re.Pattern[str]] = re.compile(r"(^|/)[._]|-delete/|\.tmp$")
    is_locked: ClassVar[bool] = True
    skips_unchanged: ClassVar[bool] = True
    in_bucket: ClassVar[bool] = False

    def write_inputs(self, data: Path, *, older: bool) -> None:
        """Write the inputs of a run, or the older ones of an earlier run in their place."""
        raise NotImplementedError

    def prepare(self, out: Path, *, older: bool) -> None:
        """Write what a run finds in the output, besides the files of an earlier run."""

    def normalized(self, files: Files) -> Files:
        """Return the files without the differences that do not matter."""
        return files

    def check_interrupted(self, found: Files, old: Files, new: Files) -> None:
        """Check the output of a run that did not end: each unit is the old or the new one."""
        before, after = self.units(old), self.units(new)
        for name, unit in self.units(found).items():
            assert unit in (before.get(name), after.get(name)), name

    def unit(self, name: str) -> str:
        """Return the name of what is published atomically, of which a file is a part."""
        return name

    def units(self, files: Files) -> dict[str, Files]:
        """Return the files that a reader of the output looks at, by their units."""
        units: dict[str, Files] = {}
        for name, content in files.items():
            is_read = not self.hidden.search(name) and not self.varying.search(name)
            if is_read and not name.endswith("/"):
                units.setdefault(self.unit(name), {})[name] = content
        return units

    # ------------------------------------------------------------------------------ the tests

    def test_killed_run_leaves_old_or_new_output_and_rerun_completes_it(
        self, subject: Subject
    ) -> None:
        for start, step in subject.steps(Failure.KILL, _KILLS):
            killed = subject.run(step, Failure.KILL)
            what = f"from {start}, killed at call {step}, {killed.place}"
            assert killed.code in (-signal.SIGKILL, self.code), what
            subject.check_interrupted(what)
            if step % 2:
                # The rerun is killed, too.
                again = 1 + step * 7 % subject.calls(start, Failure.KILL)
                subject.run(again, Failure.KILL)
                what += f", and again at call {again}"
                subject.check_interrupted(what)
            subject.check_completed_by_rerun(what)

    def test_failing_call_is_reported_and_rerun_completes_the_output(
        self, subject: Subject
    ) -> None:
        for failure in subject.place.failures:
            for start, step in subject.steps(failure, _FAILED_CALLS):
                ended = subject.run(step, failure)
                what = f"from {start}, {failure} at call {step}, {ended.place}\n{ended.stderr}"
                assert ended.code in (self.code, _ENVIRONMENT), what
                if ended.code == _ENVIRONMENT:
                    assert names_place(ended, failure, subject.place), what
                    subject.check_interrupted(what)
                    subject.check_completed_by_rerun(what)
                else:
                    # It could do without the call, which may have removed something.
                    subject.check_readable(what)
                    subject.check_leftovers_are_reported(ended, what)

    @pytest.mark.parametrize("failure", _STOPPED)
    def test_signalled_run_ends_with_its_code_and_rerun_completes_the_output(
        self, subject: Subject, failure: Failure
    ) -> None:
        for start, step in subject.steps(failure, _SIGNALS):
            ended = subject.run(step, failure)
            what = f"from {start}, {failure} at call {step}, {ended.place}\n{ended.stderr}"
            assert ended.code == _STOPPED[failure], what
            subject.check_interrupted(what)
            subject.check_completed_by_rerun(what)

    def test_concurrent_run_is_rejected_if_the_output_is_locked(self, subject: Subject) -> None:
        refused = []
        for start, step in subject.steps(Failure.STOP, _SECOND_RUNS):
            with subject.stopped(step) as first:
                second = run_here(*subject.arguments)
            what = f"from {start}, stopped at call {step}: {first}\n{second.stderr}"
            assert second.returncode in (self.code, _USAGE, _ENVIRONMENT), what
            assert first[0].code in (self.code, _USAGE, _ENVIRONMENT), what
            refused.append(second.returncode == _ENVIRONMENT)
            subject.check_completed_by_rerun(what)
        assert any(refused) is self.is_locked

    def test_unchanged_rerun_writes_nothing(self, subject: Subject) -> None:
        for start in self.starts:
            subject.lay_out(start)
            subject.run(NEVER, Failure.KILL)
            before = subject.place.versions()
            subject.check_completed_by_rerun(f"from {start}")
            after = subject.place.versions()
            changed = [name for name in before | after if before.get(name) != after.get(name)]
            written = [name for name in changed if not self.varying.search(name)]
            # Times in a bucket are whole seconds: what is written again may look unchanged.
            assert not written or not self.skips_unchanged, written


@dataclass(frozen=True)
class Undisturbed:
    """The output before and after a run that nothing interrupts, and how that ended."""

    before: Files
    after: Files
    ended: EndedRun


class Subject:
    """Runs of the command of a class of tests, at a place with its inputs."""

    def __init__(self, tests: OutputTests, place: CommandWorkspace) -> None:
        self.tests, self.place = tests, place
        self._start = NONE
        self._warm = place.data.with_name("warm-up")
        self._warm.mkdir()
        self._undisturbed: dict[str, Undisturbed] = {}
        if OLD in tests.starts:
            self._lay_out_inputs(older=True)
            earlier = tests.earlier or tests.command
            self._warm_up(earlier)
            result = run_here(*self._arguments(earlier, place.source, place.out))
            assert result.returncode in (0, tests.code), result.stderr
        self._lay_out_inputs(older=False)
        self._warm_up(tests.command)
        if OLD in tests.starts:
            place.save(OLD)
        if NONE in tests.starts:
            place.clear()
            if not tests.in_bucket:
                tests.prepare(Path(place.out), older=False)
            place.save(NONE)
        for start in tests.starts:
            self.lay_out(start)
            before, ended = place.files(), self.run(NEVER, Failure.KILL)
            assert ended.code == tests.code, ended.stderr
            self._undisturbed[start] = Undisturbed(before, place.files(), ended)
            assert place.files() != before
        self._inputs = self._input_versions()

    def _lay_out_inputs(self, *, older: bool) -> None:
        self.tests.write_inputs(self.place.data, older=older)
        self.place.publish_inputs()
        if not self.tests.in_bucket:
            self.tests.prepare(Path(self.place.out), older=older)
        self.tests.prepare(self._warm, older=older)

    def _warm_up(self, command: str) -> None:
        """Run a command on local files in the process that is forked."""
        arguments = self._arguments(command, str(self.place.data), str(self._warm))
        self.place.runs.warm_up(*arguments)

    def _input_versions(self) -> dict[str, object]:
        versions = self.place.versions()
        return {
            name: each for name, each in versions.items() if not name.startswith(self.place.out)
        }

    @property
    def arguments(self) -> list[str]:
        """The command line of a run."""
        return self.arguments_on("local", "--threads", "1")

    def arguments_on(self, engine: str, *options: str) -> list[str]:
        """Return the command line of a run on an engine."""
        given = self._arguments(self.tests.command, self.place.source, self.place.out)
        return [*given, "--engine", engine, *options]

    @staticmethod
    def _arguments(command: str, data: str, out: str) -> list[str]:
        line = command.format(data=data, out=out, settings=SETTINGS)
        return [*shlex.split(line), "--quiet"]

    def lay_out(self, start: str) -> None:
        """Replace the output by what it is at the start of a run."""
        self._start = start
        self.place.lay_out(start)

    def run(self, step: int, failure: Failure) -> EndedRun:
        return self.place.run(step, failure, *self.arguments)

    def stopped(self, step: int) -> AbstractContextManager[list[EndedRun]]:
        """Run the command, which stops at a step until the block ends."""
        return self.place.stopped(step, *self.arguments)

    def calls(self, start: str, failure: Failure) -> int:
        """Return how many calls of a run a failure can meet."""
        if failure is Failure.FILES:
            return _FEW_FILES
        if failure in SIGNALS:
            calls = self._undisturbed[start].ended.calls
            # A run whose last call removes its lock in a store has ended for other runs.
            return calls - 1 if failure is Failure.STOP else calls
        self.lay_out(start)
        return self.run(NEVER, failure).calls

    def steps(self, failure: Failure, few: int) -> Iterator[tuple[str, int]]:
        """Yield starts and steps of runs with a failure; the output is as at the start."""
        starts = self.tests.starts
        for start in starts:
            name = f"{type(self.tests).__name__} {start} {failure}"
            for step in sample_evenly(self.calls(start, failure), few // len(starts), name):
                self.lay_out(start)
                yield start, step

    def check_interrupted(self, what: str) -> None:
        """Check the output of a run that did not end."""
        whole = self._undisturbed[self._start]
        try:
            self.tests.check_interrupted(self.place.files(), whole.before, whole.after)
        except AssertionError as error:
            raise AssertionError(f"{what}: {error}") from None

    def check_readable(self, what: str) -> None:
        """Check that the output of a run that did end is complete for its readers."""
        found, expected = (
            self.tests.units(self.tests.normalized(files))
            for files in (self.place.files(), self._undisturbed[self._start].after)
        )
        assert found == expected, what

    def check_leftovers_are_reported(self, ended: EndedRun, what: str) -> None:
        """Check that a run that could not remove its own files has named one of their folders."""
        left = self.place.files().keys() - self._undisturbed[self._start].after.keys()
        for name in left:
            assert any(part in ended.stderr for part in Path(name).parts), f"{what}: {name}"

    def check_completed_by_rerun(self, what: str) -> None:
        """Check that the same command line completes the output."""
        result = self.run(NEVER, Failure.KILL)
        assert result.code == self.tests.code, f"{what}\nrerun: {result.stderr}"
        self.check_complete(what)

    def check_complete(self, what: str) -> None:
        """Check that the output is that of a run that nothing interrupts, and nothing else."""
        actual = self._compared(self.place.files())
        expected = self._compared(self._undisturbed[self._start].after)
        names = actual.keys() | expected.keys()
        different = [name for name in names if actual.get(name) != expected.get(name)]
        assert not different, f"{what}: {different}"
        assert self._input_versions() == self._inputs, what

    def _compared(self, files: Files) -> Files:
        return {
            name: b"" if self.tests.varying.search(name) else content
            for name, content in self.tests.normalized(files).items()
        }


def names_place(ended: EndedRun, failure: Failure, place: CommandWorkspace) -> bool:
    """Return whether a message names the file of the call that failed, or a folder of it."""
    if failure is Failure.FILES:
        # It fails outside of the folder as well: libraries of Python, the folder for sorting.
        texts = ("many open files", "ulimit -n", " /")
        return all(text in ended.stderr for text in texts)
    folders = [ended.place, *map(str, Path(ended.place).parents)]
    roots = (place.source, place.out)
    # A request that deletes several objects is one to their bucket.
    inside = [folder for folder in folders if folder == ended.place or folder.startswith(roots)]
    return any(each in ended.stdout + ended.stderr for each in inside)
