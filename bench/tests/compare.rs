//! The whole of `compare`, in its smallest form, where network namespaces can be made.

use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use windlass_tests::netns::{missing_ability, scratch_folder};
use windlass_tests::process::run;

/// One comparison at a time: AF_XDP ports take a core each.
static TURN: Mutex<()> = Mutex::new(());

/// What a comparison left.
struct Compared {
    figures: Value,
    said: String,
    html: String,
}

impl Compared {
    fn rows(&self) -> Result<&Vec<Value>> {
        self.figures["rows"].as_array().context("rows")
    }
}

#[test]
fn compare_measures_two_contestants_and_leaves_no_namespace() -> Result<()> {
    let Some(compared) = compare(&[])? else { return Ok(()) };
    assert_eq!(compared.figures["schema"], windlass_bench::report::json::SCHEMA);
    assert_eq!(compared.rows()?.len(), 2);
    for row in compared.rows()? {
        expect_more_than_nothing(row, "tcp-1/gbit");
    }
    assert!(compared.said.contains("| Windlass, 1 worker |"), "{}", compared.said);
    assert!(compared.html.contains("<svg"));
    Ok(())
}

#[test]
fn the_sweep_over_peers_reaches_a_thousand_of_them() -> Result<()> {
    let Some(compared) = compare(&["--sweep", "peers"])? else { return Ok(()) };
    assert_eq!(compared.figures["base"], "kernel-peers");
    for row in compared.rows()? {
        expect_more_than_nothing(row, "peers-1k/kpps");
    }
    Ok(())
}

#[test]
fn open_vswitch_is_measured_where_it_is_installed() -> Result<()> {
    let only = ["--only", "ovs-afpacket,ovs-afxdp", "--measures", "udp-small-1"];
    let Some(compared) = compare(&only)? else { return Ok(()) };
    for row in compared.rows()? {
        match row["skipped"].as_str() {
            Some(why) => windlass_tests::skipped(why),
            None => expect_more_than_nothing(row, "udp-small-1/kpps"),
        }
    }
    Ok(())
}

/// Runs `compare --smoke` with further arguments, sees it leave no namespace, and gives what it found.
fn compare(arguments: &[&str]) -> Result<Option<Compared>> {
    if let Some(why) = missing_ability() {
        windlass_tests::skipped(&why);
        return Ok(None);
    }
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let folder = scratch_folder("compare")?;
    let (json, html) = (folder.path().join("figures.json"), folder.path().join("report.html"));
    let mut compare = Command::new(env!("CARGO_BIN_EXE_windlass-bench"));
    compare.args(["compare", "--smoke", "--json"]).arg(&json).arg("--html").arg(&html).args(arguments);
    let child = compare.stdout(Stdio::piped()).spawn()?;
    let maker = child.id();
    let output = child.wait_with_output()?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    ensure!(output.status.success(), "{said}");
    let left = run(Command::new("ip").args(["netns", "list"]))?;
    assert!(!left.contains(&format!("wl{maker}-")), "{left}");
    let figures = serde_json::from_slice(&std::fs::read(&json)?)?;
    Ok(Some(Compared { figures, said, html: std::fs::read_to_string(&html)? }))
}

fn expect_more_than_nothing(row: &Value, key: &str) {
    assert_eq!(row["failures"], serde_json::json!([]), "{row:#}");
    let median = row["summaries"][key]["median"].as_f64();
    assert!(median.is_some_and(|median| median > 0.0), "{row:#}");
}
