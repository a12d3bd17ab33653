//! The kinds of configuration changes: single, compound, and impossible ones.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use super::Change;
use crate::plan::{self, LISTENERS, Serving, device_name};
use crate::storage::Storage;
use crate::swarm::Fault;
use crate::world::World;

/// Maximum number of blocks of a growing disk.
const BLOCKS_MAX: u64 = 600;
/// An address that is not available.
const NOWHERE: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 4999);

impl World {
    /// Changes one part of `wanted`, if possible now.
    pub(super) fn vary(
        &mut self,
        wanted: &mut Serving,
        fault: Fault,
        disk: usize,
        host: usize,
    ) -> bool {
        match fault {
            Fault::Namespaces | Fault::Devices => self.vary_namespace(wanted, fault, disk),
            Fault::Revoke => {
                let shapes = &self.scene.swarm.hosts;
                for (number, may_connect) in wanted.hosts.iter_mut().enumerate() {
                    *may_connect ^= shapes[number].identity == shapes[host].identity;
                }
            }
            Fault::Subsystems => {
                let chosen = self.changes.below(wanted.subsystems.len() as u64);
                wanted.subsystems[chosen as usize] ^= true;
            }
            Fault::Listeners => self.vary_listeners(wanted),
            Fault::Growth => self.vary_size(wanted, disk),
            Fault::Keys => self.vary_key(wanted, disk),
            Fault::Exchange => self.vary_file(wanted, disk),
            Fault::Swap => self.swap_identifiers(wanted, disk),
            _ => {}
        }
        *wanted != self.scene.serving
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
        let mut wanted = self.scene.serving.clone();
        for _ in 0..self.changes.between(2, 4) {
            let fault = self.changes.pick(&parts);
            let disk = self.changes.below(self.scene.disks.len() as u64) as usize;
            self.vary(&mut wanted, fault, disk, host);
        }
        if wanted == self.scene.serving {
            return None;
        }
        if !self.changes.permille(250) {
            return Some(Change::to(wanted));
        }
        if self.changes.coin() {
            return self.compound_cut_short(wanted);
        }
        // The listener is possible, but the device is not.
        let spare = self.scene.swarm.tcp_listeners;
        let text = wanted.text(&self.scene.swarm)
            + &listener("spare", plan::tcp_address(spare))
            + "[[device]]\nname = \"new\"\ntype = \"file\"\npath = \"/simulated/no\"\n";
        Some(Change {
            wanted,
            ..Change::in_vain(&self.scene.serving, text)
        })
    }

    /// A compound change that fails when everything but listeners has changed: another process has
    /// taken the address of one.
    fn compound_cut_short(&mut self, mut wanted: Serving) -> Option<Change> {
        let serving = &self.scene.serving;
        for disk in 0..self.scene.disks.len() {
            // A file that was opened again and extended cannot be opened as before: such a change
            // is not undone (a known limit of the appliance).
            if wanted.read_only[disk] != serving.read_only[disk] {
                wanted.sizes[disk] = serving.sizes[disk];
            }
        }
        let tcp = 0..self.scene.swarm.tcp_listeners;
        let both: Vec<usize> = tcp
            .filter(|it| serving.listeners[*it] && wanted.listeners[*it])
            .collect();
        let chosen = (!both.is_empty()).then(|| self.changes.pick(&both))?;
        self.scene.listeners[chosen].covet();
        let name = format!("\"{}\"", LISTENERS[chosen]);
        let text = wanted.text(&self.scene.swarm).replace(&name, "\"renamed\"");
        let hosts = self.scene.swarm.hosts.iter().enumerate();
        let hosts = hosts.filter(|(_, host)| host.listener() == chosen);
        Some(Change {
            hosts: hosts.map(|(number, _)| number).collect(),
            wanted,
            ..Change::in_vain(&self.scene.serving, text)
        })
    }

    /// Changes the value of one key.
    fn vary_key(&mut self, wanted: &mut Serving, disk: usize) {
        let subsystem = self.changes.below(wanted.subsystems.len() as u64) as usize;
        let tcp = self.scene.swarm.tcp_listeners as u64;
        let listener = self.changes.below(tcp) as usize;
        let is_file = matches!(self.scene.disks[disk], Storage::Disk(_));
        let is_there = !self.scene.disks[disk].needs_restart();
        // Writes that must fail now would succeed afterwards.
        let is_tried = self.hosts.iter().any(|host| host.tries_beyond(disk));
        let is_tried = is_tried || self.scene.swarm.disks[disk].read_only;
        let keys = &mut wanted.keys;
        match self.changes.below(7) {
            0 => keys.io_queues[subsystem] = self.changes.pick(&[3, 4, 7]),
            1 => keys.identities[subsystem] = self.changes.below(3),
            2 => keys.any_host[subsystem] ^= true,
            3 => keys.in_capsule[listener] = self.changes.pick(&[0, plan::IN_CAPSULE_MORE_BYTES]),
            4 => keys.queue_depths[listener] = self.changes.pick(&[32, 64, 128]),
            5 => {
                // At least what the hosts need.
                let least = self.scene.swarm.limits.controllers;
                keys.controllers = self.changes.pick(&[least, least + least / 2, 2 * least]);
            }
            // Memory is empty after it is opened again, and drives are opened at start only.
            _ if is_file && is_there && !is_tried => wanted.read_only[disk] ^= true,
            _ => {}
        }
    }

    fn vary_namespace(&mut self, wanted: &mut Serving, fault: Fault, disk: usize) {
        let comes = !wanted.namespaces[disk];
        // A device that was pulled out cannot be opened.
        if comes && self.scene.disks[disk].needs_restart() {
            return;
        }
        wanted.namespaces[disk] = comes;
        // Drives are opened at start only.
        let goes = fault == Fault::Devices && self.scene.disks[disk].comes_and_goes();
        wanted.devices[disk] = comes || !goes;
    }

    /// Replaces the file of a disk.
    fn vary_file(&mut self, wanted: &mut Serving, disk: usize) {
        let storage = &self.scene.disks[disk];
        if matches!(storage, Storage::Disk(_)) && !storage.needs_restart() {
            wanted.files[disk] = self.scene.make_file(self.seed, disk);
        }
    }

    /// Two disks of a subsystem swap their namespace identifiers.
    fn swap_identifiers(&mut self, wanted: &mut Serving, disk: usize) {
        let subsystem = self.scene.swarm.subsystem_of_disk(disk);
        let disks = self.scene.swarm.disks_of(subsystem);
        let is_there = |disk: usize| wanted.namespaces[disk] && !self.is_gone(disk);
        let others = disks.filter(|it| *it != disk && is_there(*it) && is_there(disk));
        let others: Vec<usize> = others.collect();
        if !others.is_empty() {
            let other = self.changes.pick(&others);
            wanted.nsids.swap(disk, other);
        }
    }

    fn vary_listeners(&mut self, wanted: &mut Serving) {
        let all = Serving::all(&self.scene.swarm).listeners;
        let all: Vec<usize> = (0..all.len()).filter(|it| all[*it]).collect();
        let chosen = self.changes.pick(&all);
        wanted.listeners[chosen] ^= true;
        // An export requires at least one listener.
        wanted.listeners[chosen] |= !wanted.listeners.contains(&true);
    }

    fn vary_size(&mut self, wanted: &mut Serving, disk: usize) {
        let is_disk = self.scene.disks[disk].comes_and_goes();
        let is_there = wanted.devices[disk] && !self.scene.disks[disk].needs_restart();
        // Blocks beyond the current end, which must not be accessible, would become so.
        let is_tried = self.hosts.iter().any(|host| host.tries_beyond(disk));
        let more = self.changes.between(1, 2 * wanted.sizes[disk]);
        let size = &mut wanted.sizes[disk];
        if !is_disk || !is_there || is_tried || *size + more > BLOCKS_MAX {
            return;
        }
        *size += more;
    }

    /// A change that must be rejected, or undone if the problem is only detected while it is
    /// applied.
    pub(super) fn change_in_vain(&mut self, disk: usize) -> Option<Change> {
        let serving = self.scene.serving.clone();
        let swarm = &self.scene.swarm;
        let text = serving.text(swarm);
        // Another part of the change removes something, which must stay.
        let mut less = serving.clone();
        less.hosts.fill(false);
        let less = less.text(swarm);
        match self.changes.below(5) {
            0 => {
                let device =
                    "[[device]]\nname = \"new\"\ntype = \"file\"\npath = \"/simulated/no\"\n";
                Some(Change::in_vain(&serving, less + device))
            }
            1 => {
                // The first listener is possible.
                let spare = listener("first", plan::tcp_address(swarm.tcp_listeners));
                let listener = listener("new", NOWHERE);
                Some(Change::in_vain(&serving, less + &spare + &listener))
            }
            // Memory of another size is different memory.
            2 if serving.sizes[disk] > 1
                && self.can_be_replaced(disk)
                && !self.scene.disks[disk].forgets() =>
            {
                let mut smaller = serving.clone();
                smaller.sizes[disk] -= self.changes.between(1, serving.sizes[disk] - 1);
                let text = smaller.text(&self.scene.swarm);
                Some(Change::in_vain(&serving, text))
            }
            3 => {
                let tcp = 0..self.scene.swarm.tcp_listeners;
                let tcp = tcp.filter(|it| serving.listeners[*it]);
                let tcp: Vec<usize> = tcp.collect();
                let chosen = (!tcp.is_empty()).then(|| self.changes.pick(&tcp))?;
                self.scene.listeners[chosen].covet();
                let hosts = self.scene.swarm.hosts.iter().enumerate();
                let hosts = hosts.filter(|(_, host)| host.listener() == chosen);
                let renamed = text.replace(&format!("\"{}\"", LISTENERS[chosen]), "\"renamed\"");
                Some(Change {
                    hosts: hosts.map(|(number, _)| number).collect(),
                    ..Change::in_vain(&serving, renamed)
                })
            }
            4 if self.can_be_replaced(disk) => {
                self.scene.disks[disk].covet();
                let name = format!("name = \"{}\"\n", device_name(disk));
                let uuid = "uuid = \"6d7bfb0e-53a5-4c1c-8c36-0d6a1f7a0d11\"\n";
                // With other identifiers it is another disk, so its hosts are disconnected.
                let subsystem = self.scene.swarm.subsystem_of_disk(disk);
                let hosts = self.scene.swarm.hosts.iter().enumerate();
                let hosts = hosts.filter(|(_, host)| host.subsystem == subsystem);
                Some(Change {
                    disks: [disk].into(),
                    hosts: hosts.map(|(number, _)| number).collect(),
                    ..Change::in_vain(&serving, text.replace(&name, &(name.clone() + uuid)))
                })
            }
            _ => None,
        }
    }

    /// Whether a disk's device exists and can be closed and opened again.
    pub(super) fn can_be_replaced(&self, disk: usize) -> bool {
        let storage = &self.scene.disks[disk];
        let is_disk = storage.comes_and_goes() && !storage.needs_restart();
        is_disk && self.scene.serving.devices[disk]
    }
}

/// The configuration text of a TCP listener.
fn listener(name: &str, address: SocketAddr) -> String {
    format!("[[listener]]\nname = \"{name}\"\ntransport = \"tcp\"\naddress = \"{address}\"\n")
}
