"""Finds the Debian archive that this machine's apt uses, so that no host name is written here."""

import glob
import os
import re

from . import LabError

_ONE_LINE = re.compile(r"^\s*deb\s+(?:\[[^\]]*\]\s*)?(\S+)", re.MULTILINE)
_FIELD_URIS = re.compile(r"^URIs:\s*(\S+)", re.MULTILINE | re.IGNORECASE)
_DEBIAN = re.compile(r"/debian/?$")


def archive_in(text):
    """The first Debian archive named by one apt sources file of either format, or None."""
    for pattern in (_FIELD_URIS, _ONE_LINE):
        for uri in pattern.findall(text):
            if _DEBIAN.search(uri):
                return uri
    return None


def find_archive(etc="/etc/apt"):
    """The archive to take packages from: LAB_ARCHIVE, else the first one in the apt sources."""
    chosen = os.environ.get("LAB_ARCHIVE")
    if chosen:
        return chosen
    files = [
        *sorted(glob.glob(os.path.join(etc, "sources.list.d", "*.sources"))),
        os.path.join(etc, "sources.list"),
        *sorted(glob.glob(os.path.join(etc, "sources.list.d", "*.list"))),
    ]
    for path in files:
        try:
            with open(path, encoding="utf-8", errors="replace") as handle:
                archive = archive_in(handle.read())
        except OSError:
            continue
        if archive:
            return archive
    raise LabError("no Debian archive in the apt sources; name one in LAB_ARCHIVE")
