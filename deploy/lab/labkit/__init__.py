"""The lab: a QEMU guest with the hardware, drivers and kernel peers that a plain machine lacks.

    state.py    where built things lie, and the locks on them
    archive.py  which Debian archive to take packages from
    build.py    from packages to a bootable guest
    guest.py    the guest's parts: kernel, modules, initial RAM disk, root image
    qemu.py     QEMU's command line, as a pure function of the options
    qmp.py      QEMU's control protocol
    machine.py  one QEMU process and the channels to it
    run.py      templates, and one command in one guest
    cli.py      the command line
"""


class LabError(Exception):
    """A failure of the lab itself, as one line for the user; the exit status is then 125."""
