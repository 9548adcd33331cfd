//! The whole of `compare`, in its smallest form, where network namespaces can be made.

use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use windlass_tests::netns::{missing_ability, scratch_folder};
use windlass_tests::process::run;

#[test]
fn compare_measures_two_contestants_and_leaves_no_namespace() -> Result<()> {
    if let Some(why) = missing_ability() {
        windlass_tests::skipped(&why);
        return Ok(());
    }
    let folder = scratch_folder("compare")?;
    let (json, html) = (folder.path().join("figures.json"), folder.path().join("report.html"));
    let mut compare = Command::new(env!("CARGO_BIN_EXE_windlass-bench"));
    compare.args(["compare", "--smoke", "--json"]).arg(&json).arg("--html").arg(&html);
    let child = compare.stdout(std::process::Stdio::piped()).spawn()?;
    let maker = child.id();
    let output = child.wait_with_output()?;
    let said = String::from_utf8_lossy(&output.stdout);
    ensure!(output.status.success(), "{said}");

    let figures: Value = serde_json::from_slice(&std::fs::read(&json)?)?;
    assert_eq!(figures["schema"], windlass_bench::report::json::SCHEMA);
    let rows = figures["rows"].as_array().context("rows")?;
    assert_eq!(rows.len(), 2);
    for row in rows {
        assert_eq!(row["failures"], serde_json::json!([]), "{row:#}");
        let rate = row["summaries"]["tcp-1/gbit"]["median"].as_f64();
        assert!(rate.is_some_and(|rate| rate > 0.0), "{row:#}");
    }
    assert!(said.contains("| Windlass, 1 worker |"), "{said}");
    assert!(std::fs::read_to_string(&html)?.contains("<svg"));
    let left = run(Command::new("ip").args(["netns", "list"]))?;
    assert!(!left.contains(&format!("wl{maker}-")), "{left}");
    Ok(())
}
