//! A test hook: makes a reactor stick, to show what the watchdog makes of it. There only where the
//! environment asks for it by name.

use std::io;
use std::time::Duration;

use reactors::ReactorHandle;
use signal_hook::consts::SIGUSR1;
use signal_hook::iterator::Signals;

/// The hook is there where this variable has [`STICK_ON_USR1`] as its value.
const VARIABLE: &str = "WINDLASS_TEST_HOOKS";
const STICK_ON_USR1: &str = "stick-on-usr1";

/// Where the environment asks for it, SIGUSR1 makes the first reactor stick for ever.
///
/// # Errors
/// The signal or a thread for it cannot be had.
pub(crate) fn offer_to_stick(reactors: &[ReactorHandle]) -> io::Result<()> {
    let is_wanted = std::env::var_os(VARIABLE).is_some_and(|value| value == STICK_ON_USR1);
    let Some(victim) = reactors.first().filter(|_| is_wanted).cloned() else {
        return Ok(());
    };
    let mut signals = Signals::new([SIGUSR1])?;
    tracing::warn!("{VARIABLE}={STICK_ON_USR1}: SIGUSR1 makes reactor 0 stick");
    std::thread::Builder::new()
        .name("stick".to_owned())
        .spawn(move || {
            for _ in signals.forever() {
                tracing::warn!("test hook: reactor {} sticks from now on", victim.index());
                let accepted = victim.run(Box::new(|_| {
                    loop {
                        // Stuck without load: what is tested is that nobody else takes turns for
                        // it.
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
