//! What each reactor gets on its own thread: its buffers, its device queues, its target core, its
//! transports.

use std::cell::RefCell;
use std::net::TcpListener;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};

use block::{Device, QueueOptions};
use hugemem::Arena;
use nvme_target::{CoreLimits, PortId, Target, TargetCore};
use nvme_tcp::{ConnectionSet, Handoff, Placement, TcpConfig, TcpCounters, TcpTransport};
use reactors::mesh::Port;
use reactors::{InitError, ReactorSetup};

/// Requests that one reactor may have at one device at once.
const DEVICE_QUEUE_DEPTH: usize = 1024;
/// Commands that the queues of one reactor may have outstanding at once, all together: 512 queues of
/// 128 entries. A Connect beyond it is told that the controller is busy.
const COMMANDS_MAX: usize = 65_536;

const _: () = assert!(DEVICE_QUEUE_DEPTH <= block::QUEUE_DEPTH_MAX);

/// What can be handed to any reactor's thread.
pub(crate) struct Parts {
    pub(crate) arena: Arc<Arena>,
    pub(crate) devices: Vec<Arc<dyn Device>>,
    pub(crate) target: Arc<Target>,
    pub(crate) tcp: TcpConfig,
    pub(crate) counters: Vec<Arc<TcpCounters>>,
    pub(crate) placement: Placement,
    /// What only one reactor takes, by its number.
    pub(crate) own: Vec<Mutex<Option<Own>>>,
}

/// What one reactor takes for itself.
pub(crate) struct Own {
    pub(crate) handoffs: Port<Handoff>,
    pub(crate) listeners: Vec<(PortId, TcpListener)>,
}

#[derive(Debug, thiserror::Error)]
enum SetupError {
    #[error("it was set up before")]
    Twice,
    #[error("device {name} gives it no queue")]
    DeviceQueue {
        name: String,
        #[source]
        cause: block::OpenError,
    },
    #[error("its sockets cannot be watched")]
    Sockets(#[from] std::io::Error),
}

/// Sets reactor `index` up.
pub(crate) fn set_up(
    parts: &Parts,
    index: usize,
    setup: &mut ReactorSetup<'_>,
) -> Result<(), InitError> {
    let own = parts.own[index]
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .take();
    let Own {
        mut handoffs,
        listeners,
    } = own.ok_or(SetupError::Twice)?;
    handoffs.attach_all(&setup.wakers());
    let pool = parts.arena.pool(COMMANDS_MAX);
    let mut queues = Vec::new();
    for device in &parts.devices {
        let options = QueueOptions {
            core: index,
            depth: DEVICE_QUEUE_DEPTH,
            pool: pool.clone(),
        };
        let queue = device
            .open_queue(options)
            .map_err(|cause| SetupError::DeviceQueue {
                name: device.name().to_owned(),
                cause,
            })?;
        queues.push(queue);
    }
    let limits = CoreLimits {
        queues_max: parts.tcp.connections_max,
        executions_max: COMMANDS_MAX,
    };
    let core = TargetCore::new(Arc::clone(&parts.target), index, queues, limits);
    let connections = ConnectionSet::new(
        Rc::new(RefCell::new(core)),
        pool,
        parts.tcp.clone(),
        Arc::clone(&parts.counters[index]),
    );
    let reactors = setup.handles().to_vec();
    let mut transport = TcpTransport::new(connections, handoffs, parts.placement.clone(), reactors)
        .map_err(SetupError::Sockets)?;
    for (port, listener) in listeners {
        transport
            .listen(listener, port)
            .map_err(SetupError::Sockets)?;
    }
    setup.register(Box::new(transport))?;
    Ok(())
}
