//! Receives that are posted together, in preallocated storage.
#![expect(unsafe_code, reason = "links structures of C into a list")]

use std::ffi::c_int;
use std::ptr;

use rdma_sys::{ibv_recv_wr, ibv_sge};

use super::handle::Handle;
use crate::error::{FlushError, PostError};
use crate::request::{ReceiveRequest, Sge};

/// Receives for one queue.
pub(super) struct ReceiveList {
    requests: Box<[ibv_recv_wr]>,
    /// `sges_each` entries per request.
    sges: Box<[ibv_sge]>,
    sges_each: usize,
    queued: usize,
}

// SAFETY: the pointers in the requests are unused between calls of `post`, which sets those that it
// passes on.
unsafe impl Send for ReceiveList {}

impl std::fmt::Debug for ReceiveList {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ReceiveList")
            .field("requests", &self.requests.len())
            .field("sges_each", &self.sges_each)
            .field("queued", &self.queued)
            .finish()
    }
}

impl ReceiveList {
    /// A list for up to `requests` receives of up to `sges_each` pieces.
    pub(super) fn new(requests: u32, sges_each: u32) -> Self {
        let requests = requests as usize;
        let sges_each = sges_each as usize;
        let empty = || ibv_recv_wr {
            wr_id: 0,
            next: ptr::null_mut(),
            sg_list: ptr::null_mut(),
            num_sge: 0,
        };
        Self {
            requests: (0..requests).map(|_| empty()).collect(),
            sges: empty_sges(requests * sges_each),
            sges_each,
            queued: 0,
        }
    }

    /// Adds a receive.
    #[inline]
    pub(super) fn push(&mut self, request: &ReceiveRequest) -> Result<(), PostError> {
        let pieces = request.memory.as_slice();
        if pieces.len() > self.sges_each {
            return Err(PostError::TooManyPieces);
        }
        let Some(place) = self.requests.get_mut(self.queued) else {
            return Err(PostError::QueueFull);
        };
        place.wr_id = request.wr_id;
        place.num_sge = pieces.len() as c_int;
        put_sges(&mut self.sges[self.queued * self.sges_each..], pieces);
        self.queued += 1;
        Ok(())
    }

    /// Posts all queued receives, and empties the list. `post` gets the first request and a place
    /// for the first rejected one, and returns an error number.
    #[inline]
    pub(super) fn post(
        &mut self,
        post: impl FnOnce(*mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int,
    ) -> Result<(), FlushError> {
        let queued = std::mem::take(&mut self.queued);
        if queued == 0 {
            return Ok(());
        }
        let first = self.requests.as_mut_ptr();
        let pieces = self.sges.as_mut_ptr();
        for at in 0..queued {
            let next = if at + 1 < queued {
                first.wrapping_add(at + 1)
            } else {
                ptr::null_mut()
            };
            // SAFETY: `at` is below the number of requests, which no other code accesses.
            let request = unsafe { &mut *first.wrapping_add(at) };
            request.next = next;
            request.sg_list = pieces.wrapping_add(at * self.sges_each);
        }
        let mut refused = ptr::null_mut();
        match post(first, &raw mut refused) {
            0 => Ok(()),
            code => {
                let at = index_of(first, refused, queued);
                Err(flush_error(code, self.requests[at].wr_id, queued - at))
            }
        }
    }
}

/// The index of the request that the library named; the first one if it named none.
pub(super) fn index_of<T>(first: *mut T, named: *mut T, queued: usize) -> usize {
    if Handle::new(named).is_none() {
        return 0;
    }
    let distance = named.addr().wrapping_sub(first.addr()) / size_of::<T>();
    if distance < queued { distance } else { 0 }
}

/// The error of a list of which `refused` requests, starting with `wr_id`, were rejected with
/// `code`.
#[cold]
pub(super) fn flush_error(code: c_int, wr_id: u64, refused: usize) -> FlushError {
    let code = if code == -1 {
        std::io::Error::last_os_error().raw_os_error().unwrap_or(-1)
    } else {
        code.saturating_abs()
    };
    FlushError {
        first_wr_id: wr_id,
        refused: u32::try_from(refused).unwrap_or(u32::MAX),
        cause: match code {
            libc::ENOMEM | libc::ENOSPC | libc::EAGAIN => PostError::QueueFull,
            libc::EINVAL => PostError::NotPossible,
            other => PostError::Device(other),
        },
    }
}

pub(super) fn empty_sges(count: usize) -> Box<[ibv_sge]> {
    let empty = || ibv_sge {
        addr: 0,
        length: 0,
        lkey: 0,
    };
    (0..count).map(|_| empty()).collect()
}

/// Writes pieces to the front of `places`.
#[inline]
pub(super) fn put_sges(places: &mut [ibv_sge], pieces: &[Sge]) {
    for (place, piece) in places.iter_mut().zip(pieces) {
        *place = ibv_sge {
            addr: piece.address,
            length: piece.length,
            lkey: piece.lkey,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::SgeList;

    fn receive(wr_id: u64, pieces: u32) -> ReceiveRequest {
        let mut memory = SgeList::EMPTY;
        for piece in 0..pieces {
            let piece = Sge {
                address: wr_id * 100 + u64::from(piece),
                length: piece,
                lkey: 7,
            };
            memory.push(piece).unwrap();
        }
        ReceiveRequest { wr_id, memory }
    }

    /// The identifiers and piece addresses of a list, read as a driver does.
    fn read(mut request: *mut ibv_recv_wr) -> Vec<(u64, Vec<u64>)> {
        let mut all = Vec::new();
        while !request.is_null() {
            // SAFETY: the list is complete and terminated.
            let one = unsafe { &*request };
            let pieces = (0..one.num_sge as usize)
                // SAFETY: the request has this many pieces.
                .map(|at| unsafe { (*one.sg_list.wrapping_add(at)).addr })
                .collect();
            all.push((one.wr_id, pieces));
            request = one.next;
        }
        all
    }

    #[test]
    fn receive_list_is_posted_whole_and_cleared() {
        let mut list = ReceiveList::new(3, 2);
        for round in 0..2 {
            list.push(&receive(1, 2)).unwrap();
            list.push(&receive(2, 0)).unwrap();
            list.push(&receive(3, 1)).unwrap();
            assert_eq!(list.push(&receive(4, 1)), Err(PostError::QueueFull));
            let mut posted = Vec::new();
            let outcome = list.post(|first, _| {
                posted = read(first);
                0
            });
            assert_eq!(outcome, Ok(()), "round {round}");
            let expected = vec![(1, vec![100, 101]), (2, vec![]), (3, vec![300])];
            assert_eq!(posted, expected);
        }
        assert_eq!(list.post(|_, _| panic!("nothing was queued")), Ok(()));
    }

    #[test]
    fn receive_with_too_many_pieces_is_refused() {
        let mut list = ReceiveList::new(2, 1);
        list.push(&receive(1, 1)).unwrap();
        assert_eq!(list.push(&receive(2, 2)), Err(PostError::TooManyPieces));
        let mut posted = Vec::new();
        let outcome = list.post(|first, _| {
            posted = read(first);
            0
        });
        assert_eq!((outcome, posted), (Ok(()), vec![(1, vec![100])]));
    }

    #[test]
    fn post_error_names_the_first_and_counts_refused_requests() {
        let mut list = ReceiveList::new(4, 1);
        for wr_id in 1..=4 {
            list.push(&receive(wr_id, 1)).unwrap();
        }
        let error = list.post(|first, refused| {
            // SAFETY: the place is there for this, and the list has a third request.
            unsafe { *refused = first.wrapping_add(2) };
            libc::ENOMEM
        });
        let expected = FlushError {
            first_wr_id: 3,
            refused: 2,
            cause: PostError::QueueFull,
        };
        assert_eq!(error, Err(expected));
    }

    #[test]
    fn post_error_without_bad_wr_refuses_all_requests() {
        let mut list = ReceiveList::new(2, 1);
        list.push(&receive(8, 1)).unwrap();
        list.push(&receive(9, 1)).unwrap();
        let error = list.post(|_, _| libc::EINVAL).unwrap_err();
        assert_eq!((error.first_wr_id, error.refused), (8, 2));
        assert_eq!(error.cause, PostError::NotPossible);
    }

    #[test]
    fn unknown_error_numbers_are_preserved() {
        assert_eq!(flush_error(77, 0, 1).cause, PostError::Device(77));
        assert_eq!(flush_error(-77, 0, 1).cause, PostError::Device(77));
    }
}
