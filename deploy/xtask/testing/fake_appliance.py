#!/usr/bin/env python3
"""Stands in for the appliance in the harness's tests; FAKE_APPLIANCE says how it behaves."""

import os
import re
import signal
import socket
import sys
import time

plan = os.environ["FAKE_APPLIANCE"]
assert sys.argv[1] == "run", sys.argv
with open(sys.argv[2], encoding="utf-8") as handle:
    port = int(re.search(r'address = "127\.0\.0\.1:([0-9]+)"', handle.read())[1])
if plan == "dies at start":
    print("windlass: the port is taken", file=sys.stderr)
    sys.exit(3)
signal.signal(signal.SIGTERM, lambda *_: sys.exit(4 if plan == "stops badly" else 0))
with socket.create_server(("127.0.0.1", port)):
    print("windlass: starting", flush=True)
    print("windlass: ready", flush=True)
    if plan == "dies soon":
        time.sleep(0.3)
        sys.exit(0)
    while True:
        signal.pause()
