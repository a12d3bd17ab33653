//! The control plane of a whole appliance, asked through a pipe in place of a socket.

use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::runtime::Runtime;

use super::routes::{self, Door, Shared};
use super::serve;
use super::token::Token;
use crate::observe::Observatory;
use crate::requests::Mailbox;

/// Bytes that wait in the pipe: less than most answers have.
const PIPE_BYTES: usize = 4 << 10;

/// The way that a probe comes in by.
#[derive(Clone, Copy, Debug)]
pub enum ProbedDoor {
    /// As one who may use the Unix socket.
    Socket,
    /// Over HTTP where the configuration asks for no token.
    Http,
    /// Over HTTP where it asks for the probe's token.
    HttpWithToken,
}

/// A control plane, and the appliance that it tells of. Configurations that it is given are
/// compared with the running one, and never applied.
pub struct ControlProbe {
    shared: Arc<Shared>,
    token: Token,
    runtime: Runtime,
}

impl ControlProbe {
    /// A control plane with `token` that tells of what `observatory` sees and hands requests to
    /// `mailbox`.
    pub(crate) fn new(observatory: Observatory, mailbox: Mailbox, token: &str) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build();
        Self {
            shared: Arc::new(Shared::new(Mutex::new(observatory), Some(mailbox))),
            token: Token::new(token.as_bytes()).expect("a right token"),
            runtime: runtime.expect("nothing is needed but memory"),
        }
    }

    /// All that is answered to a connection that brings `input`, in pieces of `piece_bytes`, and
    /// ends.
    ///
    /// # Panics
    /// The control plane does.
    #[must_use]
    pub fn converse(&self, door: ProbedDoor, input: &[u8], piece_bytes: usize) -> Vec<u8> {
        let door = match door {
            ProbedDoor::Socket => Door::Socket,
            ProbedDoor::Http => Door::Http(None),
            ProbedDoor::HttpWithToken => Door::Http(Some(self.token.clone())),
        };
        let router = routes::router(&self.shared, door);
        self.runtime.block_on(async {
            let (near, far) = tokio::io::duplex(PIPE_BYTES);
            let (mut answers, mut questions) = tokio::io::split(near);
            let asking = async {
                for piece in input.chunks(piece_bytes.max(1)) {
                    // Whoever is refused may not be heard to the end.
                    if questions.write_all(piece).await.is_err() {
                        return;
                    }
                    tokio::task::yield_now().await;
                }
                let _ = questions.shutdown().await;
            };
            let mut answered = Vec::new();
            let reading = answers.read_to_end(&mut answered);
            let ((), _, ()) = tokio::join!(asking, reading, serve::converse(far, router));
            answered
        })
    }
}
