"""The lab's command line."""

import argparse
import os
import signal
import subprocess
import sys

from . import LabError
from .build import build, say
from .run import DIED, run
from .state import State

DESCRIPTION = """Runs commands in a throw-away Linux guest (QEMU, software emulation) that has what
this machine lacks: NVMe controllers behind an IOMMU, VFIO, Soft-RoCE, the kernel's NVMe-oF host and
target. README.md says more."""
STATUS = """One COMMAND word is run as a shell script, several are run as they are. Exit status: the
command's own; 124 time-out; 125 the guest died or the lab failed."""


def positive(text):
    """A number of seconds."""
    value = float(text)
    if not value > 0:
        raise argparse.ArgumentTypeError(f"{text} is not above 0")
    return value


def count(text):
    """A whole number, 0 included."""
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"{text} is below 0")
    return value


def parser():
    """The command line's parser."""
    top = argparse.ArgumentParser(prog="lab", description=DESCRIPTION)
    verbs = top.add_subparsers(dest="verb", required=True)
    verb = verbs.add_parser("build", help="make the guest and a private QEMU, where missing")
    verb.add_argument("--force", action="store_true", help="make everything anew")
    verbs.add_parser("where", help="print the state directory (LAB_DIR, else target/lab)")
    verb = verbs.add_parser("run", help="run a command in a guest", epilog=STATUS)
    _add_drives(verb)
    _add_machine(verb)
    _add_surroundings(verb)
    verb.add_argument("command", nargs="+", metavar="COMMAND")
    return top


def _add_drives(verb):
    group = verb.add_argument_group("NVMe drives")
    add = group.add_argument
    add("--nvme", type=count, default=0, metavar="N", help="controllers, from 0000:01:00.0 on")
    add("--ns", type=count, default=1, metavar="N", help="namespaces of each")
    add("--size", default="1G", help="of each namespace")
    add("--disk", action="append", metavar="FILE", help="file behind the next controller; it stays")
    add("--cmb", type=count, default=0, metavar="MB", help="controller memory buffer")
    add("--ctrl", default="", metavar="OPTIONS", help="more for QEMU's nvme")
    add("--subsys", default="", metavar="OPTIONS", help="more for QEMU's nvme-subsys")
    add("--nsopt", default="", metavar="OPTIONS", help="more for QEMU's nvme-ns")


def _add_machine(verb):
    group = verb.add_argument_group("machine")
    add = group.add_argument
    add("--mem", default="2G", metavar="SIZE", help="memory (2G)")
    add("--smp", type=count, default=2, metavar="N", help="processors (2)")
    add("--huge", type=count, default=0, metavar="MB", help="set aside as 2 MB hugepages")
    add("--net", nargs="?", const="", metavar="OPTIONS", help="network; this machine is 10.0.2.2")
    add("--qemu", action="append", default=[], metavar="ARGUMENTS", help="more QEMU arguments")
    add("--append", default="", metavar="WORDS", help="more kernel command line (its own template)")
    add("--cold", action="store_true", help="boot instead of resuming a template")
    add("--systemd", action="store_true", help="start systemd beside the command")


def _add_surroundings(verb):
    group = verb.add_argument_group("surroundings")
    add = group.add_argument
    add("--share", action="append", metavar="DIR", help="seen at its own path (the work tree)")
    add("--cache", default="mmap", help="9p cache mode of the shares (mmap)")
    add("--env", action="append", default=[], metavar="NAME[=VALUE]", help="one more variable")
    add("--timeout", type=positive, default=300, metavar="S", help="seconds (300)")
    add("--keep", action="store_true", help="keep the run's directory")
    add("--dmesg", action="store_true", help="show the guest's console at the end")
    add("-v", "--verbose", action="store_true", help="say where the time went")


def main(arguments=None):
    """Runs one verb; the exit status."""
    options = parser().parse_args(arguments)
    # depmod and mke2fs are there, and not everybody's path has it.
    os.environ["PATH"] = os.environ.get("PATH", os.defpath) + ":/usr/sbin:/sbin"
    state = State()
    try:
        if options.verb == "build":
            build(state, options.force)
        elif options.verb == "where":
            print(state.directory)
        else:
            return run(state, options)
    except LabError as error:
        say(error)
        return DIED
    except subprocess.CalledProcessError as error:
        say(f"{error.cmd[0]} failed with {error.returncode}")
        return DIED
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except BrokenPipeError:
        sys.stderr.close()
        return DIED
    return 0
