//! Listeners and devices that come and go while files are used.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;

use files_client_testing::{Peer as _, Slot, World as _, data};
use files_rdma::RdmaChange;
use rdma::Provider as _;
use rdma_testing::fake::{Fault, Operation as RdmaOperation, Pattern};

use crate::stage::{
    ANY, FIRST, Stage, change, client, free, moved, stage, stage_of_arena, try_client, turn_until,
};

const SECOND: u32 = 7;

fn listen(
    stage: &Rc<RefCell<Stage>>,
    number: u32,
    address: SocketAddr,
) -> Result<SocketAddr, rdma::Error> {
    change(stage, |reply| RdmaChange::Listen {
        number,
        address,
        reply,
    })
}

fn open(stage: &Rc<RefCell<Stage>>, number: u32) {
    change(stage, |reply| RdmaChange::Open { number, reply });
}

fn close(stage: &Rc<RefCell<Stage>>, number: u32) {
    change(stage, |reply| RdmaChange::Close { number, reply });
}

fn update_devices(stage: &Rc<RefCell<Stage>>) {
    change(stage, |reply| RdmaChange::UpdateDevices { reply });
}

/// An address that is taken or of another machine is refused, and numbers that no listener has are
/// ignored: what is there goes on.
#[test]
fn changes_that_are_not_possible_change_nothing() {
    let stage = stage();
    let mut client = client(&stage);
    let mut slot = Slot::new(&mut client, b"a");
    let before = stage.borrow().fabric.objects();
    let taken = stage.borrow().address;
    let elsewhere = "198.51.100.1:20049".parse().expect("an address");
    for address in [taken, elsewhere] {
        listen(&stage, SECOND, address).expect_err("refused");
        open(&stage, SECOND);
        close(&stage, SECOND);
        update_devices(&stage);
        let write = slot.write(0, &[1; 20_000]);
        slot.call(&mut client, &write).assert_ok();
        assert_eq!(stage.borrow().fabric.objects(), before);
    }
    assert_eq!(stage.borrow().of_rdma.listeners_down.get(), 0);
}

/// A listener takes its connections with it; the session goes on over another one, to which nobody
/// could connect before it was opened.
#[test]
fn a_listener_ends_with_its_connections_only() {
    let stage = stage();
    let first = stage.borrow().address;
    drop(client(&stage));
    turn_until(&stage, |it| it.service.borrow().connections() == 0);
    let memory = free(&stage);
    for round in 0..3 {
        let mut old = client(&stage);
        let mut slot = Slot::new(&mut old, &[round]);
        slot.call(&mut old, &slot.write(0, &[round; 50_000]))
            .assert_ok();
        let second = listen(&stage, SECOND, ANY).expect("a free port");
        stage.borrow_mut().address = second;
        assert!(try_client(&stage).is_err(), "it is not open");
        open(&stage, SECOND);
        let mut new = client(&stage);
        let answer = slot.call(&mut new, &slot.read(0, 50_000));
        assert_eq!(data(&answer), [round; 50_000]);
        close(&stage, FIRST);
        old.wait_for_end();
        assert_eq!(stage.borrow().service.borrow().connections(), 1);
        stage.borrow_mut().address = first;
        assert!(try_client(&stage).is_err(), "it is closed");
        let write = slot.write(10, &[9; 20_000]);
        slot.call(&mut new, &write).assert_ok();
        // The address is free at once.
        assert_eq!(listen(&stage, FIRST, first).expect("it is free"), first);
        open(&stage, FIRST);
        close(&stage, SECOND);
        new.wait_for_end();
        drop((old, new));
        turn_until(&stage, |it| it.core.borrow().counts() == (0, 0));
        assert_eq!(free(&stage), memory, "round {round}");
        assert_eq!(stage.borrow().fabric.objects().listeners, 1);
    }
    assert_eq!(stage.borrow().of_rdma.connections_failed.get(), 0);
}

/// A listener that is closed while data of a WRITE are read and a call waits: the requests end, and
/// the file is as usable as before over another listener.
#[test]
fn a_listener_is_closed_in_the_middle_of_requests() {
    let stage = stage();
    let mut old = client(&stage);
    let mut slot = Slot::new(&mut old, b"a");
    let write = slot.write(0, &[1; 50_000]);
    slot.call(&mut old, &write).assert_ok();
    let reads = Pattern {
        operation: Some(RdmaOperation::Read),
        ..Pattern::ALWAYS
    };
    stage.borrow().fabric.add_fault(reads, Fault::Wedge);
    let write = slot.write(0, &[2; 50_000]);
    let record = slot.record(&mut old, &write, false);
    old.try_send(&record).expect("open");
    for _ in 0..100 {
        stage.borrow_mut().turn();
    }
    assert_eq!(stage.borrow().core.borrow().counts().1, 1, "in flight");
    stage.borrow_mut().address = listen(&stage, SECOND, ANY).expect("a free port");
    open(&stage, SECOND);
    close(&stage, FIRST);
    stage.borrow().fabric.clear_faults();
    turn_until(&stage, |it| it.core.borrow().counts() == (0, 0));
    old.wait_for_end();
    let mut new = client(&stage);
    let mut next = slot.other(5);
    let write = next.write(0, &[3; 50_000]);
    next.call(&mut new, &write).assert_ok();
    let answer = next.call(&mut new, &next.read(0, 50_000));
    assert_eq!(data(&answer), [3; 50_000]);
    assert_eq!(stage.borrow().arena.take_dma_violation(), None);
}

/// With the last listener, the devices are released, and with the next one used again: as often as
/// devices may be in use at once, and more often.
#[test]
fn devices_are_released_and_used_again() {
    let stage = stage();
    let address = stage.borrow().address;
    let memory = free(&stage);
    let before = stage.borrow().fabric.objects();
    let listen_again = || {
        assert_eq!(listen(&stage, FIRST, address).expect("free"), address);
        open(&stage, FIRST);
    };
    for round in 0..40 {
        let mut client = client(&stage);
        let mut slot = Slot::new(&mut client, &[round]);
        slot.call(&mut client, &slot.write(0, &[round; 9000]))
            .assert_ok();
        close(&stage, FIRST);
        client.wait_for_end();
        drop(client);
        let registered = stage.borrow().domains.clear();
        assert_eq!(registered.len(), 1);
        update_devices(&stage);
        let now = stage.borrow().fabric.objects();
        assert_eq!((now.queue_pairs, now.completion_queues), (0, 0));
        drop(registered);
        let now = stage.borrow().fabric.objects();
        assert_eq!((now.domains, now.registrations, now.listeners), (0, 0, 0));
        assert_eq!(free(&stage), memory, "round {round}");
        register_again(&stage.borrow());
        listen_again();
    }
    assert_eq!(stage.borrow().fabric.objects(), before);
}

fn register_again(stage: &Stage) {
    let device = stage.server.devices().expect("devices").remove(0);
    let regions = [stage.arena.region(), stage.memory.store().region()];
    stage.domains.add(&device, &regions).expect("it is fit");
}

/// READs are sent from memory of a device that is registered while files are served, and it is
/// registered once, however often that is asked for.
#[test]
fn memory_that_is_registered_later_is_sent_from() {
    let stage = stage_of_arena();
    let mut client = client(&stage);
    let mut slot = Slot::new(&mut client, b"a");
    let bytes: Vec<u8> = (0..299_008).map(|at| (at / 4096 * 7 % 251) as u8).collect();
    let registrations = |stage: &Stage| stage.fabric.objects().registrations;
    let before = registrations(&stage.borrow());
    for _ in 0..2 {
        let stage = stage.borrow();
        let attached = stage.domains.attach(stage.memory.store().region());
        attached.expect("it is registered");
        assert_eq!(registrations(&stage), before + 1);
    }
    let write = slot.write(0, &bytes);
    slot.call(&mut client, &write).assert_ok();
    let answer = slot.call(&mut client, &slot.read(0, 299_008));
    assert!(data(&answer) == bytes);
    let [borrowed, copied, ..] = moved(&stage);
    assert_eq!((borrowed, copied), (299_008, 0));
    {
        let stage = stage.borrow();
        stage.domains.detach(stage.memory.store().region());
    }
    // Maps of before are not used any more.
    stage.borrow_mut().turn();
    assert_eq!(registrations(&stage.borrow()), before);
}
