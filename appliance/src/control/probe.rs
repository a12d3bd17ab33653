//! The control plane of a whole appliance, with a pipe in place of a socket.

use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::runtime::Runtime;

use super::credentials::{Credentials, Current};
use super::routes::{self, ControlState, Entrance};
use super::serve;
use super::token::{Token, Tokens};
use crate::observe::Observatory;
use crate::requests::RequestSender;

/// Credentials with these tokens, without a certificate.
fn credentials(tokens: Tokens) -> Arc<Credentials> {
    Arc::new(Credentials::new(Current { tokens, tls: None }))
}

/// Capacity of the pipe in bytes: less than most responses.
const PIPE_BYTES: usize = 4 << 10;

/// How a probe connects.
#[derive(Clone, Copy, Debug)]
pub enum ProbedEntrance {
    /// Over the Unix socket, with permission to use it.
    Socket,
    /// Over HTTP, without a configured token.
    Http,
    /// Over HTTP, with the probe's token configured.
    HttpWithToken,
}

/// A control plane with its appliance. Configurations that it receives are compared with the
/// running one, and never applied.
pub struct ControlProbe {
    shared: Arc<ControlState>,
    tokens: Tokens,
    runtime: Runtime,
}

impl ControlProbe {
    /// A control plane with `token` that serves data of `observatory` and sends requests to
    /// `request_sender`.
    pub(crate) fn new(
        observatory: Observatory,
        request_sender: RequestSender,
        token: &str,
    ) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build();
        Self {
            shared: Arc::new(ControlState::new(
                Mutex::new(observatory),
                Some(request_sender),
            )),
            tokens: Tokens {
                operate: Some(Token::new(token.as_bytes()).expect("a right token")),
                read: None,
            },
            runtime: runtime.expect("nothing is needed but memory"),
        }
    }

    /// The complete response to a connection that sends `input`, in pieces of `piece_bytes`, and
    /// ends.
    ///
    /// # Panics
    /// If the control plane panics.
    #[must_use]
    pub fn run_connection(
        &self,
        door: ProbedEntrance,
        input: &[u8],
        piece_bytes: usize,
    ) -> Vec<u8> {
        let door = match door {
            ProbedEntrance::Socket => Entrance::Socket,
            ProbedEntrance::Http => Entrance::Http(credentials(Tokens::default())),
            ProbedEntrance::HttpWithToken => Entrance::Http(credentials(self.tokens.clone())),
        };
        let router = routes::router(&self.shared, door);
        self.runtime.block_on(async {
            let (near, far) = tokio::io::duplex(PIPE_BYTES);
            let (mut receiver, mut sender) = tokio::io::split(near);
            let asking = async {
                for piece in input.chunks(piece_bytes.max(1)) {
                    // A refused request may not be read to its end.
                    if sender.write_all(piece).await.is_err() {
                        return;
                    }
                    tokio::task::yield_now().await;
                }
                let _ = sender.shutdown().await;
            };
            let mut received = Vec::new();
            let reading = receiver.read_to_end(&mut received);
            let ((), _, ()) = tokio::join!(asking, reading, serve::run_connection(far, router));
            received
        })
    }
}
