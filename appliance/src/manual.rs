//! Generates manual pages and completions from the commands, for packages.

use std::fs;
use std::io;
use std::path::Path;

use clap::Command;
use clap_complete::Shell;

/// The text of the program's own page after its commands.
pub(crate) const FILES_AND_VARIABLES: &str = "\
Files:
  /etc/windlass/windlass.toml   the configuration of the service
  /run/windlass/control.sock    the control socket, for root and the `group` of [control]
  /var/lib/windlass/identities  records that make different content a different disk
  /var/lib/windlass/reservations  reservations that persist through a loss of power
  /var/lib/windlass/file-clients  clients of files that may reclaim locks after a restart

Variables:
  WINDLASS_LOG      what to log, as --log
  WINDLASS_SOCKET   the control socket to ask at, as --socket
  STATE_DIRECTORY   the directory of this state instead of /var/lib/windlass
  XDG_DATA_HOME     has it in windlass/ for an appliance that is not root's
  XDG_RUNTIME_DIR   has windlass/control.sock of an appliance that is not root's";

/// The shells for which completions are generated.
const SHELLS: [Shell; 3] = [Shell::Bash, Shell::Zsh, Shell::Fish];

/// Writes `man` and `completions` in `directory`: a page for each command, a file for each shell.
///
/// # Errors
/// A file cannot be written.
pub(crate) fn generate(command: &Command, directory: &Path) -> io::Result<()> {
    let command = without_hidden(command);
    let (man, completions) = (directory.join("man"), directory.join("completions"));
    fs::create_dir_all(&man)?;
    fs::create_dir_all(&completions)?;
    let name = command.get_name().to_owned();
    for shell in SHELLS {
        clap_complete::generate_to(shell, &mut command.clone(), &name, &completions)?;
    }
    clap_mangen::generate_to(command, man)
}

/// The command without its hidden subcommands.
fn without_hidden(command: &Command) -> Command {
    let shown: Vec<Command> = command
        .get_subcommands()
        .filter(|it| !it.is_hide_set())
        .cloned()
        .collect();
    let bare = Command::new("windlass")
        .version(env!("CARGO_PKG_VERSION"))
        .args(command.get_arguments())
        .subcommands(shown)
        .subcommand_required(true)
        .after_long_help(FILES_AND_VARIABLES);
    match command.get_about() {
        Some(about) => bare.about(about.clone()),
        None => bare,
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;
    use tempfile::TempDir;

    use super::*;
    use crate::command_line::Arguments;

    fn generated() -> TempDir {
        let directory = TempDir::new().expect("a directory");
        generate(&Arguments::command(), directory.path()).expect("writable");
        directory
    }

    #[test]
    fn every_visible_command_has_a_manual_page() {
        let directory = generated();
        let man = directory.path().join("man");
        let command = Arguments::command();
        for one in command.get_subcommands() {
            let page = man.join(format!("windlass-{}.1", one.get_name()));
            assert_eq!(page.exists(), !one.is_hide_set(), "{}", page.display());
        }
        let own = fs::read_to_string(man.join("windlass.1")).expect("a page");
        assert!(own.contains("WINDLASS_SOCKET"), "{own}");
        let status = fs::read_to_string(man.join("windlass-status.1")).expect("a page");
        for part in ["no appliance runs here", "\\-\\-json", "since"] {
            assert!(status.contains(part), "{part} is not in\n{status}");
        }
    }

    #[test]
    fn completions_cover_commands_and_options() {
        let directory = generated();
        let names = ["windlass.bash", "_windlass", "windlass.fish"];
        for name in names {
            let file = directory.path().join("completions").join(name);
            let text = fs::read_to_string(&file).expect("a file");
            for part in ["status", "doctor", "since-start", "reactors"] {
                assert!(text.contains(part), "{part} is not in {name}");
            }
            assert!(!text.contains("generate-manual"), "{name}");
        }
    }

    /// Runs bash to complete a line.
    #[test]
    fn bash_completes_a_command() {
        let directory = generated();
        let file = directory.path().join("completions/windlass.bash");
        let script = format!(
            "source {}; COMP_WORDS=(windlass sta); COMP_CWORD=1; \
             _windlass windlass sta windlass; echo \"${{COMPREPLY[@]}}\"",
            file.display()
        );
        let bash = std::process::Command::new("bash")
            .args(["--norc", "--noprofile", "-c", &script])
            .output()
            .expect("every Debian has bash");
        let printed = String::from_utf8_lossy(&bash.stdout);
        assert_eq!(printed.trim(), "status", "{bash:?}");
    }
}
