//! What cannot pass to a new process (`ARCHITECTURE.md` §9.1) is closed before a hand-over, and opened
//! again by the process that serves then.

use std::time::Duration;

use super::Reconciler;
use crate::error::{Failure, with_causes};
use crate::event_loop::EventLoop;

/// Time in which hosts' connections that belong to the process have to end. Those of RDMA need 3 s
/// at most.
const CLOSE_TIME_MAX: Duration = Duration::from_secs(10);

/// Connections that belong to the process did not end.
#[derive(Debug, thiserror::Error)]
#[error("connections over {transport} did not end within {CLOSE_TIME_MAX:?}")]
struct NotClosed {
    transport: &'static str,
}

impl Reconciler {
    /// Closes the listeners whose connections belong to the process. Their requests are answered, and
    /// their hosts are disconnected.
    ///
    /// # Errors
    /// A reactor is stuck, or a connection does not end. [`open_listeners`](Self::open_listeners)
    /// is possible then, too.
    pub(crate) fn close_listeners(&self, event_loop: &mut dyn EventLoop) -> Result<(), Failure> {
        let deadline = event_loop.now() + CLOSE_TIME_MAX;
        for transport in self.transports.iter().filter(|it| !it.passes_connections()) {
            let mut closing = Vec::new();
            for (port, _) in self.ports_of(transport.name()) {
                closing.push(transport.close(port)?);
            }
            for closed in &mut closing {
                while !closed.poll_responses(event_loop) {
                    if event_loop.now() >= deadline {
                        let transport = transport.name().word();
                        return Err(NotClosed { transport }.into());
                    }
                    event_loop.run_once();
                }
            }
        }
        Ok(())
    }

    /// Listens where an earlier process, or this one, has
    /// [closed its listeners](Self::close_listeners). What fails is logged, and an address that
    /// cannot be bound is tried again until it is: the process serves its other hosts.
    pub(crate) fn open_listeners(&self, event_loop: &mut dyn EventLoop) {
        for transport in self.transports.iter().filter(|it| !it.passes_connections()) {
            let ports = self.ports_of(transport.name());
            // Settings belong to port numbers, which another process has chosen.
            let mut opened = transport.apply_settings(&ports, event_loop);
            for (port, listener) in ports {
                if let Some(bound) = self.ports.get(&listener.name) {
                    opened = opened
                        .and_then(|()| transport.listen_on_known(port, bound.address, event_loop));
                }
            }
            if let Err(error) = opened {
                let transport = transport.name().word();
                let error = with_causes(error.as_ref());
                tracing::error!("the listeners over {transport} are not opened again: {error}");
            }
        }
    }
}
