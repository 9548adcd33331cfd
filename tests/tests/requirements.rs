//! The table `tests/requirements.md` is complete and true: every requirement A1 to E11 stands in it, every test it names
//! exists, and every test that carries a requirement's number in its name is named there.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

const TABLE: &str = include_str!("../requirements.md");

/// The last number of each section whose every line must have a test.
const SECTIONS: [(char, u32); 5] = [('A', 14), ('B', 5), ('C', 11), ('D', 14), ('E', 11)];

/// Folders of the workspace that hold tests.
const FOLDERS: [&str; 5] = ["dataplane", "control", "tests", "fuzz", "bench"];

/// What stands before each test; in two parts, so that it does not stand here.
const MARK: &str = concat!("#[", "test]");

/// One line of the table.
struct Row {
    number: String,
    tests: Vec<String>,
    pending: Option<String>,
}

fn rows() -> Vec<Row> {
    let lines = TABLE.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| number"));
    lines
        .map(|line| {
            let cells: Vec<_> = line.trim_matches('|').split('|').map(str::trim).collect();
            let [number, tests, pending] = cells[..] else { panic!("three cells: {line}") };
            let tests = tests.split_whitespace().map(|test| test.trim_matches(['`', ',']).to_owned());
            let pending = Some(pending.to_owned()).filter(|pending| !pending.is_empty());
            Row { number: number.to_owned(), tests: tests.collect(), pending }
        })
        .collect()
}

/// The names of all tests in the sources.
fn tests() -> BTreeSet<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut found = BTreeSet::new();
    FOLDERS.iter().for_each(|folder| collect(&root.join(folder), &mut found));
    found
}

fn collect(folder: &Path, found: &mut BTreeSet<String>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            if path.file_name().is_some_and(|name| name != "target" && name != "corpus") {
                collect(&path, found);
            }
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.extend(tests_of(&std::fs::read_to_string(&path).unwrap()));
        }
    }
}

/// The names of the functions marked as tests.
fn tests_of(source: &str) -> Vec<String> {
    let functions = source.split(MARK).skip(1);
    let name = |rest: &str| {
        let (_, name) = rest.split_once("fn ")?;
        Some(name.split('(').next()?.trim().to_owned())
    };
    functions.filter_map(name).collect()
}

/// The requirements that a test's name carries.
fn numbers_in(test: &str) -> impl Iterator<Item = String> {
    let is_number = |word: &&str| {
        let (letter, digits) = word.split_at(1);
        matches!(letter, "a" | "b" | "c" | "d" | "e" | "f" | "g")
            && (1..=2).contains(&digits.len())
            && digits.bytes().all(|byte| byte.is_ascii_digit())
    };
    test.split('_')
        .filter(|word| word.is_ascii() && !word.is_empty())
        .filter(is_number)
        .map(str::to_uppercase)
}

#[test]
fn every_requirement_has_a_test_or_is_pending_with_a_reason() {
    let rows = rows();
    let known: BTreeMap<&str, &Row> = rows.iter().map(|row| (row.number.as_str(), row)).collect();
    assert_eq!(known.len(), rows.len(), "each number once");
    for (section, last) in SECTIONS {
        for number in 1..=last {
            let name = format!("{section}{number}");
            let row = known.get(name.as_str()).unwrap_or_else(|| panic!("{name} is not in the table"));
            assert!(!row.tests.is_empty() || row.pending.is_some(), "{name} has neither a test nor a reason");
        }
    }
    for (number, reason) in rows.iter().filter_map(|row| Some((&row.number, row.pending.as_ref()?))) {
        windlass_tests::say(&format!("PENDING: {number}: {reason}"));
    }
}

#[test]
fn every_test_named_exists_and_every_test_with_a_number_is_named() {
    let (rows, tests) = (rows(), tests());
    let mut named: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for row in &rows {
        for test in &row.tests {
            assert!(tests.contains(test), "{}: there is no test {test}", row.number);
            named.entry(test).or_default().insert(&row.number);
        }
    }
    for test in &tests {
        for number in numbers_in(test) {
            let rows = named.get(test.as_str());
            assert!(rows.is_some_and(|rows| rows.contains(number.as_str())), "{number} lacks {test}");
        }
    }
}
