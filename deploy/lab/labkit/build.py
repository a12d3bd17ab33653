"""From Debian packages to a bootable guest, in steps that are each kept once they are complete."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time

from . import LabError, guest
from .archive import find_archive
from .state import SOURCE, key, remove_if_unused

ATTEMPTS_MAX = 3
RETRY_PAUSE_S = 5
# A build that is killed leaves neither processes nor mounts behind: what it started has process and
# mount namespaces of its own, which end with it.
CONFINED = [
    *["setpriv", "--pdeathsig", "KILL", "unshare", "--mount", "--pid", "--fork"],
    *["--kill-child", "--mount-proc"],
]
# Programs that the build runs, and the Debian packages that have them.
PROGRAMS = {
    "mmdebstrap": "mmdebstrap",
    "depmod": "kmod",
    "mke2fs": "e2fsprogs",
    "cpio": "cpio",
    "xz": "xz-utils",
    "zstd": "zstd",
    "setpriv": "util-linux",
    "unshare": "util-linux",
}


def say(*words):
    """One line to the user."""
    print("lab:", *words, file=sys.stderr, flush=True)


def read_list(name):
    """The lines of one of the lists in packages/, without comments."""
    with open(os.path.join(SOURCE, "packages", name), encoding="utf-8") as handle:
        lines = (line.strip() for line in handle)
        return [line for line in lines if line and not line.startswith("#")]


def read_packages(name):
    """The words of a package list."""
    return [word for line in read_list(name) for word in line.split()]


def missing_programs(which=shutil.which):
    """Debian packages without which nothing can be built."""
    return sorted({package for program, package in PROGRAMS.items() if which(program) is None})


class Tree:
    """One set of unpacked packages: "host", which runs on this machine, or "root", the guest's."""

    def __init__(self, name, variant, packages, suite, backports):
        self.name, self.variant, self.packages = name, variant, packages
        self.suite, self.backports = suite, backports

    def options(self):
        """mmdebstrap's options: with the archive, all that the tree's content comes from."""
        options = [
            "--mode=root",
            f"--variant={self.variant}",
            '--aptopt=Apt::Install-Recommends "false"',
            '--aptopt=Acquire::Languages "none"',
            '--aptopt=Acquire::Retries "5"',
            "--dpkgopt=path-exclude=/usr/share/man/*",
            "--dpkgopt=path-exclude=/usr/share/locale/*",
            "--dpkgopt=path-exclude=/usr/share/doc/*",
            "--include=" + ",".join(self.packages),
        ]
        if self.backports:
            options.append(f'--aptopt=APT::Default-Release "{self.suite}-backports"')
        return options

    def key(self):
        """What this tree is called once it is complete."""
        return f"{self.name}-{key(self.suite, *self.options())}"

    def command(self, archive, target):
        """The whole mmdebstrap command."""
        sources = [f"deb {archive} {self.suite} main"]
        if self.backports:
            sources.append(f"deb {archive} {self.suite}-backports main")
        return ["mmdebstrap", "--quiet", *self.options(), self.suite, target, *sources]


def trees(environment):
    """The two trees that the environment asks for (LAB_SUITE, LAB_BACKPORTS)."""
    suite = environment.get("LAB_SUITE") or "trixie"
    backports = bool(environment.get("LAB_BACKPORTS"))
    if not re.fullmatch(r"[a-z]+", suite):
        raise LabError(f"LAB_SUITE={suite}: not the name of a suite")
    return (
        Tree("host", "extract", read_packages("host.txt"), suite, backports),
        Tree("root", "apt", read_packages("guest.txt"), suite, False),
    )


def guest_key(host, root):
    """The name of the guest that these trees, the lists and the scripts make."""
    contents = []
    for path in sorted(map(guest.source, [*guest.SCRIPTS, "initrd-init"])) + [guest.__file__]:
        with open(path, "rb") as handle:
            contents.append(handle.read())
    return key(host.key(), root.key(), *read_list("modules.txt"), *contents)


def attempt(work, failure, attempts=ATTEMPTS_MAX, pause=time.sleep):
    """Runs `work` until it succeeds, at most `attempts` times: an archive may be away a moment."""
    for turn in range(1, attempts + 1):
        try:
            return work()
        except failure as error:
            if turn == attempts:
                raise LabError(f"given up after {attempts} attempts: {error}") from error
            say(f"attempt {turn} of {attempts} failed, trying again: {error}")
            pause(RETRY_PAUSE_S * turn)


def build_tree(state, tree):
    """Makes a tree unless it is there; its path."""
    final = os.path.join(state.trees, tree.key())
    if os.path.isdir(final):
        return final
    archive = find_archive()
    say(f"unpacking {len(tree.packages)} packages and what they need from {archive}: {final}")
    scratch = tempfile.mkdtemp(dir=state.trees, prefix="new-")
    content = os.path.join(scratch, "tree")

    def unpack():
        shutil.rmtree(content, ignore_errors=True)
        command = [*CONFINED, *tree.command(archive, content)]
        subprocess.run(command, stdin=subprocess.DEVNULL, check=True)

    attempt(unpack, subprocess.CalledProcessError)
    os.rename(content, final)
    os.rmdir(scratch)
    return final


def build_guest(state, final, host_tree, root_tree):
    """Makes the guest `final` from the two trees."""
    scratch = tempfile.mkdtemp(dir=state.guests, prefix="new-")
    os.chmod(scratch, 0o755)
    release = sorted(os.listdir(f"{host_tree}/usr/lib/modules"))[-1]
    say(f"making a guest with kernel {release}: {final}")
    # Hard links: the trees stay as they were unpacked, since files are only added to the copy.
    root = f"{scratch}/root"
    subprocess.check_call(["cp", "-al", root_tree, root])
    subprocess.check_call(["depmod", "-b", f"{host_tree}/usr", release])
    modules = guest.install_modules(host_tree, root, release, read_list("modules.txt"))
    guest.install_scripts(root)
    guest.unpack_kernel(host_tree, release, f"{scratch}/vmlinux")
    guest.make_initrd(root, modules, f"{scratch}/early", f"{scratch}/initrd")
    guest.make_root_image(root, f"{scratch}/root.img")
    shutil.rmtree(root)
    shutil.rmtree(f"{scratch}/early")
    os.mkdir(f"{scratch}/templates")
    os.symlink(os.path.relpath(host_tree, state.guests + "/x"), f"{scratch}/host")
    os.rename(scratch, final)


def build(state, force=False):
    """Makes what is missing; with `force`, everything anew. Safe to interrupt and to run twice."""
    state.prepare()
    with state.build_lock(say):
        host, root = trees(os.environ)
        final = os.path.join(state.guests, guest_key(host, root))
        paths = [os.path.join(state.trees, tree.key()) for tree in (host, root)]
        if force:
            # The name goes first: the next run must not take what is being made anew.
            if os.path.islink(state.current):
                os.unlink(state.current)
            for path in (final, *paths):
                remove_if_unused(path)
            if os.path.isdir(final):
                raise LabError("a run still uses the guest; try again when it has ended")
        if not os.path.isdir(final):
            check_prerequisites()
            host_tree, root_tree = build_tree(state, host), build_tree(state, root)
            build_guest(state, final, host_tree, root_tree)
        state.publish(final)
        state.prune(keep={final, *paths})
        say("ready:", final)


def check_prerequisites():
    """One clear line when this machine cannot build."""
    missing = missing_programs()
    if missing:
        raise LabError("missing: apt-get install " + " ".join(missing))
    if os.geteuid() != 0:
        raise LabError("unpacking a Debian userland needs root; run `lab build` as root")
