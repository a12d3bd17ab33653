//! The effects logs of commands and features: log pages 05h and 12h (Base 2.1 §5.1.12.1.6 and
//! §5.1.12.1.18).

use nvme_spec::command::{AdminOpcode, CommandSet, IoOpcode};
use nvme_spec::log::{CommandEffects, CommandsSupported};
use zerocopy::FromZeros;

use super::{ControllerKind, features};
use crate::admin;

/// Bytes of log page 05h.
pub(crate) const COMMANDS_BYTES: u64 = size_of::<CommandsSupported>() as u64;

/// Log page 12h: four bytes per feature, with the supported bit and the scope at the same positions
/// as for a command.
type FeatureEffects = [CommandEffects; 256];

/// Bytes of log page 12h.
pub(crate) const FEATURES_BYTES: u64 = size_of::<FeatureEffects>() as u64;

/// I/O commands, and whether they change the content of a namespace.
const IO_COMMANDS: [(IoOpcode, bool); 12] = [
    (IoOpcode::FLUSH, false),
    (IoOpcode::WRITE, true),
    (IoOpcode::READ, false),
    (IoOpcode::COMPARE, false),
    (IoOpcode::VERIFY, false),
    (IoOpcode::WRITE_ZEROES, true),
    (IoOpcode::DATASET_MANAGEMENT, true),
    (IoOpcode::COPY, true),
    (IoOpcode::RESERVATION_REGISTER, false),
    (IoOpcode::RESERVATION_REPORT, false),
    (IoOpcode::RESERVATION_ACQUIRE, false),
    (IoOpcode::RESERVATION_RELEASE, false),
];

/// Commands Supported and Effects. The page of an unsupported command set has no I/O commands. It
/// is not an error, because tools read the page of the zoned command set whenever CAP.CSS reports
/// several command sets, and show nothing if that fails.
pub(crate) fn commands(kind: ControllerKind, csi: CommandSet) -> CommandsSupported {
    let mut page = CommandsSupported::new_zeroed();
    let supported = CommandEffects::new().with_csupp(true);
    for opcode in (0..=u8::MAX).map(AdminOpcode) {
        if admin::is_supported(kind, opcode) {
            page.set_admin(opcode, supported);
        }
    }
    for (opcode, changes) in IO_COMMANDS.into_iter().filter(|_| csi == CommandSet::NVM) {
        page.set_io(opcode, supported.with_lbcc(changes));
    }
    page
}

/// Feature Identifiers Supported and Effects.
pub(crate) fn features(kind: ControllerKind) -> FeatureEffects {
    let mut page = [CommandEffects::new(); 256];
    for (fid, namespace) in features::supported(kind) {
        let effects = CommandEffects::new().with_csupp(true);
        page[usize::from(fid.0)] = effects
            .with_scope_namespace(namespace)
            .with_scope_controller(!namespace);
    }
    page
}
