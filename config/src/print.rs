//! A configuration as a file's text.

use std::fmt::{self, Write as _};

use crate::model::{
    Access, Appliance, Backing, Config, Control, Cores, Device, DriveNamespace, Export, Limits,
    Listener, Namespace, Transport,
};

impl Config {
    /// The configuration as TOML, every default written out. It parses to itself.
    pub fn to_toml(&self) -> String {
        let mut text = String::new();
        // Writing to a String cannot fail.
        let _ = self.write(&mut text);
        text
    }

    fn write(&self, out: &mut String) -> fmt::Result {
        appliance(out, &self.appliance)?;
        limits(out, &self.limits)?;
        control(out, &self.control)?;
        for item in &self.devices {
            device(out, item)?;
        }
        for item in &self.listeners {
            listener(out, item)?;
        }
        for item in &self.exports {
            export(out, item)?;
        }
        Ok(())
    }
}

fn appliance(out: &mut String, appliance: &Appliance) -> fmt::Result {
    let Appliance {
        name,
        cores,
        memory,
        pages,
        idle,
        shutdown_deadline,
    } = appliance;
    writeln!(out, "[appliance]\nname = \"{name}\"")?;
    match cores {
        Cores::Auto => writeln!(out, "cores = \"auto\"")?,
        Cores::List(list) => writeln!(out, "cores = \"{list}\"")?,
    }
    writeln!(out, "memory = \"{memory}\"\npages = \"{}\"", pages.word())?;
    writeln!(
        out,
        "idle = \"{}\"\nshutdown_deadline = \"{shutdown_deadline}\"",
        idle.word()
    )
}

fn limits(out: &mut String, limits: &Limits) -> fmt::Result {
    let Limits {
        max_connections,
        max_controllers,
        max_transfer,
        bind_queues,
    } = limits;
    writeln!(out, "\n[limits]\nmax_connections = {max_connections}")?;
    writeln!(
        out,
        "max_controllers = {max_controllers}\nmax_transfer = \"{max_transfer}\"\n\
         bind_queues = {bind_queues}"
    )
}

fn control(out: &mut String, control: &Control) -> fmt::Result {
    let Control {
        socket,
        group,
        http,
        token_file,
        apply,
        allowed_paths,
    } = control;
    let socket = quoted(&socket.to_string());
    writeln!(out, "\n[control]\nsocket = {socket}")?;
    if let Some(group) = group {
        writeln!(out, "group = \"{group}\"")?;
    }
    writeln!(out, "http = \"{http}\"")?;
    if let Some(path) = token_file {
        writeln!(out, "token_file = {}", quoted(&path.to_string_lossy()))?;
    }
    writeln!(out, "apply = {apply}")?;
    match allowed_paths {
        Some(paths) => {
            let paths = paths.iter().map(|path| quoted(&path.to_string_lossy()));
            let paths: Vec<String> = paths.collect();
            writeln!(out, "allowed_paths = [{}]", paths.join(", "))
        }
        None => Ok(()),
    }
}

fn device(out: &mut String, device: &Device) -> fmt::Result {
    let Device {
        name,
        backing,
        read_only,
        uuid,
    } = device;
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
        Backing::Nvme(drive) => drive_namespace(out, drive)?,
    }
    if let Some(block_size) = backing.block_size() {
        writeln!(out, "block_size = {block_size}")?;
    }
    writeln!(out, "read_only = {read_only}")?;
    match uuid {
        Some(uuid) => writeln!(out, "uuid = \"{uuid}\""),
        None => Ok(()),
    }
}

fn drive_namespace(out: &mut String, drive: &DriveNamespace) -> fmt::Result {
    let DriveNamespace {
        pci,
        namespace,
        queue_depth,
        command_deadline,
    } = drive;
    writeln!(out, "pci = \"{pci}\"\nnamespace = {namespace}")?;
    writeln!(
        out,
        "queue_depth = {queue_depth}\ncommand_deadline = \"{command_deadline}\""
    )
}

fn listener(out: &mut String, listener: &Listener) -> fmt::Result {
    let Listener {
        name,
        transport,
        address,
        header_digest,
        data_digest,
        in_capsule_data,
        queue_depth,
        congestion_control,
    } = listener;
    writeln!(
        out,
        "\n[[listener]]\nname = \"{name}\"\ntransport = \"{}\"",
        transport.word()
    )?;
    writeln!(out, "address = \"{address}\"")?;
    if *transport == Transport::Tcp {
        writeln!(out, "header_digest = \"{}\"", header_digest.word())?;
        writeln!(out, "data_digest = \"{}\"", data_digest.word())?;
    }
    writeln!(
        out,
        "in_capsule_data = \"{in_capsule_data}\"\nqueue_depth = {queue_depth}"
    )?;
    match congestion_control {
        Some(name) => writeln!(out, "congestion_control = \"{name}\""),
        None => Ok(()),
    }
}

fn export(out: &mut String, export: &Export) -> fmt::Result {
    let Export {
        nqn,
        namespaces,
        listeners,
        access,
        serial,
        model,
        max_io_queues,
    } = export;
    writeln!(out, "\n[[export]]\nnqn = {}", quoted(nqn.as_str()))?;
    let counted = namespaces
        .iter()
        .zip(1..)
        .all(|(namespace, nsid)| namespace.nsid == nsid);
    array(
        out,
        "devices",
        namespaces,
        |Namespace { nsid, device }| match counted {
            true => format!("\"{device}\""),
            false => format!("{{ device = \"{device}\", nsid = {nsid} }}"),
        },
    )?;
    array(out, "listeners", listeners, |name| format!("\"{name}\""))?;
    match access {
        Access::AnyHost => writeln!(out, "allow_any_host = true")?,
        Access::Hosts(hosts) => array(out, "hosts", hosts, |host| quoted(host.as_str()))?,
    }
    if let Some(serial) = serial {
        writeln!(out, "serial = {}", quoted(serial.as_str()))?;
    }
    writeln!(out, "model = {}", quoted(model.as_str()))?;
    writeln!(out, "max_io_queues = {max_io_queues}")
}

/// One item stands beside its key, more stand one to a line.
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
