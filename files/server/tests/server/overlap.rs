//! Requests of several clients, some of them damaged, whose executions overlap: every reply is valid,
//! and the volume stays consistent. What happens is chosen by a generator of a test or by an input of
//! a fuzz target.

use files_server::{Execution, Record, Resumption, Step};
use files_spec::attributes::Attributes;
use files_spec::compound::CompoundOk;
use files_spec::limits::OPERATIONS_MAX;
use files_spec::operations::{
    Claim, CloseArgs, CommitArgs, CreateHow, DowngradeArgs, LockArgs, LockTestArgs, Locker,
    NewLockOwner, OpenArgs, OpenHow, Operation, OperationResult, Outcome, ReadArgs, RenameArgs,
    SetattrArgs, UnlockArgs, WriteArgs,
};
use files_spec::readdir::ReaddirArgs;
use files_spec::rpc::Reply;
use files_spec::types::{CreateType, LockType, Owner, Stable, StateId};
use files_spec::xdr::{Decoder, Opaque, Payload, Xdr};
use files_spec::{Bitmap, Name, Status};

use super::client::{ADDRESS, Client, World, name};

/// Chooses what happens.
pub(crate) trait Choices {
    /// A number below a limit.
    fn below(&mut self, limit: usize) -> usize;

    /// Whether there is nothing left to choose from.
    fn has_ended(&self) -> bool {
        false
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }
}

const NAMES: [&str; 5] = ["data", "f", "g", "d", "e"];
const OWNERS: [&[u8]; 2] = [b"one", b"two"];
static DATA: [u8; 9000] = [7; 9000];

/// What the replies have told.
#[derive(Default)]
struct Known {
    states: Vec<StateId>,
    handles: Vec<Box<[u8]>>,
}

impl Known {
    fn state(&self, random: &mut impl Choices) -> StateId {
        let special = [
            StateId::ANONYMOUS,
            StateId::BYPASS,
            StateId::CURRENT,
            StateId::INVALID,
        ];
        match self.states.len() {
            0 => random.pick(&special),
            count if random.below(6) > 0 => StateId {
                seqid: random.pick(&[0, 0, 0, 1, 2]),
                ..self.states[count - 1 - random.below(count.min(8))]
            },
            _ => random.pick(&special),
        }
    }
}

fn owner(random: &mut impl Choices) -> Owner<'static> {
    Owner {
        clientid: 0,
        owner: Opaque(random.pick(&OWNERS)),
    }
}

fn any_name(random: &mut impl Choices) -> Name<'static> {
    name(random.pick(&NAMES))
}

fn attributes(random: &mut impl Choices) -> Attributes<'static> {
    Attributes {
        size: (random.below(4) == 0).then(|| random.below(20_000) as u64),
        mode: (random.below(2) == 0).then(|| random.below(0o7777) as u32),
        ..Attributes::default()
    }
}

fn operation<'k>(random: &mut impl Choices, known: &'k Known) -> Operation<'k> {
    let offset = random.below(30_000) as u64;
    match random.below(24) {
        0 | 1 => Operation::PutRootFh(()),
        2 | 3 if !known.handles.is_empty() => {
            let handle = random.below(known.handles.len());
            Operation::PutFh(Opaque(&known.handles[handle]))
        }
        2..=5 => Operation::Lookup(any_name(random)),
        6 | 7 => Operation::Open(OpenArgs {
            seqid: 0,
            share_access: 1 + random.below(3) as u32,
            share_deny: random.pick(&[0, 0, 0, 1, 2]),
            owner: owner(random),
            openhow: match random.below(3) {
                0 => OpenHow::NoCreate,
                1 => OpenHow::Create(CreateHow::Exclusive([random.below(2) as u8; 8])),
                _ => OpenHow::Create(CreateHow::Unchecked(attributes(random))),
            },
            claim: match random.below(5) {
                0 => Claim::FileHandle,
                _ => Claim::Null(any_name(random)),
            },
        }),
        8 => Operation::Close(CloseArgs {
            seqid: 0,
            open_stateid: known.state(random),
        }),
        9 | 10 => Operation::Write(WriteArgs {
            stateid: known.state(random),
            offset,
            stable: Stable(random.below(3) as u32),
            data: Payload::Inline(&DATA[..random.below(9000)]),
        }),
        11 | 12 => Operation::Read(ReadArgs {
            stateid: known.state(random),
            offset,
            count: random.below(20_000) as u32,
        }),
        13 => Operation::Lock(LockArgs {
            locktype: LockType(1 + random.below(4) as u32),
            reclaim: false,
            offset: random.below(20) as u64,
            length: random.pick(&[1, 5, u64::MAX]),
            locker: Locker::New(NewLockOwner {
                open_seqid: 0,
                open_stateid: known.state(random),
                lock_seqid: 0,
                lock_owner: owner(random),
            }),
        }),
        14 => Operation::LockU(UnlockArgs {
            locktype: LockType::WRITE,
            seqid: 0,
            lock_stateid: known.state(random),
            offset: random.below(20) as u64,
            length: random.pick(&[1, 5, u64::MAX]),
        }),
        15 => Operation::LockT(LockTestArgs {
            locktype: LockType::WRITE,
            offset: 0,
            length: u64::MAX,
            owner: owner(random),
        }),
        16 => Operation::Remove(any_name(random)),
        17 => Operation::Rename(RenameArgs {
            oldname: any_name(random),
            newname: any_name(random),
        }),
        18 => Operation::Create(files_spec::operations::CreateArgs {
            objtype: random.pick(&[CreateType::Directory, CreateType::Link(Opaque(b"x"))]),
            objname: any_name(random),
            createattrs: attributes(random),
        }),
        19 => Operation::SetAttr(SetattrArgs {
            stateid: known.state(random),
            obj_attributes: attributes(random),
        }),
        20 => Operation::ReadDir(ReaddirArgs {
            cookie: random.below(6) as u64,
            cookieverf: [0; 8],
            dircount: 0,
            maxcount: random.below(600) as u32,
            attr_request: Bitmap::of(&[1, 4, 19, 20, 36]),
        }),
        21 => random.pick(&[
            Operation::SaveFh(()),
            Operation::RestoreFh(()),
            Operation::LookupP(()),
            Operation::Commit(CommitArgs { offset, count: 0 }),
        ]),
        22 => Operation::OpenDowngrade(DowngradeArgs {
            open_stateid: known.state(random),
            seqid: 0,
            share_access: 1 + random.below(3) as u32,
            share_deny: 0,
        }),
        _ => {
            let link = Operation::Link(any_name(random));
            random.pick(&[Operation::GetFh(()), link])
        }
    }
}

/// A request whose execution is suspended.
struct Suspended {
    x: Execution,
    bytes: Vec<u8>,
}

struct Run {
    world: World,
    clients: Vec<Client>,
    known: Known,
    suspended: Vec<Suspended>,
    replies: usize,
}

impl Run {
    fn learn(&mut self, x: &Execution) {
        self.replies += 1;
        assert!(!x.is_suspended());
        let mut message = Vec::new();
        let mut at = 0;
        for hole in x.holes() {
            message.extend_from_slice(&x.reply()[at..hole.at]);
            message.resize(message.len() + hole.length as usize, 0);
            at = hole.at;
        }
        message.extend_from_slice(&x.reply()[at..]);
        let mut from = Decoder::new(&message);
        let reply = Reply::decode(&mut from).expect("a reply");
        let Ok(ok) = CompoundOk::decode(from) else {
            assert!(message.len() <= 32, "{reply:?} has no results");
            return;
        };
        for result in ok.results.take(OPERATIONS_MAX) {
            match result.expect("a valid result") {
                OperationResult::Open(Outcome::Ok(ok)) => self.known.states.push(ok.stateid),
                OperationResult::Lock(Outcome::Ok(stateid)) => self.known.states.push(stateid),
                OperationResult::GetFh(Outcome::Ok(handle)) => {
                    self.known.handles.push(handle.0.into());
                }
                result => assert_ne!(result.status(), Status::SERVERFAULT, "{result:?}"),
            }
        }
    }

    /// Continues or begins an execution, and ends its data as it comes.
    fn advance(&mut self, mut it: Suspended, resumption: Option<Resumption>) {
        let now = self.world.now;
        let record = Record {
            bytes: &it.bytes,
            placement: None,
            client: ADDRESS,
        };
        let server = &mut self.world.server;
        let step = match resumption {
            None => server.begin(&mut it.x, &record, &mut self.world.caller, &now),
            Some(resumption) => server.resume(&mut it.x, &record, resumption, &now),
        };
        match step {
            Step::Ignore => {}
            Step::Reply => self.learn(&it.x),
            _ => self.suspended.push(it),
        }
    }
}

/// Runs up to this number of requests. Returns the number of replies.
pub(crate) fn run(world: World, random: &mut impl Choices, requests: usize) -> usize {
    let mut run = Run {
        world,
        clients: Vec::new(),
        known: Known::default(),
        suspended: Vec::new(),
        replies: 0,
    };
    for owner in OWNERS {
        run.clients.push(Client::new(&mut run.world, owner));
    }
    let mut owners = 0_u32;
    for _ in 0..requests {
        if random.has_ended() {
            break;
        }
        let mut operations = vec![Operation::PutRootFh(()), Operation::Lookup(name("data"))];
        for _ in 0..1 + random.below(6) {
            operations.push(operation(random, &run.known));
        }
        let client = random.below(run.clients.len());
        let mut sender = run.clients[client];
        let mut bytes = sender.next_record(&mut run.world, &operations, random.below(2) == 0);
        if random.below(5) == 0 {
            // Behind the session and the slot.
            let at = 44 + random.below(bytes.len() - 44);
            bytes[at] ^= 1 << random.below(8);
            if random.below(2) == 0 {
                bytes.truncate(at);
            }
        }
        let x = Execution::new();
        run.advance(Suspended { x, bytes }, None);
        while !run.suspended.is_empty() && random.below(3) > 0 {
            let index = random.below(run.suspended.len());
            let it = run.suspended.swap_remove(index);
            let resumption = match random.below(8) {
                0 => Resumption::DeviceFailed,
                _ => Resumption::Done,
            };
            run.advance(it, Some(resumption));
            if random.below(3) == 0 {
                run.world.serve_volume();
            }
        }
        // The slot may be in use; then the number was not used.
        let probe = files_spec::operations::SequenceArgs {
            sequenceid: sender.sequence + 1,
            ..sender.sequence_args()
        };
        let answer = run.world.send(&[Operation::Sequence(probe)]);
        run.clients[client].sequence = match answer.status() {
            Status::OK => sender.sequence + 1,
            _ => {
                // Another slot: a new session, of a client with nothing to reclaim.
                owners += 1;
                let owner = u32::to_be_bytes(owners);
                run.clients[client] = Client::new(&mut run.world, &owner);
                run.clients[client].sequence
            }
        };
        run.world.advance(random.below(2000) as u64);
        let now = run.world.now;
        run.world.server.tick(&now);
    }
    while let Some(it) = run.suspended.pop() {
        run.world.serve_volume();
        run.advance(it, Some(Resumption::Done));
    }
    // Without clients, nothing is open.
    run.world.advance(100_000_000);
    for _ in 0..2000 {
        if run.world.server.counts() == (0, 0, 0) {
            break;
        }
        let now = run.world.now;
        run.world.server.tick(&now);
        run.world.serve_volume();
    }
    assert_eq!(run.world.server.counts(), (0, 0, 0));
    assert_eq!(
        run.world.server.volumes()[0].problems(),
        Vec::<String>::new()
    );
    run.replies
}
