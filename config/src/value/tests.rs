//! Invalid input first: every error of every type, then round trips.

use std::net::SocketAddr;

use proptest::prelude::*;

use super::*;
use crate::generate;

#[test]
fn invalid_sizes() {
    use ByteSizeError::*;
    for (text, error) in [
        ("", NoNumber),
        (" 4GiB", NoNumber),
        ("GiB", NoNumber),
        ("-4GiB", NoNumber),
        ("+4GiB", NoNumber),
        ("٤GiB", NoNumber),
        ("0x10B", UnknownUnit(None)),
        ("1.5GiB", Fraction),
        ("1,5GiB", Fraction),
        ("4", NoUnit),
        ("4 ", NoUnit),
        ("4G", UnknownUnit(Some("GiB"))),
        ("4gib", UnknownUnit(Some("GiB"))),
        ("4Gi", UnknownUnit(Some("GiB"))),
        ("4gb", UnknownUnit(Some("GB"))),
        ("4k", UnknownUnit(Some("KiB"))),
        ("4KB", UnknownUnit(Some("kB"))),
        ("4b", UnknownUnit(Some("B"))),
        ("4GiB ", UnknownUnit(None)),
        ("4GiBB", UnknownUnit(None)),
        ("4\tGiB", UnknownUnit(None)),
        ("4µB", UnknownUnit(None)),
        ("4é", UnknownUnit(None)),
        ("4PiB", UnknownUnit(None)),
        ("16777216TiB", TooLarge),
        ("18446744073709551616B", TooLarge),
        ("99999999999999999999999999999999999999999999GiB", TooLarge),
    ] {
        assert_eq!(text.parse::<ByteSize>(), Err(error), "{text:?}");
    }
}

#[test]
fn sizes_have_exact_units() {
    for (text, bytes) in [
        ("0B", 0),
        ("512B", 512),
        ("1KiB", 1024),
        ("1kB", 1000),
        ("3MiB", 3 * 1024 * 1024),
        ("3MB", 3_000_000),
        ("4 GiB", 4 << 30),
        ("4GB", 4_000_000_000),
        ("2TiB", 2 << 40),
        ("2TB", 2_000_000_000_000),
        ("007KiB", 7168),
        ("18446744073709551615B", u64::MAX),
    ] {
        assert_eq!(
            text.parse::<ByteSize>().map(ByteSize::bytes),
            Ok(bytes),
            "{text:?}"
        );
    }
    assert_eq!(ByteSize::from_bytes(1 << 31).to_string(), "2GiB");
    assert_eq!(
        ByteSize::from_bytes(1_500_000_001).to_string(),
        "1500000001B"
    );
    assert_eq!(ByteSize::from_bytes(100_000_000).to_string(), "100MB");
    assert_eq!(ByteSize::from_gib(u64::MAX).bytes(), u64::MAX);
}

#[test]
fn invalid_periods() {
    use PeriodError::*;
    for (text, error) in [
        ("", NoNumber),
        ("s", NoNumber),
        ("-1s", NoNumber),
        ("1.5s", Fraction),
        ("10", NoUnit),
        ("10m", UnknownUnit),
        ("10S", UnknownUnit),
        ("10 seconds", UnknownUnit),
        ("10s ", UnknownUnit),
        ("18446744073709551616ms", TooLong),
        ("18446744073709551615s", TooLong),
    ] {
        assert_eq!(text.parse::<Period>(), Err(error), "{text:?}");
    }
}

#[test]
fn periods_have_exact_units() {
    for (text, micros) in [
        ("0s", 0),
        ("500us", 500),
        ("250ms", 250_000),
        ("10s", 10_000_000),
        ("2 min", 120_000_000),
        ("1h", 3_600_000_000),
    ] {
        assert_eq!(
            text.parse::<Period>().map(Period::as_micros),
            Ok(micros),
            "{text:?}"
        );
    }
    assert_eq!(Period::from_millis(90_000).to_string(), "90s");
    assert_eq!(Period::from_micros(1500).to_string(), "1500us");
    assert_eq!(Period::from_millis(0).to_string(), "0ms");
    assert_eq!(Period::from_millis(1500).as_duration().as_millis(), 1500);
}

#[test]
fn invalid_core_lists() {
    use CoreListError::*;
    for (text, error) in [
        ("", Empty),
        ("  ", Empty),
        (",", EmptyItem),
        ("1,", EmptyItem),
        ("1,,2", EmptyItem),
        ("a", NotANumber),
        ("-1", NotANumber),
        ("1-", NotANumber),
        ("1-2-3", NotANumber),
        ("1..3", NotANumber),
        ("1 2", NotANumber),
        ("+1", NotANumber),
        ("0x1", NotANumber),
        ("auto", NotANumber),
        ("5-2", Backwards(5, 2)),
        ("1,1", Duplicate(1)),
        ("0-4,3", Duplicate(3)),
        ("8192", NumberTooLarge),
        ("0-99999999999999999999", NumberTooLarge),
        ("0-8191", TooMany),
        ("0-256", TooMany),
    ] {
        assert_eq!(text.parse::<CoreList>(), Err(error), "{text:?}");
    }
}

#[test]
fn core_lists_are_sets() {
    for (text, cores, printed) in [
        ("0", vec![0], "0"),
        ("2-5", vec![2, 3, 4, 5], "2-5"),
        ("4-6,0,2", vec![0, 2, 4, 5, 6], "0,2,4-6"),
        (" 1 , 3 - 4 ", vec![1, 3, 4], "1,3-4"),
        ("7-7", vec![7], "7"),
        ("0,1", vec![0, 1], "0-1"),
        ("8191", vec![8191], "8191"),
    ] {
        let list: CoreList = text.parse().unwrap();
        assert_eq!(list.iter().collect::<Vec<_>>(), cores, "{text:?}");
        assert_eq!(list.len(), cores.len());
        assert_eq!(list.to_string(), printed);
    }
    assert_eq!("0-255".parse::<CoreList>().unwrap().len(), 256);
}

#[test]
fn invalid_names() {
    use NameError::*;
    for (text, error) in [
        ("", Empty),
        ("a b", Character(' ')),
        ("a/b", Character('/')),
        ("é", Character('é')),
        ("a\0", Character('\0')),
        ("-a", First),
        (".", First),
    ] {
        assert_eq!(text.parse::<Name>(), Err(error), "{text:?}");
    }
    assert_eq!("x".repeat(65).parse::<Name>(), Err(TooLong));
    assert_eq!("x".repeat(64).parse::<Name>().unwrap().as_str().len(), 64);
    assert_eq!("0.a_B-9".parse::<Name>().unwrap().as_str(), "0.a_B-9");
}

#[test]
fn congestion_control_names_follow_the_kernel() {
    use CongestionControlError::*;
    for (text, error) in [
        ("", Empty),
        ("Reno", Character('R')),
        ("reno ", Character(' ')),
        ("tcp.bbr", Character('.')),
        ("réno", Character('é')),
        ("reno\0", Character('\0')),
        ("abcdefghijklmnop", TooLong),
    ] {
        assert_eq!(text.parse::<CongestionControl>(), Err(error), "{text:?}");
    }
    for text in ["a", "reno", "bbr2", "my_cc-0", "abcdefghijklmno"] {
        let name: CongestionControl = text.parse().unwrap();
        assert_eq!((name.as_str(), name.to_string().as_str()), (text, text));
    }
}

#[test]
fn text_fields_are_bounded_ascii_and_padded() {
    use TextFieldError::*;
    for (text, error) in [
        ("", Empty),
        (" a", OuterSpace),
        ("a ", OuterSpace),
        ("a\u{7f}", Character('\u{7f}')),
        ("ä", Character('ä')),
        ("123456789012345678901", TooLong(20)),
    ] {
        assert_eq!(text.parse::<SerialNumber>(), Err(error), "{text:?}");
    }
    let serial: SerialNumber = "WL 1".parse().unwrap();
    assert_eq!(&serial.field(), b"WL 1                ");
    assert_eq!(
        "x".repeat(40).parse::<ModelNumber>().unwrap().field(),
        [b'x'; 40]
    );
    assert_eq!("x".repeat(41).parse::<ModelNumber>(), Err(TooLong(40)));
    assert_eq!(SerialNumber::from_digits(255).as_str(), "00000000000000FF");
}

/// Base 2.1 §4.7.
#[test]
fn invalid_nqns() {
    use NqnError::*;
    for (text, error) in [
        ("", Prefix),
        ("nqn", Prefix),
        ("NQN.2026-11.org.example:a", Prefix),
        ("iqn.2026-11.org.example:a", Prefix),
        ("nqn.", Date),
        ("nqn.org.example:a", Date),
        ("nqn.2026.org.example:a", Date),
        ("nqn.2026-13.org.example:a", Date),
        ("nqn.2026-00.org.example:a", Date),
        ("nqn.2026-1.org.example:a", Date),
        ("nqn.26-01.org.example:a", Date),
        ("nqn.2026-+1.org.example:a", Date),
        ("nqn.2026-11", Date),
        ("nqn.2026-11.", Domain),
        ("nqn.2026-11.:a", Domain),
        ("nqn.2026-11.org..example:a", Domain),
        ("nqn.2026-11.org.-example:a", Domain),
        ("nqn.2026-11.org.exam_ple:a", Domain),
        ("nqn.2026-11.org.exämple:a", Domain),
        ("nqn.2026-11.org.example:", NothingAfterColon),
        ("nqn.2026-11.org.example:a b", Character(' ')),
        ("nqn.2026-11.org.example:a\0", Character('\0')),
        ("nqn.2026-11.org.example:a\n", Character('\n')),
        ("nqn.2014-08.org.nvmexpress:uuid:", Uuid),
        (
            "nqn.2014-08.org.nvmexpress:uuid:f81d4fae7dec11d0a76500a0c91e6bf6",
            Uuid,
        ),
        (
            "nqn.2014-08.org.nvmexpress:uuid:f81d4fae-7dec-11d0-a765-00a0c91e6bfg",
            Uuid,
        ),
        (
            "nqn.2014-08.org.nvmexpress:uuid:{81d4fae-7dec-11d0-a765-00a0c91e6bf}",
            Uuid,
        ),
    ] {
        assert_eq!(text.parse::<Nqn>(), Err(error), "{text:?}");
    }
    let long = format!("nqn.2026-11.org.example:{}", "x".repeat(200));
    assert_eq!(long.parse::<Nqn>(), Err(TooLong(224)));
}

/// Base 2.1 §4.7; the third is a name that old nvme-cli generated.
#[test]
fn valid_nqns() {
    for text in [
        "nqn.2014-08.org.nvmexpress:uuid:f81d4fae-7dec-11d0-a765-00a0c91e6bf6",
        "nqn.2014-08.org.nvmexpress:uuid:F81D4FAE-7DEC-11D0-A765-00A0C91E6BF6",
        "nqn.2014-08.org.nvmexpress:NVMf:uuid:f81d4fae-7dec-11d0-a765-00a0c91e6bf6",
        "nqn.2014-08.com.example:nvme:nvm-subsystem-sn-d78432",
        "nqn.2014-08.com.vmware:nvme:esx01-4b1c2d3e",
        "nqn.1988-11.com.dell:powerstore:00:0123456789abcdef",
        "nqn.2014-08.com.example",
        "nqn.2026-11.org.windlass:räck7-語",
        "nqn.2014-08.org.nvmexpress.discovery",
    ] {
        let nqn: Nqn = text.parse().unwrap();
        assert_eq!(nqn.as_str(), text);
        assert_eq!(nqn.is_discovery(), text.ends_with(".discovery"));
    }
    let longest = format!("nqn.2026-11.org.example:{}", "x".repeat(199));
    assert_eq!(longest.parse::<Nqn>().unwrap().as_str().len(), 223);
}

#[test]
fn invalid_addresses() {
    use AddressError::*;
    for (text, error) in [
        ("", NotAnAddress),
        (":4420", NotAnAddress),
        ("localhost:4420", NotAnAddress),
        ("192.0.2:4420", NotAnAddress),
        ("192.0.2.256:4420", NotAnAddress),
        ("192.0.2.010:4420", NotAnAddress),
        ("[192.0.2.1]:4420", NotAnAddress),
        ("[::1", NotAnAddress),
        ("[]", NotAnAddress),
        ("[::1]4420", NotAnAddress),
        ("[fe80::1%eth0]:4420", NotAnAddress),
        ("::1", Brackets),
        ("::1:4420", Brackets),
        ("192.0.2.1:", Port),
        ("192.0.2.1:65536", Port),
        ("192.0.2.1:-1", Port),
        ("192.0.2.1:nvme", Port),
        ("[::1]:x", Port),
        ("224.0.0.1:4420", NotUnicast),
        ("255.255.255.255:4420", NotUnicast),
        ("[ff02::1]:4420", NotUnicast),
        ("[::ffff:192.0.2.1]:4420", NotUnicast),
    ] {
        assert_eq!(text.parse::<ListenAddress>(), Err(error), "{text:?}");
    }
}

#[test]
fn addresses_with_and_without_port() {
    for (text, whole) in [
        ("192.0.2.10", "192.0.2.10:4420"),
        ("192.0.2.10:0", "192.0.2.10:0"),
        ("192.0.2.10:8009", "192.0.2.10:8009"),
        ("[2001:db8::10]", "[2001:db8::10]:4420"),
        ("[2001:db8:0:0::10]:8009", "[2001:db8::10]:8009"),
        ("[fe80::1%2]", "[fe80::1%2]:4420"),
        ("[::]", "[::]:4420"),
    ] {
        let address: ListenAddress = text.parse().unwrap();
        assert_eq!(address.to_string(), whole);
        assert_eq!(Ok(address.socket_addr()), whole.parse::<SocketAddr>());
    }
}

#[test]
fn addresses_overlap_if_they_cannot_both_be_bound() {
    let overlap = |left: &str, right: &str| {
        let (left, right): (ListenAddress, ListenAddress) =
            (left.parse().unwrap(), right.parse().unwrap());
        assert_eq!(left.overlaps(right), right.overlaps(left));
        left.overlaps(right)
    };
    assert!(overlap("192.0.2.1:1", "192.0.2.1:1"));
    assert!(overlap("0.0.0.0:1", "192.0.2.1:1"));
    assert!(overlap("[::]:1", "[::1]:1"));
    assert!(!overlap("192.0.2.1:1", "192.0.2.1:2"));
    assert!(!overlap("192.0.2.1:1", "192.0.2.2:1"));
    assert!(!overlap("192.0.2.1:0", "192.0.2.1:0"));
    assert!(!overlap("[::]:1", "0.0.0.0:1"));
    assert!(!overlap("[fe80::1%2]:1", "[fe80::1%3]:1"));
}

proptest! {
    #[test]
    fn sizes_round_trip(bytes in any::<u64>(), shift in 0..64_u32) {
        let size = ByteSize::from_bytes(bytes >> shift << (shift / 2));
        prop_assert_eq!(size.to_string().parse(), Ok(size));
    }

    #[test]
    fn size_is_number_times_unit(count in any::<u64>(), unit in 0..9_usize) {
        let (unit, bytes) = [
            ("B", 1_u128), ("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30), ("TiB", 1 << 40),
            ("kB", 1_000), ("MB", 1_000_000), ("GB", 1_000_000_000), ("TB", 1_000_000_000_000),
        ][unit];
        let exact = u128::from(count) * bytes;
        let read = format!("{count}{unit}").parse::<ByteSize>().map(ByteSize::bytes);
        prop_assert_eq!(read, u64::try_from(exact).map_err(|_| ByteSizeError::TooLarge));
    }

    #[test]
    fn periods_round_trip(micros in any::<u64>(), shift in 0..64_u32) {
        let period = Period::from_micros(micros >> shift);
        prop_assert_eq!(period.to_string().parse(), Ok(period));
        let seconds = Period::from_micros((micros >> shift) / 1_000_000 * 1_000_000);
        prop_assert_eq!(seconds.to_string().parse(), Ok(seconds));
    }

    #[test]
    fn core_lists_round_trip(list in generate::core_list()) {
        prop_assert_eq!(list.to_string().parse(), Ok(list.clone()));
        let cores: Vec<usize> = list.iter().collect();
        prop_assert!(cores.is_sorted_by(|left, right| left < right));
    }

    #[test]
    fn nqns_round_trip(nqn in generate::nqn()) {
        prop_assert_eq!(nqn.to_string().parse(), Ok(nqn));
    }

    #[test]
    fn arbitrary_text_parses_without_panic(text in "\\PC{0,40}|[0-9a-zA-Z.,:%\\[\\]-]{0,30}") {
        let _ = text.parse::<ByteSize>().map_err(|error| error.hint());
        let _ = text.parse::<Period>().map_err(|error| error.hint());
        let _ = text.parse::<CoreList>().map_err(|error| error.hint());
        let _ = text.parse::<Name>().map_err(|error| error.hint());
        let _ = text.parse::<Nqn>().map_err(|error| error.hint());
        let _ = text.parse::<SerialNumber>().map_err(|error| error.hint());
        let _ = text.parse::<CongestionControl>().map_err(|error| error.hint());
        if let Ok(address) = text.parse::<ListenAddress>() {
            prop_assert_eq!(address.to_string().parse(), Ok(address));
        }
    }
}

#[test]
fn invalid_pci_addresses() {
    use PciAddressError::*;
    for (text, error) in [
        ("", Shape),
        ("3b", Shape),
        ("3b:00", Shape),
        ("00.0", Shape),
        (":00.0", Shape),
        ("3b:00.", Shape),
        ("3b:00.00", Shape),
        ("3b:0.0", Shape),
        ("b:00.0", Shape),
        ("3b.00.0", Shape),
        ("3b:00:0", Shape),
        ("0000-3b-00.0", Shape),
        (" 0000:3b:00.0", Shape),
        ("0000:3b:00.0 ", Shape),
        ("0000:3b:00.0\n", Shape),
        ("000:3b:00.0", Shape),
        ("123456789:3b:00.0", Shape),
        ("0:0:3b:00.0", Shape),
        ("0000:3g:00.0", Shape),
        ("0000:+b:00.0", Shape),
        ("0000:3b:é.0", Shape),
        ("0000:３b:00.0", Shape),
        ("0000:3b:20.0", Device(0x20)),
        ("3b:ff.0", Device(0xff)),
        ("0000:3b:00.8", Function(8)),
        ("3b:1f.f", Function(15)),
    ] {
        assert_eq!(text.parse::<PciAddress>(), Err(error), "{text:?}");
    }
    assert_eq!(PciAddress::new(0, 0, 0x20, 0), None);
    assert_eq!(PciAddress::new(0, 0, 0, 8), None);
}

#[test]
fn pci_addresses_print_as_the_kernel_prints_them() {
    for (text, printed) in [
        ("3b:00.0", "0000:3b:00.0"),
        ("0000:3B:1F.7", "0000:3b:1f.7"),
        ("10000:e1:00.0", "10000:e1:00.0"),
        ("00010000:e1:00.0", "10000:e1:00.0"),
    ] {
        let address = text.parse::<PciAddress>().unwrap();
        assert_eq!(address.to_string(), printed);
    }
}

proptest! {
    #[test]
    fn pci_addresses_round_trip(address in generate::pci_address()) {
        prop_assert_eq!(address.to_string().parse(), Ok(address));
    }
}
