"""Where the lab keeps what it builds, and who may touch it when.

    LAB_DIR/build.lock       held while something is built
    LAB_DIR/trees/NAME-KEY/  unpacked packages: "host" (QEMU, kernel), "root" (the guest's userland)
    LAB_DIR/guests/KEY/      one bootable guest: vmlinux, initrd, root.img, templates/
    LAB_DIR/current          symbolic link to the guest that new runs take
    LAB_DIR/run/…/           one directory for each run

A KEY is a hash of everything its directory is made from, and a directory gets its name only when it
is complete, so what exists under a KEY is right, and a build that was interrupted leaves nothing
that a later one could mistake. A user of a directory holds a shared lock on it; only a directory
that nobody holds is ever removed.
"""

import contextlib
import fcntl
import hashlib
import os
import shutil
import tempfile

from . import LabError

SOURCE = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
REPOSITORY = os.path.dirname(os.path.dirname(SOURCE))


def key(*parts):
    """A short name for what is made from `parts` (strings or bytes)."""
    digest = hashlib.sha256()
    for part in parts:
        data = part if isinstance(part, bytes) else part.encode()
        digest.update(b"%d:" % len(data) + data)
    return digest.hexdigest()[:16]


def lock_directory(path, *, exclusive=False, wait=True):
    """Locks a directory until the returned descriptor is closed; None if it is gone or taken."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    except FileNotFoundError:
        return None
    operation = fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH
    try:
        fcntl.flock(descriptor, operation | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        os.close(descriptor)
        return None
    # The directory may have been removed between the opening and the locking.
    if not os.path.isdir(path) or not os.path.samestat(os.stat(path), os.fstat(descriptor)):
        os.close(descriptor)
        return None
    return descriptor


def remove_if_unused(path):
    """Removes a directory unless somebody holds it."""
    descriptor = lock_directory(path, exclusive=True, wait=False)
    if descriptor is not None:
        shutil.rmtree(path, ignore_errors=True)
        os.close(descriptor)


class State:
    """The lab's directory: paths, locks and the clearing away of what is no longer used."""

    def __init__(self, directory=None):
        chosen = directory or os.environ.get("LAB_DIR") or os.path.join(REPOSITORY, "target", "lab")
        self.directory = os.path.abspath(chosen)
        self.trees = os.path.join(self.directory, "trees")
        self.guests = os.path.join(self.directory, "guests")
        self.runs = os.path.join(self.directory, "run")
        self.current = os.path.join(self.directory, "current")

    def prepare(self):
        """Makes the directories that everything else expects."""
        for path in (self.trees, self.guests, self.runs):
            os.makedirs(path, exist_ok=True)

    @contextlib.contextmanager
    def build_lock(self, say):
        """Keeps other builds out; the lock falls with the process, however that ends."""
        with open(os.path.join(self.directory, "build.lock"), "w", encoding="ascii") as handle:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                say("waiting for another build to end")
                fcntl.flock(handle, fcntl.LOCK_EX)
            yield

    def current_guest(self):
        """The guest that runs take now, locked: (path, descriptor)."""
        for _ in range(100):
            if not os.path.islink(self.current):
                break
            path = os.path.realpath(self.current)
            descriptor = lock_directory(path)
            if descriptor is not None:
                return path, descriptor
        raise LabError(f"no guest in {self.directory}: build it with `lab build`")

    def publish(self, guest):
        """Lets new runs take `guest`; runs that have begun keep theirs."""
        link = tempfile.mktemp(dir=self.directory, prefix=".current-")
        os.symlink(os.path.relpath(guest, self.directory), link)
        os.replace(link, self.current)

    def prune(self, keep):
        """Removes guests, trees and run directories that nobody holds, except those in `keep`."""
        for folder in (self.guests, self.trees, self.runs):
            for name in os.listdir(folder):
                path = os.path.join(folder, name)
                if path not in keep and not os.path.exists(os.path.join(path, "kept")):
                    remove_if_unused(path)
