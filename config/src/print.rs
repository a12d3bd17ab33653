//! Prints a configuration as a file's text.

use std::fmt::{self, Write as _};

use crate::model::{
    Access, AnaEntry, Backing, Config, Device, Export, HostAuthentication, Key, KeySource, Mask,
    Namespace, RateLimit, RateScope,
};
use crate::table::Table;

impl Config {
    /// The configuration as TOML, with all defaults written out. It parses to itself.
    pub fn to_toml(&self) -> String {
        let mut text = String::new();
        // Writing to a String cannot fail.
        let _ = self.write(&mut text);
        text
    }

    fn write(&self, out: &mut String) -> fmt::Result {
        table(out, "[appliance]", &self.appliance)?;
        table(out, "\n[limits]", &self.limits)?;
        table(out, "\n[control]", &self.control)?;
        for item in &self.devices {
            device(out, item)?;
        }
        for item in &self.listeners {
            table(out, "\n[[listener]]", item)?;
        }
        for item in &self.keys {
            key(out, item)?;
        }
        for item in &self.exports {
            export(out, item)?;
        }
        for item in &self.rate_limits {
            rate_limit(out, item)?;
        }
        for item in &self.files.volumes {
            table(out, "\n[[volume]]", item)?;
        }
        for item in &self.files.shares {
            table(out, "\n[[share]]", item)?;
        }
        for item in &self.files.listeners {
            table(out, "\n[[file_listener]]", item)?;
        }
        Ok(())
    }
}

fn rate_limit(out: &mut String, limit: &RateLimit) -> fmt::Result {
    writeln!(out, "\n[[rate_limit]]")?;
    match &limit.scope {
        RateScope::Device(device) => writeln!(out, "device = \"{device}\"")?,
        RateScope::Host(host) => writeln!(out, "host = {}", quoted(host.as_str()))?,
        RateScope::HostAt { host, export } => {
            writeln!(out, "host = {}", quoted(host.as_str()))?;
            writeln!(out, "export = {}", quoted(export.as_str()))?;
        }
    }
    plain_keys(out, limit)
}

fn table(out: &mut String, header: &str, table: &impl Table) -> fmt::Result {
    writeln!(out, "{header}")?;
    plain_keys(out, table)
}

fn plain_keys(out: &mut String, table: &impl Table) -> fmt::Result {
    let lines = table.lines();
    for line in &lines {
        if let Some(value) = &line.value
            && !line.unless.is_some_and(|unless| unless.holds(&lines))
        {
            writeln!(out, "{} = {value}", line.key)?;
        }
    }
    Ok(())
}

fn device(out: &mut String, device: &Device) -> fmt::Result {
    let Device { name, backing, .. } = device;
    writeln!(
        out,
        "\n[[device]]\nname = \"{name}\"\ntype = \"{}\"",
        backing.word()
    )?;
    match backing {
        Backing::Memory { size, .. } | Backing::Null { size, .. } => {
            writeln!(out, "size = \"{size}\"")?;
        }
        Backing::File { path, size, .. } => {
            writeln!(out, "path = {}", quoted(&path.to_string_lossy()))?;
            if let Some(size) = size {
                writeln!(out, "size = \"{size}\"")?;
            }
        }
        Backing::Nvme(drive) => {
            writeln!(out, "pci = \"{}\"", drive.pci)?;
            plain_keys(out, drive)?;
        }
    }
    if let Some(block_size) = backing.block_size() {
        writeln!(out, "block_size = {block_size}")?;
    }
    if let Backing::File { shared, .. } = backing {
        writeln!(out, "shared = {shared}")?;
    }
    plain_keys(out, device)
}

fn export(out: &mut String, export: &Export) -> fmt::Result {
    let Export {
        nqn,
        namespaces,
        listeners,
        access,
        ana,
        masks,
        ..
    } = export;
    writeln!(out, "\n[[export]]\nnqn = {}", quoted(nqn.as_str()))?;
    let counted = namespaces
        .iter()
        .zip(1..)
        .all(|(namespace, nsid)| namespace.nsid == nsid);
    array(out, "devices", namespaces, |namespace| {
        let Namespace {
            nsid,
            device,
            ana_group,
        } = namespace;
        match *ana_group {
            Namespace::ANA_GROUP_DEFAULT if counted => format!("\"{device}\""),
            Namespace::ANA_GROUP_DEFAULT => format!("{{ device = \"{device}\", nsid = {nsid} }}"),
            group => {
                format!("{{ device = \"{device}\", nsid = {nsid}, ana_group = {group} }}")
            }
        }
    })?;
    array(out, "listeners", listeners, |name| format!("\"{name}\""))?;
    match access {
        Access::AnyHost => writeln!(out, "allow_any_host = true")?,
        Access::Hosts(hosts) => array(out, "hosts", hosts, |nqn| {
            match export.authentication_of(nqn) {
                Some(authentication) => host(authentication),
                None => quoted(nqn.as_str()),
            }
        })?,
    }
    if !ana.is_empty() {
        array(out, "ana", ana, ana_entry)?;
    }
    if !masks.is_empty() {
        array(out, "masks", masks, mask)?;
    }
    plain_keys(out, export)
}

fn key(out: &mut String, key: &Key) -> fmt::Result {
    let Key { name, source } = key;
    writeln!(out, "\n[[key]]\nname = \"{name}\"")?;
    match source {
        KeySource::File(path) => writeln!(out, "file = {}", quoted(&path.to_string_lossy())),
        KeySource::Credential(name) => writeln!(out, "credential = \"{name}\""),
    }
}

fn host(authentication: &HostAuthentication) -> String {
    let HostAuthentication {
        host,
        chap,
        chap_controller,
        chap_null_group,
        concatenation,
        requires_chap,
        tls,
        requires_tls,
    } = authentication;
    let mut text = format!("{{ nqn = {}", quoted(host.as_str()));
    // Writing to a String cannot fail.
    for (key, names) in [("chap", chap), ("tls", tls)] {
        if !names.is_empty() {
            let names: Vec<String> = names.iter().map(|name| format!("\"{name}\"")).collect();
            let _ = write!(text, ", {key} = [{}]", names.join(", "));
        }
    }
    if let Some(name) = chap_controller {
        let _ = write!(text, ", chap_controller = \"{name}\"");
    }
    if *chap_null_group {
        text.push_str(", chap_null_group = true");
    }
    if *concatenation {
        text.push_str(", concatenation = true");
    }
    match (requires_chap, requires_tls) {
        (true, true) => text.push_str(", require = [\"chap\", \"tls\"]"),
        (true, false) => text.push_str(", require = [\"chap\"]"),
        (false, true) => text.push_str(", require = [\"tls\"]"),
        (false, false) => {}
    }
    text.push_str(" }");
    text
}

fn mask(mask: &Mask) -> String {
    let Mask {
        hosts,
        devices,
        read_only,
    } = mask;
    let hosts: Vec<String> = hosts.iter().map(|host| quoted(host.as_str())).collect();
    let mut text = format!("{{ hosts = [{}]", hosts.join(", "));
    for (key, names) in [("devices", devices), ("read_only", read_only)] {
        if key == "devices" || !names.is_empty() {
            let names: Vec<String> = names.iter().map(|name| format!("\"{name}\"")).collect();
            // Writing to a String cannot fail.
            let _ = write!(text, ", {key} = [{}]", names.join(", "));
        }
    }
    text.push_str(" }");
    text
}

fn ana_entry(entry: &AnaEntry) -> String {
    let AnaEntry {
        listener,
        group,
        state,
    } = entry;
    let group = group.map_or_else(String::new, |group| format!("group = {group}, "));
    format!(
        "{{ listener = \"{listener}\", {group}state = \"{}\" }}",
        state.word()
    )
}

/// Prints an array: one item on the line of its key, several items on a line each.
fn array<T>(out: &mut String, key: &str, items: &[T], show: impl Fn(&T) -> String) -> fmt::Result {
    match items {
        [] => writeln!(out, "{key} = []"),
        [one] => writeln!(out, "{key} = [{}]", show(one)),
        more => {
            writeln!(out, "{key} = [")?;
            for item in more {
                writeln!(out, "    {},", show(item))?;
            }
            writeln!(out, "]")
        }
    }
}

/// The text as a basic string (TOML 1.0.0, section "String").
pub(crate) fn quoted(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => {
                quoted.push('\\');
                quoted.push(c);
            }
            _ if c.is_control() => {
                let _ = write!(quoted, "\\u{:04X}", u32::from(c));
            }
            _ => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}
