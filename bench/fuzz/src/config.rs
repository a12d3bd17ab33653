//! Configuration text: any file is either accepted or rejected with its problems, and a printed
//! configuration parses to itself.

use appliance_config::Config;

/// Limit of the text length; longer texts reach no new code.
const TEXT_BYTES_MAX: usize = 16 << 10;

/// Parses the text; a valid configuration must survive printing.
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
