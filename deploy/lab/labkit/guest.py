"""The parts of a bootable guest: kernel, modules, initial RAM disk and root image."""

import glob
import os
import re
import shutil
import struct
import subprocess

from . import LabError
from .state import SOURCE

SCRIPTS = {
    "init": "lab/init",
    "qmp": "usr/local/bin/qmp",
    "pcibind": "usr/local/bin/pcibind",
}
# What mounts the root disk, in the order of their dependence; a kernel may have some built in.
EARLY_MODULES = ("virtio_blk", "crc16", "mbcache", "jbd2", "crc32c_generic", "ext4")
FREE_MIB = 400

_SETUP_SECTORS, _PAYLOAD = 0x1F1, 0x248
_UNPACKERS = {b"\x28\xb5\x2f\xfd": "zstd", b"\xfd7zX": "xz", b"\x1f\x8b\x08\x00": "gzip"}


def source(name):
    """The path of one of the guest's scripts."""
    return os.path.join(SOURCE, "guest", name)


def payload(image):
    """The compressed kernel within a bzImage and the program that unpacks it.

    Linux, Documentation/arch/x86/boot.rst: setup_sects, payload_offset, payload_length; the
    payload's last four bytes are its unpacked length.
    """
    if len(image) < _PAYLOAD + 8:
        raise LabError("the kernel is no bzImage: too short")
    offset, length = struct.unpack_from("<II", image, _PAYLOAD)
    start = (image[_SETUP_SECTORS] + 1) * 512 + offset
    data = image[start : start + length - 4]
    unpacker = _UNPACKERS.get(data[:4])
    if unpacker is None:
        raise LabError(f"the kernel is packed in an unknown way ({data[:4].hex()})")
    return data, unpacker


def unpack_kernel(host_tree, release, target):
    """Makes the ELF kernel that QEMU boots: under emulation its unpacking takes seconds."""
    for image in (
        f"{host_tree}/boot/vmlinuz-{release}",
        f"{host_tree}/usr/lib/modules/{release}/vmlinuz",
    ):
        if os.path.exists(image):
            break
    else:
        raise LabError(f"no kernel image for {release}")
    with open(image, "rb") as handle:
        data, unpacker = payload(handle.read())
    with open(target, "wb") as handle:
        subprocess.run([unpacker, "-dc"], input=data, stdout=handle, check=True)


def wanted_modules(patterns, dependencies):
    """The modules that match a pattern, with all that they depend on.

    `dependencies` is the text of a modules.dep file.
    """
    expressions = [re.compile(pattern) for pattern in patterns]
    wanted = set()
    for line in dependencies.splitlines():
        module, _, needs = line.partition(":")
        if any(expression.search(module) for expression in expressions):
            wanted.update([module, *needs.split()])
    return sorted(wanted)


def install_modules(host_tree, root, release, patterns):
    """Puts the wanted kernel modules into `root`, unpacked, so that they load fast in the guest."""
    packed = f"{host_tree}/usr/lib/modules/{release}"
    unpacked = f"{root}/usr/lib/modules/{release}"
    shutil.rmtree(os.path.dirname(unpacked), ignore_errors=True)
    os.makedirs(unpacked)
    with open(f"{packed}/modules.dep", encoding="utf-8") as handle:
        wanted = wanted_modules(patterns, handle.read())
    for name in ("modules.order", "modules.builtin", "modules.builtin.modinfo"):
        shutil.copy(f"{packed}/{name}", unpacked)
    script = (
        'for module; do to="$UNPACKED/${module%.xz}"; mkdir -p "${to%/*}"; case $module in '
        '*.xz) xz -dc "$module" > "$to" ;; *) cp "$module" "$to" ;; esac || exit 255; done'
    )
    subprocess.run(
        ["xargs", "-P", str(os.cpu_count() or 1), "-n", "50", "sh", "-c", script, "unpack"],
        input="\n".join(wanted),
        text=True,
        cwd=packed,
        env={**os.environ, "UNPACKED": unpacked},
        check=True,
    )
    subprocess.check_call(["depmod", "-b", f"{root}/usr", release])
    return unpacked


def install_scripts(root):
    """Puts the guest's own scripts into `root`."""
    for name, place in SCRIPTS.items():
        target = os.path.join(root, place)
        os.makedirs(os.path.dirname(target), exist_ok=True)
        shutil.copy(source(name), target)
        os.chmod(target, 0o755)
    os.makedirs(os.path.join(root, "lab", "run"), exist_ok=True)


def make_initrd(root, modules, scratch, target):
    """Makes the initial RAM disk: a shell, and the modules that mount the root disk."""
    for folder in ("bin", "dev", "root", "modules"):
        os.makedirs(f"{scratch}/{folder}")
    shutil.copy(f"{root}/usr/bin/busybox", f"{scratch}/bin")
    shutil.copy(source("initrd-init"), f"{scratch}/init")
    os.chmod(f"{scratch}/init", 0o755)
    order = []
    for module in EARLY_MODULES:
        for path in glob.glob(f"{modules}/**/{module}.ko", recursive=True):
            shutil.copy(path, f"{scratch}/modules")
            order.append(module)
    with open(f"{scratch}/modules/order", "w", encoding="ascii") as handle:
        handle.write("\n".join(order) + "\n")
    names = "\n".join(
        os.path.relpath(os.path.join(folder, name), scratch)
        for folder, folders, files in os.walk(scratch)
        for name in folders + files
    )
    with open(target, "wb") as handle:
        subprocess.run(
            ["cpio", "-o", "-H", "newc", "--quiet"],
            input=names.encode(),
            stdout=handle,
            cwd=scratch,
            check=True,
        )


def make_root_image(root, target):
    """Makes the root disk. It has no journal: it is thrown away after every run."""
    used = int(subprocess.check_output(["du", "-sm", root]).split()[0])
    subprocess.check_call(
        ["mke2fs", "-q", "-F", "-t", "ext4", "-O", "^has_journal,^metadata_csum"]
        + ["-E", "lazy_itable_init=0", "-d", root, target, f"{used + FREE_MIB}m"],
        stdout=subprocess.DEVNULL,
    )
