//! The whole of `scale`, at a small size. It needs no privilege.
#![cfg(target_os = "linux")]

use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use windlass_tests::netns::scratch_folder;

#[test]
fn scale_follows_every_change_and_measures_what_packets_feel() -> Result<()> {
    let folder = scratch_folder("scale-test")?;
    let json = folder.path().join("figures.json");
    let mut scale = Command::new(env!("CARGO_BIN_EXE_windlass-bench"));
    scale.args(["scale", "--nodes", "20", "--services", "30", "--endpoints", "3", "--connections", "2000"]);
    // More changes than services: what was added is taken away again.
    scale
        .args(["--changes-per-second", "200", "--duration-ms", "500", "--workers", "1,2", "--json"])
        .arg(&json);
    let output = scale.output()?;
    let said = String::from_utf8_lossy(&output.stdout);
    ensure!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    let figures: Value = serde_json::from_slice(&std::fs::read(&json)?)?;
    assert_eq!(figures["schema"], windlass_bench::scale::SCHEMA);
    assert_eq!(figures["size"], serde_json::json!({ "nodes": 20, "services": 30, "endpoints": 90 }));
    let events = figures["events"].as_array().context("events")?;
    assert_eq!(events.len(), 2);
    for (workers, events) in (1_u64..).zip(events) {
        assert_eq!((&events["workers"], &events["changes"]), (&workers.into(), &100.into()), "{events:#}");
        for figure in ["p50_ms", "p99_ms", "longest_ms", "published_p99_ms"] {
            more_than_nothing(&events[figure], figure)?;
        }
        for part in ["still", "changing"] {
            more_than_nothing(&events[part]["mpps"], part)?;
            more_than_nothing(&events[part]["longest_own_us"], part)?;
        }
    }
    ensure!(figures["saving"]["connections"].as_u64() > Some(2_000), "those of the worker are there too");
    for figure in ["file_bytes", "gathered_s", "written_s"] {
        more_than_nothing(&figures["saving"][figure], figure)?;
    }
    more_than_nothing(&figures["first"]["tables_bytes"], "tables_bytes")?;
    ensure!(said.contains("| 2 workers, changing |") && said.contains("Method"), "{said}");
    Ok(())
}

fn more_than_nothing(figure: &Value, name: &str) -> Result<()> {
    ensure!(figure.as_f64().is_some_and(|figure| figure > 0.0), "{name}: {figure}");
    Ok(())
}
