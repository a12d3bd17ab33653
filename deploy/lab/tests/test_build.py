"""What is built when, that two builds and interrupted ones do no harm, and what is cleared away."""

import gzip
import os
import struct
import subprocess
import sys
import tempfile
import threading
import unittest
from unittest import mock

from labkit import LabError, build, guest, state


class Attempts(unittest.TestCase):
    def setUp(self):
        self.enterContext(mock.patch("labkit.build.say"))
        self.pauses = []

    def attempt(self, *results):
        work = mock.Mock(side_effect=results)
        return work, lambda: build.attempt(work, OSError, attempts=3, pause=self.pauses.append)

    def test_success_at_once(self):
        work, attempt = self.attempt("done")
        self.assertEqual(attempt(), "done")
        self.assertEqual((work.call_count, self.pauses), (1, []))

    def test_success_in_the_end(self):
        work, attempt = self.attempt(OSError("a"), OSError("b"), "done")
        self.assertEqual(attempt(), "done")
        self.assertEqual((work.call_count, len(self.pauses)), (3, 2))

    def test_bounded(self):
        work, attempt = self.attempt(*[OSError("away")] * 9)
        with self.assertRaisesRegex(LabError, "after 3 attempts: away"):
            attempt()
        self.assertEqual(work.call_count, 3)

    def test_other_failures_are_not_repeated(self):
        work, attempt = self.attempt(ValueError("mine"), "done")
        with self.assertRaises(ValueError):
            attempt()
        self.assertEqual(work.call_count, 1)


class Lists(unittest.TestCase):
    def test_packages(self):
        packages = build.read_packages("guest.txt")
        self.assertIn("nvme-cli", packages)
        self.assertFalse([word for word in packages if not word.replace("-", "").isalnum()])
        self.assertEqual(len(packages), len(set(packages)))

    def test_missing_programs(self):
        self.assertEqual(build.missing_programs(lambda program: "/bin/" + program), [])
        self.assertEqual(
            build.missing_programs(lambda program: None if program in ("xz", "depmod") else "/x"),
            ["kmod", "xz-utils"],
        )


class Keys(unittest.TestCase):
    def test_parts_do_not_run_together(self):
        self.assertNotEqual(state.key("ab", "c"), state.key("a", "bc"))
        self.assertEqual(state.key("a", b"b"), state.key(b"a", "b"))

    def test_suite_packages_and_backports_count_but_not_the_archive(self):
        plain = build.Tree("host", "extract", ["a", "b"], "trixie", False)
        for other in (
            build.Tree("host", "extract", ["a"], "trixie", False),
            build.Tree("host", "extract", ["a", "b"], "forky", False),
            build.Tree("host", "extract", ["a", "b"], "trixie", True),
        ):
            self.assertNotEqual(plain.key(), other.key())
        self.assertNotIn("http", " ".join(plain.options()))

    def test_command(self):
        tree = build.Tree("host", "extract", ["a", "b"], "trixie", True)
        command = tree.command("http://x.example/debian", "/t")
        self.assertIn("--include=a,b", command)
        self.assertEqual(command[-4:-2], ["trixie", "/t"])
        self.assertIn("deb http://x.example/debian trixie-backports main", command)

    def test_suite_is_a_word(self):
        with self.assertRaises(LabError):
            build.trees({"LAB_SUITE": "trixie; reboot"})
        self.assertEqual(build.trees({})[0].suite, "trixie")
        self.assertTrue(build.trees({"LAB_BACKPORTS": "1"})[0].backports)
        self.assertFalse(build.trees({"LAB_BACKPORTS": "1"})[1].backports)

    def test_scripts_count(self):
        host, root = build.trees({})
        before = build.guest_key(host, root)
        with tempfile.TemporaryDirectory() as other:
            for name in [*guest.SCRIPTS, "initrd-init"]:
                with open(f"{other}/{name}", "w", encoding="ascii") as handle:
                    handle.write("changed")
            with mock.patch.object(guest, "source", lambda name: f"{other}/{name}"):
                self.assertNotEqual(build.guest_key(host, root), before)
        self.assertEqual(build.guest_key(host, root), before)


class Builds(unittest.TestCase):
    """build() with the two slow steps replaced."""

    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.state = state.State(f"{scratch.name}/lab")
        self.enterContext(mock.patch("labkit.build.say"))
        self.enterContext(mock.patch("labkit.build.check_prerequisites"))
        self.tree = self.enterContext(
            mock.patch("labkit.build.build_tree", side_effect=self.make_tree)
        )
        self.guest = self.enterContext(
            mock.patch("labkit.build.build_guest", side_effect=self.make_guest)
        )

    @staticmethod
    def make_tree(where, tree):
        path = os.path.join(where.trees, tree.key())
        os.makedirs(path, exist_ok=True)
        return path

    @staticmethod
    def make_guest(_state, final, _host, _root):
        os.makedirs(final)

    def current(self):
        path, descriptor = self.state.current_guest()
        os.close(descriptor)
        return path

    def test_no_guest_yet(self):
        with self.assertRaisesRegex(LabError, "lab build"):
            self.state.current_guest()

    def test_second_build_makes_nothing(self):
        build.build(self.state)
        first = self.current()
        build.build(self.state)
        self.assertEqual((self.guest.call_count, self.tree.call_count), (1, 2))
        self.assertEqual(self.current(), first)

    def test_force_makes_all_anew(self):
        build.build(self.state)
        build.build(self.state, force=True)
        self.assertEqual((self.guest.call_count, self.tree.call_count), (2, 4))

    def test_force_does_not_pull_the_guest_from_under_a_run(self):
        build.build(self.state)
        path, descriptor = self.state.current_guest()
        with self.assertRaisesRegex(LabError, "still uses"):
            build.build(self.state, force=True)
        self.assertTrue(os.path.isdir(path))
        os.close(descriptor)

    def test_two_at_once_build_once(self):
        entered, leave = threading.Event(), threading.Event()

        def slow(*arguments):
            entered.set()
            self.assertTrue(leave.wait(60))
            self.make_guest(*arguments)

        self.guest.side_effect = slow
        threads = [threading.Thread(target=build.build, args=(self.state,)) for _ in range(2)]
        threads[0].start()
        self.assertTrue(entered.wait(60))
        threads[1].start()
        leave.set()
        for thread in threads:
            thread.join(60)
        self.assertEqual(self.guest.call_count, 1)
        self.current()

    def test_an_interrupted_build_leaves_the_old_guest_and_its_rest_is_cleared(self):
        build.build(self.state)
        first = self.current()

        def interrupted(*_):
            os.mkdir(f"{self.state.guests}/new-rest")
            raise KeyboardInterrupt

        self.guest.side_effect = interrupted
        with mock.patch("labkit.build.guest_key", return_value="other"):
            with self.assertRaises(KeyboardInterrupt):
                build.build(self.state)
            self.assertEqual(self.current(), first)
            self.guest.side_effect = self.make_guest
            build.build(self.state)
        self.assertEqual(os.listdir(self.state.guests), ["other"])

    def test_a_guest_in_use_outlives_its_successor(self):
        build.build(self.state)
        first, descriptor = self.state.current_guest()
        with mock.patch("labkit.build.guest_key", return_value="other"):
            build.build(self.state)
            self.assertTrue(os.path.isdir(first))
            os.close(descriptor)
            build.build(self.state)
        self.assertFalse(os.path.isdir(first))

    def test_run_directories(self):
        self.state.prepare()
        for name in ("left", "kept", "held"):
            os.mkdir(f"{self.state.runs}/{name}")
        open(f"{self.state.runs}/kept/kept", "wb").close()
        descriptor = state.lock_directory(f"{self.state.runs}/held")
        build.build(self.state)
        self.assertEqual(sorted(os.listdir(self.state.runs)), ["held", "kept"])
        os.close(descriptor)

    def test_the_lock_falls_with_its_process(self):
        self.state.prepare()
        script = (
            "import os, sys; sys.path.insert(0, sys.argv[1])\n"
            "from labkit import state\n"
            "with state.State(sys.argv[2]).build_lock(print): os._exit(0)\n"
        )
        command = [sys.executable, "-c", script, state.SOURCE, self.state.directory]
        subprocess.run(command, check=True)
        build.build(self.state)
        build.say.assert_called_once()


class Kernel(unittest.TestCase):
    def image(self, packed):
        data = bytearray(1024)
        data[0x1F1] = 1
        struct.pack_into("<II", data, 0x248, 16, len(packed) + 4)
        return bytes(data) + bytes(16) + packed + b"size"

    def test_payload(self):
        packed = gzip.compress(b"\x7fELF kernel")
        data, unpacker = guest.payload(self.image(packed))
        self.assertEqual(unpacker, "gzip")
        self.assertEqual(gzip.decompress(data), b"\x7fELF kernel")

    def test_bad(self):
        for image in (b"", bytes(100), self.image(b"unpacked kernel")):
            with self.subTest(len(image)), self.assertRaises(LabError):
                guest.payload(image)

    def test_modules_bring_what_they_need(self):
        dependencies = "a/x.ko.xz: b/y.ko.xz c/z.ko.xz\nb/y.ko.xz:\nc/z.ko.xz:\n"
        dependencies += "d/no.ko.xz: a/x.ko.xz\n"
        self.assertEqual(
            guest.wanted_modules(["^a/"], dependencies), ["a/x.ko.xz", "b/y.ko.xz", "c/z.ko.xz"]
        )
        self.assertEqual(guest.wanted_modules(["^q/"], dependencies), [])
