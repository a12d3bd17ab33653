"""QEMU's command line as a pure function of a run's options.

A run resumes a template: a guest that was booted once and frozen. The state can be loaded only into
the same machine, so `machine` makes what templates and runs have in common, and the rest adds what
a run has of its own: devices that come in by hotplug or by a rescan of the bus.
"""

import dataclasses
import os
import re
import shlex

from . import LabError

# PCIe ports, empty at first; the reservation leaves room for a large controller memory buffer.
SLOTS = 6
_PORT_RESERVE = "pref64-reserve=512M,mem-reserve=4M"
_KERNEL = (
    "console=ttyS0 quiet panic=-1 oops=panic mitigations=off nokaslr cryptomgr.notests "
    "random.trust_cpu=on 8250.nr_uarts=1 apparmor=0 intel_iommu=on "
    # Under emulation on a loaded machine the kernel's test of the timer interrupt can time out, and
    # it then panics.
    "no_timer_check"
)
_UNITS = {"K": 10, "M": 20, "G": 30}


def size_bytes(text):
    """Bytes of a size such as 64M."""
    match = re.fullmatch(r"([0-9]+)([KMG])", text)
    if not match or int(match[1]) == 0:
        raise LabError(f"{text!r} is no size: a number and K, M or G")
    return int(match[1]) << _UNITS[match[2]]


def properties(text):
    """The text of a -device option as the arguments of device_add."""
    driver, *pairs = text.split(",")
    arguments = {"driver": driver}
    for pair in pairs:
        name, separator, value = pair.partition("=")
        if not separator or not name:
            raise LabError(f"{pair!r} in {text!r} is no NAME=VALUE")
        arguments[name] = _value(value)
    return arguments


def _value(text):
    if text in ("on", "off"):
        return text == "on"
    if re.fullmatch(r"[0-9]+|0x[0-9a-fA-F]+", text):
        return int(text, 16) if text.startswith("0x") else int(text)
    return text


def escaped(path):
    """A path within a comma-separated option: QEMU takes a doubled comma for one of the value's."""
    return path.replace(",", ",,")


class Programs:
    """QEMU's programs. They run with the C library of their own tree, so nothing is installed."""

    def __init__(self, tree):
        self.tree = tree

    def command(self, name):
        """How to start the program `name`."""
        libraries = f"{self.tree}/usr/lib/x86_64-linux-gnu"
        loader = f"{libraries}/ld-linux-x86-64.so.2"
        return [loader, "--library-path", libraries, f"{self.tree}/usr/bin/{name}"]

    def firmware(self):
        """Where QEMU finds its firmware."""
        places = ("share/qemu", "share/seabios", "lib/ipxe/qemu")
        return [word for place in places for word in ("-L", f"{self.tree}/usr/{place}")]


@dataclasses.dataclass(frozen=True)
class Channels:
    """QEMU's ends of its channels: descriptors of sockets, and paths for the two output streams."""

    control: int = 0  # QEMU's own control protocol
    guest: int = 0  # to and from the guest's init
    relay: int = 0  # the control protocol as the guest uses it
    out: str = ""
    err: str = ""

    def arguments(self):
        """Descriptors differ from run to run, which a saved state does not mind."""
        return [
            *["-chardev", f"socket,id=control,fd={self.control}"],
            *["-mon", "chardev=control,mode=control"],
            *["-chardev", f"socket,id=guest,fd={self.guest}"],
            *["-chardev", f"socket,id=relay,fd={self.relay}"],
            *["-chardev", f"file,id=out,path={escaped(self.out)}"],
            *["-chardev", f"file,id=err,path={escaped(self.err)}"],
        ]


def machine(options, image, memory, shared, disk, console):
    """What a template and its runs share: the same devices at the same addresses.

    `image` is the guest's directory, `memory` the file that is its RAM, `disk` the -drive option of
    its root disk, `console` the file that takes what the kernel prints.
    """
    backend = f"memory-backend-file,id=mem,size={options.mem},mem-path={escaped(memory)}"
    arguments = [
        *["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"],
        *["-M", "q35,memory-backend=mem", "-m", options.mem],
        *["-object", f"{backend},share={'on' if shared else 'off'}"],
        # Without ACPI in hotplug, QEMU lets a function other than 0 go without asking the guest.
        *["-global", "ICH9-LPC.acpi-pci-hotplug-with-bridge-support=off"],
        *["-accel", "tcg,thread=multi", "-cpu", "max,la57=off", "-smp", str(options.smp)],
        *["-kernel", f"{image}/vmlinux", "-initrd", f"{image}/initrd"],
        *["-append", " ".join([_KERNEL, *options.append.split()])],
        *["-serial", f"file:{escaped(console)}"],
        *["-device", "intel-iommu,intremap=on,caching-mode=on,eim=on"],
        *["-drive", disk, "-device", "virtio-blk-pci,drive=root,addr=0x2"],
        *["-device", "virtio-serial-pci,id=ports,addr=0x3"],
        *["-device", "virtio-rng-pci,addr=0x4"],
        # Tells the kernel that it goes on in another copy, so that its random numbers differ.
        *["-device", "vmgenid,guid=auto"],
    ]
    for channel, name in (("out", "out"), ("err", "err"), ("guest", "control"), ("relay", "qmp")):
        port = f"virtserialport,bus=ports.0,chardev={channel},name=lab.{name}"
        arguments += ["-device", port]
    for slot in range(SLOTS):
        place = f"chassis={slot + 1},slot={slot + 1},addr={0x18 + slot:#x}"
        arguments += ["-device", f"pcie-root-port,id=hp{slot},{place},{_PORT_RESERVE}"]
    return arguments


@dataclasses.dataclass
class NvmePlan:
    """A run's NVMe drives."""

    arguments: list  # of QEMU's command line
    controllers: list  # to be added while QEMU runs, as -device options
    seeds: list  # ids of the controllers to be removed before
    files: list  # the namespaces' backing files, made when missing


def nvme_plan(options, directory):
    """How a run gets its NVMe drives.

    QEMU's controller is not migratable, so a QEMU that loads a template must not have one; and its
    namespaces cannot be hotplugged. So each subsystem's namespaces come in with a passing
    controller, the seed, which goes before the load, and the real controller is plugged in after
    it. A cold boot has it from the start.
    """
    disks = [os.path.abspath(path) for path in options.disk or []]
    count = max(options.nvme, len(disks))
    if count > SLOTS:
        raise LabError(f"{count} NVMe controllers, but there are {SLOTS} slots")
    plan = NvmePlan([], [], [], [])
    for index in range(count):
        if index < len(disks):
            files = [disks[index]]
        else:
            files = [f"{directory}/nvme{index}n{nsid}.img" for nsid in range(1, options.ns + 1)]
        plan.files += files
        _add_subsystem(plan, options, index, files)
    return plan


def _add_subsystem(plan, options, index, files):
    common = f"bus=hp{index},serial=LAB{index},subsys=subsys{index}"
    controller = f"nvme,id=nvme{index},{common}"
    if options.cmb:
        controller += f",cmb_size_mb={options.cmb}"
    controller = _joined(controller, options.ctrl)
    subsystem = f"nvme-subsys,id=subsys{index},nqn=nqn.2014-08.org.nvmexpress:lab:{index}"
    plan.arguments += ["-device", _joined(subsystem, options.subsys)]
    if options.cold:
        bus = f"nvme{index}"
        plan.arguments += ["-device", controller]
    else:
        bus = f"seed{index}"
        plan.arguments += ["-device", f"nvme,id={bus},addr=0.1,{common}"]
        plan.seeds.append(bus)
        plan.controllers.append(controller)
    for nsid, path in enumerate(files, 1):
        name = f"{index}n{nsid}"
        file = f"driver=file,node-name=file{name},filename={escaped(path)},discard=unmap"
        disk = f"driver=raw,node-name=disk{name},file=file{name},discard=unmap"
        namespace = f"nvme-ns,id=nvme{name},drive=disk{name},bus={bus},nsid={nsid}"
        plan.arguments += ["-blockdev", file, "-blockdev", disk]
        plan.arguments += ["-device", _joined(namespace, options.nsopt)]


def _joined(option, more):
    return f"{option},{more}" if more else option


def share_arguments(tag, path, address=""):
    """A directory of this machine that the guest can mount by its tag."""
    place = f",addr={address}" if address else ""
    return [
        "-fsdev",
        f"local,id={tag},path={escaped(path)},security_model=none,multidevs=remap",
        "-device",
        f"virtio-9p-pci,fsdev={tag},mount_tag={tag}{place}",
    ]


def extra_arguments(options, directory, shares):
    """What a run adds to the machine besides its NVMe drives."""
    arguments = share_arguments("lab", f"{directory}/guest", "0x5")
    for index, path in enumerate(shares):
        arguments += share_arguments(f"share{index}", path)
    if options.net is not None:
        arguments += ["-netdev", _joined("user,id=net0", options.net)]
        arguments += ["-device", "virtio-net-pci,netdev=net0"]
    for text in options.qemu:
        arguments += shlex.split(text)
    return arguments


def guest_command(options, shares, directory, environment):
    """The script that the guest runs: surroundings first, then the user's command."""
    lines = []
    if options.huge:
        pages, count = options.huge // 2, "/proc/sys/vm/nr_hugepages"
        lines += [
            f"echo {pages} > {count}",
            f'[ "$(cat {count})" -ge {pages} ] || '
            f'{{ echo "lab: no room for {pages} hugepages" >&2; exit 125; }}',
        ]
    if options.net is not None and "net=" not in options.net:
        # QEMU's user network gives this address to its only guest.
        lines += [
            "for i in 1 2 3 4 5 6 7 8 9; do [ -e /sys/class/net/eth0 ] && break; sleep 0.2; done",
            "ip address add 10.0.2.15/24 dev eth0; ip link set eth0 up",
            "ip route add default via 10.0.2.2",
        ]
    for index, path in enumerate(shares):
        place, mount = shlex.quote(path), "trans=virtio,version=9p2000.L,msize=512000"
        lines.append(f"mkdir -p {place}")
        lines.append(f"mount -t 9p -o {mount},cache={options.cache} share{index} {place}")
    lines += [f"export {name}={shlex.quote(value)}" for name, value in environment.items()]
    lines.append(f"cd {shlex.quote(directory)} 2> /dev/null")
    if len(options.command) == 1:
        lines.append(options.command[0])
    else:
        lines.append("exec " + shlex.join(options.command))
    return "\n".join(lines) + "\n"


def guest_environment(options, environment):
    """The variables that go along into the guest."""
    passed = re.compile(r"LAB_|RUST_|CARGO_|NEXTEST")
    names = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
    chosen = {name: value for name, value in environment.items() if passed.match(name)}
    for text in options.env:
        name, separator, value = text.partition("=")
        if not names.fullmatch(name):
            raise LabError(f"--env {text}: {name!r} is no name of a variable")
        chosen[name] = value if separator else environment.get(name, "")
    return {name: value for name, value in sorted(chosen.items()) if names.fullmatch(name)}
