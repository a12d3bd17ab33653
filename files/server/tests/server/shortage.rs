//! Limits that all clients share: what those hold that have vanished is for others when it is short.

use files_server::limits::{
    CLIENTS_MAX, LEASE_MS, LOCKS_MAX, LOCKS_PER_FILE_MAX, SLOTS_MAX, SLOTS_OF_MANY_MAX,
    STATES_PER_CLIENT_MAX,
};
use files_spec::Status;
use files_spec::operations::{
    ChannelAttributes, CreateSessionOk, Operation, OperationResult, Outcome, share,
};
use files_spec::types::LockType;

use crate::client::{CHANNEL, Client, World, create_session, exchange, in_share, name};
use crate::locks::lock;
use crate::opens::{open, open_file, unchecked};
use crate::sessions::exchanged;

/// A channel as Linux asks for it, with as many operations as a request may have.
const LARGE: ChannelAttributes = ChannelAttributes {
    maxrequests: SLOTS_MAX,
    maxoperations: 64,
    ..CHANNEL
};

fn client(world: &mut World, number: u32) -> Client {
    let mut client = Client::unreclaimed(world, &number.to_be_bytes(), LARGE);
    client.ok(world, &[Operation::ReclaimComplete(false)]);
    client
}

/// CREATE_SESSION of a client with this sequence number.
fn session_of(world: &mut World, id: u64, sequence: u32) -> Result<CreateSessionOk, Status> {
    let answer = world.send(&[create_session(id, sequence, LARGE)]);
    match answer.last() {
        OperationResult::CreateSession(Outcome::Ok(ok)) => Ok(ok),
        result => Err(result.status()),
    }
}

/// The opens of some owners for some files, at most 20 in a request.
fn opens(world: &mut World, client: &mut Client, files: std::ops::Range<usize>, owners: u8) {
    let owners: Vec<[u8; 1]> = (0..owners).map(|it| [it]).collect();
    for file in files {
        let file = format!("f{file}");
        for owners in owners.chunks(20) {
            let mut request = Vec::new();
            for owner in owners {
                let read = open(&file, owner, (share::ACCESS_READ, 0), unchecked());
                request.extend(in_share(&[read]));
            }
            client.ok(world, &request);
        }
    }
}

#[test]
fn every_client_has_a_session_and_later_ones_have_fewer_slots() {
    let mut world = World::new();
    for number in 0..CLIENTS_MAX as u32 {
        let owner = number.to_be_bytes();
        let (id, sequence, _) = exchanged(&world.send(&[exchange(&owner, 1, 0)]));
        let session = session_of(&mut world, id, sequence).expect("room");
        let slots = session.fore_chan_attrs.maxrequests;
        assert!(slots == SLOTS_MAX || number > 100 && slots == SLOTS_OF_MANY_MAX);
    }
    assert_eq!(world.server.counts().1, CLIENTS_MAX);
}

#[test]
fn sessions_of_vanished_clients_yield_to_others() {
    let mut world = World::new();
    // With an open file, a client that is silent stays.
    let mut clients = Vec::new();
    for number in 0..CLIENTS_MAX as u32 {
        let mut client = client(&mut world, number);
        open_file(&mut world, &mut client, "f");
        clients.push(client);
    }
    let mut sequence = 2;
    let refused = 'all: loop {
        for client in &clients {
            if let Err(status) = session_of(&mut world, client.id, sequence) {
                break 'all status;
            }
        }
        sequence += 1;
    };
    assert_eq!(refused, Status::NOSPC);
    world.advance(LEASE_MS + 1);
    world.server.tick(&world.now);
    assert!(world.server.counts().0 >= CLIENTS_MAX - 1);
    let before = world.server.counts().0;
    let mut other = client(&mut world, u32::MAX);
    other.ok(&mut world, &[]);
    // Only as many were removed as necessary.
    assert!(world.server.counts().0 + 8 > before);
}

#[test]
fn opens_of_vanished_clients_yield_to_others() {
    let mut world = World::new();
    let [mut first, mut second] = [1, 2].map(|it| client(&mut world, it));
    let files = 0..STATES_PER_CLIENT_MAX / 64;
    opens(&mut world, &mut first, files.clone(), 64);
    let another = open("g", b"o", (share::ACCESS_READ, 0), unchecked());
    first.fails(&mut world, &in_share(&[another]), Status::NOSPC);
    world.advance(1);
    opens(&mut world, &mut second, files, 64);
    let mut third = client(&mut world, 3);
    third.fails(&mut world, &in_share(&[another]), Status::DELAY);
    world.advance(LEASE_MS);
    // Only the first one has been silent for longer than its lease.
    third.ok(&mut world, &in_share(&[another]));
    assert_eq!(first.send(&mut world, &[]).status(), Status::BADSESSION);
    second.ok(&mut world, &[]);
    assert_eq!(world.server.counts().2, STATES_PER_CLIENT_MAX + 1);
}

#[test]
fn locks_of_vanished_clients_yield_to_others() {
    let mut world = World::new();
    let mut holder = client(&mut world, 1);
    let of_file = LOCKS_PER_FILE_MAX as u64 - 1;
    for file in 0..LOCKS_MAX.div_ceil(LOCKS_PER_FILE_MAX - 1) {
        let it = format!("f{file}");
        let stateid = open_file(&mut world, &mut holder, &it);
        let places: Vec<u64> = (0..of_file).map(|it| it * 2).collect();
        for places in places.chunks(50) {
            let mut request = in_share(&[Operation::Lookup(name(&it))]);
            let locks = places.iter();
            request.extend(locks.map(|it| lock(LockType::READ, (*it, 1), stateid, b"l")));
            let status = holder.send(&mut world, &request).status();
            if status == Status::DELAY {
                break;
            }
            assert_eq!(status, Status::OK);
        }
    }
    let mut other = client(&mut world, 2);
    let stateid = open_file(&mut world, &mut other, "g");
    let at = Operation::Lookup(name("g"));
    let request = in_share(&[at, lock(LockType::READ, (0, 1), stateid, b"l")]);
    other.fails(&mut world, &request, Status::DELAY);
    world.advance(LEASE_MS + 1);
    other.ok(&mut world, &request);
    assert_eq!(holder.send(&mut world, &[]).status(), Status::BADSESSION);
}
