//! The emulated controller with a host that writes any register, any doorbell and any command, with
//! arbitrary data pointers: to valid memory, to lists of pages or descriptors from the input, and
//! out of bounds.
//!
//! Invariants: each completed command was sent, and the controller continues to work.

use std::sync::Arc;

use hugemem::DmaBuffer;
use nvme_driver::backing::DeviceBacking;
use nvme_driver_testing::{
    ControllerMemoryOptions, EmulatedNamespace, EmulatedOptions, SglRules, ShadowDoorbells,
};
use nvme_spec::Sqe;
use nvme_spec::command::{AdminOpcode, IoOpcode};
use nvme_spec::registers::{Csts, Register};
use reactors::Nanos;
use zerocopy::{FromBytes, IntoBytes};

use crate::emulator_harness::{Host, PAGE, Pair};
use crate::input::Input;
use crate::memory::Memory;
use crate::tcp_target::likely_command;

/// Limit of the steps; longer inputs reach no new code.
const STEPS_MAX: usize = 64;

/// Runs one input.
pub(crate) fn run(input: &[u8]) {
    let mut input = Input::new(input);
    let memory = Memory::of_thread();
    {
        let options = options(input.u8());
        let mut host = Host::cold_on(Arc::clone(&memory.arena), options);
        host.enable();
        let mut io = host.pair(1, 16, 16);
        let data = host.buffer(8 * PAGE);
        for _ in 0..STEPS_MAX {
            if input.is_empty() {
                break;
            }
            step(&mut host, &mut io, &data, &mut input);
            take(&mut host, &mut io);
        }
        host.tick(Nanos::from_secs(1));
        // After any of this, a reset must restore operation.
        host.control.power_cut();
        host.control.reinsert();
        host.enable();
        assert!(Csts::from_bits(host.get(Register::CSTS)).rdy());
        let mut io = host.pair(1, 16, 16);
        host.write(&mut io, 0, 7, true);
        assert_eq!(host.read(&mut io, 0), 7);
    }
    assert_eq!(memory.taken(), 0, "memory is still out");
}

fn options(choice: u8) -> EmulatedOptions {
    let sgl = [SglRules::Any, SglRules::Dword, SglRules::Unsupported];
    let shadow = [
        ShadowDoorbells::Unsupported,
        ShadowDoorbells::Ring,
        ShadowDoorbells::Poll,
    ];
    let buffer = ControllerMemoryOptions {
        bytes: 16 << 10,
        placed_by_host: choice & 0x80 != 0,
        holds_data: false,
    };
    EmulatedOptions {
        namespaces: vec![EmulatedNamespace::new(1, 4096, 64)],
        sgl: sgl[usize::from(choice & 3) % 3],
        shadow_doorbells: shadow[usize::from(choice >> 2 & 3) % 3],
        controller_memory: (choice & 0x40 != 0).then_some(buffer),
        transfer_code: choice >> 4 & 3,
        queue_entries_max: 64,
        ..EmulatedOptions::default()
    }
}

/// Executes one action of the host.
fn step(host: &mut Host, io: &mut Pair, data: &DmaBuffer, input: &mut Input<'_>) {
    let choice = input.u8();
    match choice & 15 {
        0..=4 => {
            io.push(&command(host, data, input));
            host.ring_tail(io);
        }
        5..=6 => {
            let mut sqe = command(host, data, input);
            sqe.opcode = input.pick(&[
                AdminOpcode::IDENTIFY.0,
                AdminOpcode::GET_LOG_PAGE.0,
                AdminOpcode::CREATE_IO_CQ.0,
                AdminOpcode::CREATE_IO_SQ.0,
                AdminOpcode::DELETE_IO_CQ.0,
                AdminOpcode::DELETE_IO_SQ.0,
                AdminOpcode::SET_FEATURES.0,
                AdminOpcode::GET_FEATURES.0,
                AdminOpcode::ABORT.0,
                AdminOpcode::ASYNC_EVENT_REQUEST.0,
                AdminOpcode::DOORBELL_BUFFER_CONFIG.0,
            ]);
            host.admin.push(&sqe);
            host.ring_tail(&host.admin);
        }
        7 => {
            let at = usize::from(input.u16()) % data.len();
            let bytes = input.bytes();
            data.write(at, &bytes[..bytes.len().min(data.len() - at)]);
        }
        8 => {
            // A list whose entries point into the buffer, or close to it.
            let at = usize::from(input.u8()) * 8;
            let entry = host.address(data) + u64::from(input.u16() & 0xf0f8);
            data.write(at, &entry.to_le_bytes());
        }
        9 => {
            let offset = (usize::from(input.u16()) % host.drive.registers_len()) & !3;
            host.drive.write_u32(offset, input.u32());
        }
        10 => {
            let offset = usize::from(input.u8()) & !7;
            host.drive.write_u64(offset, input.u64());
        }
        11 => {
            let offset = (usize::from(input.u16()) % host.drive.registers_len()) & !3;
            host.drive.read_u32(offset);
        }
        12 => host.tick(Nanos::from_millis(u64::from(input.u8()))),
        13 => host.enable(),
        14 => {
            let _ = host.drive.reset_function();
        }
        _ => {
            let _ = host.drive.set_bus_master(choice & 0x10 != 0);
        }
    }
}

/// A command whose data pointer probably points to memory.
fn command(host: &Host, data: &DmaBuffer, input: &mut Input<'_>) -> Sqe {
    let (mut sqe, _) = likely_command(input);
    let bytes = input.pick(&[16, 512, 4096, 8192, 0]) as u32;
    let near = host.address(data) + u64::from(input.u16() & 0x7fff);
    let far = input.u64();
    match input.u8() % 6 {
        0 => sqe = sqe.with_prp(near & !4095, host.address(data)),
        1 => sqe = sqe.with_prp(near, host.address(data) + u64::from(input.u16() & 0x7fff)),
        2 => sqe = sqe.with_prp(near, far),
        3 => sqe = sqe.with_prp(far, near),
        kind => {
            // One descriptor of any kind, with valid memory.
            let mut descriptor = [0; 16];
            descriptor[..8].copy_from_slice(&near.to_le_bytes());
            descriptor[8..12].copy_from_slice(&bytes.to_le_bytes());
            descriptor[15] = if kind == 4 { 0 } else { input.u8() };
            let descriptor = FromBytes::read_from_bytes(descriptor.as_bytes());
            sqe = sqe.with_sgl(descriptor.expect("16 bytes"));
        }
    }
    if sqe.opcode == IoOpcode::FLUSH.0 && input.one_in(4) {
        sqe.opcode = input.u8();
    }
    sqe.with_cid(u16::from(input.u8()))
}

/// Takes the completions.
fn take(host: &mut Host, io: &mut Pair) {
    // At most as many as the queues have entries: an overwritten completion queue may contain any
    // number.
    for _ in 0..io.completion_entries {
        if io.pop().is_none() {
            break;
        }
        host.ring_head(io);
    }
    for _ in 0..8 {
        if host.pop_admin().is_none() {
            break;
        }
    }
}
