"""Real runs in the real guest; they need a built lab."""

import contextlib
import hashlib
import os
import re
import signal
import socket
import subprocess
import tempfile
import threading
import time
import unittest

LAB = os.path.join(os.path.dirname(os.path.dirname(os.path.realpath(__file__))), "lab")
# Far above what anything here takes, for machines that are busy with other things.
PATIENCE_S = 240


def lab(*arguments, environment=None, **options):
    """Runs the lab's program to its end."""
    return subprocess.run(
        [LAB, *arguments],
        capture_output=True,
        timeout=PATIENCE_S,
        env={**os.environ, **(environment or {})},
        check=False,
        **options,
    )


def run(*arguments, **options):
    """`lab run` with a share that has nothing in it, which is quick to mount."""
    share = [] if "--share" in arguments else ["--share", os.path.dirname(LAB)]
    return lab("run", *share, *arguments, **options)


class Live(unittest.TestCase):
    def passed(self, *arguments, **options):
        """What a command prints that has to succeed."""
        result = run(*arguments, **options)
        self.assertEqual(result.returncode, 0, result.stderr.decode(errors="replace"))
        return result.stdout.decode()


class Endings(Live):
    def test_status_0(self):
        result = run("--", "true")
        self.assertEqual((result.returncode, result.stdout, result.stderr), (0, b"", b""))

    def test_status_7(self):
        self.assertEqual(run("--", "exit 7").returncode, 7)

    def test_status_of_several_words(self):
        self.assertEqual(run("--", "sh", "-c", "exit 9").returncode, 9)

    def test_command_that_is_not_there(self):
        self.assertEqual(run("--", "no-such-command", "x").returncode, 127)

    def test_time_out_is_124(self):
        result = run("--timeout", "3", "--", "echo before; sleep 1000")
        self.assertEqual(result.returncode, 124)
        self.assertEqual(result.stdout, b"before\n")
        self.assertIn(b"time-out after 3 s", result.stderr)

    def test_dying_guest_is_125(self):
        result = run("--", "echo before; echo c > /proc/sysrq-trigger; sleep 1000")
        self.assertEqual(result.returncode, 125)
        self.assertEqual(result.stdout, b"before\n")
        self.assertIn(b"the guest died", result.stderr)
        self.assertIn(b"sysrq", result.stderr)

    def test_guest_that_switches_itself_off_is_125(self):
        self.assertEqual(run("--", "busybox poweroff -f; sleep 1000").returncode, 125)

    def test_nothing_built_is_125(self):
        with tempfile.TemporaryDirectory() as empty:
            result = run("--", "true", environment={"LAB_DIR": empty})
        self.assertEqual(result.returncode, 125)
        self.assertIn(b"lab build", result.stderr)

    def test_a_killed_lab_takes_its_guest_along(self):
        for number in (signal.SIGTERM, signal.SIGKILL):
            with self.subTest(number), tempfile.TemporaryDirectory() as share:
                command = [LAB, "run", "--share", share, "--", f"touch {share}/up; sleep 1000"]
                process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
                self.wait_for(lambda: os.path.exists(f"{share}/up"))
                process.send_signal(number)
                process.communicate(timeout=PATIENCE_S)
                self.wait_for(lambda: not self.guests_with(share))

    @staticmethod
    def guests_with(share):
        """QEMU processes that share a directory."""
        found = []
        for path in os.listdir("/proc"):
            with contextlib.suppress(OSError), open(f"/proc/{path}/cmdline", "rb") as handle:
                if f"path={share},security_model".encode() in handle.read():
                    found.append(path)
        return found

    def wait_for(self, condition):
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.05)


class Output(Live):
    def test_streams_are_apart_and_binary_safe(self):
        # 2 MiB with every byte value, made alike on both sides.
        make = "b''.join(hashlib.sha256(b'%d'%i).digest() for i in range(65536))"
        script = f"import sys,hashlib; d={make}; sys.stdout.buffer.write(d)"
        script += "; sys.stderr.buffer.write(d[::-1][:100000])"
        result = run("--", "python3", "-c", script)
        data = b"".join(hashlib.sha256(b"%d" % i).digest() for i in range(65536))
        self.assertEqual(result.returncode, 0)
        self.assertTrue(result.stdout == data)
        self.assertTrue(result.stderr == data[::-1][:100000])

    def test_dev_stdout_can_be_opened(self):
        self.assertEqual(self.passed("--", "echo a > /dev/stdout; echo b > /dev/stdout"), "a\nb\n")

    def test_slow_reader_loses_nothing(self):
        command = [LAB, "run", "--share", os.path.dirname(LAB), "--", "seq 200000"]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
            time.sleep(4)  # the pipe is full by now, and the command may have ended
            data = process.stdout.read()
            self.assertEqual(process.wait(PATIENCE_S), 0)
        self.assertEqual(data, b"".join(b"%d\n" % i for i in range(1, 200001)))

    def test_daemon_left_behind_does_not_hold_the_run(self):
        self.assertEqual(self.passed("--timeout", "60", "--", "sleep 1000 & echo done"), "done\n")

    def test_no_standard_input(self):
        self.assertEqual(self.passed("--", "wc -c"), "0\n")


class Build(Live):
    def test_second_build_finds_all_there(self):
        before = os.path.realpath(os.path.join(lab("where").stdout.decode().strip(), "current"))
        result = lab("build")
        self.assertEqual(result.returncode, 0)
        self.assertEqual(result.stderr.decode(), f"lab: ready: {before}\n")


class Surroundings(Live):
    def test_variables(self):
        script = "echo $LAB_TEST_A-$RUST_TEST_B-$TEST_C-$TEST_D-$HOME_TEST"
        given = {"LAB_TEST_A": "a b", "RUST_TEST_B": "'", "TEST_C": "c", "HOME_TEST": "no"}
        out = self.passed(
            *["--env", "TEST_C", "--env", "TEST_D=d=e", "--", script], environment=given
        )
        self.assertEqual(out, "a b-'-c-d=e-\n")

    def test_share_is_writable_and_is_the_current_directory(self):
        with tempfile.TemporaryDirectory() as share:
            with open(f"{share}/from-host", "wb") as handle:
                handle.write(bytes(range(256)))
            self.passed(
                *["--share", share, "--", "mkdir made; cp from-host made/by-guest; sync"], cwd=share
            )
            with open(f"{share}/made/by-guest", "rb") as handle:
                self.assertEqual(handle.read(), bytes(range(256)))

    def test_several_shares(self):
        with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as two:
            out = self.passed(
                *["--share", one, "--share", two],
                *["--", f"echo 1 > {one}/a; echo 2 > {two}/b; cat {one}/a {two}/b"],
            )
            self.assertEqual((out, os.listdir(one), os.listdir(two)), ("1\n2\n", ["a"], ["b"]))

    def test_work_tree_is_shared_by_default(self):
        script = "test -e lab && test -e ../../Cargo.toml"
        result = lab("run", "--", script, cwd=os.path.dirname(LAB))
        self.assertEqual(result.returncode, 0, result.stderr)

    def test_guest_reaches_this_machines_loopback(self):
        with socket.create_server(("127.0.0.1", 0)) as server:
            received = []

            def serve():
                connection, _ = server.accept()
                with connection:
                    received.append(connection.recv(100))
                    connection.sendall(b"pong\n")

            thread = threading.Thread(target=serve, daemon=True)
            thread.start()
            port = server.getsockname()[1]
            out = self.passed("--net", "--", f"echo ping | nc -N 10.0.2.2 {port}")
            thread.join(PATIENCE_S)
        self.assertEqual((received, out), ([b"ping\n"], "pong\n"))

    def test_without_net_there_is_none(self):
        self.assertEqual(self.passed("--", "ls /sys/class/net"), "lo\n")


class Systemd(Live):
    def test_systemd_is_process_1(self):
        out = self.passed(
            *["--systemd", "--"],
            "until [ -S /run/systemd/private ]; do sleep 0.1; done; "
            "systemctl is-system-running --wait; cat /proc/1/comm",
        )
        self.assertEqual(out, "running\nsystemd\n")


class Devices(Live):
    def test_drives_are_seen(self):
        out = self.passed(
            *["--nvme", "2", "--ns", "2", "--size", "64M", "--"],
            "modprobe nvme; udevadm settle 2> /dev/null; "
            "for turn in 1 2 3 4 5 6 7 8 9 10; do "
            "[ -b /dev/nvme1n2 ] && [ -b /dev/nvme0n2 ] && break; sleep 0.3; done; "
            "cat /sys/block/nvme[01]n[12]/size; sort /sys/class/nvme/nvme*/serial",
        )
        self.assertEqual(out.split(), ["131072"] * 4 + ["LAB0", "LAB1"])

    def test_drive_after_a_cold_boot(self):
        out = self.passed(
            *["--cold", "--nvme", "1", "--size", "64M", "--"],
            "modprobe nvme; for turn in 1 2 3 4 5 6 7 8 9 10; do "
            "[ -b /dev/nvme0n1 ] && break; sleep 0.3; done; cat /sys/block/nvme0n1/size",
        )
        self.assertEqual(out, "131072\n")

    def test_disk_outlives_its_run(self):
        write = "modprobe nvme; until [ -b /dev/nvme0n1 ]; do sleep 0.1; done; "
        with tempfile.TemporaryDirectory() as scratch:
            disk = ["--disk", f"{scratch}/disk", "--size", "16M", "--timeout", "60", "--"]
            store = "echo kept | dd of=/dev/nvme0n1 bs=512 conv=sync,fsync"
            self.passed(*disk, write + store)
            out = self.passed(*disk, write + "head -c 5 /dev/nvme0n1")
        self.assertEqual(out, "kept\n")

    def test_memory_buffer_and_vfio(self):
        out = self.passed(
            *["--nvme", "1", "--cmb", "64", "--"],
            "pcibind 0000:01:00.0 vfio-pci > /tmp/group && ls /dev/vfio | grep -x $(cat /tmp/group) "
            "> /dev/null && lspci -vs 01:00.0",
        )
        self.assertIn("size=64M", out)
        self.assertIn("vfio-pci", out)

    def test_hugepages(self):
        out = self.passed("--huge", "256", "--", "grep HugePages_Total /proc/meminfo")
        self.assertEqual(out.split()[1], "128")

    def test_hugepages_that_do_not_fit_are_said(self):
        result = run("--huge", "8192", "--", "true")
        self.assertEqual(result.returncode, 125)
        self.assertIn(b"no room for 4096 hugepages", result.stderr)

    def test_guest_speaks_to_its_qemu(self):
        script = (
            "qmp query-status; qmp device_add driver=virtio-rng-pci id=r0 bus=hp5; "
            "qmp device_add driver=nothing || echo refused"
        )
        out = self.passed("--", script)
        self.assertIn('"running"', out)
        self.assertEqual(out.splitlines()[1], '{"return": {}}')
        self.assertEqual(out.splitlines()[-1], "refused")

    def test_soft_rdma(self):
        out = self.passed(
            "--",
            "modprobe rdma_rxe; ip link add d0 type dummy; ip link set d0 up; "
            "rdma link add rxe0 type rxe netdev d0 && rdma link show",
        )
        self.assertIn("rxe0", out)


class SideBySide(Live):
    def test_two_runs_meet_in_a_share_and_differ(self):
        # Each waits for the other, so both have to be there at the same time.
        script = (
            "touch {own}; until [ -e {other} ]; do sleep 0.1; done; "
            "date +%s; cat /proc/sys/kernel/random/uuid"
        )
        with tempfile.TemporaryDirectory() as share:
            processes = [
                subprocess.Popen(
                    [LAB, "run", "--share", share, "--timeout", "120", "--"]
                    + [script.format(own=f"{share}/{own}", other=f"{share}/{other}")],
                    stdout=subprocess.PIPE,
                )
                for own, other in (("a", "b"), ("b", "a"))
            ]
            outputs = [process.communicate(timeout=PATIENCE_S)[0].split() for process in processes]
        self.assertEqual([process.returncode for process in processes], [0, 0])
        for seconds, uuid in outputs:
            self.assertLess(abs(int(seconds) - time.time()), PATIENCE_S)
            self.assertTrue(re.fullmatch(rb"[0-9a-f-]{36}", uuid))
        self.assertNotEqual(outputs[0][1], outputs[1][1])
