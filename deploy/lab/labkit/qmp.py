"""QEMU's control protocol over a connected socket: one JSON object a line, both ways.

docs/interop/qmp-spec.rst in QEMU's sources. Events are of no use here and are dropped.
"""

import json
import threading
import time

from . import LabError

ANSWER_TIMEOUT_S = 120
POLL_S = 0.01


class QmpError(LabError):
    """QEMU refused a command, or is gone."""


class Qmp:
    """One control connection; requests of several threads take turns."""

    def __init__(self, connection):
        self._connection = connection
        self._connection.settimeout(ANSWER_TIMEOUT_S)
        self._received = b""
        self._lock = threading.Lock()
        self.command("qmp_capabilities")

    def _line(self):
        while b"\n" not in self._received:
            data = self._connection.recv(65536)
            if not data:
                raise ConnectionError("closed")
            self._received += data
        line, self._received = self._received.split(b"\n", 1)
        return line

    def request(self, request):
        """Sends one request as it is and returns QEMU's answer, an error included."""
        with self._lock:
            try:
                self._connection.sendall(json.dumps(request).encode() + b"\n")
                while True:
                    answer = json.loads(self._line())
                    if "return" in answer or "error" in answer:
                        return answer
            except (OSError, ValueError) as error:
                return {"error": {"class": "GenericError", "desc": f"QEMU is gone ({error})"}}

    def command(self, name, **arguments):
        """Runs one command and returns its result."""
        answer = self.request({"execute": name, "arguments": arguments})
        if "error" in answer:
            raise QmpError(f"{name}: {answer['error'].get('desc')}")
        return answer["return"]

    def wait_for_migration(self):
        """Waits until a saved state is written or loaded."""
        deadline = time.monotonic() + ANSWER_TIMEOUT_S
        while time.monotonic() < deadline:
            status = self.command("query-migrate").get("status")
            if status == "completed":
                return
            if status == "failed":
                raise QmpError("the saved state was not taken")
            time.sleep(POLL_S)
        raise QmpError("the saved state takes too long")


def relay(qmp, connection):
    """Answers the guest's requests until its end closes."""
    with connection.makefile("rb") as lines:
        for line in lines:
            try:
                answer = qmp.request(json.loads(line))
            except ValueError as error:
                answer = {"error": {"class": "GenericError", "desc": str(error)}}
            try:
                connection.sendall(json.dumps(answer).encode() + b"\n")
            except OSError:
                return
