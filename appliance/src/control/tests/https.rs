//! HTTPS: certificates, their replacement, clients without TLS; and tokens by role.

use std::fs::{self, Permissions};
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use rcgen::{CertifiedKey, generate_simple_self_signed};
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use tempfile::TempDir;

use super::client::{HttpResponse, ask, get};
use super::{LIMIT, Lab, TOKEN, expect_refusal};
use crate::control::credentials::{CredentialsError, Files, Refreshed, Watch};
use crate::control::limits::{HTTP_CONNECTIONS_MAX, PEM_BYTES_MAX};
use crate::error::with_causes;
use appliance_config::Control;

const READ_TOKEN: &str = "0123456789abcdef-read";
const HTTPS: &str = "http = \"127.0.0.1:0\"\ntoken_file = \"DIRECTORY/token\"\n\
    certificate_file = \"DIRECTORY/certificate.pem\"\n\
    certificate_key_file = \"DIRECTORY/key.pem\"";

/// Writes a new certificate for 127.0.0.1 and its key, and returns the certificate.
fn write_certificate(directory: &Path) -> CertificateDer<'static> {
    let made = generate_simple_self_signed(["127.0.0.1".to_owned()]).expect("valid names");
    let CertifiedKey { cert, signing_key } = made;
    fs::write(directory.join("certificate.pem"), cert.pem()).expect("writable");
    let key = directory.join("key.pem");
    fs::write(&key, signing_key.serialize_pem()).expect("writable");
    fs::set_permissions(&key, Permissions::from_mode(0o640)).expect("its owner");
    cert.into()
}

/// A connection that trusts only `certificate`.
fn connect(
    lab: &Lab,
    certificate: &CertificateDer<'static>,
) -> StreamOwned<ClientConnection, TcpStream> {
    let mut roots = RootCertStore::empty();
    roots.add(certificate.clone()).expect("a certificate");
    let config = ClientConfig::builder()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = ServerName::try_from("127.0.0.1").expect("an address");
    let client = ClientConnection::new(Arc::new(config), name).expect("a configuration");
    StreamOwned::new(client, lab.connect())
}

fn with_token(path: &str, token: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: any.example\r\nAuthorization: Bearer {token}\r\n\r\n")
}

/// An appliance with HTTPS, and its certificate.
fn https_lab() -> (Lab, CertificateDer<'static>) {
    let mut certificate = None;
    let lab = Lab::with_files(HTTPS, |directory| {
        certificate = Some(write_certificate(directory));
    });
    (lab, certificate.expect("written"))
}

#[test]
fn https_serves_what_http_serves() {
    let (lab, certificate) = https_lab();
    let end = lab
        .appliance
        .control()
        .expect("open")
        .http()
        .expect("HTTPS");
    assert_eq!(end.to_string(), format!("https://{}", lab.http()));
    assert_eq!(get(connect(&lab, &certificate), "/healthz").status, 200);
    expect_refusal(&get(connect(&lab, &certificate), "/api/v1/status"), 401);
    let request = with_token("/api/v1/status", TOKEN);
    let response = ask(connect(&lab, &certificate), request.as_bytes());
    assert_eq!(response.status, 200, "{response:?}");
    // The certificate is checked: another one is not accepted.
    let other = TempDir::new().expect("a directory");
    let other = write_certificate(other.path());
    let refused = connect(&lab, &other).write_all(b"GET / HTTP/1.1\r\n\r\n");
    assert!(refused.is_err());
}

#[test]
fn clients_without_tls_get_the_reason() {
    let (lab, certificate) = https_lab();
    let response = lab.get("/healthz");
    expect_refusal(&response, 400);
    assert!(String::from_utf8_lossy(&response.body).contains("HTTPS only"));
    // A handshake that is no handshake ends its connection without a response in clear text.
    let mut garbage = lab.connect();
    garbage
        .write_all(b"\x16\x03\x01\x00\x04\xff\xff\xff\xff")
        .expect("open");
    let mut rest = Vec::new();
    let _ = garbage.read_to_end(&mut rest);
    assert!(!rest.starts_with(b"HTTP"), "{rest:?}");
    // Half of a record, and nothing at all, delay no other client.
    let mut half = lab.connect();
    half.write_all(b"\x16\x03\x01\x02").expect("open");
    let silent = lab.connect();
    let gone = lab.connect();
    gone.shutdown(Shutdown::Both).expect("open");
    assert_eq!(get(connect(&lab, &certificate), "/healthz").status, 200);
    drop((half, silent));
}

#[test]
fn tls_connections_beyond_the_limit_are_closed() {
    let (lab, certificate) = https_lab();
    let silent: Vec<TcpStream> = (0..HTTP_CONNECTIONS_MAX).map(|_| lab.connect()).collect();
    let mut more = lab.connect();
    let mut rest = Vec::new();
    let closed = more.read_to_end(&mut rest);
    assert!(closed.is_ok() && rest.is_empty(), "{closed:?} {rest:?}");
    drop(silent);
    let began = Instant::now();
    let is_served = || -> bool {
        let mut stream = connect(&lab, &certificate);
        stream
            .write_all(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            .is_ok()
            && stream.read(&mut [0; 64]).is_ok_and(|bytes| bytes > 0)
    };
    while !is_served() {
        assert!(began.elapsed() < LIMIT, "the permits are not returned");
    }
}

#[test]
fn read_token_reads_and_does_not_change() {
    let control = "http = \"127.0.0.1:0\"\ntoken_file = \"DIRECTORY/token\"\n\
        read_token_file = \"DIRECTORY/read-token\"";
    let write = |directory: &Path| {
        fs::write(directory.join("read-token"), READ_TOKEN).expect("writable");
    };
    let lab = Lab::with_files(control, write);
    let (_admin, _io) = lab.attach();
    let ask_with = |request: String| -> HttpResponse { ask(lab.connect(), request.as_bytes()) };
    let status = |token| ask_with(with_token("/api/v1/status", token));
    // Readers see who uses the appliance, from the next periodic sample on.
    let began = Instant::now();
    loop {
        let by_reader = status(READ_TOKEN);
        assert_eq!(by_reader.status, 200);
        if String::from_utf8_lossy(&by_reader.body).contains("nqn.2026-11.org.example:a") {
            break;
        }
        assert!(began.elapsed() < LIMIT, "{by_reader:?}");
    }
    assert_eq!(status(TOKEN).status, 200);
    expect_refusal(&status("0123456789abcdef-none"), 401);
    for (method, path) in super::PATHS.iter().filter(|(method, _)| *method == "post") {
        let method = method.to_uppercase();
        let request = |token| {
            format!(
                "{method} {path} HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {token}\r\n\
                 Content-Type: application/json\r\nContent-Length: 2\r\n\r\n{{}}"
            )
        };
        expect_refusal(&ask_with(request(READ_TOKEN)), 403);
        // The body is not what the path needs: the request got that far.
        let by_operator = ask_with(request(TOKEN));
        assert!(![401, 403].contains(&by_operator.status), "{by_operator:?}");
    }
}

#[test]
fn read_token_alone_makes_http_read_only() {
    let control = "http = \"127.0.0.1:0\"\nread_token_file = \"DIRECTORY/token\"";
    let lab = Lab::new(control);
    expect_refusal(&lab.get("/api/v1/status"), 401);
    let response = ask(
        lab.connect(),
        with_token("/api/v1/status", TOKEN).as_bytes(),
    );
    assert_eq!(response.status, 200);
    let post = format!(
        "POST /api/v1/apply HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {TOKEN}\r\n\
         Content-Length: 0\r\n\r\n"
    );
    expect_refusal(&ask(lab.connect(), post.as_bytes()), 403);
}

#[test]
fn invalid_credentials_disable_http() {
    let same = "http = \"127.0.0.1:0\"\ntoken_file = \"DIRECTORY/token\"\n\
        read_token_file = \"DIRECTORY/token\"";
    let none = HTTPS.to_owned();
    for control in [same, &none] {
        let lab = Lab::new(control);
        assert!(
            lab.appliance.control().expect("open").http().is_none(),
            "{control}"
        );
        assert_eq!(get(lab.socket(), "/healthz").status, 200);
    }
}

/// The credentials in a directory.
fn files(directory: &Path) -> Files {
    let file = |name: &str| -> Option<PathBuf> { Some(directory.join(name)) };
    Files::of(&Control {
        token_file: file("token"),
        read_token_file: file("read-token"),
        certificate_file: file("certificate.pem"),
        certificate_key_file: file("key.pem"),
        ..Control::default()
    })
}

fn write_all(directory: &Path) {
    fs::write(directory.join("token"), TOKEN).expect("writable");
    fs::write(directory.join("read-token"), READ_TOKEN).expect("writable");
    write_certificate(directory);
}

#[test]
fn invalid_files_are_refused_with_their_names() {
    let refused = |change: &dyn Fn(&Path), parts: &[&str]| {
        let directory = TempDir::new().expect("a directory");
        write_all(directory.path());
        change(directory.path());
        let error: CredentialsError = match Watch::start(files(directory.path())) {
            Err(error) => error,
            Ok(_) => panic!("accepted: {parts:?}"),
        };
        let text = with_causes(&error);
        for part in parts {
            assert!(text.contains(part), "{text}");
        }
        assert!(!text.contains("PRIVATE") && !text.contains(TOKEN), "{text}");
    };
    let write = |name: &'static str, text: &'static [u8]| {
        move |directory: &Path| fs::write(directory.join(name), text).expect("writable")
    };
    refused(
        &write("token", b"short"),
        &["token_file", "/token", "5 bytes"],
    );
    refused(
        &write("read-token", b"short"),
        &["read_token_file", "/read-token"],
    );
    refused(&write("read-token", TOKEN.as_bytes()), &["the same token"]);
    refused(
        &write("certificate.pem", b""),
        &["certificate.pem", "no certificate"],
    );
    refused(
        &write("certificate.pem", b"-----BEGIN CERTIFICATE-----\n?\n"),
        &["certificate.pem"],
    );
    refused(
        &write("key.pem", b"nothing"),
        &["key.pem", "no private key"],
    );
    let encrypted =
        b"-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n";
    refused(
        &write("key.pem", encrypted),
        &["key.pem", "no private key that is not encrypted"],
    );
    let longest: &'static [u8] = Box::leak(vec![b'x'; PEM_BYTES_MAX + 1].into_boxed_slice());
    refused(
        &write("certificate.pem", longest),
        &["certificate.pem", "more than 65536 bytes"],
    );
    refused(
        &|directory| {
            let mode = Permissions::from_mode(0o644);
            fs::set_permissions(directory.join("key.pem"), mode).expect("its owner");
        },
        &["key.pem", "mode 0644", "chmod o-rwx"],
    );
    refused(
        &|directory| {
            fs::remove_file(directory.join("key.pem")).expect("there");
            fs::create_dir(directory.join("key.pem")).expect("free");
        },
        &["key.pem", "not a regular file"],
    );
    refused(
        &|directory| {
            let other = TempDir::new().expect("a directory");
            write_certificate(other.path());
            fs::copy(other.path().join("key.pem"), directory.join("key.pem")).expect("writable");
        },
        &["certificate.pem", "key.pem", "cannot be used"],
    );
}

#[test]
fn replaced_files_take_effect_and_invalid_ones_do_not() {
    let directory = TempDir::new().expect("a directory");
    write_all(directory.path());
    let mut watch = Watch::start(files(directory.path())).expect("valid files");
    let credentials = watch.credentials();
    let first = credentials.current();
    assert!(matches!(watch.refresh(), Refreshed::Unchanged));
    // The key does not belong to the certificate.
    let certificate = fs::read(directory.path().join("certificate.pem")).expect("readable");
    write_certificate(directory.path());
    let replaced = fs::read(directory.path().join("certificate.pem")).expect("readable");
    fs::write(directory.path().join("certificate.pem"), certificate).expect("writable");
    assert!(matches!(watch.refresh(), Refreshed::Refused(_)));
    assert!(Arc::ptr_eq(&first, &credentials.current()));
    // It is reported once.
    assert!(matches!(watch.refresh(), Refreshed::Unchanged));
    fs::write(directory.path().join("certificate.pem"), replaced).expect("writable");
    fs::write(directory.path().join("token"), "another-token-of-this").expect("writable");
    assert!(matches!(watch.refresh(), Refreshed::Replaced));
    let second = credentials.current();
    let role = |header: &str| second.tokens.role(Some(header.as_bytes()));
    assert!(role("Bearer another-token-of-this").is_some());
    assert!(role(&format!("Bearer {TOKEN}")).is_none());
    fs::remove_file(directory.path().join("token")).expect("there");
    assert!(matches!(watch.refresh(), Refreshed::Refused(_)));
    assert!(Arc::ptr_eq(&second, &credentials.current()));
}
