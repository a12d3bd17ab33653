//! The configuration's text: whatever is in the file, it is understood or every problem is told; a
//! configuration that was printed is understood as itself.

use appliance_config::Config;

/// Longer texts find nothing that shorter ones do not.
const TEXT_BYTES_MAX: usize = 16 << 10;

/// Parses; what is right must survive being printed.
pub(crate) fn run(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(&input[..input.len().min(TEXT_BYTES_MAX)]) else {
        return;
    };
    match Config::parse("fuzz.toml", text) {
        Ok(config) => {
            let printed = config.to_toml();
            let again = Config::parse("printed.toml", &printed);
            assert_eq!(again.as_ref().ok(), Some(&config), "{printed}");
        }
        Err(problems) => {
            assert!(problems.iter().next().is_some(), "refused without a reason");
            assert!(!problems.to_string().is_empty());
        }
    }
}
