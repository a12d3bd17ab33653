//! Taking drives from the kernel's driver for VFIO, and giving them back.
//!
//! Both look at everything first and change something only when nothing stands against it; a change
//! that fails half-way is undone. What is changed is only in the kernel's memory (`driver_override`
//! and the binding: Linux `Documentation/ABI/testing/sysfs-bus-pci`): making it last is for udev.

use std::fmt;
use std::io;
use std::thread;
use std::time::Duration;

use crate::diagnosis::{KERNEL_DRIVER, Nodes, VFIO_DRIVER, holder};
use crate::function::{Function, driver};
use crate::system::System;
use crate::usage::{Usage, Use};
use crate::{PciAddress, Problem};

/// How often a disk is looked at again that only udev has open, and how far apart.
const UDEV_LOOKS_MAX: u32 = 40;
const UDEV_PAUSE: Duration = Duration::from_millis(if cfg!(test) { 1 } else { 50 });

/// What will be done to one drive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Nothing: it is where it should be.
    Nothing {
        /// The drive.
        address: PciAddress,
        /// The driver that has it already.
        driver: String,
    },
    /// Letting every driver that knows it have it again: it is with the kernel's already.
    ClearOverride {
        /// The drive.
        address: PciAddress,
    },
    /// From one driver to another.
    Move {
        /// The drive.
        address: PciAddress,
        /// The driver that has it now.
        from: Option<String>,
        /// The driver that will have it.
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

/// Drives that nothing keeps from being moved. While it lives, their block devices are held
/// exclusively, so that nothing begins to use them.
#[derive(Debug)]
pub struct Takeover {
    system: System,
    steps: Vec<(Step, Usage)>,
}

/// Checks that all of `addresses` can be given to `vfio-pci`; nothing is changed.
///
/// # Errors
/// What stands against it, one problem for each drive that has any.
pub fn plan_bind(system: &System, addresses: &[PciAddress]) -> Result<Takeover, Vec<Problem>> {
    plan(system, addresses, |address| {
        plan_one_bind(system, address, addresses)
    })
}

/// Checks that all of `addresses` can be given back to the kernel's driver; nothing is changed.
///
/// # Errors
/// What stands against it, one problem for each drive that has any.
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
        // The same drive twice would find itself claimed by itself.
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
        Some(KERNEL_DRIVER) | None => unused_in_the_end(&function, system)?,
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

/// As [`Function::unused`], once udev has looked at the disks.
fn unused_in_the_end(function: &Function, system: &System) -> Result<Usage, Problem> {
    for _ in 0..UDEV_LOOKS_MAX {
        match function.unused(system) {
            Err(Problem::InUse { uses, .. }) if uses.iter().all(Use::is_passing) => {
                thread::sleep(UDEV_PAUSE);
            }
            result => return result,
        }
    }
    function.unused(system)
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
        not_held(system, address)?;
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

/// Refuses while a program has the function's group or device open: the kernel would wait for it.
fn not_held(system: &System, address: PciAddress) -> Result<(), Problem> {
    let nodes = Nodes::of(system, address);
    let by = holder(system, &nodes);
    let probed = match &nodes.group {
        Some(group) => system.actions().probe_group(&system.dev(group)),
        None => Ok(()),
    };
    let is_busy = probed.is_err_and(|error| error.kind() == io::ErrorKind::ResourceBusy);
    if by.is_some() || is_busy {
        return Err(Problem::Held { address, by });
    }
    Ok(())
}

impl Takeover {
    /// What will be done, in this order.
    pub fn steps(&self) -> impl ExactSizeIterator<Item = &Step> {
        self.steps.iter().map(|(step, _)| step)
    }

    /// Does it: all of it, or nothing.
    ///
    /// # Errors
    /// The step that failed; the drive and all before it are back with the drivers that had them,
    /// or the problem says that they are not.
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
            // The claims end with the block devices, once the kernel's driver has let go.
            drop(claims);
            let Err(problem) = moved else {
                done.push(step);
                continue;
            };
            done.push(step);
            let stranded: Vec<PciAddress> = done
                .into_iter()
                .rev()
                .filter(|step| !undo(&system, step))
                .map(|step| step.address())
                .collect();
            return Err(with_stranded(problem, &stranded));
        }
        Ok(())
    }
}

/// The problem, with the drives that could not be put back.
fn with_stranded(problem: Problem, stranded: &[PciAddress]) -> Problem {
    match problem {
        Problem::Refused {
            address,
            step,
            cause,
        } if !stranded.is_empty() => {
            let names: Vec<String> = stranded.iter().map(ToString::to_string).collect();
            let step = format!("{step} (and {} could not be put back)", names.join(", "));
            Problem::Refused {
                address,
                step,
                cause,
            }
        }
        other => other,
    }
}

/// Writes `text` to an attribute; `step` says what that does.
fn write(
    system: &System,
    address: PciAddress,
    attribute: &str,
    text: &str,
    step: &str,
) -> Result<(), Problem> {
    let path = system.sysfs(format!("bus/pci/{attribute}"));
    system.actions().write(&path, text).map_err(|cause| {
        if !system.sysfs(format!("bus/pci/devices/{address}")).exists() {
            return Problem::NotThere { address };
        }
        let step = step.to_owned();
        Problem::Refused {
            address,
            step,
            cause,
        }
    })
}

/// Lets only one driver have a function, or every one that knows it.
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

/// Takes a function from the driver `from` and gives it to `to`.
fn move_to(
    system: &System,
    address: PciAddress,
    from: Option<&str>,
    to: &str,
) -> Result<(), Problem> {
    let name = address.to_string();
    // Only vfio-pci needs to be named: the kernel's driver takes what it knows.
    set_override(system, address, (to == VFIO_DRIVER).then_some(VFIO_DRIVER))?;
    let now = driver(system, address);
    if now.as_deref() == Some(to) {
        return Ok(());
    }
    if now.as_deref() != from {
        let cause = io::Error::other("another driver got it meanwhile");
        let step = "cannot move it".to_owned();
        return Err(Problem::Refused {
            address,
            step,
            cause,
        });
    }
    if let Some(from) = from {
        let step = format!("cannot take it from {from}");
        write(
            system,
            address,
            &format!("drivers/{from}/unbind"),
            &name,
            &step,
        )?;
    }
    let step = format!("cannot give it to {to}");
    write(system, address, "drivers_probe", &name, &step)?;
    if driver(system, address).as_deref() != Some(to) {
        let cause = io::Error::other(format!("{to} did not take it (the kernel's log says why)"));
        return Err(Problem::Refused {
            address,
            step,
            cause,
        });
    }
    Ok(())
}

/// Puts a function back; whether it is with its old driver, or without one as before.
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
        // Somebody else gave it to another driver: it is theirs to decide.
        return set_override(system, address, None).is_ok();
    }
    let result = match from {
        Some(from) => move_to(system, address, now.as_deref(), from),
        // It had no driver: it gets none back, and nothing that would choose one.
        None => set_override(system, address, None).and_then(|()| match now {
            Some(now) => {
                let attribute = format!("drivers/{now}/unbind");
                write(system, address, &attribute, &address.to_string(), "undo")
            }
            None => Ok(()),
        }),
    };
    // What counts is where it is: a step that changed nothing needs no undoing, and a function that
    // vanished has nowhere to go back to.
    let is_gone = matches!(result, Err(Problem::NotThere { .. }));
    is_gone || driver(system, address).as_ref() == from.as_ref()
}

#[cfg(test)]
mod tests;
