//! The commands, their options, and the destination of log lines.

use std::ffi::OsString;
use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{CommandFactory as _, Parser, Subcommand};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

use crate::appliance::{Appliance, Ending, continue_serving, continue_stored};
use crate::error::Failure;
use crate::handover::launch;
use crate::service::load_configuration;
use crate::signals::RequestReceiver;
use crate::state_directory::StateDirectory;
use crate::terminal::print;
use crate::{
    ana, apply, audit, clients, copy, device, doctor, drives, embedded, evict, key, load, manual,
    reservations, service, signals, status, summary, top, trace, upgrade, volume,
};

/// Longest wait until the listeners of a started appliance answer.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(10);

/// A polled-mode NVMe-oF storage appliance.
#[derive(Parser, Debug)]
#[command(name = "windlass", version, about, max_term_width = 100)]
#[command(after_long_help = manual::FILES_AND_VARIABLES)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Command,
    /// What to log, for example `info`, `debug` or `nvme_tcp=debug`; also WINDLASS_LOG.
    #[arg(long, global = true, env = "WINDLASS_LOG", value_name = "FILTER")]
    pub(crate) log: Option<String>,
}

#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    /// Serve the configuration FILE until SIGTERM or Ctrl-C; without FILE, a RAM and a file
    /// namespace on loopback.
    Run {
        /// The configuration, a TOML file.
        file: Option<PathBuf>,
        /// Where the embedded default keeps its file namespace.
        #[arg(long, value_name = "DIR", conflicts_with = "file")]
        data_dir: Option<PathBuf>,
        /// Continue the process that hands over by the standard input.
        #[arg(long = "continue", hide = true, conflicts_with_all = ["file", "data_dir"])]
        continues: bool,
    },
    /// List the machine's NVMe drives with their drivers, their users and the obstacles to
    /// exporting them.
    Devices(drives::DevicesArguments),
    /// Bind unused drives to vfio-pci, for devices with `type = "nvme"`.
    Bind(drives::BindArguments),
    /// Return drives to the kernel's driver.
    Unbind(drives::UnbindArguments),
    /// Print every problem in FILE, or what a start with it would serve.
    Check {
        /// The configuration, a TOML file.
        file: PathBuf,
    },
    /// Check this machine for a configuration: report what is fine, what costs speed, what is
    /// broken, and how to fix it.
    Doctor(doctor::DoctorArguments),
    /// Apply the configuration FILE to a running appliance, under I/O; or list the necessary steps.
    Apply(apply::ApplyArguments),
    /// Replace the process of a running appliance, for instance by a later version, while hosts over
    /// TCP stay connected.
    Upgrade(upgrade::UpgradeArguments),
    /// Format, check or list the volumes of a configuration, for file exports.
    Volume(volume::VolumeArguments),
    /// Copy a device of a running appliance to another one, while hosts use other devices.
    Copy(copy::CopyArguments),
    /// Return a damaged device of a running appliance to service.
    Device(device::DeviceArguments),
    /// List the reservations of a running appliance's devices, or clear those of one device.
    Reservations(reservations::ReservationsArguments),
    /// List the clients of a running appliance's file shares.
    Clients(clients::ClientsArguments),
    /// Disconnect a host from a running appliance, and unregister it from reservations; or take the
    /// opens and locks of a client of files.
    Evict(evict::EvictArguments),
    /// List the ANA states of a running appliance's exports at their listeners, or set them.
    Ana(ana::AnaArguments),
    /// Make keys for TLS and secrets for DH-HMAC-CHAP, or check those in files.
    Key(key::KeyArguments),
    /// Show the state of a running appliance, on one screen or as JSON.
    Status(status::StatusArguments),
    /// Watch the activity of a running appliance: rates, latencies, reactors, hosts, events.
    Top(top::TopArguments),
    /// Write a trace of the reactors' recent activity, for Perfetto or Chrome.
    Trace(trace::TraceArguments),
    /// Generate load, verify data, measure limits and compare targets: the program `bench`, whose
    /// commands `windlass bench --help` lists.
    #[command(disable_help_flag = true)]
    Bench {
        /// What `bench` is to do.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<OsString>,
    },
    /// Start the process that continues the one that hands over by the standard input.
    #[command(hide = true)]
    LaunchSuccessor,
    /// Write manual pages and completions below DIR, for packages.
    #[command(hide = true)]
    GenerateManual {
        /// Gets `man` and `completions`.
        directory: PathBuf,
    },
}

/// Runs `command`.
pub(crate) fn run(command: Command) -> Result<ExitCode, Failure> {
    match command {
        Command::Run {
            continues: true, ..
        } => {
            let mut signals = signals::RequestReceiver::install()?;
            let appliance = continue_serving(&signals, &StateDirectory::of_user())?;
            print(&summary::ready_text(&appliance));
            serve_until_end(appliance, &mut signals)
        }
        Command::Run { file, data_dir, .. } => {
            // Before there are other threads, because it changes the environment.
            let stored = service::stored_descriptor();
            // Installed first, so that an early SIGTERM ends the start cleanly.
            let mut signals = signals::RequestReceiver::install()?;
            let config = match &file {
                Some(file) => load_configuration(file)?,
                None => embedded::configuration(data_dir.as_deref())?,
            };
            service::status("starting");
            let state = StateDirectory::of_user();
            let continued = stored.and_then(|it| continue_stored(it, &config, &state));
            let mut appliance = match continued {
                Some(appliance) => appliance,
                None => Appliance::start(config, &state)?,
            };
            appliance.accept_requests(signals.request_sender());
            appliance.open_control(file.as_deref());
            serve(appliance, &mut signals)
        }
        Command::Devices(arguments) => drives::devices(&arguments),
        Command::Bind(arguments) => drives::bind(&arguments),
        Command::Unbind(arguments) => drives::unbind(&arguments),
        Command::Doctor(arguments) => doctor::doctor(&arguments),
        Command::Apply(arguments) => apply::apply(&arguments),
        Command::Upgrade(arguments) => upgrade::upgrade(&arguments),
        Command::Volume(arguments) => volume::volume(&arguments),
        Command::Copy(arguments) => copy::copy(&arguments),
        Command::Device(arguments) => device::device(&arguments),
        Command::Reservations(arguments) => reservations::reservations(&arguments),
        Command::Clients(arguments) => clients::clients(&arguments),
        Command::Evict(arguments) => evict::evict(&arguments),
        Command::Ana(arguments) => ana::ana(&arguments),
        Command::Key(arguments) => key::key(&arguments),
        Command::Status(arguments) => status::status(&arguments),
        Command::Top(arguments) => top::top(&arguments),
        Command::Trace(arguments) => trace::trace(&arguments),
        Command::Bench { arguments } => Err(load::become_bench(&arguments)),
        Command::LaunchSuccessor => {
            launch()?;
            Ok(ExitCode::SUCCESS)
        }
        Command::GenerateManual { directory } => {
            manual::generate(&Arguments::command(), &directory)?;
            Ok(ExitCode::SUCCESS)
        }
        Command::Check { file } => {
            let config = load_configuration(&file)?;
            let (text, can_start) = summary::check_text(&file, &config);
            print(&text);
            Ok(ExitCode::from(u8::from(!can_start)))
        }
    }
}

/// Serves until the process receives a request to end. Checks that the exports answer before it
/// reports readiness.
fn serve(appliance: Appliance, signals: &mut RequestReceiver) -> Result<ExitCode, Failure> {
    let (config, addresses) = (appliance.config(), appliance.addresses());
    if let Err(error) = service::wait_until_ready(config, &addresses, RESPONSE_TIMEOUT) {
        appliance.stop(signals);
        return Err(error.into());
    }
    print(&summary::ready_text(&appliance));
    serve_until_end(appliance, signals)
}

fn serve_until_end(
    mut appliance: Appliance,
    signals: &mut RequestReceiver,
) -> Result<ExitCode, Failure> {
    match appliance.serve_until(signals)? {
        Ending::Stop => Ok(appliance.stop(signals)),
        // The next process has the same connections, files and memory.
        Ending::Stored => std::process::exit(0),
        Ending::HandedOver => appliance.leave(),
    }
}

/// Sends log lines to standard error, with colours on a terminal; as a service, to the journal with
/// their fields.
pub(crate) fn log_to_stderr(filter: Option<&str>) {
    let filter =
        EnvFilter::try_new(filter.unwrap_or("info")).unwrap_or_else(|_| EnvFilter::new("info"));
    // An administrator who wants fewer messages still wants to know who changed the appliance.
    let filter = match format!("{}=info", audit::TARGET).parse() {
        Ok(audit_records) => filter.add_directive(audit_records),
        Err(_) => filter,
    };
    let log = tracing_subscriber::registry().with(filter);
    if let Some(journal) = service::journal() {
        return log.with(journal).init();
    }
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .with_target(false)
        .without_time();
    log.with(lines).init();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_line_definition_is_valid() {
        Arguments::command().debug_assert();
    }
}
