//! `windlass devices`, `bind` and `unbind`: the machine's NVMe drives and their drivers.
//!
//! The crate `vfio` does the inspection and the rebinding. Nothing persists here: systemd or udev
//! rebind drives after a reboot, and `bind` prints how.

mod listing;

use std::fmt::Write as _;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use vfio::{PciAddress, Problem, Step, System, Takeover};

use crate::error::Failure;

/// The root of sysfs, procfs and device nodes.
#[derive(Args, Debug)]
struct Root {
    /// A tree with `sys`, `proc` and `dev` in the place of this machine's: for tests.
    #[arg(long, hide = true, value_name = "DIR", default_value = "/")]
    root: PathBuf,
}

impl Root {
    fn system(&self) -> System {
        System::at(&self.root)
    }
}

/// What `devices` takes.
#[derive(Args, Debug)]
pub(crate) struct DevicesArguments {
    /// Print one JSON array, with all that is known of every drive.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    root: Root,
}

/// What `bind` takes.
#[derive(Args, Debug)]
pub(crate) struct BindArguments {
    /// PCI addresses of drives, as `windlass devices` shows them: 0000:3b:00.0.
    #[arg(required = true, value_name = "ADDRESS")]
    addresses: Vec<PciAddress>,
    /// Check everything and say what would be done, but do nothing.
    #[arg(long)]
    dry_run: bool,
    /// The group of users in the udev rule that is shown afterwards.
    #[arg(long, value_name = "NAME", default_value = "windlass")]
    group: String,
    #[command(flatten)]
    root: Root,
}

/// What `unbind` takes.
#[derive(Args, Debug)]
pub(crate) struct UnbindArguments {
    /// PCI addresses of drives, as `windlass devices` shows them: 0000:3b:00.0.
    #[arg(required = true, value_name = "ADDRESS")]
    addresses: Vec<PciAddress>,
    /// Check everything and say what would be done, but do nothing.
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    root: Root,
}

/// Prints every NVMe function with its driver, its users and the obstacles to exporting it.
pub(crate) fn devices(arguments: &DevicesArguments) -> Result<ExitCode, Failure> {
    let drives = listing::list(&arguments.root.system());
    let text = if arguments.json {
        listing::json(&drives)?
    } else {
        listing::table(&drives)
    };
    print(&text)?;
    Ok(ExitCode::SUCCESS)
}

/// Binds drives to `vfio-pci`.
pub(crate) fn bind(arguments: &BindArguments) -> Result<ExitCode, Failure> {
    let system = arguments.root.system();
    let plan =
        vfio::plan_bind(&system, &arguments.addresses).map_err(|problems| all_of(&problems))?;
    let moves = plan
        .steps()
        .any(|step| !matches!(step, Step::Nothing { .. }));
    let mut text = perform(plan, arguments.dry_run)?;
    if moves && !arguments.dry_run {
        text += &hints(&arguments.addresses, &arguments.group);
    }
    print(&text)?;
    Ok(ExitCode::SUCCESS)
}

/// Returns drives to the kernel's driver.
pub(crate) fn unbind(arguments: &UnbindArguments) -> Result<ExitCode, Failure> {
    let system = arguments.root.system();
    let plan =
        vfio::plan_unbind(&system, &arguments.addresses).map_err(|problems| all_of(&problems))?;
    print(&perform(plan, arguments.dry_run)?)?;
    Ok(ExitCode::SUCCESS)
}

/// Writes to standard output; a closed pipe is not an error.
fn print(text: &str) -> Result<(), Failure> {
    match io::stdout().lock().write_all(text.as_bytes()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(()),
    }
}

/// All problems, one line each.
fn all_of(problems: &[Problem]) -> Failure {
    let lines = problems
        .iter()
        .map(|problem| format!("windlass: {problem}\n"));
    lines.collect::<String>().into()
}

/// Executes the plan, or only describes it.
fn perform(plan: Takeover, dry_run: bool) -> Result<String, Failure> {
    let mut text = String::new();
    for step in plan.steps() {
        let would = if dry_run && !matches!(step, Step::Nothing { .. }) {
            "would move "
        } else {
            ""
        };
        writeln!(text, "{would}{step}")?;
    }
    if !dry_run {
        plan.perform().map_err(|problem| all_of(&[problem]))?;
    }
    Ok(text)
}

/// The remaining steps for the administrator: permissions, and binding after a reboot.
fn hints(addresses: &[PciAddress], group: &str) -> String {
    let mut names = String::new();
    for address in addresses {
        let _ = write!(names, " {address}");
    }
    format!(
        "\nOnly root may open them. To allow a service's user, add one line to \
         /etc/udev/rules.d/60-windlass.rules:\n  \
         SUBSYSTEM==\"vfio\", GROUP=\"{group}\", MODE=\"0660\"\n\
         then udevadm control --reload, udevadm trigger --subsystem-match=vfio.\n\
         To have them after every start of the machine, in the service's unit:\n  \
         ExecStartPre=+windlass bind{names}\n"
    )
}

#[cfg(test)]
mod tests;
