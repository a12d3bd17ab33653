#!/usr/bin/env python3
"""Stands in for QEMU: speaks its control protocol, plays the guest, and misbehaves as it is told.

FAKE_QEMU is one of "status N" (the guest's command ends with N), "die" (no status), "hang" (never
ends), "refuse" (loading the state fails), "garbage" (a status that is no number), "output" (both
streams, with every byte value), "boot N" (the first N machines die before the guest's init, then as
"status 0"; FAKE_QEMU_BOOTS names the file that counts them).
"""

import json
import os
import re
import socket
import sys
import threading


SHARED = r"^local,id=lab,path=([^,]+)"


def option(pattern):
    """The first match of `pattern` within the command line."""
    for argument in sys.argv:
        match = re.search(pattern, argument)
        if match:
            return match[1]
    return None


def serve(connection, plan):
    """Answers every command, as a control connection would."""
    connection.sendall(b'{"QMP": {}}\n')
    for line in connection.makefile("rb"):
        request = json.loads(line)
        name, answer = request["execute"], {"return": {}}
        connection.sendall(b'{"event": "NOISE"}\n')
        if name == "query-migrate":
            answer = {"return": {"status": "failed" if plan == "refuse" else "completed"}}
        elif name == "migrate":
            with open(request["arguments"]["uri"].removeprefix("file:"), "wb") as handle:
                handle.write(b"state")
        elif name == "device_del" and "seed" not in request["arguments"]["id"]:
            answer = {"error": {"desc": "no such device"}}
        connection.sendall(json.dumps(answer).encode() + b"\n")
        if name == "quit":
            os._exit(0)


def write_status(text):
    """What the guest leaves in the shared directory when its command has ended."""
    with open(f"{option(SHARED)}/status", "w", encoding="ascii") as handle:
        handle.write(text)


def play(plan, guest):
    """The guest's part, from the resume on."""
    line = guest.makefile("rb").readline()
    assert line.startswith(b"go "), line
    if plan == "hang":
        threading.Event().wait()
    streams = [open(option(rf"^file,id={name},path=(.+)"), "wb") for name in ("out", "err")]
    if plan == "die":
        os._exit(0)
    if plan == "output":
        streams[0].write(bytes(range(256)) * 4096)
        streams[1].write(bytes(range(255, -1, -1)))
    write_status({"garbage": "seven\n", "output": "0\n"}.get(plan) or plan.split()[1] + "\n")
    with open(f"{option(SHARED)}/end", "rb") as handle:
        end = handle.read()
    for stream in streams:
        stream.write(end[:10])
        stream.flush()
        stream.write(end[10:])
        stream.flush()


def main():
    """QEMU or qemu-img, by the first argument."""
    if sys.argv[1] == "qemu-img":
        open(sys.argv[-1], "wb").close()
        return
    plan = os.environ["FAKE_QEMU"]
    if plan.startswith("boot "):
        with open(os.environ["FAKE_QEMU_BOOTS"], "ab+") as boots:
            boots.write(b".")
            boots.flush()
            panics = boots.tell() <= int(plan.split()[1])
        plan = "panic" if panics else "status 0"
    control, guest = (
        socket.socket(fileno=int(option(rf"^socket,id={name},fd=([0-9]+)")))
        for name in ("control", "guest")
    )
    if plan == "panic":
        threading.Timer(0.2, os._exit, [1]).start()
    elif option(r"share=(on)"):
        guest.sendall(b"ready\n")
    else:
        if "-incoming" not in sys.argv:
            guest.sendall(b"ready\n")
        threading.Thread(target=play, args=(plan, guest), daemon=True).start()
    serve(control, plan)


main()
