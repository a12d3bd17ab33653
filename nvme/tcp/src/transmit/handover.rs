//! Hand-over of what is queued for sending (`ARCHITECTURE.md` §9.1).

use super::{Outgoing, Pieces, Transmitter};

/// Most bytes that are handed over. With more, the hand-over waits until the host has received some.
const UNSENT_BYTES_MAX: usize = 8 << 20;

impl Transmitter {
    /// The bytes that the stream has not accepted, with all data and digests. `None` while a writer
    /// holds the range of a suspended borrow, or if they are too many.
    pub(crate) fn unsent_bytes(&mut self) -> Option<Vec<u8>> {
        let queued: usize = self.queue.iter().map(Outgoing::len).sum();
        if queued > UNSENT_BYTES_MAX {
            return None;
        }
        for outgoing in &mut self.queue {
            if let Some(framed) = outgoing.framed_mut() {
                let was_suspended = framed.is_suspended();
                if !framed.resume() {
                    return None;
                }
                self.suspended -= usize::from(was_suspended);
            }
        }
        if self.framing.data_digest {
            self.seal();
        }
        let mut bytes = Vec::with_capacity(queued);
        for outgoing in &self.queue {
            match outgoing {
                Outgoing::Control(control) => bytes.extend_from_slice(control),
                Outgoing::Framed(framed) => {
                    let mut pieces = Pieces::new();
                    framed.add_to(&mut pieces)?;
                    pieces
                        .iter()
                        .for_each(|piece| bytes.extend_from_slice(piece));
                }
            }
        }
        bytes.drain(..self.sent);
        Some(bytes)
    }
}
