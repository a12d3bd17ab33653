//! The new process of a hand-over (`ARCHITECTURE.md` §9.1): it builds its appliance from what the old
//! one passes, restores the state of its hosts, and serves when the old one says so. The channel is
//! its standard input.
//!
//! If anything fails before, it tells the old process, and ends without releasing anything: the old
//! process has the same locks and sockets.
//!
//! A process of a restarted service takes the same from the descriptor store. If anything fails, it
//! begins anew without it.

use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Command, exit};
use std::sync::Arc;
use std::time::Duration;

use appliance_config::Config;
use nvme_handover::State;
use nvme_handover_channel::{Channel, ChannelError, Left, Message, take};
use rustix::process::{PidfdFlags, getpid, pidfd_open};

use super::{Appliance, Environment};
use crate::error::{Failure, with_causes};
use crate::event_loop::RealTime;
use crate::handover::{Offer, Passed, own_program};
use crate::signals::RequestReceiver;
use crate::state_directory::StateDirectory;

/// Longest wait for the next part of a message: the old process completes requests meanwhile.
const CHANNEL_TIME_MAX: Duration = Duration::from_secs(60);
/// Longest wait until the old process has ended, after which the control socket is free.
const OLD_PROCESS_TIME_MAX: Duration = Duration::from_secs(5);
/// The exit status of a process that does not continue.
const EXIT_NOT_CONTINUED: i32 = 1;

#[derive(Debug, thiserror::Error)]
enum ContinueError {
    #[error("`--continue` is for `windlass upgrade`, which starts the new process itself")]
    NoChannel(#[source] std::io::Error),
    #[error("the old process sent something else than expected")]
    Unexpected,
    #[error(
        "the configuration has changed since it was running; `systemctl reload windlass` would \
         have applied it to the running service"
    )]
    Changed,
}

/// Continues the appliance of the process that started this one. Returns it when it serves; the
/// control plane is not open yet.
///
/// # Errors
/// The standard input is not a channel. Other failures end the process.
pub(crate) fn continue_serving(
    signals: &RequestReceiver,
    state: &StateDirectory,
) -> Result<Appliance, Failure> {
    let channel = inherited_channel().map_err(ContinueError::NoChannel)?;
    report_start(&channel)?;
    let (mut appliance, file) = match take_over(&channel, state) {
        Ok(taken) => taken,
        Err(error) => refuse(&channel, error.as_ref()),
    };
    match channel.receive() {
        Ok(Message::Serve) => {}
        // The old process serves on.
        Ok(_) | Err(_) => exit(EXIT_NOT_CONTINUED),
    }
    serve_hosts(&appliance)?;
    wait_for_end(&channel);
    appliance.accept_requests(signals.request_sender());
    appliance.open_control(file.as_deref());
    Ok(appliance)
}

/// Continues the appliance that an earlier process of this service has left in the descriptor store.
/// Returns it when it serves; the control plane is not open yet. Returns `None` if the stored state
/// is not that of `config`, or not complete: its connections end then.
pub(crate) fn continue_stored(
    stored: UnixStream,
    config: &Config,
    state: &StateDirectory,
) -> Option<Appliance> {
    let stored = match accept(stored, config) {
        Ok(stored) => stored,
        Err(error) => {
            warn_of_new_start(error.as_ref());
            return None;
        }
    };
    match continue_from(stored, state) {
        Ok(appliance) => Some(appliance),
        Err(error) => {
            warn_of_new_start(error.as_ref());
            begin_anew()
        }
    }
}

/// What was stored, in the forms that are used.
struct Stored {
    config: Config,
    passed: Passed,
    target: State,
    hosts: State,
    sockets: Vec<OwnedFd>,
}

/// Takes what was stored, and checks all of it that can be checked without a running appliance.
fn accept(stored: UnixStream, wanted: &Config) -> Result<Stored, Failure> {
    let Left {
        offer,
        offered,
        state,
        passed: sockets,
    } = take(stored)?;
    let offer = Offer::decode(&offer)?;
    let target = nvme_handover_format::decode(&offer.target.0)?;
    let hosts = nvme_handover_format::decode(&state)?;
    let (config, passed) = offer.accept(offered)?;
    if config.to_toml() != wanted.to_toml() {
        return Err(ContinueError::Changed.into());
    }
    Ok(Stored {
        config,
        passed,
        target,
        hosts,
        sockets,
    })
}

fn continue_from(stored: Stored, state: &StateDirectory) -> Result<Appliance, Failure> {
    let environment = Environment::default();
    let appliance = build(
        stored.config,
        stored.passed,
        &stored.target,
        state,
        environment,
    )?;
    let connections = stored.sockets.len();
    let (hosts, sockets) = (stored.hosts, stored.sockets);
    let appliance = keep(appliance, |it| {
        restore_hosts(it, hosts, sockets)?;
        serve_hosts(it)
    })?;
    tracing::info!("{connections} connection(s) continue after the restart");
    Ok(appliance)
}

fn serve_hosts(appliance: &Appliance) -> Result<(), Failure> {
    appliance.tcp.resume(&mut RealTime(|_| {}))?;
    appliance.tcp.set_paused(false);
    appliance.reconciler.open_listeners(&mut RealTime(|_| {}));
    tracing::info!("hosts are served by this process from now on");
    Ok(())
}

fn warn_of_new_start(error: &(dyn std::error::Error + 'static)) {
    tracing::warn!(
        "the state before the restart is not continued, so hosts connect again and RAM devices are \
         empty: {}",
        with_causes(error)
    );
}

/// Replaces this process by the same program with the same arguments, which releases everything.
fn begin_anew() -> ! {
    let program = own_program();
    let mut arguments = std::env::args_os();
    let error = program.map(|program| {
        let mut command = Command::new(program);
        command.args(arguments.by_ref().skip(1)).exec()
    });
    let (Ok(error) | Err(error)) = error;
    tracing::error!("this process cannot begin anew: {error}");
    exit(EXIT_NOT_CONTINUED)
}

/// The standard input, which is replaced.
fn inherited_channel() -> std::io::Result<Channel> {
    let input = std::io::stdin().as_fd().try_clone_to_owned()?;
    rustix::net::sockopt::socket_domain(&input)?;
    let null: OwnedFd = std::fs::File::open("/dev/null")?.into();
    rustix::stdio::dup2_stdin(&null)?;
    Channel::new(UnixStream::from(input), CHANNEL_TIME_MAX)
}

/// Tells the old process which one this is.
fn report_start(channel: &Channel) -> Result<(), Failure> {
    let process = pidfd_open(getpid(), PidfdFlags::empty())?;
    channel.send_started(std::process::id(), process.as_fd())?;
    Ok(())
}

/// Tells the old process why this one does not continue, and ends.
fn refuse(channel: &Channel, error: &(dyn std::error::Error + 'static)) -> ! {
    // The old process has closed the channel after a dry run, or when it serves on.
    let is_over = matches!(error.downcast_ref(), Some(ChannelError::Closed));
    if !is_over {
        let reason = with_causes(error);
        tracing::error!("this process does not continue: {reason}");
        let _ = channel.send_refused(&reason);
    }
    exit(EXIT_NOT_CONTINUED)
}

/// Builds the appliance from the offer of the old process, and restores the state of the hosts. On an
/// appliance with drives, the old process releases them with that state, so it is built then.
fn take_over(
    channel: &Channel,
    state: &StateDirectory,
) -> Result<(Appliance, Option<PathBuf>), Failure> {
    let (bytes, descriptors) = receive_state(channel)?;
    let offer = Offer::decode(&bytes)?;
    let target = nvme_handover_format::decode(&offer.target.0)?;
    let (config, passed) = offer.accept(descriptors)?;
    let has_drives = offer.has_drives(&config);
    let build = || build(config, passed, &target, state, Environment::default());
    let (appliance, hosts) = if has_drives {
        channel.send_restored()?;
        let hosts = receive_state(channel)?;
        (build()?, Ok(hosts))
    } else {
        let appliance = build()?;
        let sent = channel.send_restored().map_err(Failure::from);
        (appliance, sent.and_then(|()| receive_state(channel)))
    };
    let appliance = keep(appliance, |appliance| {
        let (bytes, sockets) = hosts?;
        restore_hosts(appliance, nvme_handover_format::decode(&bytes)?, sockets)?;
        channel.send_restored()?;
        Ok(())
    })?;
    Ok((appliance, offer.file))
}

fn receive_state(channel: &Channel) -> Result<(Vec<u8>, Vec<OwnedFd>), Failure> {
    match channel.receive()? {
        Message::State { bytes, descriptors } => Ok((bytes, descriptors)),
        _ => Err(ContinueError::Unexpected.into()),
    }
}

/// Does a step of an appliance, which is not stopped in the usual way if the step fails: that would
/// end what both processes have.
fn keep(
    appliance: Appliance,
    step: impl FnOnce(&Appliance) -> Result<(), Failure>,
) -> Result<Appliance, Failure> {
    match step(&appliance) {
        Ok(()) => Ok(appliance),
        Err(error) => {
            std::mem::forget(appliance);
            Err(error)
        }
    }
}

/// Builds the appliance from what was passed, and checks that it can continue `target`.
fn build(
    config: Config,
    passed: Passed,
    target: &State,
    state: &StateDirectory,
    environment: Environment<'_>,
) -> Result<Appliance, Failure> {
    let environment = Environment {
        passed: Some(passed),
        ..environment
    };
    let appliance = Appliance::start_with(config, state, environment)?;
    keep(appliance, |it| Ok(it.target.check_handover(target)?))
}

fn restore_hosts(
    appliance: &Appliance,
    state: State,
    sockets: Vec<OwnedFd>,
) -> Result<(), Failure> {
    appliance.target.restore(&state)?;
    let state = Arc::new(state);
    let tcp = &appliance.tcp;
    tcp.restore(&state, sockets, &mut RealTime(|_| {}))?;
    Ok(())
}

/// Waits until the old process has closed the channel with its end.
fn wait_for_end(channel: &Channel) {
    let ended = channel
        .set_limit(OLD_PROCESS_TIME_MAX)
        .map_err(ChannelError::Socket)
        .and_then(|()| channel.receive());
    match ended {
        Err(ChannelError::Closed) => {}
        Ok(_) | Err(_) => {
            tracing::warn!("the old process has not ended within {OLD_PROCESS_TIME_MAX:?}");
        }
    }
}

#[cfg(test)]
impl Appliance {
    /// Does all steps of a hand-over within this process. Returns the appliance that serves then, and
    /// why it is this one, if so.
    pub(crate) fn hand_over_within(
        self,
        state: &StateDirectory,
        environment: Environment<'_>,
    ) -> (Self, Option<Failure>) {
        let event_loop = &mut RealTime(|_| {});
        self.check_upgrade().expect("it can be handed over");
        let (offer, offered) = self.offer().expect("it is offered");
        let offer = Offer::decode(&offer).expect("this version");
        let target = nvme_handover_format::decode(&offer.target.0).expect("this version");
        let (config, passed) = offer.accept(offered).expect("complete");
        let has_drives = offer.has_drives(&config);
        let mut build = Some(|| build(config, passed, &target, state, environment));
        let mut built = build.take_if(|_| !has_drives).map(|build| build());
        if matches!(built, Some(Err(_))) {
            return (self, built.and_then(Result::err));
        }
        self.close_to_hosts(event_loop)
            .expect("hosts are disconnected");
        let (hosts, sockets) = self.export_when_quiet(event_loop).expect("it is quiet");
        self.drives.release(event_loop).expect("they are shut down");
        let built = built.take().or_else(|| Some(build?()));
        let next = match built.expect("one of both") {
            Ok(next) => next,
            Err(error) => {
                self.resume_hosts(event_loop).expect("it serves on");
                return (self, Some(error));
            }
        };
        let sockets = sockets.iter().map(|it| it.as_fd().try_clone_to_owned());
        let sockets = sockets.collect::<Result<_, _>>().expect("descriptors");
        let hosts = nvme_handover_format::decode(&hosts).expect("this version");
        restore_hosts(&next, hosts, sockets).expect("the same hosts");
        // Its process would end.
        std::mem::forget(self);
        serve_hosts(&next).expect("it serves");
        (next, None)
    }

    /// Does the steps of a hand-over until all is quiet, and serves on, as if the new process had
    /// failed then.
    pub(crate) fn fail_to_hand_over(&self) -> Result<(), Failure> {
        let event_loop = &mut RealTime(|_| {});
        self.close_to_hosts(event_loop)?;
        self.export_when_quiet(event_loop)?;
        self.resume_hosts(event_loop)
    }

    /// What an upgrade says to operators.
    pub(crate) fn effects_of_upgrade(&self) -> Vec<String> {
        self.effects()
    }
}
