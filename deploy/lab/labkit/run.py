"""Templates, and one command in one guest."""

import fcntl
import functools
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

from . import LabError, qemu
from .build import guest_key, say, trees
from .machine import Machine
from .qmp import relay
from .state import REPOSITORY, key, lock_directory

TIMED_OUT, DIED = 124, 125
BOOT_TIMEOUT_S = 480
# A boot that fails before the guest's init is tried once more: under emulation on a loaded machine the
# kernel's own start can fail by its clocks alone. What fails later is never repeated.
BOOT_ATTEMPTS = 2
TAIL_BYTES = 8000
# Length of the mark behind each output stream, random so that no output has it by chance.
END_BYTES = 32
# Every template and every run keeps the guest's memory in a file that is not written a second time.
_IGNORE_SHARED = [{"capability": "x-ignore-shared", "state": True}]


def exit_status(timed_out, status_text):
    """What `lab run` exits with, from what is left when QEMU has ended.

    `status_text` is what the guest wrote as its command's exit status, None where it did not.
    """
    if timed_out:
        return TIMED_OUT
    try:
        status = int(status_text)
    except (TypeError, ValueError):
        return DIED
    return status if 0 <= status <= 255 else DIED


def default_share():
    """The work tree that the current directory is in, else this one if so, else the directory."""
    directory = os.getcwd()
    while directory != "/":
        if os.path.exists(os.path.join(directory, ".git")):
            return directory
        directory = os.path.dirname(directory)
    here = os.getcwd()
    return REPOSITORY if here.startswith(REPOSITORY + "/") else here


def read_tail(path):
    """The end of a log, for the user to see."""
    try:
        with open(path, "rb") as handle:
            handle.seek(max(0, os.path.getsize(path) - TAIL_BYTES))
            return handle.read().decode(errors="replace").strip()
    except OSError:
        return ""


def show_logs(directory):
    """Says how QEMU's own words and the guest's console end."""
    for name in ("qemu.log", "console"):
        tail = read_tail(os.path.join(directory, name))
        if tail:
            say(f"{name} ends:")
            print(tail, file=sys.stderr, flush=True)


class BootError(LabError):
    """The guest ended, or said nothing in time, before its init was ready."""


def await_ready(machine):
    """Waits until the guest's init is ready."""
    machine.guest.settimeout(BOOT_TIMEOUT_S)
    try:
        word = machine.guest.recv(64)
    except TimeoutError as error:
        raise BootError(f"the guest was not ready within {BOOT_TIMEOUT_S} s") from error
    except OSError as error:
        raise BootError(f"the guest died: {error}") from error
    if not word.startswith(b"ready"):
        raise BootError("the guest died")
    machine.guest.settimeout(None)


def with_boot_retry(boot, directory):
    """Calls `boot` again where the guest did not come up to its init."""
    for attempt in range(1, BOOT_ATTEMPTS + 1):
        try:
            return boot()
        except BootError as error:
            if attempt == BOOT_ATTEMPTS:
                raise
            show_logs(directory)
            say(f"{error}; booting once more")
    raise AssertionError("the last attempt returns or raises")


class Templates:
    """The frozen guests of one image: one for each machine that was asked for so far."""

    def __init__(self, image, programs):
        self.image, self.programs = image, programs
        self.directory = os.path.join(image, "templates")

    def find_or_make(self, options):
        """The directory of the template for these options."""
        plan = qemu.machine(options, "", "", False, "", "")
        final = os.path.join(self.directory, key(*plan))
        if os.path.isdir(final):
            return final
        with open(final + ".lock", "w", encoding="ascii") as handle:
            # Of two first runs the second waits: a second boot would only slow down the first.
            fcntl.flock(handle, fcntl.LOCK_EX)
            if not os.path.isdir(final):
                try:
                    with_boot_retry(lambda: self._make(options, final), final + ".new")
                except (LabError, OSError) as error:
                    show_logs(final + ".new")
                    raise LabError(f"the template did not boot: {error}") from error
        return final

    def _make(self, options, final):
        scratch = final + ".new"
        shutil.rmtree(scratch, ignore_errors=True)
        os.mkdir(scratch)
        disk = f"{scratch}/root.qcow2"
        subprocess.check_call(
            [*self.programs.command("qemu-img"), "create", "-q", "-f", "qcow2"]
            + ["-b", "../../root.img", "-F", "raw", disk]
        )
        drive = f"if=none,id=root,file={qemu.escaped(disk)},cache=unsafe"
        command = [
            *self.programs.command("qemu-system-x86_64"),
            *self.programs.firmware(),
            *qemu.machine(
                options, self.image, f"{scratch}/ram", True, drive, f"{scratch}/console"
            ),
        ]
        machine = Machine(command, f"{scratch}/qemu.log", secrets.token_bytes(END_BYTES))
        try:
            self._freeze(machine, f"{scratch}/state")
        finally:
            machine.stop()
        os.rename(scratch, final)

    @staticmethod
    def _freeze(machine, state):
        qmp = machine.connect()
        await_ready(machine)
        qmp.command("stop")
        qmp.command("migrate-set-capabilities", capabilities=_IGNORE_SHARED)
        qmp.command("migrate", uri=f"file:{state}")
        qmp.wait_for_migration()
        machine.quit()


class Run:
    """One command in one guest."""

    def __init__(self, options, image, programs, directory):
        self.options, self.image, self.programs = options, image, programs
        self.directory = directory
        self.template = None
        self.plan = None
        self.end = secrets.token_bytes(END_BYTES)

    def prepare(self, environment):
        """Lays out what the guest will find, and returns QEMU's command."""
        options, directory = self.options, self.directory
        shares = [os.path.abspath(path) for path in options.share or [default_share()]]
        for path in shares:
            if not os.path.isdir(path):
                raise LabError(f"--share {path}: no such directory")
        os.mkdir(f"{directory}/guest")
        variables = qemu.guest_environment(options, environment)
        script = qemu.guest_command(options, shares, os.getcwd(), variables)
        with open(f"{directory}/guest/command", "w", encoding="utf-8") as handle:
            handle.write(script)
        with open(f"{directory}/guest/end", "wb") as handle:
            handle.write(self.end)
        if options.systemd:
            with open(f"{directory}/guest/systemd", "wb"):
                pass
        self.plan = qemu.nvme_plan(options, directory)
        for path in self.plan.files:
            if not os.path.exists(path):
                with open(path, "wb") as handle:
                    handle.truncate(qemu.size_bytes(options.size))
        return [
            *self.programs.command("qemu-system-x86_64"),
            *self.programs.firmware(),
            *self._machine(),
            *qemu.extra_arguments(options, directory, shares),
            *self.plan.arguments,
            *([] if options.cold else ["-incoming", "defer"]),
        ]

    def _machine(self):
        options, console = self.options, f"{self.directory}/console"
        if options.cold:
            memory, disk = f"{self.directory}/ram", f"file={qemu.escaped(self.image)}/root.img"
            disk += ",format=raw"
        else:
            self.template = Templates(self.image, self.programs).find_or_make(options)
            memory = f"{self.template}/ram"
            disk = f"file={qemu.escaped(self.template)}/root.qcow2,format=qcow2"
        drive = f"if=none,id=root,{disk},snapshot=on,cache=unsafe"
        return qemu.machine(options, self.image, memory, False, drive, console)

    def execute(self, command, out, err):
        """Runs QEMU to its end; the exit status."""
        timed_out = False
        try:
            boot = functools.partial(self._boot_and_wait, command, out, err)
            timed_out = with_boot_retry(boot, self.directory)
        except (LabError, OSError) as error:
            # Where QEMU goes in the middle of a conversation, the status below says how it was.
            say(error)
        status = exit_status(timed_out, self._status())
        if timed_out or self._status() is None:
            if not timed_out:
                say("the guest died")
            show_logs(self.directory)
        return status

    def _boot_and_wait(self, command, out, err):
        """One guest from its start to its end; whether time was out."""
        machine = Machine(command, f"{self.directory}/qemu.log", self.end, out, err)
        try:
            self._start(machine)
            timed_out = not machine.wait(self.options.timeout)
        finally:
            machine.stop()
        if timed_out:
            say(f"time-out after {self.options.timeout:g} s")
        return timed_out

    def _start(self, machine):
        qmp = machine.connect()
        if self.options.cold:
            await_ready(machine)
        else:
            for seed in self.plan.seeds:
                qmp.command("device_del", id=seed)
            qmp.command("migrate-set-capabilities", capabilities=_IGNORE_SHARED)
            qmp.command("migrate-incoming", uri=f"file:{self.template}/state")
            qmp.wait_for_migration()
            for controller in self.plan.controllers:
                qmp.command("device_add", **qemu.properties(controller))
            qmp.command("cont")
        controllers = max(self.options.nvme, len(self.options.disk or []))
        machine.guest.sendall(b"go %d %d\n" % (time.time(), controllers))
        threading.Thread(target=relay, args=(qmp, machine.relay), daemon=True).start()

    def _status(self):
        try:
            with open(f"{self.directory}/guest/status", encoding="ascii") as handle:
                return handle.read()
        except OSError:
            return None


def unbuffered(descriptor):
    """One of this process's standard streams; a blocked write to it holds up nothing else."""
    return open(descriptor, "wb", buffering=0, closefd=False)


def _interrupted(number, _frame):
    sys.exit(128 + number)


def warn_if_outdated(image):
    """Says so where the guest was built from other scripts or lists than there are now."""
    if guest_key(*trees(os.environ)) != os.path.basename(image):
        say("the guest is older than its sources: `lab build` makes it anew")


def run(state, options):
    """`lab run`: the exit status."""
    began = time.monotonic()
    image, image_lock = state.current_guest()
    warn_if_outdated(image)
    host_tree = os.path.realpath(os.path.join(image, "host"))
    tree_lock = lock_directory(host_tree)
    os.makedirs(state.runs, exist_ok=True)
    directory = tempfile.mkdtemp(dir=state.runs, prefix="")
    lock = lock_directory(directory)
    signal.signal(signal.SIGTERM, _interrupted)
    signal.signal(signal.SIGHUP, _interrupted)
    try:
        one = Run(options, image, qemu.Programs(host_tree), directory)
        command = one.prepare(os.environ)
        prepared = time.monotonic()
        sys.stdout.flush()
        sys.stderr.flush()
        with unbuffered(1) as out, unbuffered(2) as err:
            status = one.execute(command, out, err)
        ended = time.monotonic()
        if options.verbose:
            say(f"preparation {prepared - began:.2f} s, run {ended - prepared:.2f} s, {directory}")
        if options.dmesg:
            with open(f"{directory}/console", errors="replace", encoding="utf-8") as handle:
                sys.stderr.write(handle.read())
    finally:
        if options.keep:
            with open(f"{directory}/kept", "w", encoding="ascii"):
                pass
        else:
            shutil.rmtree(directory, ignore_errors=True)
        for descriptor in (lock, tree_lock, image_lock):
            if descriptor is not None:
                os.close(descriptor)
    return status
