"""QEMU's command line, the guest's script, and the parsing of what the user gives."""

import shlex
import unittest
import unittest.mock

from labkit import LabError, cli, qemu


def options(*arguments):
    """A run's options as the command line gives them."""
    return cli.parser().parse_args(["run", *arguments, "--", "true"])


def values(arguments, name):
    """The values of every option `name` in a command line."""
    return [value for key, value in zip(arguments, arguments[1:]) if key == name]


class Sizes(unittest.TestCase):
    def test_units(self):
        self.assertEqual(qemu.size_bytes("4K"), 4096)
        self.assertEqual(qemu.size_bytes("3M"), 3 << 20)
        self.assertEqual(qemu.size_bytes("2G"), 2 << 30)

    def test_bad(self):
        for text in ("", "G", "1", "0M", "-1M", "1T", "1.5G", "1 G", "1G "):
            with self.subTest(text), self.assertRaises(LabError):
                qemu.size_bytes(text)


class Properties(unittest.TestCase):
    def test_types(self):
        self.assertEqual(
            qemu.properties("nvme,id=nvme0,cmb_size_mb=64,zoned=on,x=off,mask=0x1F,serial=LAB0"),
            {"driver": "nvme", "id": "nvme0", "cmb_size_mb": 64, "zoned": True, "x": False}
            | {"mask": 31, "serial": "LAB0"},
        )

    def test_value_with_equals_sign(self):
        self.assertEqual(qemu.properties("d,a=b=c"), {"driver": "d", "a": "b=c"})

    def test_leading_zero_and_sign(self):
        self.assertEqual(qemu.properties("d,a=010,b=-1"), {"driver": "d", "a": 10, "b": "-1"})

    def test_bad(self):
        for text in ("nvme,", "nvme,serial", "nvme,=1"):
            with self.subTest(text), self.assertRaises(LabError):
                qemu.properties(text)


class Machine(unittest.TestCase):
    def plan(self, *arguments, **changes):
        given = {"image": "/i", "memory": "/m", "shared": False, "disk": "d", "console": "/c"}
        return qemu.machine(options(*arguments), **{**given, **changes})

    def test_template_and_run_differ_only_in_sharing_and_paths(self):
        template, run = self.plan(shared=True), self.plan()
        differing = [pair for pair in zip(template, run) if pair[0] != pair[1]]
        self.assertEqual(len(template), len(run))
        self.assertEqual(len(differing), 1)
        self.assertIn("share=on", differing[0][0])

    def test_drives_and_shares_do_not_touch_the_machine(self):
        self.assertEqual(self.plan(), self.plan("--nvme", "2", "--net", "--share", "/x"))

    def test_memory_processors_and_kernel_words_do(self):
        for words in (("--mem", "4G"), ("--smp", "4"), ("--append", "quiet2")):
            self.assertNotEqual(self.plan(), self.plan(*words))
        self.assertTrue(values(self.plan("--append", "a b"), "-append")[0].endswith(" a b"))

    def test_six_empty_slots(self):
        ports = [v for v in values(self.plan(), "-device") if v.startswith("pcie-root-port")]
        self.assertEqual(len(ports), qemu.SLOTS)
        self.assertIn("id=hp5", ports[5])

    def test_commas_in_paths(self):
        self.assertIn("mem-path=/a,,b,", values(self.plan(memory="/a,b"), "-object")[0])


class Drives(unittest.TestCase):
    def test_none(self):
        plan = qemu.nvme_plan(options(), "/d")
        self.assertEqual(plan, qemu.NvmePlan([], [], [], []))

    def test_seed_takes_the_namespaces_in(self):
        plan = qemu.nvme_plan(options("--nvme", "2", "--ns", "2", "--cmb", "64"), "/d")
        self.assertEqual(plan.seeds, ["seed0", "seed1"])
        self.assertEqual(
            plan.controllers[1],
            "nvme,id=nvme1,bus=hp1,serial=LAB1,subsys=subsys1,cmb_size_mb=64",
        )
        self.assertEqual(plan.files[:2], ["/d/nvme0n1.img", "/d/nvme0n2.img"])
        devices = values(plan.arguments, "-device")
        self.assertIn("nvme-ns,id=nvme1n2,drive=disk1n2,bus=seed1,nsid=2", devices)
        self.assertFalse([d for d in devices if "cmb_size_mb" in d])

    def test_cold_boot_has_the_controller_at_once(self):
        plan = qemu.nvme_plan(options("--nvme", "1", "--cold", "--ctrl", "mdts=5"), "/d")
        self.assertEqual((plan.seeds, plan.controllers), ([], []))
        devices = values(plan.arguments, "-device")
        self.assertIn("nvme,id=nvme0,bus=hp0,serial=LAB0,subsys=subsys0,mdts=5", devices)
        self.assertIn("nvme-ns,id=nvme0n1,drive=disk0n1,bus=nvme0,nsid=1", devices)

    def test_disks_come_first_and_are_one_namespace_each(self):
        plan = qemu.nvme_plan(options("--disk", "/a.img", "--nvme", "2", "--ns", "3"), "/d")
        self.assertEqual(plan.files[0], "/a.img")
        self.assertEqual(len(plan.files), 4)

    def test_disks_raise_the_number_of_controllers(self):
        plan = qemu.nvme_plan(options("--disk", "/a", "--disk", "/b"), "/d")
        self.assertEqual(len(plan.controllers), 2)

    def test_more_for_namespaces_and_subsystems(self):
        plan = qemu.nvme_plan(options("--nvme", "1", "--nsopt", "pi=1", "--subsys", "fdp=on"), "/d")
        devices = values(plan.arguments, "-device")
        self.assertTrue(devices[0].endswith(",fdp=on"))
        self.assertTrue(devices[-1].endswith(",pi=1"))

    def test_more_than_there_are_slots(self):
        with self.assertRaisesRegex(LabError, "6 slots"):
            qemu.nvme_plan(options("--nvme", "7"), "/d")


class Extra(unittest.TestCase):
    def test_network_only_when_asked_for(self):
        self.assertNotIn("-netdev", qemu.extra_arguments(options(), "/d", []))
        plain = qemu.extra_arguments(options("--net"), "/d", [])
        self.assertEqual(values(plain, "-netdev"), ["user,id=net0"])
        more = qemu.extra_arguments(options("--net", "restrict=on"), "/d", [])
        self.assertEqual(values(more, "-netdev"), ["user,id=net0,restrict=on"])

    def test_shares(self):
        given = values(qemu.extra_arguments(options(), "/d", ["/a", "/b,c"]), "-fsdev")
        self.assertEqual([v.split(",security")[0] for v in given][1:], [
            "local,id=share0,path=/a",
            "local,id=share1,path=/b,,c",
        ])

    def test_own_arguments_are_split_as_a_shell_would(self):
        given = qemu.extra_arguments(options("--qemu", "-device 'a b' -x"), "/d", [])
        self.assertEqual(given[-3:], ["-device", "a b", "-x"])


class GuestScript(unittest.TestCase):
    def script(self, *arguments, command=("true",), environment=None, shares=()):
        chosen = options(*arguments)
        chosen.command = list(command)
        return qemu.guest_command(chosen, shares, "/work dir", environment or {})

    def test_one_word_is_a_script(self):
        self.assertTrue(self.script(command=["a | b; c"]).endswith("\na | b; c\n"))

    def test_several_words_are_run_as_they_are(self):
        script = self.script(command=["echo", "a b", "$x"])
        self.assertEqual(shlex.split(script.splitlines()[-1]), ["exec", "echo", "a b", "$x"])

    def test_values_are_quoted(self):
        script = self.script(environment={"LAB_X": "a'b $c"}, shares=["/s t"])
        self.assertIn("export LAB_X=" + shlex.quote("a'b $c"), script)
        self.assertIn("share0 '/s t'", script)
        self.assertIn("cd '/work dir'", script)

    def test_hugepages_are_checked(self):
        self.assertIn("echo 32 > /proc/sys/vm/nr_hugepages", self.script("--huge", "64"))
        self.assertIn("exit 125", self.script("--huge", "64"))
        self.assertNotIn("nr_hugepages", self.script())

    def test_network_address(self):
        self.assertIn("10.0.2.15/24", self.script("--net"))
        self.assertNotIn("10.0.2.15", self.script("--net", "net=10.1.0.0/24"))
        self.assertNotIn("10.0.2.15", self.script())


class Environment(unittest.TestCase):
    def test_which_variables_go_along(self):
        given = {"LAB_A": "1", "RUST_LOG": "x", "CARGO_B": "2", "NEXTEST": "3"}
        given |= {"HOME": "/", "P": "q"}
        chosen = qemu.guest_environment(options("--env", "P", "--env", "Q=r=s"), given)
        expected = {"LAB_A": "1", "RUST_LOG": "x", "CARGO_B": "2", "NEXTEST": "3"}
        self.assertEqual(chosen, {**expected, "P": "q", "Q": "r=s"})

    def test_names_that_no_shell_takes(self):
        self.assertEqual(qemu.guest_environment(options(), {"LAB_A-B": "1"}), {})
        with self.assertRaises(LabError):
            qemu.guest_environment(options("--env", "a;b=c"), {})


class CommandLine(unittest.TestCase):
    def test_bad_numbers_are_refused(self):
        for words in (("--nvme", "-1"), ("--timeout", "0"), ("--timeout", "x"), ("--huge", "a")):
            with self.subTest(words), self.assertRaises(SystemExit) as caught:
                with unittest.mock.patch("sys.stderr"):
                    options(*words)
            self.assertEqual(caught.exception.code, 2)

    def test_everything_after_the_dashes_is_the_command(self):
        chosen = cli.parser().parse_args(["run", "--net", "--", "ls", "--all", "-v"])
        self.assertEqual(chosen.command, ["ls", "--all", "-v"])
        self.assertEqual(chosen.net, "")
