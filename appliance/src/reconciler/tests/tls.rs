//! TLS between hosts and a running appliance: every kind of key and identity, hosts that are refused,
//! and keys that change while hosts are connected. One host is foreign: `openssl s_client`.

use std::fs::{self, Permissions};
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use nvme_host::{
    ChapOptions, ConnectOptions, Controller, HostError, HostIdentity, ProtectedSocket, TlsOptions,
    Transport, discover,
};
use nvme_keys::{Candidate, ChapSecret, Derivation, Hash, IdentityVersion, Names, PskHash, TlsKey};
use nvme_spec::nqn::DISCOVERY_NQN;
use nvme_spec::tcp::{DigestFlags, IcReq, IcResp};
use tempfile::TempDir;
use zerocopy::{FromBytes as _, IntoBytes as _};

use super::ApplyOptions;
use super::lab::{HOST, LIMIT, address, apply, base, nqn, started, try_apply, with_export};
use super::lab::{io_queue, is_alive, parsed, revoke};
use crate::appliance::Appliance;
use crate::state_directory::StateDirectory;

/// Another host, which has the key `other`.
const OTHER: &str = "nqn.2026-11.org.example:other";

fn key(byte: u8) -> TlsKey {
    TlsKey::new(Hash::Sha256, &[byte; 32]).expect("the length fits")
}

fn long_key(byte: u8) -> TlsKey {
    TlsKey::new(Hash::Sha384, &[byte; 48]).expect("the length fits")
}

/// The keys `old`, `new`, `long`, `other` and `chap`.
struct Folder(TempDir);

impl Folder {
    fn new() -> Self {
        let folder = Self(TempDir::new().expect("a directory"));
        folder.write("old", &key(1).expose_interchange());
        folder.write("new", &key(2).expose_interchange());
        folder.write("long", &long_key(3).expose_interchange());
        folder.write("other", &key(4).expose_interchange());
        let chap = ChapSecret::new(Hash::Sha256, &[9; 32]).expect("the length fits");
        folder.write("chap", &chap.expose_interchange());
        folder
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        let path = self.path(name);
        fs::write(&path, text).expect("writable");
        fs::set_permissions(&path, Permissions::from_mode(0o600)).expect("own file");
    }

    /// A configuration with a listener of this policy, and an export to HOST, whose table continues
    /// with `host`, and to OTHER.
    fn text(&self, tls: &str, host: &str) -> String {
        let memory = "type = \"memory\"\nsize = \"1MiB\"";
        let hosts = format!(
            "hosts = [{{ nqn = \"{HOST}\"{host} }}, {{ nqn = \"{OTHER}\", tls = \"other\" }}]"
        );
        let export = with_export("one", memory).replace("allow_any_host = true", &hosts);
        let listener = format!("transport = \"tcp\"\ntls = \"{tls}\"");
        let base = base("10s").replace("transport = \"tcp\"", &listener);
        let names = ["old", "new", "long", "other", "chap"];
        let keys = names.map(|name| {
            let path = self.path(name);
            format!(
                "[[key]]\nname = \"{name}\"\nfile = \"{}\"\n",
                path.display()
            )
        });
        format!("{base}{export}{}", keys.concat())
    }
}

fn options(at: SocketAddr, host: &str, transport: Transport) -> ConnectOptions {
    let identity = HostIdentity {
        nqn: host.to_owned(),
        id: [7; 16],
    };
    ConnectOptions {
        timeout: LIMIT,
        transport,
        ..ConnectOptions::new(at, &nqn("one"), identity)
    }
}

fn connect(appliance: &Appliance, transport: Transport) -> Result<Controller, HostError> {
    let at = address(appliance, "steady");
    Controller::connect(options(at, HOST, transport))
}

fn with(key: TlsKey) -> Transport {
    Transport::tls(TlsOptions::new(key))
}

#[track_caller]
fn refusal(appliance: &Appliance, transport: Transport) -> String {
    let refused = connect(appliance, transport).expect_err("refused");
    refused.to_string()
}

/// Reads the first block over an I/O queue.
fn read_block(controller: &mut Controller) {
    let (pool, mut queue) = io_queue(controller);
    for token in 0..3 {
        let mut data = pool.take(4096).expect("a lease");
        data.fill(token as u8 + 1);
        queue
            .submit_write(1, (0, 8), false, data, token)
            .expect("room");
        let written = queue.wait_completion(LIMIT, "Write").expect("complete");
        assert!(written.status().is_success(), "{}", written.status());
        let data = pool.take(4096).expect("a lease");
        queue.submit_read(1, 0, 8, data, token).expect("room");
        let read = queue.wait_completion(LIMIT, "Read").expect("complete");
        assert!(read.status().is_success(), "{}", read.status());
        let data = read.data.expect("data");
        assert!(data.iter().all(|byte| *byte == token as u8 + 1));
    }
}

#[test]
fn hosts_use_every_kind_of_key_identity_and_derivation() {
    let folder = Folder::new();
    let keys = ", tls = [\"old\", \"long\"], require = [\"tls\"]";
    for policy in ["required", "allowed"] {
        let appliance = started(&folder.text(policy, keys));
        for key in [key(1), long_key(3)] {
            for version in [IdentityVersion::V0, IdentityVersion::V1] {
                for derivation in [Derivation::Standard, Derivation::OldLibnvme] {
                    let tls = TlsOptions {
                        version,
                        derivation,
                        ..TlsOptions::new(key.clone())
                    };
                    let mut controller =
                        connect(&appliance, Transport::tls(tls)).expect("a configured key");
                    read_block(&mut controller);
                    let status = appliance.status();
                    let channel = status.hosts[0].channel.as_ref().expect("protected");
                    let (name, cipher) = match key.psk_hash() {
                        PskHash::Sha256 => ("old", "TLS_AES_128_GCM_SHA256"),
                        PskHash::Sha384 => ("long", "TLS_AES_256_GCM_SHA384"),
                    };
                    let expected = match derivation {
                        Derivation::Standard => "standard",
                        _ => "old-libnvme",
                    };
                    assert_eq!(
                        (&*channel.key, &*channel.cipher, &*channel.derivation),
                        (name, cipher, expected)
                    );
                    assert!(status.keys.iter().any(|it| it.name == name && it.uses > 0));
                    drop(controller);
                }
            }
        }
    }
}

#[test]
fn hosts_without_the_right_key_are_refused() {
    let folder = Folder::new();
    let appliance = started(&folder.text("required", ", tls = \"old\", require = [\"tls\"]"));
    // Identities of version 1 name the key, those of version 0 do not.
    let unknown = refusal(&appliance, with(key(8)));
    assert!(unknown.contains("unknown_psk_identity (115)"), "{unknown}");
    let tls = TlsOptions {
        version: IdentityVersion::V0,
        ..TlsOptions::new(key(8))
    };
    let wrong = refusal(&appliance, Transport::tls(tls));
    assert!(wrong.contains("decrypt_error (51)"), "{wrong}");
    // The key of another host, with the own name, and with that of the other host.
    let unknown = refusal(&appliance, with(key(4)));
    assert!(unknown.contains("unknown_psk_identity (115)"), "{unknown}");
    let as_other = Transport::tcp_over(|options: &ConnectOptions| {
        let other = ConnectOptions {
            identity: HostIdentity {
                nqn: OTHER.to_owned(),
                ..options.identity.clone()
            },
            ..options.clone()
        };
        ProtectedSocket::connect(&other, &TlsOptions::new(key(4)))
    });
    let refused = connect(&appliance, as_other).expect_err("the key of another host");
    assert!(matches!(refused, HostError::Command { .. }), "{refused}");
    // Without TLS.
    refusal(&appliance, Transport::tcp());
    connect(&appliance, with(key(1))).expect("the right key");
}

#[test]
fn a_host_that_requires_tls_is_refused_without_it() {
    let folder = Folder::new();
    let appliance = started(&folder.text("allowed", ", tls = \"old\", require = [\"tls\"]"));
    let at = address(&appliance, "steady");
    let refused = connect(&appliance, Transport::tcp()).expect_err("TLS is required");
    assert!(matches!(refused, HostError::Command { .. }), "{refused}");
    // The other host may use it or not.
    Controller::connect(options(at, OTHER, Transport::tcp())).expect("allowed");
    Controller::connect(options(at, OTHER, with(key(4)))).expect("allowed");
    // A listener without TLS answers with a termination request, which is no TLS record.
    let plain = started(&folder.text("off", ", tls = \"old\""));
    let refused = refusal(&plain, with(key(1)));
    assert!(refused.contains("TLS handshake failed"), "{refused}");
    connect(&plain, Transport::tcp()).expect("no TLS");
}

#[test]
fn a_revoked_key_protects_no_connection() {
    let folder = Folder::new();
    let text = folder.text(
        "required",
        ", tls = [\"old\", \"new\"], require = [\"tls\"]",
    );
    let state = StateDirectory::at(folder.path("state"));
    let mut appliance = Appliance::start(parsed(&text), &state).expect("it starts");
    let mut with_old = connect(&appliance, with(key(1))).expect("the old key");
    let mut with_new = connect(&appliance, with(key(2))).expect("the new key");
    let other = options(address(&appliance, "steady"), OTHER, with(key(4)));
    let mut of_other = Controller::connect(other).expect("another host");
    assert_eq!(revoke(&mut appliance, "old", true), Ok(1));
    with_old.wait_end(LIMIT).expect("it is disconnected");
    let refused = refusal(&appliance, with(key(1)));
    assert!(refused.contains("unknown_psk_identity (115)"), "{refused}");
    assert!(is_alive(&mut with_new) && is_alive(&mut of_other));
    connect(&appliance, with(key(2))).expect("the new key");
}

/// Secure channel concatenation: a host without a key for TLS generates one with its secret for
/// DH-HMAC-CHAP.
#[test]
fn a_host_generates_its_key() {
    let folder = Folder::new();
    let host = ", chap = \"chap\", concatenation = true, require = [\"tls\"]";
    let mut appliance = started(&folder.text("allowed", host));
    let secret = |byte| ChapSecret::new(Hash::Sha256, &[byte; 32]).expect("the length fits");
    let at = address(&appliance, "steady");
    let with_secret = |byte| ConnectOptions {
        chap: Some(ChapOptions::new(secret(byte), None)),
        ..options(at, HOST, Transport::tcp())
    };
    let refused = with_secret(8).concatenated().expect_err("a wrong secret");
    assert!(matches!(refused, HostError::Authentication(_)), "{refused}");
    let refused = Controller::connect(with_secret(9)).expect_err("it has to generate a key");
    assert!(matches!(refused, HostError::ChannelRequired), "{refused}");
    refusal(&appliance, Transport::tcp());
    let generated = with_secret(9).concatenated().expect("the right secret");
    let mut controller = Controller::connect(generated.clone()).expect("the generated key");
    read_block(&mut controller);
    let status = appliance.status();
    let mut hosts = status.hosts.iter();
    let channel = hosts.find_map(|it| it.channel.as_ref()).expect("protected");
    assert_eq!((&*channel.key, &*channel.derivation), ("chap", "standard"));
    assert!(channel.generated);
    // Another host's key is that of its secret.
    let of_other = ConnectOptions {
        identity: HostIdentity {
            nqn: OTHER.to_owned(),
            ..generated.identity.clone()
        },
        ..generated.clone()
    };
    let refused = Controller::connect(of_other).expect_err("of another host");
    let refused = refused.to_string();
    assert!(refused.contains("unknown_psk_identity (115)"), "{refused}");
    // What is no longer permitted begins no connection, and ends none.
    let tls = ", tls = \"old\", chap = \"chap\", require = [\"tls\"]";
    apply(&mut appliance, &folder.text("allowed", tls));
    let refused = Controller::connect(generated).expect_err("no concatenation");
    assert!(matches!(refused, HostError::Command { .. }), "{refused}");
    assert!(is_alive(&mut controller));
    connect(&appliance, with(key(1))).expect("the configured key");
    let refused = with_secret(9).concatenated().expect_err("not permitted");
    assert!(matches!(refused, HostError::Command { .. }), "{refused}");
}

#[test]
fn a_revoked_secret_ends_generated_keys() {
    let folder = Folder::new();
    let host = ", chap = \"chap\", concatenation = true, require = [\"chap\"]";
    let text = folder.text("allowed", host);
    let state = StateDirectory::at(folder.path("state"));
    let mut appliance = Appliance::start(parsed(&text), &state).expect("it starts");
    let secret = ChapSecret::new(Hash::Sha256, &[9; 32]).expect("the length fits");
    let plain = ConnectOptions {
        chap: Some(ChapOptions::new(secret, None)),
        ..options(address(&appliance, "steady"), HOST, Transport::tcp())
    };
    Controller::connect(plain.clone()).expect("TLS is not required");
    let generated = plain.concatenated().expect("the right secret");
    let mut controller = Controller::connect(generated.clone()).expect("the generated key");
    assert_eq!(revoke(&mut appliance, "chap", true), Ok(1));
    controller.wait_end(LIMIT).expect("it is disconnected");
    let refused = Controller::connect(generated).expect_err("revoked");
    let refused = refused.to_string();
    assert!(refused.contains("unknown_psk_identity (115)"), "{refused}");
    plain.concatenated().expect_err("revoked");
}

#[test]
fn keys_are_exchanged_without_an_interruption() {
    let folder = Folder::new();
    let tls = |names: &str| {
        let host = format!(", tls = [{names}], require = [\"tls\"]");
        folder.text("required", &host)
    };
    let mut appliance = started(&tls("\"old\""));
    let mut first = connect(&appliance, with(key(1))).expect("the old key");
    connect(&appliance, with(key(2))).expect_err("not yet");
    apply(&mut appliance, &tls("\"new\", \"old\""));
    let mut second = connect(&appliance, with(key(2))).expect("the new key");
    connect(&appliance, with(key(1))).expect("still the old key");
    apply(&mut appliance, &tls("\"new\""));
    connect(&appliance, with(key(1))).expect_err("no longer");
    assert!(is_alive(&mut first) && is_alive(&mut second));
    // Another secret in the same file.
    folder.write("new", &key(5).expose_interchange());
    apply(&mut appliance, &tls("\"new\""));
    connect(&appliance, with(key(5))).expect("the secret was read again");
    connect(&appliance, with(key(2))).expect_err("replaced");
    assert!(is_alive(&mut first) && is_alive(&mut second));
}

#[test]
fn keys_of_the_wrong_kind_change_nothing() {
    let folder = Folder::new();
    let now = folder.text("required", ", tls = \"old\"");
    let mut appliance = started(&now);
    for (host, fix) in [
        (", tls = [\"chap\"]", "it is a key for DH-HMAC-CHAP"),
        (", chap = [\"new\"]", "it is a key for TLS"),
    ] {
        let wanted = folder.text("required", host);
        let refused = try_apply(&mut appliance, &wanted, ApplyOptions::default());
        let reason = refused.failure_reason().expect("a reason");
        assert!(
            reason.contains(fix) && reason.contains("nothing was changed"),
            "{reason}"
        );
        connect(&appliance, with(key(1))).expect("as before");
    }
}

/// A new requirement, and a listener that requires TLS, while hosts are connected without.
#[test]
fn requirements_apply_to_connected_hosts_and_listeners_to_new_ones() {
    let folder = Folder::new();
    let mut appliance = started(&folder.text("allowed", ", tls = \"old\""));
    let mut plain = connect(&appliance, Transport::tcp()).expect("allowed");
    let mut secure = connect(&appliance, with(key(1))).expect("allowed");
    apply(&mut appliance, &folder.text("required", ", tls = \"old\""));
    assert!(is_alive(&mut plain));
    connect(&appliance, Transport::tcp()).expect_err("required");
    let required = ", tls = \"old\", require = [\"tls\"]";
    apply(&mut appliance, &folder.text("required", required));
    let ended = plain.wait_end(Duration::from_secs(30));
    ended.expect("it is disconnected");
    assert!(is_alive(&mut secure));
}

#[test]
fn discovery_reports_tls_and_takes_a_key_where_tls_is_required() {
    let folder = Folder::new();
    for (policy, required) in [("allowed", false), ("required", true)] {
        let appliance = started(&folder.text(policy, ", tls = \"old\""));
        let at = address(&appliance, "steady");
        let discovery = |transport| ConnectOptions {
            subsystem_nqn: DISCOVERY_NQN.to_owned(),
            ..options(at, HOST, transport)
        };
        let found = discover(discovery(with(key(1)))).expect("the key serves discovery too");
        let mut exports = found
            .iter()
            .filter(|it| it.subnqn.to_string() == nqn("one"));
        let entry = exports.next().expect("an entry");
        assert_eq!(entry.tcp().sectype, nvme_spec::log::TcpSecurity::TLS_1_3);
        let channel = match required {
            true => nvme_spec::log::SecureChannel::REQUIRED,
            false => nvme_spec::log::SecureChannel::NOT_REQUIRED,
        };
        assert_eq!(entry.treq.secure_channel(), channel);
        let plain = discover(discovery(Transport::tcp()));
        assert_eq!(plain.is_err(), required);
    }
}

/// A connection from another address than that of the other hosts.
fn from_another_address(at: SocketAddr) -> TcpStream {
    use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
    let socket = socket(AddressFamily::INET, SocketType::STREAM, None).expect("a socket");
    let own = SocketAddr::from(([127, 0, 0, 9], 0));
    bind(&socket, &own).expect("loopback");
    connect(&socket, &at).expect("listening");
    TcpStream::from(socket)
}

/// Half-open connections and garbage do not keep hosts from connecting, nor from I/O.
#[test]
fn strangers_do_not_affect_hosts() {
    let folder = Folder::new();
    let appliance = started(&folder.text("required", ", tls = \"old\""));
    let mut attached = connect(&appliance, with(key(1))).expect("the key");
    let at = address(&appliance, "steady");
    let crowd: Vec<TcpStream> = (0..1000)
        .map(|number| {
            let mut stream = from_another_address(at);
            if number % 2 == 0 {
                // The beginning of a ClientHello's record. A refused one may be reset already.
                let _ = stream.write_all(&[22, 3, 1, 2, 0, 1, 0]);
            }
            stream
        })
        .collect();
    read_block(&mut attached);
    connect(&appliance, with(key(1))).expect("served");
    drop(crowd);
}

/// `openssl s_client`, which ends with this.
struct Foreign(Child);

impl Drop for Foreign {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Foreign {
    /// Connects with a key and groups, of which it offers a key share for the first one.
    fn connect(at: SocketAddr, candidate: &Candidate, groups: &str) -> Self {
        let psk = candidate.psk.expose().iter();
        let psk: String = psk.map(|byte| format!("{byte:02x}")).collect();
        let suite = "TLS_AES_128_GCM_SHA256";
        let arguments = ["s_client", "-quiet", "-tls1_3", "-psk_identity"];
        let child = Command::new("openssl")
            .args(arguments)
            .args([&candidate.identity, "-psk", &psk, "-ciphersuites", suite])
            .args(["-groups", groups, "-connect", &at.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn();
        Self(child.expect("openssl is installed"))
    }

    /// Sends an ICReq and returns the response, or what it says if there is none.
    fn initialise(mut self) -> Result<IcResp, String> {
        let request = IcReq::new(0, DigestFlags::new(), 0);
        let stdin = self.0.stdin.as_mut().expect("piped");
        // It may have ended already.
        let _ = stdin.write_all(request.as_bytes());
        let mut response = [0; size_of::<IcResp>()];
        let stdout = self.0.stdout.as_mut().expect("piped");
        match stdout.read_exact(&mut response) {
            Ok(()) => Ok(IcResp::read_from_bytes(&response).expect("its size")),
            Err(_) => {
                let mut text = String::new();
                let stderr = self.0.stderr.as_mut().expect("piped");
                stderr.read_to_string(&mut text).expect("text");
                Err(text)
            }
        }
    }
}

#[test]
fn openssl_is_served_and_refused_like_other_hosts() {
    let folder = Folder::new();
    let appliance = started(&folder.text("required", ", tls = [\"old\", \"long\"]"));
    let at = address(&appliance, "steady");
    let subsystem = nqn("one");
    let names = Names::new(HOST, &subsystem).expect("valid");
    let candidates = |key: TlsKey| key.candidates(names);
    // It uses SHA-256 with every key from its command line.
    for candidate in candidates(key(1)) {
        let found = Foreign::connect(at, &candidate, "X25519:P-256").initialise();
        found.unwrap_or_else(|text| panic!("{candidate:?}: {text}"));
    }
    let first = &candidates(key(1))[0];
    // The second one takes a HelloRetryRequest: it offers a share of a group that is not served.
    for groups in ["P-256", "P-384", "X448:P-384", "X448:X25519"] {
        let found = Foreign::connect(at, first, groups).initialise();
        found.unwrap_or_else(|text| panic!("{groups}: {text}"));
    }
    for candidate in candidates(key(8)) {
        let alert = match candidate.version {
            IdentityVersion::V0 => "alert number 51",
            IdentityVersion::V1 => "alert number 115",
        };
        let text = Foreign::connect(at, &candidate, "X25519").initialise();
        let text = text.map(drop).expect_err("no such key");
        assert!(text.contains(alert), "{text}");
    }
}
