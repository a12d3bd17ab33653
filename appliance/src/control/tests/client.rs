//! A client that sends arbitrary bytes.

use std::io::{Read, Write};

/// A response.
#[derive(Debug)]
pub(super) struct HttpResponse {
    pub(super) status: u16,
    pub(super) head: String,
    pub(super) body: Vec<u8>,
}

/// Sends a GET request for a path and reads the response.
pub(super) fn get(stream: impl Read + Write, path: &str) -> HttpResponse {
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n");
    ask(stream, request.as_bytes())
}

/// Sends a request and reads the response.
pub(super) fn ask(mut stream: impl Read + Write, request: &[u8]) -> HttpResponse {
    // A refusal may arrive before everything is sent.
    let _ = stream.write_all(request);
    read_response(&mut stream)
}

/// Reads one response, which announces its length.
pub(super) fn read_response(stream: &mut impl Read) -> HttpResponse {
    let mut bytes = Vec::new();
    let head = loop {
        if let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
            break end + 4;
        }
        more(stream, &mut bytes);
    };
    let text = String::from_utf8(bytes[..head].to_vec()).expect("ASCII");
    let status = text
        .split(' ')
        .nth(1)
        .and_then(|status| status.parse().ok());
    let lower = text.to_lowercase();
    let length = lower
        .lines()
        .find_map(|line| line.strip_prefix("content-length: "));
    let length: usize = length.map_or(0, |length| length.parse().expect("a number"));
    while bytes.len() < head + length {
        more(stream, &mut bytes);
    }
    HttpResponse {
        status: status.expect("a status"),
        head: text,
        body: bytes[head..head + length].to_vec(),
    }
}

fn more(stream: &mut impl Read, bytes: &mut Vec<u8>) {
    let mut part = [0; 4096];
    let count = stream.read(&mut part).expect("an answer in time");
    let so_far = String::from_utf8_lossy(bytes);
    assert!(count > 0, "it ended after {so_far:?}");
    bytes.extend_from_slice(&part[..count]);
}
