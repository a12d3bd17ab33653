"""A run's exit status and output, with a fake QEMU."""

import io
import os
import sys
import tempfile
import threading
import unittest
from unittest import mock

from labkit import LabError, cli, machine, qemu
from labkit.run import Run, Templates, default_share, exit_status

FAKE = os.path.join(os.path.dirname(__file__), "fake_qemu.py")


class FakePrograms(qemu.Programs):
    """Starts the fake instead of QEMU's programs."""

    def command(self, name):
        return [sys.executable, FAKE, name]


class ClosedStream(io.BytesIO):
    """Standard output whose reader has gone."""

    def write(self, _data):
        raise BrokenPipeError


class Chunks(io.RawIOBase):
    """A stream that gives its data in the given pieces."""

    def __init__(self, *pieces):
        self.pieces = list(pieces)

    def read(self, _size=-1):
        return self.pieces.pop(0) if self.pieces else b""


class Dribble(io.BytesIO):
    """A sink that takes little at a time, and sometimes nothing."""

    def write(self, data):
        if self.tell() == 3 and not self.closed and not hasattr(self, "paused"):
            self.paused = True
            return None
        return super().write(data[:3])


class Copy(unittest.TestCase):
    END = b"<end>"

    def copied(self, *pieces, sink=None):
        sink = sink or io.BytesIO()
        complete = machine.copy(Chunks(*pieces), sink, self.END)
        return sink.getvalue(), complete

    def test_mark_wherever_the_pieces_break(self):
        whole = b"a<b<en<end>"
        for cut in range(1, len(whole)):
            with self.subTest(cut):
                self.assertEqual(self.copied(whole[:cut], whole[cut:]), (b"a<b<en", True))
        single = [whole[i : i + 1] for i in range(len(whole))]
        self.assertEqual(self.copied(*single), (b"a<b<en", True))

    def test_no_mark(self):
        for whole in (b"", b"a", b"a<en", b"<end"):
            self.assertEqual(self.copied(whole), (whole, False))
        self.assertEqual(self.copied(), (b"", False))

    def test_nothing_is_held_back_that_cannot_be_the_mark(self):
        self.assertEqual(machine.held_back(b"abc", self.END), 0)
        self.assertEqual(machine.held_back(b"abc<e", self.END), 2)
        self.assertEqual(machine.held_back(b"<", self.END), 1)

    def test_sink_that_takes_little_at_a_time(self):
        self.assertEqual(self.copied(b"0123456789<end>", sink=Dribble()), (b"0123456789", True))

    def test_closed_sink_is_read_to_the_end(self):
        self.assertTrue(machine.copy(Chunks(b"a", b"b", b"<end>"), ClosedStream(), self.END))


class ExitStatus(unittest.TestCase):
    def test_all_ways_to_end(self):
        for timed_out, text, expected in (
            (False, "0\n", 0),
            (False, "7\n", 7),
            (False, "255\n", 255),
            (False, None, 125),
            (False, "", 125),
            (False, "seven\n", 125),
            (False, "256\n", 125),
            (False, "-1\n", 125),
            (True, None, 124),
            (True, "0\n", 124),
        ):
            with self.subTest(timed_out=timed_out, text=text):
                self.assertEqual(exit_status(timed_out, text), expected)


class WithFakeQemu(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.image = f"{scratch.name}/image"
        self.runs = f"{scratch.name}/runs"
        os.makedirs(f"{self.image}/templates")
        os.mkdir(self.runs)
        self.programs = FakePrograms("/nowhere")
        self.stream = io.BytesIO
        self.said = self.enterContext(mock.patch("labkit.run.say"))
        self.errors = self.enterContext(mock.patch("sys.stderr", io.StringIO()))

    def run_one(self, plan, *arguments):
        options = cli.parser().parse_args(["run", *arguments, "--", "true"])
        directory = tempfile.mkdtemp(dir=self.runs)
        self.out, self.err = self.stream(), io.BytesIO()
        with mock.patch.dict(os.environ, {"FAKE_QEMU": plan}):
            one = Run(options, self.image, self.programs, directory)
            return one.execute(one.prepare({}), self.out, self.err)

    def test_status_comes_through(self):
        for status in (0, 7, 124, 255):
            self.assertEqual(self.run_one(f"status {status}"), status)
        self.said.assert_not_called()

    def test_status_comes_through_after_a_cold_boot(self):
        self.assertEqual(self.run_one("status 3", "--cold", "--nvme", "1"), 3)

    def test_seeds_go_and_controllers_come(self):
        # The fake refuses to remove anything but a seed.
        self.assertEqual(self.run_one("status 0", "--nvme", "2", "--size", "1M"), 0)

    def test_dead_guest(self):
        self.assertEqual(self.run_one("die"), 125)
        self.said.assert_any_call("the guest died")

    def test_garbage_for_a_status(self):
        self.assertEqual(self.run_one("garbage"), 125)

    def test_time_out(self):
        self.assertEqual(self.run_one("hang", "--timeout", "0.3"), 124)
        self.said.assert_any_call("time-out after 0.3 s")

    def test_state_that_does_not_load(self):
        self.run_one("status 0")  # makes the template
        self.assertEqual(self.run_one("refuse"), 125)

    def test_output_is_binary_safe_and_apart(self):
        self.assertEqual(self.run_one("output"), 0)
        self.assertEqual(self.out.getvalue(), bytes(range(256)) * 4096)
        self.assertEqual(self.err.getvalue(), bytes(range(255, -1, -1)))

    def test_closed_output_does_not_stop_the_guest(self):
        self.stream = ClosedStream
        self.assertEqual(self.run_one("output"), 0)

    def test_qemu_that_does_not_start(self):
        self.programs.command = lambda name: ["/nonexistent", name]
        self.assertEqual(self.run_one("status 0", "--cold"), 125)

    def test_share_that_is_not_there(self):
        with self.assertRaisesRegex(LabError, "no such directory"):
            self.run_one("status 0", "--share", "/nonexistent")

    def test_template_is_made_once(self):
        options = cli.parser().parse_args(["run", "--", "true"])
        with mock.patch.dict(os.environ, {"FAKE_QEMU": "status 0"}):
            real = Templates._make
            with mock.patch.object(Templates, "_make", autospec=True, side_effect=real) as make:
                found = []

                def find():
                    found.append(Templates(self.image, self.programs).find_or_make(options))

                threads = [threading.Thread(target=find) for _ in range(3)]
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join()
        self.assertEqual(len(set(found)), 1)
        self.assertEqual(make.call_count, 1)
        self.assertTrue(os.path.exists(f"{found[0]}/state"))

    def test_boot_that_fails_before_init_is_tried_once_more(self):
        for arguments in ([], ["--cold"]):
            for failures, expected in ((1, 0), (2, 125)):
                with self.subTest(arguments=arguments, failures=failures):
                    self.setUp()
                    boots = f"{self.runs}/boots"
                    with mock.patch.dict(os.environ, {"FAKE_QEMU_BOOTS": boots}):
                        try:
                            status = self.run_one(f"boot {failures}", *arguments)
                        except LabError:
                            status = 125
                    self.assertEqual(status, expected)
                    self.said.assert_any_call("the guest died; booting once more")

    def test_guest_that_dies_after_init_is_not_repeated(self):
        self.run_one("status 0")  # makes the template
        self.said.reset_mock()
        self.assertEqual(self.run_one("die"), 125)
        self.assertNotIn("once more", " ".join(str(call) for call in self.said.mock_calls))

    def test_template_that_dies_leaves_nothing_to_be_taken(self):
        self.programs.command = lambda name: [
            *([sys.executable, FAKE] if name == "qemu-img" else ["true"]),
            name,
        ]
        for _ in range(2):
            with self.assertRaisesRegex(LabError, "did not boot"):
                self.run_one("status 0")


class DefaultShare(unittest.TestCase):
    def test_the_work_tree_around_the_current_directory(self):
        with tempfile.TemporaryDirectory() as top:
            top = os.path.realpath(top)
            os.makedirs(f"{top}/a/b")
            self.addCleanup(os.chdir, os.getcwd())
            os.chdir(f"{top}/a/b")
            self.assertEqual(default_share(), f"{top}/a/b")
            os.mkdir(f"{top}/.git")
            self.assertEqual(default_share(), top)
            os.chdir("/")
