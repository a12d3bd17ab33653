//! Moves drives from the kernel's driver to VFIO, and back.
//!
//! Both directions check everything first and change nothing if there is a problem; a change that
//! fails half-way is undone. Only state in the kernel's memory is changed (`driver_override` and
//! the binding: Linux `Documentation/ABI/testing/sysfs-bus-pci`); udev rules can make it permanent.

use std::fmt;
use std::io;
use std::thread;
use std::time::Duration;

use crate::diagnosis::{KERNEL_DRIVER, Nodes, VFIO_DRIVER, holder};
use crate::function::{Function, driver};
use crate::system::System;
use crate::usage::{Usage, Use};
use crate::{PciAddress, Problem};

/// Number and interval of checks while only udev has a disk open.
const UDEV_CHECKS_MAX: u32 = 40;
const UDEV_PAUSE: Duration = Duration::from_millis(if cfg!(test) { 1 } else { 50 });

/// The planned change to one drive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Nothing: it already belongs to the driver.
    Nothing {
        /// The drive.
        address: PciAddress,
        /// The driver to which it belongs.
        driver: String,
    },
    /// Clear `driver_override`: it already belongs to the kernel's driver.
    ClearOverride {
        /// The drive.
        address: PciAddress,
    },
    /// Move it from one driver to another.
    Move {
        /// The drive.
        address: PciAddress,
        /// The current driver.
        from: Option<String>,
        /// The new driver.
        to: &'static str,
        /// Its IOMMU group.
        group: Option<u32>,
    },
}

impl Step {
    /// The drive.
    #[must_use]
    pub fn address(&self) -> PciAddress {
        match self {
            Step::Nothing { address, .. }
            | Step::ClearOverride { address }
            | Step::Move { address, .. } => *address,
        }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Step::Nothing { address, driver } => write!(f, "{address} already belongs to {driver}"),
            Step::ClearOverride { address } => {
                write!(
                    f,
                    "{address} belongs to {KERNEL_DRIVER}: clear its driver_override"
                )
            }
            Step::Move {
                address,
                from,
                to,
                group,
            } => {
                let from = from.as_deref().unwrap_or("no driver");
                write!(f, "{address} from {from} to {to}")?;
                match group {
                    Some(group) => write!(f, " (IOMMU group {group})"),
                    None => Ok(()),
                }
            }
        }
    }
}

/// Drives that can be moved. While it exists, their block devices are opened exclusively, so that
/// no new use can begin.
#[derive(Debug)]
pub struct Takeover {
    system: System,
    steps: Vec<(Step, Usage)>,
}

/// Checks that all of `addresses` can be moved to `vfio-pci`; changes nothing.
///
/// # Errors
/// One problem for each drive that has any.
pub fn plan_bind(system: &System, addresses: &[PciAddress]) -> Result<Takeover, Vec<Problem>> {
    plan(system, addresses, |address| {
        plan_one_bind(system, address, addresses)
    })
}

/// Checks that all of `addresses` can be moved back to the kernel's driver; changes nothing.
///
/// # Errors
/// One problem for each drive that has any.
pub fn plan_unbind(system: &System, addresses: &[PciAddress]) -> Result<Takeover, Vec<Problem>> {
    plan(system, addresses, |address| {
        plan_one_unbind(system, address)
    })
}

fn plan(
    system: &System,
    addresses: &[PciAddress],
    plan_one: impl Fn(PciAddress) -> Result<(Step, Usage), Problem>,
) -> Result<Takeover, Vec<Problem>> {
    let mut steps: Vec<(Step, Usage)> = Vec::new();
    let mut problems = Vec::new();
    for &address in addresses {
        // A drive that is listed twice would conflict with its own claim.
        if steps.iter().any(|(step, _)| step.address() == address) {
            continue;
        }
        match plan_one(address) {
            Ok(step) => steps.push(step),
            Err(problem) => problems.push(problem),
        }
    }
    if !problems.is_empty() {
        return Err(problems);
    }
    Ok(Takeover {
        system: system.clone(),
        steps,
    })
}

fn has_driver(system: &System, name: &str) -> bool {
    system.sysfs(format!("bus/pci/drivers/{name}")).exists()
}

fn plan_one_bind(
    system: &System,
    address: PciAddress,
    all: &[PciAddress],
) -> Result<(Step, Usage), Problem> {
    let function = Function::inspect(system, address)?;
    if function.driver.as_deref() == Some(VFIO_DRIVER) {
        let driver = VFIO_DRIVER.to_owned();
        return Ok((Step::Nothing { address, driver }, Usage::default()));
    }
    let usage = match function.driver.as_deref() {
        Some(KERNEL_DRIVER) | None => claim_unused_after_udev(&function, system)?,
        Some(other) => {
            let driver = other.to_owned();
            return Err(Problem::ForeignDriver { address, driver });
        }
    };
    if function.virtual_functions > 0 {
        let count = function.virtual_functions;
        return Err(Problem::VirtualFunctions { address, count });
    }
    let group = match &function.group {
        Some(group) => group.number,
        None => return Err(Problem::NoIommu { address }),
    };
    let others = function.group_obstacles(all);
    if !others.is_empty() {
        return Err(Problem::GroupShared {
            address,
            group,
            others,
        });
    }
    if !has_driver(system, VFIO_DRIVER) {
        return Err(Problem::NoModule {
            address,
            driver: VFIO_DRIVER,
            module: VFIO_DRIVER,
        });
    }
    let step = Step::Move {
        address,
        from: function.driver,
        to: VFIO_DRIVER,
        group: Some(group),
    };
    Ok((step, usage))
}

/// As [`Function::claim_unused`], but waits until udev has closed the disks.
fn claim_unused_after_udev(function: &Function, system: &System) -> Result<Usage, Problem> {
    for _ in 0..UDEV_CHECKS_MAX {
        match function.claim_unused(system) {
            Err(Problem::InUse { uses, .. }) if uses.iter().all(Use::is_transient) => {
                thread::sleep(UDEV_PAUSE);
            }
            result => return result,
        }
    }
    function.claim_unused(system)
}

fn plan_one_unbind(system: &System, address: PciAddress) -> Result<(Step, Usage), Problem> {
    let function = Function::inspect(system, address)?;
    let group = function.group.as_ref().map(|group| group.number);
    match function.driver.as_deref() {
        Some(KERNEL_DRIVER) if function.driver_override.is_none() => {
            let driver = KERNEL_DRIVER.to_owned();
            return Ok((Step::Nothing { address, driver }, Usage::default()));
        }
        Some(KERNEL_DRIVER) => return Ok((Step::ClearOverride { address }, Usage::default())),
        Some(VFIO_DRIVER) | None => {}
        Some(other) => {
            let driver = other.to_owned();
            return Err(Problem::ForeignDriver { address, driver });
        }
    }
    if function.driver.as_deref() == Some(VFIO_DRIVER) {
        check_not_open(system, address)?;
    }
    if !has_driver(system, KERNEL_DRIVER) {
        return Err(Problem::NoModule {
            address,
            driver: KERNEL_DRIVER,
            module: KERNEL_DRIVER,
        });
    }
    let step = Step::Move {
        address,
        from: function.driver,
        to: KERNEL_DRIVER,
        group,
    };
    Ok((step, Usage::default()))
}

/// Fails if a program has the function's group or device open, because the kernel would wait for
/// it.
fn check_not_open(system: &System, address: PciAddress) -> Result<(), Problem> {
    let nodes = Nodes::of(system, address);
    let by = holder(system, &nodes);
    let probed = match &nodes.group {
        Some(group) => system.operations().probe_group(&system.dev(group)),
        None => Ok(()),
    };
    let is_busy = probed.is_err_and(|error| error.kind() == io::ErrorKind::ResourceBusy);
    if by.is_some() || is_busy {
        return Err(Problem::OpenInProgram { address, by });
    }
    Ok(())
}

impl Takeover {
    /// The planned changes, in order.
    pub fn steps(&self) -> impl ExactSizeIterator<Item = &Step> {
        self.steps.iter().map(|(step, _)| step)
    }

    /// Performs all changes, or none.
    ///
    /// # Errors
    /// The step that failed. The drive and all before it are back with their previous drivers, or
    /// the problem names those that are not.
    pub fn perform(self) -> Result<(), Problem> {
        let Takeover { system, steps } = self;
        let mut done: Vec<Step> = Vec::new();
        for (step, claims) in steps {
            let moved = match &step {
                Step::Nothing { .. } => continue,
                Step::ClearOverride { address } => set_override(&system, *address, None),
                Step::Move {
                    address, from, to, ..
                } => move_to(&system, *address, from.as_deref(), to),
            };
            // The kernel's driver has released the block devices, so the claims can end.
            drop(claims);
            let Err(problem) = moved else {
                done.push(step);
                continue;
            };
            done.push(step);
            let not_restored: Vec<PciAddress> = done
                .into_iter()
                .rev()
                .filter(|step| !undo(&system, step))
                .map(|step| step.address())
                .collect();
            return Err(with_not_restored(problem, &not_restored));
        }
        Ok(())
    }
}

/// Adds the drives that could not be moved back to the problem.
fn with_not_restored(problem: Problem, not_restored: &[PciAddress]) -> Problem {
    match problem {
        Problem::Refused {
            address,
            step,
            cause,
        } if !not_restored.is_empty() => {
            let names: Vec<String> = not_restored.iter().map(ToString::to_string).collect();
            let step = format!("{step} (and {} could not be restored)", names.join(", "));
            Problem::Refused {
                address,
                step,
                cause,
            }
        }
        other => other,
    }
}

/// Writes `text` to an attribute; `step` describes the write in errors.
fn write(
    system: &System,
    address: PciAddress,
    attribute: &str,
    text: &str,
    step: &str,
) -> Result<(), Problem> {
    let path = system.sysfs(format!("bus/pci/{attribute}"));
    system.operations().write(&path, text).map_err(|cause| {
        if !system.sysfs(format!("bus/pci/devices/{address}")).exists() {
            return Problem::NoSuchFunction { address };
        }
        let step = step.to_owned();
        Problem::Refused {
            address,
            step,
            cause,
        }
    })
}

/// Restricts a function to one driver, or clears the restriction.
fn set_override(system: &System, address: PciAddress, only: Option<&str>) -> Result<(), Problem> {
    let attribute = format!("devices/{address}/driver_override");
    match only {
        Some(only) => write(
            system,
            address,
            &attribute,
            only,
            "cannot set driver_override",
        ),
        // An empty line clears it.
        None => write(
            system,
            address,
            &attribute,
            "\n",
            "cannot clear driver_override",
        ),
    }
}

/// Moves a function from the driver `from` to the driver `to`.
fn move_to(
    system: &System,
    address: PciAddress,
    from: Option<&str>,
    to: &str,
) -> Result<(), Problem> {
    let name = address.to_string();
    // Only vfio-pci has to be set: the kernel's driver binds to every function that it supports.
    set_override(system, address, (to == VFIO_DRIVER).then_some(VFIO_DRIVER))?;
    let now = driver(system, address);
    if now.as_deref() == Some(to) {
        return Ok(());
    }
    if now.as_deref() != from {
        let cause = io::Error::other("another driver was bound to it meanwhile");
        let step = "cannot move it".to_owned();
        return Err(Problem::Refused {
            address,
            step,
            cause,
        });
    }
    if let Some(from) = from {
        let step = format!("cannot unbind it from {from}");
        write(
            system,
            address,
            &format!("drivers/{from}/unbind"),
            &name,
            &step,
        )?;
    }
    let step = format!("cannot bind it to {to}");
    write(system, address, "drivers_probe", &name, &step)?;
    if driver(system, address).as_deref() != Some(to) {
        let cause = io::Error::other(format!("{to} did not bind to it (see the kernel's log)"));
        return Err(Problem::Refused {
            address,
            step,
            cause,
        });
    }
    Ok(())
}

/// Undoes a step. Returns whether the function has its previous driver, or none as before.
fn undo(system: &System, step: &Step) -> bool {
    let (address, from, to) = match step {
        Step::Nothing { .. } => return true,
        Step::ClearOverride { address } => {
            return set_override(system, *address, Some(VFIO_DRIVER)).is_ok();
        }
        Step::Move {
            address, from, to, ..
        } => (*address, from, *to),
    };
    let now = driver(system, address);
    if now.is_some() && now != *from && now.as_deref() != Some(to) {
        // Another party bound it to a different driver; leave it there.
        return set_override(system, address, None).is_ok();
    }
    let result = match from {
        Some(from) => move_to(system, address, now.as_deref(), from),
        // It had no driver, so unbind it, and clear the override that would select one.
        None => set_override(system, address, None).and_then(|()| match now {
            Some(now) => {
                let attribute = format!("drivers/{now}/unbind");
                write(system, address, &attribute, &address.to_string(), "undo")
            }
            None => Ok(()),
        }),
    };
    // Only the resulting driver counts: a step that changed nothing needs no undoing, and a
    // function that was removed cannot be moved back.
    let is_gone = matches!(result, Err(Problem::NoSuchFunction { .. }));
    is_gone || driver(system, address).as_ref() == from.as_ref()
}

#[cfg(test)]
mod tests;
