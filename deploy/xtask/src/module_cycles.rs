//! Checks that the modules of a crate have no cyclic imports. A module is a file or directory
//! directly in `src/`, with its content. Tests may import anything.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use crate::metadata::Package;
use crate::rust_source::without_comments_and_literals;

/// Crates whose modules are checked.
const CHECKED: [&str; 1] = ["appliance"];

/// The imports of each module.
type Imports = BTreeMap<String, BTreeSet<String>>;

/// The problems of one crate's modules.
pub(crate) fn problems(package: &Package) -> Result<Vec<String>, String> {
    if !CHECKED.contains(&package.name.as_str()) {
        return Ok(Vec::new());
    }
    let source = package.directory().join("src");
    let mut files = Vec::new();
    for path in package.rust_files()? {
        let Ok(inside) = path.strip_prefix(&source) else {
            continue;
        };
        let text = fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
        files.push((inside.display().to_string(), text));
    }
    let import_cycle = import_cycle(&imports(&files));
    let told = import_cycle.map(|modules| format!("{}: {}", package.name, modules.join(" -> ")));
    Ok(told.into_iter().collect())
}

/// The imports among the modules of files, which are named by their paths in `src/`.
fn imports(files: &[(String, String)]) -> Imports {
    let is_root = |path: &str| path == "lib.rs" || path == "main.rs";
    let of_modules = files.iter().filter(|(path, _)| !is_root(path));
    let modules: BTreeSet<String> = of_modules
        .clone()
        .map(|(path, _)| module_of(path))
        .collect();
    let mut imports = Imports::new();
    for (path, text) in of_modules.filter(|(path, _)| !is_test(path)) {
        let module = module_of(path);
        let used = used_modules(text, Path::new(path).components().count());
        let used = used
            .into_iter()
            .filter(|it| modules.contains(it) && *it != module);
        imports.entry(module.clone()).or_default().extend(used);
    }
    imports
}

/// The module of a file.
fn module_of(path: &str) -> String {
    let first = path.split('/').next().unwrap_or(path);
    first.trim_end_matches(".rs").to_owned()
}

fn is_test(path: &str) -> bool {
    path.split('/')
        .any(|part| part == "tests" || part == "tests.rs")
}

/// The names after `crate::`, and after the number of `super::` that leads to the crate's root from
/// a file at module depth `depth`.
fn used_modules(text: &str, depth: usize) -> BTreeSet<String> {
    let code = without_comments_and_literals(text);
    let code = code
        .split("#[cfg(test)]\nmod tests")
        .next()
        .unwrap_or_default();
    let to_root = "super::".repeat(depth);
    let mut used = BTreeSet::new();
    for way in ["crate::", to_root.as_str()] {
        for (at, _) in code.match_indices(way) {
            let begins =
                !code[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_' || c == ':');
            if begins {
                used.extend(first_names(&code[at + way.len()..]));
            }
        }
    }
    used
}

/// The first names of the paths at the beginning of `code`: one path, or several in braces.
fn first_names(code: &str) -> Vec<String> {
    let Some(group) = code.strip_prefix('{') else {
        return vec![first_name(code)];
    };
    let (mut names, mut depth, mut from) = (Vec::new(), 0_usize, 0);
    for (at, c) in group.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth > 0 => depth -= 1,
            ',' if depth > 0 => {}
            ',' | '}' => {
                names.push(first_name(&group[from..at]));
                from = at + 1;
                if c == '}' {
                    break;
                }
            }
            _ => {}
        }
    }
    names
}

fn first_name(path: &str) -> String {
    let path = path.trim_start();
    let end = path.find(|c: char| !(c.is_alphanumeric() || c == '_'));
    path[..end.unwrap_or(path.len())].to_owned()
}

/// A cycle of modules: each imports the next, and the last is the first again.
fn import_cycle(imports: &Imports) -> Option<Vec<String>> {
    let mut done = BTreeSet::new();
    imports
        .keys()
        .find_map(|module| follow(module, imports, &mut Vec::new(), &mut done))
}

fn follow(
    module: &str,
    imports: &Imports,
    way: &mut Vec<String>,
    done: &mut BTreeSet<String>,
) -> Option<Vec<String>> {
    if let Some(begin) = way.iter().position(|it| it == module) {
        let mut found = way[begin..].to_vec();
        found.push(module.to_owned());
        return Some(found);
    }
    if !done.insert(module.to_owned()) {
        return None;
    }
    way.push(module.to_owned());
    let next = imports.get(module).into_iter().flatten();
    let found = next
        .into_iter()
        .find_map(|it| follow(it, imports, way, done));
    way.pop();
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn import_cycle_of(files: &[(&str, &str)]) -> Option<String> {
        let files: Vec<(String, String)> = files
            .iter()
            .map(|(path, text)| ((*path).to_owned(), (*text).to_owned()))
            .collect();
        import_cycle(&imports(&files)).map(|modules| modules.join(" -> "))
    }

    #[test]
    fn cycle_of_three_modules_is_found() {
        let files = [
            ("lib.rs", "mod a; mod b; mod c; use crate::a;"),
            ("a.rs", "use crate::b::Thing;"),
            ("b/deep.rs", "use crate::{x::{y, a}, c};"),
            ("c.rs", "fn f() { super::a::f(); }"),
        ];
        assert_eq!(import_cycle_of(&files).as_deref(), Some("a -> b -> c -> a"));
    }

    #[test]
    fn acyclic_imports_pass() {
        let files = [
            ("a.rs", "use crate::b; use crate::c; use crate::a::own;"),
            ("b.rs", "use crate::c;"),
            (
                "c.rs",
                "//! `crate::a` is above.\nfn f() { \"crate::a\"; ::other_crate::b(); }",
            ),
        ];
        assert_eq!(import_cycle_of(&files), None);
    }

    #[test]
    fn tests_may_import_parent_modules() {
        let files = [
            ("a.rs", "use crate::b;"),
            (
                "b.rs",
                "fn f() {}\n#[cfg(test)]\nmod tests { use crate::a; }",
            ),
            ("b/tests.rs", "use crate::a;"),
            ("b/tests/more.rs", "use crate::a;"),
        ];
        assert_eq!(import_cycle_of(&files), None);
    }

    #[test]
    fn super_chains_are_resolved_to_the_root() {
        let files = [
            ("a/inner.rs", "use super::b; use super::super::c;"),
            ("b.rs", "use crate::a;"),
            ("c.rs", "use crate::a;"),
        ];
        assert_eq!(import_cycle_of(&files).as_deref(), Some("a -> c -> a"));
    }
}
