//! The old process of a hand-over (`ARCHITECTURE.md` §9.1): it starts the new one, and stays
//! responsible until that one serves. If anything fails before, it serves on.

use std::collections::BTreeSet;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use appliance_config::{Backing, Transport};
use nvme_handover::State;
use nvme_target::ControllerSnapshot;
use nvme_tcp::SocketStream;
use reactors::Clock as _;

use super::{Appliance, with_watchdog};
use crate::change_gate::ClosedGate;
use crate::error::{Failure, with_causes};
use crate::event_loop::{EventLoop, aside};
use crate::handover::{
    BUILD_TIME_MAX, DeviceOffer, FileOffer, ListenerOffer, Offer, RESTORE_TIME_MAX, Successor,
    SuccessorError, check_program, own_program,
};
use crate::observe::model::UpgradeAnswer;
use crate::requests::UpgradeJob;
use crate::service;
use crate::transports::ExportError;
use crate::watchdog_loop::WatchdogLoop;

/// Time in which connections that were accepted before reach their reactors.
const ACCEPTED_TIME: Duration = Duration::from_millis(20);
/// Time in which changes by operators have to complete.
const CHANGES_TIME_MAX: Duration = Duration::from_secs(5);
/// Time in which requests in flight have to complete. Hosts wait meanwhile.
const QUIET_TIME_MAX: Duration = Duration::from_secs(5);
/// Time between two attempts to close the gate or to export the state.
const EXPORT_INTERVAL: Duration = Duration::from_micros(200);

/// Which process serves after a hand-over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Upgraded {
    /// This one.
    Stays,
    /// The new one.
    Ends,
}

/// Why a running appliance cannot be handed over.
#[derive(Debug, thiserror::Error)]
enum NotPossible {
    #[error(
        "volume {0}: the state of its clients belongs to a process: restart the service, which \
         empties volumes in memory"
    )]
    Volume(String),
    #[error("file_listener {0}: it stays with a process: restart the service, or remove it")]
    FileListener(String),
    #[error("a listener is not bound")]
    Listener,
    #[error("requests did not complete within {QUIET_TIME_MAX:?}: {0}")]
    NotQuiet(String),
}

impl Appliance {
    /// Hands over to a new process, and runs the watchdog loop meanwhile.
    pub(super) fn upgrade(
        &mut self,
        job: UpgradeJob,
        watchdog_loop: &mut WatchdogLoop,
    ) -> Upgraded {
        let UpgradeJob {
            program,
            dry_run,
            reply,
            permit,
        } = job;
        let done = self.try_to_upgrade(program, dry_run, watchdog_loop);
        let done = done.map_err(|error| with_causes(error.as_ref()));
        let result = match &done {
            Ok(UpgradeAnswer { pid: Some(pid), .. }) => {
                service::handed_over(*pid);
                tracing::info!("process {pid} serves from now on");
                Upgraded::Ends
            }
            Ok(_) => Upgraded::Stays,
            Err(reason) => {
                tracing::warn!("not handed over to a new process: {reason}");
                Upgraded::Stays
            }
        };
        drop(permit);
        // The client may have disconnected.
        drop(reply.send(done));
        result
    }

    fn try_to_upgrade(
        &self,
        program: Option<PathBuf>,
        dry_run: bool,
        watchdog_loop: &mut WatchdogLoop,
    ) -> Result<UpgradeAnswer, Failure> {
        self.check_upgrade()?;
        let program = program.map_or_else(own_program, Ok)?;
        check_program(&program)?;
        let mut event_loop = with_watchdog(&self.drives, &self.reactors, watchdog_loop);
        let mut successor = Successor::start(&program)?;
        self.prepare(&mut successor, &mut event_loop)?;
        let mut answer = UpgradeAnswer {
            program: program.display().to_string(),
            pid: None,
            connections: 0,
            pause_us: None,
            effects: self.effects(),
        };
        if dry_run {
            return Ok(answer);
        }
        // The target does not change any more: the new process would not know of it.
        let gate = self.close_change_gate(&mut event_loop)?;
        let mut began = Instant::now();
        let passed = self.close_to_hosts(&mut event_loop).and_then(|()| {
            began = Instant::now();
            self.pass_on(&mut successor, &mut event_loop)
        });
        match passed {
            Ok(connections) => {
                gate.stay_closed();
                answer.pid = successor.pid();
                answer.connections = connections as u64;
                let pause = began.elapsed().as_micros();
                answer.pause_us = Some(u64::try_from(pause).unwrap_or(u64::MAX));
                // Its channel reports the end of this process.
                std::mem::forget(successor);
                Ok(answer)
            }
            Err(error) => {
                // It must not use the sockets any more.
                drop(successor);
                self.resume_hosts(&mut event_loop)?;
                Err(error)
            }
        }
    }

    /// Checks what no new process could continue.
    pub(crate) fn check_upgrade(&self) -> Result<(), Failure> {
        if let Some(running) = self.copies.running() {
            return Err(running.into());
        }
        let config = self.config();
        if let Some(volume) = config.files.volumes.first() {
            return Err(NotPossible::Volume(volume.name.to_string()).into());
        }
        if let Some(listener) = config.files.listeners.first() {
            return Err(NotPossible::FileListener(listener.name.to_string()).into());
        }
        self.reconciler.devices().passing()?;
        Ok(())
    }

    /// Offers the appliance to the new process, which builds its own.
    fn prepare(
        &self,
        successor: &mut Successor,
        event_loop: &mut dyn EventLoop,
    ) -> Result<(), Failure> {
        let (offer, descriptors) = self.offer()?;
        let descriptors: Vec<BorrowedFd<'_>> = descriptors.iter().map(|it| it.as_fd()).collect();
        let mut outcome = Ok(());
        aside(event_loop, || {
            outcome = successor.prepare(&offer, &descriptors);
            Ok(())
        })?;
        Ok(outcome?)
    }

    /// The offer to the process that continues, and its descriptors.
    pub(super) fn offer(&self) -> Result<(Vec<u8>, Vec<OwnedFd>), Failure> {
        let target = State {
            target: self.target.export(self.reactors.clock().now())?,
            ..State::default()
        };
        let target = nvme_handover_format::encode(&target)?;
        let running = self.reconciler.running();
        let states = running.operator_states.lock().clone();
        let mut offer = Offer::new(self.file.clone(), self.config(), &states, target);
        let mut descriptors = vec![self.arena.region().as_fd().try_clone_to_owned()?];
        for device in self.reconciler.devices().passing()? {
            offer.devices.push(DeviceOffer {
                name: device.name.to_string(),
                content: device.content.into(),
                descriptors: device.descriptors.len(),
                extents: device.extents,
                file: device.capabilities.map(|it| FileOffer {
                    direct: it.direct,
                    deallocates: it.deallocates,
                }),
            });
            for descriptor in device.descriptors {
                descriptors.push(descriptor.try_clone_to_owned()?);
            }
        }
        let mut listening = self.tcp.listening()?;
        for listener in &self.config().listeners {
            let port = self.reconciler.ports().get(&listener.name);
            let port = port.ok_or(NotPossible::Listener)?;
            let address = match listener.transport {
                Transport::Tcp => {
                    let socket = listening.remove(&port.id);
                    descriptors.push(socket.ok_or(NotPossible::Listener)?);
                    None
                }
                Transport::Rdma => Some(port.address),
            };
            offer.listeners.push(ListenerOffer {
                name: listener.name.to_string(),
                port: port.id.0,
                address,
            });
        }
        Ok((offer.encode()?, descriptors))
    }

    /// Waits for changes by operators that are in progress, and refuses others. Hosts do not wait
    /// meanwhile.
    pub(super) fn close_change_gate(
        &self,
        event_loop: &mut dyn EventLoop,
    ) -> Result<ClosedGate, Failure> {
        let gate = self.reconciler.running().change_gate.clone();
        let deadline = Instant::now() + CHANGES_TIME_MAX;
        loop {
            match gate.close() {
                Ok(closed) => return Ok(closed),
                Err(error) if Instant::now() >= deadline => return Err(error.into()),
                Err(_) => thread::sleep(EXPORT_INTERVAL),
            }
            event_loop.run_once();
        }
    }

    /// Accepts no more connections, and disconnects hosts whose connections belong to the process.
    pub(super) fn close_to_hosts(&self, event_loop: &mut dyn EventLoop) -> Result<(), Failure> {
        self.reconciler.close_listeners(event_loop)?;
        self.tcp.set_paused(true);
        thread::sleep(ACCEPTED_TIME);
        Ok(())
    }

    /// Serves hosts again, because no other process does.
    pub(super) fn resume_hosts(&self, event_loop: &mut dyn EventLoop) -> Result<(), Failure> {
        self.drives.take_back(event_loop);
        self.tcp.resume(event_loop)?;
        self.tcp.set_paused(false);
        self.reconciler.open_listeners(event_loop);
        Ok(())
    }

    /// Holds the hosts' connections, releases the drives, and passes the connections to the new process, which then serves. Returns
    /// their number. After an error, the connections are to be resumed.
    fn pass_on(
        &self,
        successor: &mut Successor,
        event_loop: &mut dyn EventLoop,
    ) -> Result<usize, Failure> {
        let (bytes, sockets) = self.export_when_quiet(event_loop)?;
        let time_max = match self.drives.used() {
            0 => RESTORE_TIME_MAX,
            _ => BUILD_TIME_MAX,
        };
        self.drives.release(event_loop)?;
        let descriptors: Vec<BorrowedFd<'_>> = sockets.iter().map(|it| it.as_fd()).collect();
        let mut restored: Result<(), SuccessorError> = Ok(());
        aside(event_loop, || {
            restored = successor.restore(&bytes, &descriptors, time_max);
            Ok(())
        })?;
        restored?;
        successor.serve()?;
        Ok(sockets.len())
    }

    /// Completes the requests in flight. Returns the stored form of the state, and the sockets of the
    /// connections.
    pub(super) fn export_when_quiet(
        &self,
        event_loop: &mut dyn EventLoop,
    ) -> Result<(Vec<u8>, Vec<SocketStream>), Failure> {
        let deadline = Instant::now() + QUIET_TIME_MAX;
        let (mut state, sockets) = loop {
            self.tcp.hold(event_loop)?;
            match self.tcp.export(event_loop) {
                Ok(exported) => break exported,
                Err(ExportError::NotReady(reason)) if Instant::now() >= deadline => {
                    return Err(NotPossible::NotQuiet(reason.to_string()).into());
                }
                Err(ExportError::NotReady(_)) => thread::sleep(EXPORT_INTERVAL),
                Err(error) => return Err(error.into()),
            }
            event_loop.run_once();
        };
        state.target = self.target.export(self.reactors.clock().now())?;
        Ok((nvme_handover_format::encode(&state)?, sockets))
    }

    /// What hosts and operators notice.
    pub(super) fn effects(&self) -> Vec<String> {
        let mut effects = vec![
            "hosts over TCP without TLS stay connected; their requests wait during the hand-over"
                .to_owned(),
            "the control socket and HTTP are closed and opened again".to_owned(),
        ];
        let controllers = self.target.snapshot().controllers;
        let protected = controllers.iter().filter(|it| it.channel.is_some());
        let hosts: BTreeSet<_> = protected.map(|it| &it.host_nqn).collect();
        if !hosts.is_empty() {
            let hosts = hosts.len();
            effects.push(format!(
                "{hosts} host(s) over TLS are disconnected and connect again, because keys belong to \
                 a process"
            ));
        }
        let ports = self.reconciler.ports_of(Transport::Rdma);
        if !ports.is_empty() {
            let is_at = |controller: &ControllerSnapshot| {
                ports.iter().any(|(port, _)| *port == controller.port)
            };
            let connected = controllers.iter().filter(|it| is_at(it));
            let hosts: BTreeSet<_> = connected.map(|it| &it.host_nqn).collect();
            let hosts = hosts.len();
            effects.push(format!(
                "{hosts} host(s) over RDMA are disconnected and connect again, because queue pairs \
                 belong to a process; the listeners over RDMA are closed and opened again"
            ));
        }
        let drives = self.drives.used();
        if drives > 0 {
            effects.push(format!(
                "{drives} NVMe drive(s) are shut down and opened again: requests of all hosts wait, \
                 and only then the new process checks whether it can continue"
            ));
        }
        let devices = &self.config().devices;
        let ram = devices.iter();
        let ram = ram.filter(|it| matches!(it.backing, Backing::Memory { .. }));
        let ram = ram.count();
        if ram > 0 {
            effects.push(format!("{ram} RAM device(s) keep their content"));
        }
        effects
    }
}
