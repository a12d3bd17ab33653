//! The kinds of configuration changes: single, compound, and impossible ones.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use super::Change;
use crate::faults::Fault;
use crate::plan::{self, LISTENERS, ServedConfig, device_name};
use crate::storage::Storage;
use crate::world::World;

/// Maximum number of blocks of a growing disk.
const BLOCKS_MAX: u64 = 600;
/// An address that is not available.
const UNAVAILABLE_ADDRESS: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 4999);

impl World {
    /// Changes one part of `wanted`, if possible now.
    pub(super) fn vary(
        &mut self,
        wanted: &mut ServedConfig,
        fault: Fault,
        disk: usize,
        host: usize,
    ) -> bool {
        match fault {
            Fault::Namespaces | Fault::Devices => self.vary_namespace(wanted, fault, disk),
            Fault::Revoke => {
                let shapes = &self.env.swarm.hosts;
                for (number, may_connect) in wanted.hosts.iter_mut().enumerate() {
                    *may_connect ^= shapes[number].identity == shapes[host].identity;
                }
            }
            Fault::Subsystems => {
                let chosen = self.change_random.below(wanted.subsystems.len() as u64);
                wanted.subsystems[chosen as usize] ^= true;
            }
            Fault::Listeners => self.vary_listeners(wanted),
            Fault::Growth => self.vary_size(wanted, disk),
            Fault::Keys => self.vary_key(wanted, disk),
            Fault::Exchange => self.vary_file(wanted, disk),
            Fault::Swap => self.swap_identifiers(wanted, disk),
            Fault::Mask => self.vary_masks(&mut wanted.masks, disk, host),
            Fault::Chap => self.vary_secrets(&mut wanted.secrets, host),
            Fault::Limit => self.vary_limits(&mut wanted.limits, disk, host),
            Fault::Pace => self.vary_targets(&mut wanted.latency_targets),
            _ => {}
        }
        *wanted != self.env.serving
    }

    /// A change of several parts. In one case of four a part of it must fail, so that everything is
    /// undone, except for growth.
    pub(super) fn compound(&mut self, host: usize) -> Option<Change> {
        let parts = [
            Fault::Namespaces,
            Fault::Devices,
            Fault::Revoke,
            Fault::Subsystems,
            Fault::Listeners,
            Fault::Growth,
            Fault::Keys,
        ];
        let mut wanted = self.env.serving.clone();
        for _ in 0..self.change_random.between(2, 4) {
            let fault = self.change_random.pick(&parts);
            let disk = self.change_random.below(self.env.disks.len() as u64) as usize;
            self.vary(&mut wanted, fault, disk, host);
        }
        if self.env.swarm.faults.has(Fault::Mask) && self.mask_random.coin() {
            self.vary_masks(&mut wanted.masks, 0, host);
        }
        if self.env.swarm.faults.has(Fault::Chap) && self.key_random.coin() {
            self.vary_secrets(&mut wanted.secrets, host);
        }
        if self.env.swarm.faults.has(Fault::Limit) && self.limit_random.coin() {
            self.vary_limits(&mut wanted.limits, 0, host);
        }
        if self.env.swarm.faults.has(Fault::Pace) && self.pace_random.coin() {
            self.vary_targets(&mut wanted.latency_targets);
        }
        if wanted == self.env.serving {
            return None;
        }
        if !self.change_random.permille(250) {
            return Some(Change::to(wanted));
        }
        if self.change_random.coin() {
            return self.compound_cut_short(wanted);
        }
        // The listener is possible, but the device is not.
        let spare = self.env.swarm.tcp_listeners;
        let text = wanted.text(&self.env.swarm)
            + &listener("spare", plan::tcp_address(spare))
            + "[[device]]\nname = \"new\"\ntype = \"file\"\npath = \"/simulated/no\"\n";
        Some(Change {
            wanted,
            ..Change::must_fail(&self.env.serving, text)
        })
    }

    /// A compound change that fails when everything but listeners has changed: another process has
    /// taken the address of one.
    fn compound_cut_short(&mut self, mut wanted: ServedConfig) -> Option<Change> {
        let serving = &self.env.serving;
        for disk in 0..self.env.disks.len() {
            // A file that was opened again and extended cannot be opened as before: such a change
            // is not undone (a known limit of the appliance).
            if wanted.read_only[disk] != serving.read_only[disk] {
                wanted.sizes[disk] = serving.sizes[disk];
            }
        }
        let tcp = 0..self.env.swarm.tcp_listeners;
        let both: Vec<usize> = tcp
            .filter(|it| serving.listeners[*it] && wanted.listeners[*it])
            .collect();
        let chosen = (!both.is_empty()).then(|| self.change_random.pick(&both))?;
        self.env.listeners[chosen].fail_next_bind();
        let name = format!("\"{}\"", LISTENERS[chosen]);
        let text = wanted.text(&self.env.swarm).replace(&name, "\"renamed\"");
        let hosts = self.env.swarm.hosts.iter().enumerate();
        let hosts = hosts.filter(|(_, host)| host.listener() == chosen);
        Some(Change {
            hosts: hosts.map(|(number, _)| number).collect(),
            wanted,
            ..Change::must_fail(&self.env.serving, text)
        })
    }

    /// Changes the value of one key.
    fn vary_key(&mut self, wanted: &mut ServedConfig, disk: usize) {
        let subsystem = self.change_random.below(wanted.subsystems.len() as u64) as usize;
        let tcp = self.env.swarm.tcp_listeners as u64;
        let listener = self.change_random.below(tcp) as usize;
        let is_file = matches!(self.env.disks[disk], Storage::Disk(_));
        let is_there = !self.env.disks[disk].needs_restart();
        // Writes that must fail now would succeed afterwards.
        let is_tried = self.hosts.iter().any(|host| host.tries_beyond(disk));
        let is_tried = is_tried || self.env.swarm.disks[disk].read_only;
        let keys = &mut wanted.keys;
        match self.change_random.below(7) {
            0 => keys.io_queues[subsystem] = self.change_random.pick(&[3, 4, 7]),
            1 => keys.identities[subsystem] = self.change_random.below(3),
            2 => keys.any_host[subsystem] ^= true,
            3 => {
                keys.in_capsule[listener] =
                    self.change_random.pick(&[0, plan::IN_CAPSULE_MORE_BYTES]);
            }
            4 => keys.queue_depths[listener] = self.change_random.pick(&[32, 64, 128]),
            5 => {
                // At least what the hosts need.
                let least = self.env.swarm.limits.controllers;
                keys.controllers = self
                    .change_random
                    .pick(&[least, least + least / 2, 2 * least]);
            }
            // Memory is empty after it is opened again, and drives are opened at start only.
            _ if is_file && is_there && !is_tried => wanted.read_only[disk] ^= true,
            _ => {}
        }
    }

    fn vary_namespace(&mut self, wanted: &mut ServedConfig, fault: Fault, disk: usize) {
        let comes = !wanted.namespaces[disk];
        // A device that was pulled out cannot be opened.
        if comes && self.env.disks[disk].needs_restart() {
            return;
        }
        wanted.namespaces[disk] = comes;
        // Drives are opened at start only.
        let goes = fault == Fault::Devices && self.env.disks[disk].can_reopen();
        wanted.devices[disk] = comes || !goes;
    }

    /// Replaces the file of a disk.
    fn vary_file(&mut self, wanted: &mut ServedConfig, disk: usize) {
        let storage = &self.env.disks[disk];
        if matches!(storage, Storage::Disk(_)) && !storage.needs_restart() {
            wanted.files[disk] = self.env.make_file(self.seed, disk);
        }
    }

    /// Two disks of a subsystem swap their namespace identifiers.
    fn swap_identifiers(&mut self, wanted: &mut ServedConfig, disk: usize) {
        let subsystem = self.env.swarm.subsystem_of_disk(disk);
        let disks = self.env.swarm.disks_of(subsystem);
        let is_there = |disk: usize| wanted.namespaces[disk] && !self.is_gone(disk);
        let others = disks.filter(|it| *it != disk && is_there(*it) && is_there(disk));
        let others: Vec<usize> = others.collect();
        if !others.is_empty() {
            let other = self.change_random.pick(&others);
            wanted.nsids.swap(disk, other);
        }
    }

    fn vary_listeners(&mut self, wanted: &mut ServedConfig) {
        let all = ServedConfig::all(&self.env.swarm).listeners;
        let all: Vec<usize> = (0..all.len()).filter(|it| all[*it]).collect();
        let chosen = self.change_random.pick(&all);
        wanted.listeners[chosen] ^= true;
        // An export requires at least one listener.
        wanted.listeners[chosen] |= !wanted.listeners.contains(&true);
    }

    fn vary_size(&mut self, wanted: &mut ServedConfig, disk: usize) {
        let is_disk = self.env.disks[disk].can_reopen();
        let is_there = wanted.devices[disk] && !self.env.disks[disk].needs_restart();
        // Blocks beyond the current end, which must not be accessible, would become so.
        let is_tried = self.hosts.iter().any(|host| host.tries_beyond(disk));
        let more = self.change_random.between(1, 2 * wanted.sizes[disk]);
        let size = &mut wanted.sizes[disk];
        if !is_disk || !is_there || is_tried || *size + more > BLOCKS_MAX {
            return;
        }
        *size += more;
    }

    /// A change that must be rejected, or undone if the problem is only detected while it is
    /// applied.
    pub(super) fn failing_change(&mut self, disk: usize) -> Option<Change> {
        let serving = self.env.serving.clone();
        let swarm = &self.env.swarm;
        let text = serving.text(swarm);
        // Another part of the change removes something, which must stay.
        let mut less = serving.clone();
        less.hosts.fill(false);
        let less = less.text(swarm);
        match self.change_random.below(5) {
            0 => {
                let device =
                    "[[device]]\nname = \"new\"\ntype = \"file\"\npath = \"/simulated/no\"\n";
                Some(Change::must_fail(&serving, less + device))
            }
            1 => {
                // The first listener is possible.
                let spare = listener("first", plan::tcp_address(swarm.tcp_listeners));
                let listener = listener("new", UNAVAILABLE_ADDRESS);
                Some(Change::must_fail(&serving, less + &spare + &listener))
            }
            // Memory of another size is different memory.
            2 if serving.sizes[disk] > 1
                && self.can_be_replaced(disk)
                && !self.env.disks[disk].loses_content_on_close() =>
            {
                let mut smaller = serving.clone();
                smaller.sizes[disk] -= self.change_random.between(1, serving.sizes[disk] - 1);
                let text = smaller.text(&self.env.swarm);
                Some(Change::must_fail(&serving, text))
            }
            3 => {
                let tcp = 0..self.env.swarm.tcp_listeners;
                let tcp = tcp.filter(|it| serving.listeners[*it]);
                let tcp: Vec<usize> = tcp.collect();
                let chosen = (!tcp.is_empty()).then(|| self.change_random.pick(&tcp))?;
                self.env.listeners[chosen].fail_next_bind();
                let hosts = self.env.swarm.hosts.iter().enumerate();
                let hosts = hosts.filter(|(_, host)| host.listener() == chosen);
                let renamed = text.replace(&format!("\"{}\"", LISTENERS[chosen]), "\"renamed\"");
                Some(Change {
                    hosts: hosts.map(|(number, _)| number).collect(),
                    ..Change::must_fail(&serving, renamed)
                })
            }
            4 if self.can_be_replaced(disk) => {
                self.env.disks[disk].fail_next_open();
                let name = format!("name = \"{}\"\n", device_name(disk));
                let uuid = "uuid = \"6d7bfb0e-53a5-4c1c-8c36-0d6a1f7a0d11\"\n";
                // With other identifiers it is another disk, so its hosts are disconnected.
                let subsystem = self.env.swarm.subsystem_of_disk(disk);
                let hosts = self.env.swarm.hosts.iter().enumerate();
                let hosts = hosts.filter(|(_, host)| host.subsystem == subsystem);
                Some(Change {
                    disks: [disk].into(),
                    hosts: hosts.map(|(number, _)| number).collect(),
                    ..Change::must_fail(&serving, text.replace(&name, &(name.clone() + uuid)))
                })
            }
            _ => None,
        }
    }

    /// Whether a disk's device exists and can be closed and opened again.
    pub(super) fn can_be_replaced(&self, disk: usize) -> bool {
        let storage = &self.env.disks[disk];
        let is_disk = storage.can_reopen() && !storage.needs_restart();
        is_disk && self.env.serving.devices[disk]
    }
}

/// The configuration text of a TCP listener.
fn listener(name: &str, address: SocketAddr) -> String {
    format!("[[listener]]\nname = \"{name}\"\ntransport = \"tcp\"\naddress = \"{address}\"\n")
}
