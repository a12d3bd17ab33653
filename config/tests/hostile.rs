//! Input that no person wrote: wrong encodings, excessive sizes and depths, files without an end.

use std::fmt::Write as _;
use std::path::Path;

use appliance_config::limits::{FILE_BYTES_MAX, PROBLEMS_MAX};
use appliance_config::{Colour, Config, LoadError, Problem, ProblemKind, Problems};

fn problems(bytes: &[u8]) -> Problems {
    let problems = Config::parse_bytes("hostile.toml", bytes).unwrap_err();
    assert!(problems.iter().len() <= PROBLEMS_MAX);
    // The size of the text is bounded for any input.
    assert!(problems.to_string().len() < 1024 * 1024);
    problems
}

fn kinds(bytes: &[u8]) -> Vec<ProblemKind> {
    problems(bytes).iter().map(Problem::kind).collect()
}

/// The three problems of an empty file.
const NOTHING: [ProblemKind; 3] = [ProblemKind::Missing; 3];

#[test]
fn invalid_utf8_byte_is_located() {
    let text = problems(b"[appliance]\nname = \"r\xe4ck\"\n# \xff\n").to_string();
    assert_eq!(
        text,
        "error: the file is not UTF-8: byte 21 is 0xe4\n \
         --> hostile.toml:2:10\n  \
         |\n\
         2 | name = \"r\u{fffd}ck\"\n  \
         |          ^\n  \
         = hint: save it as UTF-8; `file` names the encoding that it has\n\
         \n\
         hostile.toml: 1 problem; its keys are checked once it is TOML\n"
    );
}

#[test]
fn other_encodings_are_refused() {
    let utf16: Vec<u8> = "\u{feff}[appliance]\n"
        .encode_utf16()
        .flat_map(u16::to_le_bytes)
        .collect();
    assert_eq!(kinds(&utf16), [ProblemKind::NotUtf8]);
    assert_eq!(kinds(&[0xff]), [ProblemKind::NotUtf8]);
    assert_eq!(kinds(&[0xc3]), [ProblemKind::NotUtf8]);
    assert_eq!(kinds(b"\xed\xa0\x80"), [ProblemKind::NotUtf8]);
    assert_eq!(kinds(&vec![0x80; FILE_BYTES_MAX]), [ProblemKind::NotUtf8]);
}

#[test]
fn byte_order_mark_is_accepted() {
    assert_eq!(kinds(b"\xef\xbb\xbf"), NOTHING);
    let problems = problems("\u{feff}appliance = 1".as_bytes());
    let place = problems.iter().next().unwrap().place().unwrap().clone();
    assert_eq!((place.line(), place.column()), (1, 13));
}

#[test]
fn nul_bytes_are_syntax_errors() {
    assert_eq!(kinds(b"\0"), [ProblemKind::Syntax]);
    assert_eq!(
        kinds(b"[appliance]\nname = \"a\0b\"\n"),
        [ProblemKind::Syntax]
    );
    assert!(
        kinds(&vec![0; FILE_BYTES_MAX])
            .iter()
            .all(|kind| *kind == ProblemKind::Syntax)
    );
}

#[test]
fn excerpts_contain_no_control_characters() {
    let hostile = "\u{1b}[2J\u{202e}evil\u{7}\r\r\u{85}";
    for text in [
        format!("{hostile} = 1\n"),
        format!("# {hostile}\nname = x{hostile}\n"),
        format!("\"a\\u001b[2J\\u202e\\r\" = '{hostile}'\n"),
        "[appliance]\nname = \"\\u001b[2J\"\nidle = \"\\u001b[2J\\u202e\"\n".to_owned(),
        "[[export]]\ndevices = [\"\\u001b[2J\"]\nnqn = \"nqn.\\u001b[2J\"\n".to_owned(),
        "[[device]]\nname=\"a\"\ntype = \"file\"\npath = \"\\u001b\\u202e\"\n".to_owned(),
    ] {
        let name = "a\u{1b}[2Jb";
        let shown = Config::parse(name, &text).unwrap_err().to_string();
        let moves = |c: char| (c.is_control() && c != '\n') || matches!(c, '\u{202a}'..='\u{202e}');
        assert!(!shown.contains(moves), "{shown:?}");
    }
}

#[test]
fn hints_that_quote_names_contain_no_control_characters() {
    let text = "[[listener]]\nname = \"front\\t\"\n[[export]]\nlisteners = [\"front\"]\n";
    let text = problems(text.as_bytes()).to_string();
    assert!(text.contains("did you mean `front `?"), "{text}");
    let is_harmful = |c: char| c.is_control() && c != '\n';
    assert!(!text.contains(is_harmful), "{text:?}");
}

#[test]
fn file_of_ten_megabytes_is_refused_unread() {
    for line in [
        "[[device]]\nname = \"a\"\n",
        "\u{0}",
        "[",
        "a.",
        "\"\"\"\n",
        "# comment\n",
    ] {
        let text = line.repeat(10 * 1024 * 1024 / line.len());
        assert_eq!(kinds(text.as_bytes()), [ProblemKind::FileTooLarge]);
        let problems = Config::parse("hostile.toml", &text).unwrap_err();
        assert_eq!(
            problems.iter().next().unwrap().kind(),
            ProblemKind::FileTooLarge
        );
    }
    let text = problems(&vec![b' '; 10 * 1024 * 1024]).to_string();
    assert_eq!(
        text,
        "error: the file has 10485760 bytes, the maximum is 1MiB\n \
         --> hostile.toml\n \
         = hint: is this the configuration file?\n\
         \n\
         hostile.toml: 1 problem; its keys are checked once it is TOML\n"
    );
}

#[test]
fn file_of_the_maximum_size_is_accepted() {
    let comment = format!("#{}", " ".repeat(FILE_BYTES_MAX - 1));
    assert_eq!(comment.len(), FILE_BYTES_MAX);
    assert_eq!(kinds(comment.as_bytes()), NOTHING);
    assert_eq!(
        kinds(format!("{comment} ").as_bytes()),
        [ProblemKind::FileTooLarge]
    );
}

#[test]
fn excessive_nesting_is_a_syntax_problem() {
    let deep = |unit: &str, count: usize| unit.repeat(count);
    for text in [
        format!("a = {}", deep("[", 100_000)),
        format!("a = {}{}", deep("[", 100_000), deep("]", 100_000)),
        format!("a = {}", deep("{a=", 100_000)),
        format!("a = {}1{}", deep("{a=", 100_000), deep("}", 100_000)),
        format!("a = {}", deep("[{a=", 100_000)),
        format!("{}a = 1", deep("a.", 300_000)),
        format!("{}a = 1", deep("a . ", 200_000)),
        format!("{}a = 1", deep("\"a\".'b'.", 100_000)),
        format!("[{}a]", deep("a.", 300_000)),
        format!("[[{}a]]", deep("a.", 300_000)),
        format!("x = {{{}a = 1}}", deep("a.", 300_000)),
        format!("x = 1\nx = {{{}a = 1}}", deep("a.", 300_000)),
        format!("x = {}", deep(".", 300_000)),
    ] {
        let start: String = text.chars().take(20).collect();
        let found = kinds(text.as_bytes());
        assert!(found.contains(&ProblemKind::Syntax), "{start}: {found:?}");
    }
}

#[test]
fn maximum_nesting_is_dropped_without_overflow() {
    // The greatest depth that brackets and dotted keys allow together.
    let key = "a.".repeat(14) + "a";
    let text = format!(
        "x = {}1{}",
        format!("{{{key} = ").repeat(70),
        "}".repeat(70)
    );
    assert!(kinds(text.as_bytes()).contains(&ProblemKind::UnknownKey));
}

#[test]
fn many_problems_are_counted() {
    let mut text = String::new();
    for number in 0..10_000 {
        writeln!(text, "k{number} = 1").unwrap();
    }
    let problems = problems(text.as_bytes());
    assert_eq!(problems.count(), 10_003);
    assert_eq!(problems.iter().len(), PROBLEMS_MAX);
    let text = problems.to_string();
    assert!(
        text.ends_with("hostile.toml: 10003 problems, the first 256 shown\n"),
        "{text}"
    );
}

#[test]
fn many_syntax_errors_are_counted() {
    let text = "= 1\n[\n".repeat(10_000);
    let problems = problems(text.as_bytes());
    assert!(
        problems
            .iter()
            .all(|problem| problem.kind() == ProblemKind::Syntax)
    );
    let text = "]\n".repeat(FILE_BYTES_MAX / 2);
    assert_eq!(kinds(text.as_bytes()), [ProblemKind::Syntax]);
}

#[test]
fn table_count_is_limited() {
    for (table, most) in [("device", 128), ("listener", 64), ("export", 128)] {
        let text = format!("[[{table}]]\n").repeat(50_000);
        let problems = problems(text.as_bytes());
        let path = problems
            .iter()
            .find(|problem| problem.kind() == ProblemKind::OutOfRange);
        let path = path.map(|problem| (problem.path(), problem.message()));
        let message = format!("50000 entries, the maximum is {most}");
        assert_eq!(path, Some((table, message.as_str())));
    }
}

#[test]
fn element_count_is_limited() {
    let text = |elements: &str| format!("[[export]]\nhosts = [{elements}]\n");
    let long = text(&"1,".repeat(400_000));
    assert!(kinds(long.as_bytes()).contains(&ProblemKind::OutOfRange));
    let long = text(&format!("\"{}\"", "x".repeat(900_000)));
    assert!(kinds(long.as_bytes()).contains(&ProblemKind::OutOfRange));
    let long = format!("[appliance]\ncores = \"{}\"", "0-8191,".repeat(100_000));
    assert!(kinds(long.as_bytes()).contains(&ProblemKind::OutOfRange));
}

#[test]
fn long_keys_and_lines_are_truncated() {
    let key = "k".repeat(500_000);
    let text = problems(format!("{key} = 1 # {key}").as_bytes()).to_string();
    assert!(
        text.lines().all(|line| line.chars().count() < 200),
        "{}",
        text.len()
    );
}

#[test]
fn colours_do_not_change_the_text() {
    let problems = problems(b"[appliance]\nnam = 1");
    let coloured = problems.display(Colour::Always).to_string();
    assert!(coloured.starts_with(
        "\u{1b}[1;31merror\u{1b}[0m\u{1b}[1m: unknown key `nam`\u{1b}[0m\n\
         \u{1b}[34m -->\u{1b}[0m hostile.toml:2:1\n\
         \u{1b}[34m  |\u{1b}[0m\n\
         \u{1b}[34m2 |\u{1b}[0m nam = 1\n\
         \u{1b}[34m  |\u{1b}[0m \u{1b}[1;31m^^^\u{1b}[0m\n\
         \u{1b}[34m  =\u{1b}[0m at: appliance.nam\n\
         \u{1b}[34m  =\u{1b}[0m \u{1b}[36mhint\u{1b}[0m: did you mean `name`?"
    ));
    let mut plain = coloured;
    for code in ["1;31", "1", "34", "36", "0"] {
        plain = plain.replace(&format!("\u{1b}[{code}m"), "");
    }
    assert_eq!(plain, problems.to_string());
    assert_eq!(plain, problems.display(Colour::Never).to_string());
}

#[test]
fn unreadable_files_are_named() {
    let load = |path: &str| Config::load(Path::new(path)).unwrap_err();
    let missing = load("/nonexistent/windlass.toml");
    assert!(matches!(missing, LoadError::Read { .. }));
    assert_eq!(
        missing.to_string(),
        "/nonexistent/windlass.toml: No such file or directory (os error 2)"
    );
    assert_eq!(load("/").to_string(), "/: Is a directory (os error 21)");
}

#[test]
fn endless_file_is_read_up_to_the_limit() {
    match Config::load(Path::new("/dev/zero")).unwrap_err() {
        LoadError::Problems(problems) => {
            assert_eq!(
                problems.iter().next().unwrap().kind(),
                ProblemKind::FileTooLarge
            );
            assert_eq!(problems.source_name(), "/dev/zero");
        }
        other => panic!("{other}"),
    }
}

#[test]
fn valid_file_is_loaded() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("windlass.toml");
    let text = Config::embedded_text(&folder.path().join("demo.img"));
    std::fs::write(&path, &text).unwrap();
    let config = Config::load(&path).unwrap();
    assert_eq!(config, Config::parse("x", &text).unwrap());
    // CRLF line ends mean the same.
    assert_eq!(
        config,
        Config::parse("x", &text.replace('\n', "\r\n")).unwrap()
    );
}
