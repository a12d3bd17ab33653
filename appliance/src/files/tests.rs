//! Files beside NVMe over Fabrics, on the same reactors.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use appliance_config::Config;
use files_spec::Status;
use files_spec::compound::{CompoundOk, Writer};
use files_spec::operations::{ClientOwner, ExchangeIdArgs, Operation, ProtectionArgs};
use files_spec::rpc::{Call, Credential, Fragment, NFS_PROGRAM, NFS_VERSION, Procedure, Reply};
use files_spec::xdr::{Decoder, Encoder, List, Opaque, Xdr as _};
use nvme_host_testing::tcp::RawClient;

use crate::appliance::Appliance;
use crate::nvme::tests::cores;
use crate::state_directory::StateDirectory;

/// Generous limit for every wait of a test, for busy machines.
const LIMIT: Duration = Duration::from_secs(60);

const FILES: &str = r#"
[[device]]
name = "ram"
type = "memory"
size = "8MiB"
[[volume]]
name = "scratch"
device = "ram"
metadata_memory = "4MiB"
[[share]]
name = "scratch"
volume = "scratch"
allow_any_client = true
[[file_listener]]
name = "nfs"
address = "127.0.0.1:0"
[[file_listener]]
name = "nfs6"
address = "[::1]:0"
"#;

fn config(files: &str) -> Config {
    let text = format!(
        r#"
[appliance]
cores = "{}"
memory = "16MiB"
pages = "ordinary"
[control]
http = "off"
[[device]]
name = "disk"
type = "memory"
size = "1MiB"
[[listener]]
name = "lan"
transport = "tcp"
address = "127.0.0.1:0"
[[export]]
nqn = "nqn.2026-11.org.windlass:disk"
devices = ["disk"]
listeners = ["lan"]
allow_any_host = true
{files}"#,
        cores(2)
    );
    Config::parse("test", &text).expect("a valid configuration")
}

/// The status of an EXCHANGE_ID.
fn exchange(client: &mut TcpStream) -> Status {
    let mut memory = [0; 512];
    let mut to = Encoder::new(&mut memory);
    let call = Call {
        xid: 7,
        program: NFS_PROGRAM,
        version: NFS_VERSION,
        procedure: Procedure::COMPOUND,
        credential: Credential::None,
    };
    call.encode(&mut to).expect("fits");
    let mut writer = Writer::request(&mut to, Opaque(b""), 1).expect("fits");
    let operation = Operation::ExchangeId(ExchangeIdArgs {
        clientowner: ClientOwner {
            verifier: [1; 8],
            ownerid: Opaque(b"test"),
        },
        flags: 0,
        state_protect: ProtectionArgs::None,
        client_impl_id: List::new(&[]),
    });
    writer.push(&operation).expect("fits");
    writer.finish();
    let record = to.written();
    let mark = Fragment::whole(record.len()).encode();
    client
        .write_all(&[&mark[..], record].concat())
        .expect("it is open");
    let mut mark = [0; 4];
    client.read_exact(&mut mark).expect("a reply");
    let mut reply = vec![0; Fragment::decode(mark).length as usize];
    client.read_exact(&mut reply).expect("a reply");
    let mut from = Decoder::new(&reply);
    assert_eq!(Reply::decode(&mut from).map(|it| it.xid), Ok(7));
    CompoundOk::decode(from).expect("a reply").status
}

#[test]
fn files_are_served_beside_exports_until_the_appliance_stops() {
    let appliance = Appliance::start(config(FILES), &StateDirectory::default());
    let appliance = appliance.expect("it starts");
    let address = appliance.files_addresses()[0];
    let mut client = TcpStream::connect(address).expect("it listens");
    client.set_read_timeout(Some(LIMIT)).expect("a socket");
    assert_eq!(exchange(&mut client), Status::OK);
    let second = appliance.files_addresses()[1];
    let mut other = TcpStream::connect(second).expect("it listens there, too");
    other.set_read_timeout(Some(LIMIT)).expect("a socket");
    assert_eq!(exchange(&mut other), Status::OK);
    RawClient::connect(appliance.addresses()[0], LIMIT).expect("NVMe is served, too");
    assert_eq!(exchange(&mut client), Status::OK);
    // The files would be lost.
    let refused = appliance.check_upgrade().expect_err("refused").to_string();
    assert!(refused.contains("volume scratch"), "{refused}");
    assert!(appliance.stop_quietly(), "everything came to rest");
    assert!(TcpStream::connect(address).is_err(), "it listens no more");
}

/// The next process could not have its address.
#[test]
fn an_appliance_with_only_a_file_listener_is_not_handed_over() {
    let listener = "[[file_listener]]\nname = \"nfs\"\naddress = \"127.0.0.1:0\"\n";
    let appliance = Appliance::start(config(listener), &StateDirectory::default());
    let appliance = appliance.expect("it starts");
    let refused = appliance.check_upgrade().expect_err("refused").to_string();
    assert!(refused.contains("file_listener nfs"), "{refused}");
    assert!(appliance.stop_quietly(), "everything came to rest");
}

#[test]
fn an_address_in_use_is_named() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("bound").to_string();
    let config = config(&FILES.replace("127.0.0.1:0", &address));
    let error = match Appliance::start(config, &StateDirectory::default()) {
        Ok(_) => panic!("the address is taken"),
        Err(error) => error.to_string(),
    };
    assert!(
        error.contains("file_listener nfs") && error.contains(&address),
        "{error}"
    );
}

#[test]
fn numbers_of_shares_follow_from_their_names() {
    let numbers = |names: &[&str]| super::share_numbers(names.iter().copied());
    let (a, b) = (numbers(&["a"])[0], numbers(&["b"])[0]);
    assert_ne!(a, b);
    assert_eq!(numbers(&["b", "c", "a"])[2], a);
    assert_eq!(numbers(&["a", "a"]), [a, a.wrapping_add(1)]);
}
