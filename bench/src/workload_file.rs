//! Workload files: jobs in TOML, each with the options of `bench run` by their names.
//!
//! ```toml
//! together = true                    # all jobs at once; else one after another
//!
//! [defaults]                         # for every job that does not say otherwise
//! address = "192.0.2.10:4420"
//! time = 30
//!
//! [[job]]
//! name = "oltp"
//! block-size = ["4k", "16k"]
//! mix = "70/30"
//! pattern = "zipf:1.1"
//! rate = 50000
//!
//! [[job]]
//! name = "backup"
//! nsid = 2
//! block-size = "128k"
//! pattern = "sequential"
//! mix = "100/0"
//! ```
//!
//! A job is turned into the arguments that one would have typed, so that whatever the command
//! checks and explains, it checks and explains here.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use serde::Deserialize;
use toml::Value;

/// Maximum number of jobs in one file.
const JOBS_MAX: usize = 64;

/// A workload file in its TOML form.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    together: bool,
    #[serde(default)]
    defaults: BTreeMap<String, Value>,
    #[serde(default)]
    job: Vec<JobTable>,
}

#[derive(Debug, Deserialize)]
struct JobTable {
    name: String,
    #[serde(flatten)]
    options: BTreeMap<String, Value>,
}

/// Jobs, and how to run them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkloadFile {
    /// Whether all run concurrently; otherwise one after another.
    pub together: bool,
    /// The jobs, in the order of the file; at least one.
    pub jobs: Vec<Job>,
}

/// One job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Job {
    /// Its unique name.
    pub name: String,
    /// The corresponding arguments of `bench run`.
    pub arguments: Vec<String>,
}

/// An error in a workload file.
#[derive(Debug, thiserror::Error)]
pub enum WorkloadFileError {
    /// It cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The kernel's error.
        source: std::io::Error,
    },
    /// It is not TOML, or contains an unknown key.
    #[error("{}: {source}", path.display())]
    Parse {
        /// The file.
        path: PathBuf,
        /// The position and the error.
        source: Box<toml::de::Error>,
    },
    /// It has no jobs or too many.
    #[error("{}: {found} jobs: a workload has 1 to {JOBS_MAX}, each a table [[job]]", path.display())]
    Jobs {
        /// The file.
        path: PathBuf,
        /// The number of its jobs.
        found: usize,
    },
    /// Two jobs have the same name.
    #[error("{}: two jobs are called '{name}': give each a name of its own", path.display())]
    Twice {
        /// The file.
        path: PathBuf,
        /// The name.
        name: String,
    },
    /// The type of a value is not supported by any option.
    #[error(
        "{}: {key} cannot be {found}: give a text, a number, true or false, or a list of those",
        path.display()
    )]
    Value {
        /// The file.
        path: PathBuf,
        /// The option.
        key: String,
        /// The type of the value.
        found: &'static str,
    },
}

/// Reads a workload file.
///
/// # Errors
/// [`WorkloadFileError`].
pub fn load(path: &Path) -> Result<WorkloadFile, WorkloadFileError> {
    let text = std::fs::read_to_string(path).map_err(|source| WorkloadFileError::Read {
        path: path.to_owned(),
        source,
    })?;
    parse(&text, path)
}

fn parse(text: &str, path: &Path) -> Result<WorkloadFile, WorkloadFileError> {
    let path = path.to_owned();
    let file: File = match toml::from_str(text) {
        Ok(file) => file,
        Err(source) => {
            let source = Box::new(source);
            return Err(WorkloadFileError::Parse { path, source });
        }
    };
    if !(1..=JOBS_MAX).contains(&file.job.len()) {
        let found = file.job.len();
        return Err(WorkloadFileError::Jobs { path, found });
    }
    let mut names = BTreeSet::new();
    let mut jobs = Vec::with_capacity(file.job.len());
    for JobTable { name, options } in file.job {
        if !names.insert(name.clone()) {
            return Err(WorkloadFileError::Twice { path, name });
        }
        let mut merged = file.defaults.clone();
        merged.extend(options);
        let mut arguments = Vec::new();
        for (key, value) in &merged {
            add_argument(&mut arguments, key, value).map_err(|found| {
                let (path, key) = (path.clone(), key.clone());
                WorkloadFileError::Value { path, key, found }
            })?;
        }
        jobs.push(Job { name, arguments });
    }
    Ok(WorkloadFile {
        together: file.together,
        jobs,
    })
}

/// Adds an option with its value. Returns the type of an unsupported value as the error.
fn add_argument(arguments: &mut Vec<String>, key: &str, value: &Value) -> Result<(), &'static str> {
    let option = format!("--{}", key.replace('_', "-"));
    match value {
        Value::Boolean(true) => arguments.push(option),
        Value::Boolean(false) => {}
        Value::Array(items) => {
            let items: Result<Vec<String>, _> = items.iter().map(plain).collect();
            arguments.push(format!("{option}={}", items?.join(",")));
        }
        value => arguments.push(format!("{option}={}", plain(value)?)),
    }
    Ok(())
}

fn plain(value: &Value) -> Result<String, &'static str> {
    match value {
        Value::String(text) => Ok(text.clone()),
        Value::Integer(number) => Ok(number.to_string()),
        Value::Float(number) => Ok(number.to_string()),
        Value::Boolean(_) | Value::Datetime(_) | Value::Array(_) | Value::Table(_) => {
            Err(value.type_str())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<WorkloadFile, String> {
        parse(text, Path::new("w.toml")).map_err(|error| error.to_string())
    }

    #[test]
    fn job_is_converted_to_command_line_arguments() {
        let file = parsed(
            "together = true\n[defaults]\ntime = 2.5\nverify = true\ndepth = 8\n\
             [[job]]\nname = 'a'\nblock_size = ['4k', '16k']\ncores = [1, 2]\n\
             [[job]]\nname = 'b'\ndepth = 64\nverify = false\n",
        )
        .expect("well formed");
        assert!(file.together);
        let of = |index: usize| file.jobs[index].arguments.join(" ");
        assert_eq!(
            of(0),
            "--block-size=4k,16k --cores=1,2 --depth=8 --time=2.5 --verify"
        );
        assert_eq!(of(1), "--depth=64 --time=2.5");
    }

    #[test]
    fn workload_file_errors_are_named() {
        for (text, part) in [
            ("", "0 jobs"),
            ("[[job]]\n", "missing field `name`"),
            (
                "[[job]]\nname='a'\n[[job]]\nname='a'\n",
                "two jobs are called 'a'",
            ),
            ("together = 3\n[[job]]\nname='a'\n", "line 1"),
            ("job = 3\n", "line 1"),
            ("speed = 3\n[[job]]\nname='a'\n", "unknown field `speed`"),
            (
                "[[job]]\nname='a'\ntime = 2026-01-01\n",
                "time cannot be datetime",
            ),
            (
                "[[job]]\nname='a'\ncores = [[1]]\n",
                "cores cannot be array",
            ),
            ("[[job]\n", "line 1"),
        ] {
            let error = parsed(text).expect_err(text);
            assert!(error.contains(part), "{text}: {error}");
        }
        let many: String = (0..65).map(|n| format!("[[job]]\nname='{n}'\n")).collect();
        assert!(parsed(&many).expect_err("too many").contains("65 jobs"));
        let error = load(Path::new("/nonexistent/w.toml")).expect_err("missing");
        assert!(
            error
                .to_string()
                .contains("cannot read /nonexistent/w.toml")
        );
    }
}
