"""Which archive is found in apt's sources."""

import os
import tempfile
import unittest
from unittest import mock

from labkit import LabError
from labkit.archive import archive_in, find_archive

DEB822 = """Types: deb
# http://snapshot.example/archive/debian/20250520T000000Z
URIs: http://deb.example/debian
Suites: bookworm bookworm-updates
"""


class ArchiveIn(unittest.TestCase):
    def test_deb822(self):
        self.assertEqual(archive_in(DEB822), "http://deb.example/debian")

    def test_one_line(self):
        self.assertEqual(
            archive_in("deb http://a.example/debian bookworm main\n"), "http://a.example/debian"
        )

    def test_one_line_with_options(self):
        text = "deb [arch=amd64 signed-by=/x.gpg] https://a.example/debian/ trixie main\n"
        self.assertEqual(archive_in(text), "https://a.example/debian/")

    def test_sources_and_comments_do_not_count(self):
        text = "# deb http://a.example/debian x main\ndeb-src http://a.example/debian x main\n"
        self.assertIsNone(archive_in(text))

    def test_other_archives_do_not_count(self):
        text = "deb https://packages.example/apt cloud main\n"
        text += "deb http://security.example/debian-security bookworm main\n"
        self.assertIsNone(archive_in(text))
        self.assertIsNone(archive_in(""))

    def test_the_first_that_fits_is_taken(self):
        text = "deb https://p.example/apt x main\ndeb http://b.example/debian x main\n"
        self.assertEqual(archive_in(text), "http://b.example/debian")


class FindArchive(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.etc = scratch.name
        os.mkdir(f"{self.etc}/sources.list.d")
        self.enterContext(mock.patch.dict(os.environ))
        os.environ.pop("LAB_ARCHIVE", None)

    def write(self, name, text):
        with open(f"{self.etc}/{name}", "w", encoding="utf-8") as handle:
            handle.write(text)

    def test_nothing_there(self):
        with self.assertRaisesRegex(LabError, "LAB_ARCHIVE"):
            find_archive(self.etc)

    def test_list_and_sources(self):
        self.write("sources.list.d/vendor.list", "deb https://p.example/apt x main\n")
        self.write("sources.list.d/debian.sources", DEB822)
        self.assertEqual(find_archive(self.etc), "http://deb.example/debian")

    def test_environment_goes_first(self):
        self.write("sources.list", "deb http://a.example/debian x main\n")
        os.environ["LAB_ARCHIVE"] = "http://mine.example/d"
        self.assertEqual(find_archive(self.etc), "http://mine.example/d")
