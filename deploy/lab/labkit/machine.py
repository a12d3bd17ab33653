"""One QEMU process and this side's ends of the channels to it."""

import contextlib
import os
import socket
import subprocess
import threading
import time

from .qemu import Channels
from .qmp import Qmp

# Without this a lab that is killed would leave its QEMU running.
DIES_WITH_US = ["setpriv", "--pdeathsig", "KILL"]
CHUNK = 65536
JOIN_TIMEOUT_S = 5
QUIT_TIMEOUT_S = 60


def write_all(sink, data):
    """Writes all of `data` to an unbuffered stream, which may take less at a time."""
    rest = memoryview(data)
    while rest:
        written = sink.write(rest)
        if written is None:
            time.sleep(0.01)  # somebody made the descriptor non-blocking
        else:
            rest = rest[written:]


def held_back(data, end):
    """How many bytes at the end of `data` may be the beginning of the mark `end`."""
    for length in range(min(len(data), len(end) - 1), 0, -1):
        if data.endswith(end[:length]):
            return length
    return 0


def copy(stream, sink, end):
    """Copies bytes to `sink` up to the mark `end`; whether that came before the stream's end.

    Where `sink` closes, the rest is read and dropped: were it not read, the guest would wait for
    ever with a full channel.
    """
    pending = b""
    while True:
        data = stream.read(CHUNK)
        pending += data
        before, mark, _ = pending.partition(end)
        keep = 0 if mark or not data else held_back(before, end)
        ready, pending = before[: len(before) - keep], before[len(before) - keep :]
        try:
            if sink is not None:
                write_all(sink, ready)
        except OSError:
            sink = None
        if mark or not data:
            return bool(mark)


class Output:
    """One of the guest's output streams, copied by a thread of its own."""

    def __init__(self, sink, end):
        reader, self.writer = os.pipe()
        self.complete = False
        self._stream = os.fdopen(reader, "rb", buffering=0)
        self._thread = threading.Thread(target=self._copy, args=(sink, end), daemon=True)

    def _copy(self, sink, end):
        with self._stream:
            self.complete = copy(self._stream, sink, end)

    def start(self):
        """To be called when QEMU has the writer, and this process no longer."""
        self._thread.start()

    def join(self, timeout_s):
        """Waits for the stream's end; False when time is out."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()


class Machine:
    """A running QEMU. Sockets are made here and inherited, so no path limits or races are met."""

    def __init__(self, command, log, end, out=None, err=None):
        """Starts QEMU; `command` gets the channels, `log` takes what QEMU itself says.

        `out` and `err` are unbuffered binary streams for what the guest's command prints, and `end`
        is the mark that the guest puts behind it.
        """
        self._sockets, inherited = [], []
        for _ in range(3):
            ours, theirs = socket.socketpair()
            self._sockets.append(ours)
            inherited.append(theirs.detach())
        self._outputs = [Output(out, end), Output(err, end)]
        inherited += [output.writer for output in self._outputs]
        paths = [f"/dev/fd/{output.writer}" for output in self._outputs]
        channels = Channels(*inherited[:3], *paths)
        try:
            with open(log, "wb") as handle:
                self.process = subprocess.Popen(
                    [*DIES_WITH_US, *command, *channels.arguments()],
                    stdin=subprocess.DEVNULL,
                    stdout=handle,
                    stderr=handle,
                    pass_fds=inherited,
                )
        finally:
            for descriptor in inherited:
                os.close(descriptor)
        for output in self._outputs:
            output.start()
        self.guest, self.relay = self._sockets[1], self._sockets[2]
        self.qmp = None

    def connect(self):
        """Opens the control protocol."""
        self.qmp = Qmp(self._sockets[0])
        return self.qmp

    def wait(self, timeout_s):
        """Waits until the guest has done its work or is dead; False when time is out."""
        deadline = time.monotonic() + timeout_s
        for output in self._outputs:
            if not output.join(max(0, deadline - time.monotonic())):
                return False
        if all(output.complete for output in self._outputs):
            self.quit()
        return True

    def quit(self):
        """Lets QEMU end in order, with its disks flushed."""
        self.qmp.request({"execute": "quit"})
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(QUIT_TIMEOUT_S)

    def stop(self):
        """Ends QEMU where it still runs, and closes the channels."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        for output in self._outputs:
            output.join(JOIN_TIMEOUT_S)
        for connection in self._sockets:
            connection.close()
