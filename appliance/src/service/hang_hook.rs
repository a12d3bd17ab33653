//! A test hook that hangs a reactor, to test the watchdog. Installed only if an environment
//! variable requests it by name.

use std::io;
use std::time::Duration;

use reactors::ReactorHandle;
use signal_hook::consts::SIGUSR1;
use signal_hook::iterator::Signals;

/// The hook is installed if this variable has the value [`HANG_ON_USR1`].
const VARIABLE: &str = "WINDLASS_TEST_HOOKS";
const HANG_ON_USR1: &str = "stick-on-usr1";

/// If the environment requests it, SIGUSR1 hangs the first reactor forever.
///
/// # Errors
/// The signal handler or its thread cannot be created.
pub(crate) fn install_hang_hook(reactors: &[ReactorHandle]) -> io::Result<()> {
    let is_wanted = std::env::var_os(VARIABLE).is_some_and(|value| value == HANG_ON_USR1);
    let Some(victim) = reactors.first().filter(|_| is_wanted).cloned() else {
        return Ok(());
    };
    let mut signals = Signals::new([SIGUSR1])?;
    tracing::warn!("{VARIABLE}={HANG_ON_USR1}: SIGUSR1 hangs reactor 0");
    std::thread::Builder::new()
        .name("stick".to_owned())
        .spawn(move || {
            for _ in signals.forever() {
                tracing::warn!("test hook: reactor {} hangs from now on", victim.index());
                let accepted = victim.run(Box::new(|_| {
                    loop {
                        // Hangs without load. The test checks that no other thread takes turns for
                        // the reactor.
                        std::thread::sleep(Duration::from_secs(1));
                    }
                }));
                if let Err(error) = accepted {
                    tracing::error!(%error, "test hook: the reactor does not take it");
                }
            }
        })?;
    Ok(())
}
